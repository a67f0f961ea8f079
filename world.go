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

// PeerError is the error that names the process which ended a world of processes, or which is waited
// for in vain.
type PeerError = fault.PeerError

// DisagreeError is the error about processes that have different values where all must have the same:
// another program, plan, version or table, or another order of loads and runs.
type DisagreeError = fault.DisagreeError

// ErrLeft is wrapped by what a World returns after Leave.
var ErrLeft = world.ErrLeft

// JoinOptions say which process this is; the zero value takes all of it from the environment, as
// torchrun, mpirun, srun or "hocket launch" set it.
type JoinOptions struct {
	// Rank is this process's number, and Size how many there are. Where Size is 0 both, and ID, are
	// the environment's.
	Rank, Size int
	// ID names the run: equal in all its processes, and in no other run of the user.
	ID string
	// Dir is the folder in which processes of this host meet; empty for HOCKET_RUN_DIR, or else
	// XDG_RUNTIME_DIR or the folder of temporary files.
	Dir string
	// Timeout is how long Join waits for the others; 0 means 60 seconds, or HOCKET_JOIN_TIMEOUT.
	Timeout time.Duration
	// StallTimeout is how long a process may show no sign of life, or not come to where others wait for
	// it, before the world ends; 0 means 30 seconds, or HOCKET_STALL_TIMEOUT.
	StallTimeout time.Duration
	// Meet is where processes of several nodes meet, "host:port", at process 0; Node names this process's
	// node, by default its host; Token is a secret of at least 16 bytes that all have. Where they are empty they are
	// the environment's, and where that has no Meet all processes are of one node.
	Meet, Node, Token string
	// Ranks are those of programs that this process drives; nil for an even split, in order.
	Ranks []int
}

// World is a set of processes that run programs together, each some of the ranks. A machine that is
// opened with it spreads the ranks of every model over them: all processes load the same programs and
// run them with the same dims, in the same order, and each is given its own blocks of tensors, or whole
// tensors, of which it takes its own blocks.
//
// When a process dies, stops, comes to another load or run than the others, or aborts a run, all of them
// get an error that names it, in bounded time, and the world has ended: what was loaded cannot run any
// more. Join anew, by a new launch, to go on.
type World struct{ w *world.World }

// Join makes this process one of several, and returns when all have come. It fails, and names who is
// absent, when they have not in time.
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

// Launched returns how many processes the environment says that there are; 1 where no launcher started
// this one.
func Launched() (int, error) {
	o, err := world.FromEnv(os.Getenv)
	return o.Size, err
}

// Rank returns this process's number, from 0, and Size how many there are.
func (w *World) Rank() int { return w.w.Process() }

// Size returns how many processes there are.
func (w *World) Size() int { return w.w.Processes() }

// Node returns this process's node, from 0, and Nodes how many there are.
func (w *World) Node() int { return w.w.Node(w.w.Process()) }

// Nodes returns how many nodes the processes are on.
func (w *World) Nodes() int { return w.w.Nodes() }

// Err returns why the world has ended; nil while it has not.
func (w *World) Err() error { return w.w.Err() }

// Done is closed when the world has ended.
func (w *World) Done() <-chan struct{} { return w.w.Done() }

// Abort ends the world in all processes: the others get cause as that of this one.
func (w *World) Abort(cause error) { w.w.Abort(cause) }

// Failed publishes an error of this process; nil takes it back. The world goes on. Other processes report the error if
// this process leaves, or does not arrive, where they wait for it.
func (w *World) Failed(err error) { w.w.Failed(err) }

// Same returns nil if all processes call it with the same value, and the same *DisagreeError in all of them if they do
// not. The world goes on. What names the values. All processes call it, in one order with loads and runs.
func (w *World) Same(ctx context.Context, what, value string) error {
	return w.w.Same(ctx, what, value)
}

// Group makes a World of some processes of this one: those of ranks, which are numbered in that order. All of them call it
// with the same name and ranks. A machine that is opened with it runs models and collectives of these processes alone, on
// the GPUs that they have in this World. A process may be in several groups, and use them at the same time from several
// goroutines. Processes that use groups in an order in which they wait for each other in a circle get a *DisagreeError
// with the call of each, within StallTimeout.
//
// Errors name processes by their ranks in this World. A group that ends by a failure ends this World and all its groups;
// Leave ends the group alone. The processes of a group are on one node.
func (w *World) Group(ctx context.Context, name string, ranks []int) (*World, error) {
	g, err := world.JoinGroup(ctx, w.w, name, ranks)
	if err != nil {
		return nil, fmt.Errorf("group %s of ranks %v: %w", name, ranks, err)
	}
	return &World{g}, nil
}

// Leave says goodbye, when this process's runs are over and its machine is closed: the others go on, as
// long as they need nothing of it. It returns why the world had ended before, if it had.
func (w *World) Leave() error { return w.w.Leave() }
