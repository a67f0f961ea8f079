package world

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// MaxProcesses is the largest size of a world.
	MaxProcesses = 256
	// MaxValue is the largest size of a value that a process passes to Agree.
	MaxValue = 4 << 10

	// beat is the time between two heartbeats of a process.
	beat = 100 * time.Millisecond
)

// Options describe this process and its world, and limit how long it waits for others.
type Options struct {
	Rank, Size       int // rank of this process, and number of processes; if Size is 0, the world has one process
	Local, LocalSize int // the same among the processes of this node; if LocalSize is 0, this node has all

	// ID names the run. The ID is the same in all processes of the run, and different in every other run of the user.
	ID string
	// Dir is the folder in which processes meet. The folder is on this host, and all processes can write to it.
	// Default: XDG_RUNTIME_DIR, or else the folder for temporary files.
	Dir string

	// Meet is the address, "host:port", where processes of several nodes meet: process 0 listens there. Meet is empty
	// for a world of one node. If Meet is set, Join determines Local and LocalSize.
	Meet string
	// MeetFD is the descriptor of a socket that already listens at Meet; 0 if there is none.
	MeetFD int
	// Node names this process's node: processes of a world with equal names share memory. Default: the host's name.
	Node string
	// Launcher is the address of the local socket on which the launcher of the processes listens;
	// empty if there is none. See Launcher.
	Launcher string
	// Token is a secret that is the same in all processes. Processes on different nodes prove to
	// each other that they know it. It must not be guessable.
	Token string
	// Cert and Key name PEM files with a certificate and its key, the same in all processes. If Cert and Key are set,
	// both ends of a connection between nodes present this certificate. Empty for none.
	Cert, Key string

	// JoinTimeout limits the time for which Join waits for other processes. Default: 60 s.
	JoinTimeout time.Duration
	// StallTimeout limits the time for which other processes wait for a process that sends no heartbeats, or that makes
	// no progress towards an action for which they wait. Default: 30 s.
	StallTimeout time.Duration

	group *group // set if the world is a group of another world's processes

	// Ranks are the program's ranks that this process owns. If no process has such a list, ranks are split evenly, in
	// contiguous blocks.
	Ranks []int
}

// StallTimeout is the default of Options.StallTimeout.
const StallTimeout = 30 * time.Second

// complete sets defaults, and returns an error if the options are invalid.
func (o *Options) complete() error {
	o.Size = max(o.Size, 1)
	o.LocalSize = cmp.Or(o.LocalSize, o.Size)
	o.JoinTimeout = cmp.Or(o.JoinTimeout, 60*time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, StallTimeout)
	switch {
	case o.Size > MaxProcesses:
		return fmt.Errorf("%d processes are too many: at most %d are supported", o.Size, MaxProcesses)
	case o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("rank %d does not exist in a run of %d processes", o.Rank, o.Size)
	case o.LocalSize != o.Size && o.Meet == "":
		return fmt.Errorf("only %d of the %d processes are on this node, so the nodes need an address at which they "+
			"connect: set HOCKET_MEET to host:port in all processes, with the host of process 0 and a free port there",
			o.LocalSize, o.Size)
	case o.Size > 1 && o.ID == "":
		return errors.New("a run of several processes needs an ID: set HOCKET_RUN_ID")
	case o.Size > 1 && o.Meet != "" && (len(o.Token) < minToken || len(o.Token) > maxToken):
		return fmt.Errorf("the run's token has %d bytes, but must have %d to %d: processes of several nodes prove to each other that they "+
			"know this token; set HOCKET_TOKEN to the same secret text in all processes, such as the output of "+
			"openssl rand -hex 16", len(o.Token), minToken, maxToken)
	case (o.Cert == "") != (o.Key == ""):
		return errors.New("TLS needs a certificate and its key: set HOCKET_TLS_CERT and HOCKET_TLS_KEY")
	}
	return nil
}

// distinct is advice about giving each run a separate ID.
const distinct = "give each process its own rank, and each job that runs on this host its own ID " +
	"(HOCKET_RUN_ID; under torchrun or by hand MASTER_ADDR and MASTER_PORT)"

// meetingPlace returns the folder in which processes of this host meet, and the variable that names it. dir is
// Options.Dir.
func meetingPlace(dir string) (base, variable string) {
	if dir != "" {
		return dir, "HOCKET_RUN_DIR, or the option dir,"
	}
	if base = os.Getenv("XDG_RUNTIME_DIR"); base != "" {
		return base, "XDG_RUNTIME_DIR"
	}
	return os.TempDir(), "TMPDIR"
}

// run returns the name of the run for errors.
func (o *Options) run() string { return runOf(o.ID) }

// awaiting describes, after a semicolon, which run this process waits for and where. The text is empty for a group,
// whose processes have met already.
func (o *Options) awaiting() string {
	place, _ := meetingPlace(o.Dir)
	place = "in " + place
	switch {
	case o.group != nil:
		return ""
	case o.Meet != "":
		place = "at " + o.Meet
	}
	return fmt.Sprintf("; rank %d waits for %s %s", o.Rank, o.run(), place)
}

func runOf(id string) string { return fmt.Sprintf("run %q", id) }

// phase is called between actions that other processes can observe. Tests replace it to end processes at these
// positions.
var phase = func(name string) {}
