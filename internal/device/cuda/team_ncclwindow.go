package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// NCCL is faster where it has the members' memory as windows: then it reads and
// writes peers' operands where they lie. A window here is a region of a heap, the
// same stretch on every member.

const ncclWindowName = "nccl-window"

// window is a region of each member's memory that NCCL has.
type window struct {
	at      []nvlib.Ptr // of each member
	bytes   int64
	handles *cabi.Block // what NCCL calls it, a word for each member
}

// windowPatience bounds how long registering may take. Where a member's share of
// it fails NCCL may never come back.
const windowPatience = 5 * time.Second

// ncclWindows is what the process knows of windows.
type ncclWindows struct {
	mu       sync.Mutex
	patience time.Duration // 0 for windowPatience
	broken   error         // why there are none any more
}

func (n *ncclWindows) why() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken
}

// windowed refuses what NCCL has no kernels on windows for, and memory that does
// not lie alike on all members.
func (t *team) windowed(c *collective, w *ncclWork) error {
	lib, err := t.w.m.sys.nccl()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	case !lib.HasWindows():
		return fmt.Errorf("%w: this NCCL has no windows; 2.27 does", device.ErrUnsupported)
	case c.Op != ir.OpAllReduce && c.Op != ir.OpAllGather && c.Op != ir.OpReduceScatter:
		return fmt.Errorf("%w: NCCL has no kernels on windows for %s", device.ErrUnsupported, c.Op)
	case reduces(c.Op) && (c.Red != ir.Sum && c.Red != ir.Avg || w.dt.IsInt() || w.dt == ir.F64):
		return fmt.Errorf("%w: NCCL has no kernels on windows for a %s of %s", device.ErrUnsupported, c.Red, w.dt)
	}
	if err := t.oddWindows(lib, w); err != nil {
		return err
	}
	if err := t.w.m.sys.windows.why(); err != nil {
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	}
	for i := range w.shares {
		if s := &w.shares[i]; s.in == nil || s.out == nil || s.pack || s.unpack || s.staged {
			return fmt.Errorf("%w: member %d: operands with gaps, or over each other", device.ErrUnsupported, i)
		}
	}
	for _, operand := range []func(i int) *ref{w.in, w.out} {
		if _, err := t.regionsOf(operand); err != nil {
			return err
		}
	}
	return nil
}

func (w *ncclWork) in(i int) *ref  { return w.shares[i].in }
func (w *ncclWork) out(i int) *ref { return w.shares[i].out }

// regionsOf returns the regions that the members' operands lie in, if all are
// alike and the operands lie alike in them.
func (t *team) regionsOf(operand func(i int) *ref) ([]*region, error) {
	var list []*region
	off := nvlib.Ptr(0)
	for i, m := range t.members {
		at := operand(i).addr
		r := m.dev.site.heaps[device.Shared].regionOf(at)
		if r == nil || !r.shown {
			return nil, fmt.Errorf("%w: member %d: memory that cannot be shared with other processes", device.ErrUnsupported, i)
		}
		if i == 0 {
			off = at - r.addr
		} else if r.bytes != list[0].bytes || at-r.addr != off {
			return nil, fmt.Errorf("%w: members 0 and %d: operands that do not lie alike in regions alike", device.ErrUnsupported, i)
		}
		list = append(list, r)
	}
	return list, nil
}

// window makes sure that NCCL has the regions of the members' operands. The caller
// holds the world by alone.
func (g *communicators) window(t *team, operand func(i int) *ref) error {
	list, err := t.regionsOf(operand)
	if err != nil {
		return err
	}
	w := &window{bytes: list[0].bytes}
	for _, r := range list {
		w.at = append(w.at, r.addr)
	}
	for _, o := range g.windows {
		if slices.Equal(o.at, w.at) {
			return nil
		}
		for i, at := range o.at {
			if at == w.at[i] {
				return fmt.Errorf("%w: member %d: NCCL has its memory beside other members' already", device.ErrUnsupported, i)
			}
		}
	}
	if err := g.register(t, w); err != nil {
		return fmt.Errorf("%w: memory as a window of NCCL: %w", device.ErrUnsupported, err)
	}
	g.windows, g.of = append(g.windows, w), t.w
	return nil
}

// register has NCCL make the window, and does not wait for it beyond the patience
// there is.
func (g *communicators) register(t *team, w *window) error {
	all := &t.w.m.sys.windows
	w.handles = cabi.NewBlock(8 * len(w.at))
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a group belongs to a thread
		defer runtime.UnlockOSThread()
		done <- t.members[0].dev.bound(func() error {
			err := g.lib.GroupStart()
			if err != nil {
				return err
			}
			for i, c := range g.comms {
				if err == nil {
					err = g.lib.RegisterWindow(c, w.at[i], w.bytes, w.handles.Addr(8*i))
				}
			}
			return errors.Join(err, g.lib.GroupEnd())
		})
	}()
	patience := all.patience
	if patience == 0 {
		patience = windowPatience
	}
	var err error
	select {
	case err = <-done:
	case <-time.After(patience):
		err = fmt.Errorf("NCCL did not come back from registering memory within %s", patience)
		g.failed = true
	}
	if err != nil {
		all.mu.Lock()
		defer all.mu.Unlock()
		if all.broken == nil {
			all.broken = err
		}
	}
	return err
}

// dropWindow takes back the window of the region that begins at an address of a
// member's: its memory is about to go.
func (g *communicators) dropWindow(at nvlib.Ptr) {
	g.windows = slices.DeleteFunc(g.windows, func(w *window) bool {
		if !slices.Contains(w.at, at) {
			return false
		}
		for i, c := range g.comms {
			_ = g.lib.DeregisterWindow(c, cabi.Load[uintptr](w.handles.Addr(8*i))) // it goes with the communicator
		}
		w.handles.Free()
		return true
	})
	if len(g.windows) == 0 {
		g.of = nil
	}
}

// dropWindows takes back all.
func (g *communicators) dropWindows() {
	for len(g.windows) > 0 {
		g.dropWindow(g.windows[0].at[0])
	}
}

// leaving is called when a region of shared memory goes.
func (w *world) leaving(r *region) {
	for _, t := range w.teams {
		for _, g := range t.nccl {
			g.dropWindow(r.addr)
		}
	}
	pool := &w.m.sys.pool
	pool.mu.Lock()
	defer pool.mu.Unlock()
	for _, g := range pool.idle {
		g.dropWindow(r.addr)
	}
}
