package hocket

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/world"
)

// PeerError is an error that names the process that ended a world of processes, or the process whose arrival timed out.
type PeerError = fault.PeerError

// DisagreeError reports that processes have different values where all must have the same value: different programs,
// plans, versions or tables, or a different order of loads and runs.
type DisagreeError = fault.DisagreeError

// ErrLeft is wrapped by errors of a World after Leave.
var ErrLeft = world.ErrLeft

// JoinOptions identifies this process. Fields with the value zero are set from the environment variables that torchrun,
// mpirun, srun or "hocket launch" define.
type JoinOptions struct {
	// Rank is the number of this process, and Size is the number of processes. If Size is 0, Rank, Size and ID are set
	// from the environment.
	Rank, Size int
	// ID identifies the run. ID must be the same in all processes that are started together, and must differ from the
	// ID of other processes of the same user.
	ID string
	// Dir is the directory in which the processes of this host meet. If it is empty, it is set from HOCKET_RUN_DIR, then
	// from XDG_RUNTIME_DIR, and then to the directory for temporary files.
	Dir string
	// Timeout is the longest time that Join waits for the other processes; 0 means HOCKET_JOIN_TIMEOUT or, if that is not
	// set, 60 seconds.
	Timeout time.Duration
	// StallTimeout is the longest time for which a process may give no sign of progress, or make others wait, before the
	// world ends; 0 means HOCKET_STALL_TIMEOUT or, if that is not set, 30 seconds.
	StallTimeout time.Duration
	// Meet is the address, "host:port" on the node of process 0, at which the processes of several nodes meet. Node
	// names the node of this process; the default is the host name. Token is a secret of at least 16 bytes that all
	// processes share. Empty fields are set from the environment. If Meet is not set at all, all processes are on one
	// node.
	Meet, Node, Token string
	// Ranks lists the ranks of programs that this process drives. nil means that ranks are divided evenly among the
	// processes, in order.
	Ranks []int
}

// World is a set of processes that run programs together. Each process drives some of the ranks. A machine that is
// opened with a World distributes the ranks of every model over its processes. All processes must load the same
// programs and run them with the same dims, in the same order. The arguments in each process are either the blocks of
// its own ranks, or whole tensors from which it reads these blocks.
//
// If a process exits or stalls, calls another load or run than the other processes, or aborts a run, then the world
// ends, and all processes get an error that names this process within a bounded time. Models of an ended world can no
// longer run. To continue, start the processes again and join a new World.
type World struct{ w *world.World }

// Join makes this process a member of a new World, and returns when all its processes have joined. If some processes do
// not join within the timeout, the error names them.
func Join(ctx context.Context, opts JoinOptions) (*World, error) {
	o, err := world.FromEnv(os.Getenv)
	if opts.Size > 0 {
		o.Rank, o.Size, o.Local, o.LocalSize, o.ID, err = opts.Rank, opts.Size, opts.Rank, opts.Size, opts.ID, nil
	}
	if err != nil {
		return nil, err
	}
	o.Meet, o.Node, o.Token = cmp.Or(opts.Meet, o.Meet), cmp.Or(opts.Node, o.Node), cmp.Or(opts.Token, o.Token)
	if opts.ID != "" {
		o.ID = opts.ID
	}
	if opts.Dir != "" {
		o.Dir = opts.Dir
	}
	if opts.Timeout > 0 {
		o.JoinTimeout = opts.Timeout
	}
	o.StallTimeout = cmp.Or(opts.StallTimeout, o.StallTimeout)
	o.Ranks = opts.Ranks
	w, err := world.Join(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("joining %d processes as number %d: %w", o.Size, o.Rank, err)
	}
	return &World{w}, nil
}

// Launched returns the number of processes that the environment specifies. It returns 1 if no launcher started this
// process.
func Launched() (int, error) {
	o, err := world.FromEnv(os.Getenv)
	return o.Size, err
}

// Rank returns the number of this process, counted from 0.
func (w *World) Rank() int { return w.w.Process() }

// Size returns the number of processes.
func (w *World) Size() int { return w.w.Processes() }

// Node returns the number of this process's node, counted from 0.
func (w *World) Node() int { return w.w.Node(w.w.Process()) }

// Nodes returns the number of nodes on which the processes run.
func (w *World) Nodes() int { return w.w.Nodes() }

// Err returns the reason why the world has ended, or nil if it has not ended.
func (w *World) Err() error { return w.w.Err() }

// Done returns a channel that is closed when the world has ended.
func (w *World) Done() <-chan struct{} { return w.w.Done() }

// Abort ends the world in all processes. The other processes get an error that names this process and contains cause.
func (w *World) Abort(cause error) { w.w.Abort(cause) }

// Failed publishes an error of this process; nil withdraws it. The world continues. Other processes report the error if
// they wait for this process and it leaves the world or does not arrive.
func (w *World) Failed(err error) { w.w.Failed(err) }

// Same returns nil if all processes call it with the same value. Otherwise it returns the same *DisagreeError in all
// processes. The world continues in both cases. what describes the values in the error. All processes must call Same at
// the same position in their sequence of loads and runs.
func (w *World) Same(ctx context.Context, what, value string) error {
	return w.w.Same(ctx, what, value)
}

// Group returns a World that consists of some processes of w, which are listed in ranks and numbered in that order. All
// of them must call Group with the same name and ranks. A machine that is opened with the group runs models and
// collectives on these processes alone, on the GPUs that they have in w. A process may be in several groups and may use
// them at the same time from several goroutines. If processes use groups in an order that leads to a cycle of waits,
// each process gets, within StallTimeout, a *DisagreeError that contains the call of every process.
//
// Errors name processes by their ranks in w. A failure in a group ends w and all its groups; Leave ends only the group.
// All processes of a group must be on one node.
func (w *World) Group(ctx context.Context, name string, ranks []int) (*World, error) {
	g, err := world.JoinGroup(ctx, w.w, name, ranks)
	if err != nil {
		return nil, fmt.Errorf("group %s of ranks %v: %w", name, ranks, err)
	}
	return &World{g}, nil
}

// Leave announces to the other processes that this process has finished. Call it when the runs of this process have
// ended and its machine is closed. The other processes continue as long as they need nothing from this process. If the
// world has already ended, Leave returns the reason.
func (w *World) Leave() error { return w.w.Leave() }
