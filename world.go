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

// PeerError is the error that names the process which ended a world of processes, or whose arrival timed out.
type PeerError = fault.PeerError

// DisagreeError is the error about processes that have different values where all must have the same: another
// program, plan, version or table, or another order of loads and runs.
type DisagreeError = fault.DisagreeError

// ErrLeft is wrapped by errors of a World after Leave.
var ErrLeft = world.ErrLeft

// JoinOptions identify this process. Zero values are taken from the environment, as torchrun, mpirun, srun or "hocket
// launch" set it.
type JoinOptions struct {
	// Rank is the number of this process, and Size the number of processes. If Size is 0, Rank, Size and ID come from
	// the environment.
	Rank, Size int
	// ID names the run. It is equal in all its processes, and different from that of any other run of the user.
	ID string
	// Dir is the folder in which processes of this host meet. If empty, it is HOCKET_RUN_DIR, or else
	// XDG_RUNTIME_DIR, or else the folder for temporary files.
	Dir string
	// Timeout bounds how long Join waits for the others; 0 means HOCKET_JOIN_TIMEOUT, or else 60 seconds.
	Timeout time.Duration
	// StallTimeout bounds how long a process may show no sign of life, or keep others waiting, before the world ends;
	// 0 means HOCKET_STALL_TIMEOUT, or else 30 seconds.
	StallTimeout time.Duration
	// Meet is the address, "host:port" at process 0, where processes of several nodes meet. Node names this process's
	// node; the default is its host. Token is a secret of at least 16 bytes that all processes share. Empty values
	// come from the environment. If there is no Meet, all processes are on one node.
	Meet, Node, Token string
	// Ranks are the ranks of programs that this process drives; nil means an even split, in order.
	Ranks []int
}

// World is a set of processes that run programs together. Each process drives some of the ranks. A machine opened
// with a World spreads the ranks of every model over its processes. All processes load the same programs and run them
// with the same dims, in the same order. Each is given either the blocks of its own ranks, or whole tensors, from
// which it takes these blocks.
//
// If a process dies, stalls, makes another load or run than the others, or aborts a run, all processes get an error
// that names it, in bounded time, and the world has ended: its models can no longer run. To continue, launch the
// processes again and join a new World.
type World struct{ w *world.World }

// Join makes this process one of several, and returns when all have joined. If some have not joined in time, the
// error names them.
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

// Launched returns the number of processes according to the environment; 1 if no launcher started this process.
func Launched() (int, error) {
	o, err := world.FromEnv(os.Getenv)
	return o.Size, err
}

// Rank returns the number of this process, from 0.
func (w *World) Rank() int { return w.w.Process() }

// Size returns the number of processes.
func (w *World) Size() int { return w.w.Processes() }

// Node returns the number of this process's node, from 0.
func (w *World) Node() int { return w.w.Node(w.w.Process()) }

// Nodes returns the number of nodes that the processes are on.
func (w *World) Nodes() int { return w.w.Nodes() }

// Err returns the reason why the world has ended; nil if it has not.
func (w *World) Err() error { return w.w.Err() }

// Done is closed when the world has ended.
func (w *World) Done() <-chan struct{} { return w.w.Done() }

// Abort ends the world in all processes. The others get cause as the error of this process.
func (w *World) Abort(cause error) { w.w.Abort(cause) }

// Failed publishes an error of this process; nil withdraws it. The world continues. Other processes report the error
// if they wait for this process and it leaves or does not arrive.
func (w *World) Failed(err error) { w.w.Failed(err) }

// Same returns nil if all processes call it with the same value; otherwise it returns the same *DisagreeError in all
// of them. The world continues. what describes the values. All processes call it, in the same order relative to loads
// and runs.
func (w *World) Same(ctx context.Context, what, value string) error {
	return w.w.Same(ctx, what, value)
}

// Group makes a World of some processes of this one: those of ranks, numbered in that order. All of them call Group
// with the same name and ranks. A machine opened with it runs models and collectives of these processes alone, on
// their GPUs in this World. A process may be in several groups and use them at the same time from several goroutines.
// If processes use groups in an order in which they would wait for each other in a circle, each gets, within
// StallTimeout, a *DisagreeError with the call of every process.
//
// Errors name processes by their ranks in this World. A failure in a group ends this World and all its groups; Leave
// ends the group alone. The processes of a group are on one node.
func (w *World) Group(ctx context.Context, name string, ranks []int) (*World, error) {
	g, err := world.JoinGroup(ctx, w.w, name, ranks)
	if err != nil {
		return nil, fmt.Errorf("group %s of ranks %v: %w", name, ranks, err)
	}
	return &World{g}, nil
}

// Leave announces that this process has finished; call it when its runs are over and its machine is closed. The
// others continue as long as they need nothing from it. Leave returns the reason if the world had already ended.
func (w *World) Leave() error { return w.w.Leave() }
