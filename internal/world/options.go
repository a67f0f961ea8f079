package world

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

const (
	// MaxProcesses bounds the size of a world.
	MaxProcesses = 256
	// MaxValue bounds what a process hands to Agree.
	MaxValue = 4 << 10

	// beat is the time between two heartbeats of a process.
	beat = 100 * time.Millisecond
)

// Options say who this process is, and how long it waits for others.
type Options struct {
	Rank, Size       int // this process, and how many there are; Size 0 means a world of one
	Local, LocalSize int // likewise among the processes of this node; LocalSize 0 means all

	// ID names the run: equal in all its processes, different in any other run of the user.
	ID string
	// Dir is where processes meet: a folder of this host that all of them can write.
	// Default: XDG_RUNTIME_DIR, or else the folder for temporary files.
	Dir string

	// Meet is where processes of several nodes meet, "host:port": process 0 listens there. Empty for a world
	// of one node. With it Local and LocalSize are found out.
	Meet string
	// MeetFD is the descriptor of a socket that listens at Meet already; 0 for none.
	MeetFD int
	// Node names this process's node: processes of a world with equal names share memory. Default: the host's name.
	Node string
	// Launcher is where the launcher of the processes listens, a local socket; empty for none. See Launcher.
	Launcher string
	// Token is what processes prove to each other over TCP that they know: the same in all of them, secret, and
	// nothing that can be guessed.
	Token string
	// Cert and Key are PEM files of a certificate and its key, the same in all processes: with them each end of
	// a connection between nodes shows that certificate. Empty for none.
	Cert, Key string

	// JoinTimeout is how long Join waits for others. Default: 60 s.
	JoinTimeout time.Duration
	// StallTimeout (T) is how long a process may show no sign of life, or not arrive where
	// others wait for it. Default: 30 s.
	StallTimeout time.Duration

	group *group // of another world's processes; nil for a world of its own

	// Ranks are the program's ranks that this process owns. Default, if no process names any:
	// ranks are split evenly, in contiguous blocks.
	Ranks []int
}

// complete fills in defaults, and refuses what makes no world.
func (o *Options) complete() error {
	o.Size = max(o.Size, 1)
	o.LocalSize = cmp.Or(o.LocalSize, o.Size)
	o.JoinTimeout = cmp.Or(o.JoinTimeout, 60*time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
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

// phase is called between steps that others can see. Tests end processes there.
var phase = func(name string) {}
