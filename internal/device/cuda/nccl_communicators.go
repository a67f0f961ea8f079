package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// communicators are NCCL's for one team: one for each member. Making them takes
// long, so that some are kept from team to team and from world to world, as contexts
// are (see idleMost).
type communicators struct {
	lib       *nvlib.NCCL // for who uses them
	own       *nvlib.NCCL // for ends, which nobody waits for
	key       string      // the devices, in order
	comms     []nvlib.Comm
	exercised map[string]bool
	joined    bool // with other processes: calls do not block, see settle; comms of theirs are 0
	used      bool // was given work
	failed    bool // not to be used again
	ended     bool // aborted
}

// ncclPool is what no team uses.
type ncclPool struct {
	mu   sync.Mutex
	idle []*communicators // the longest idle first
	told bool             // NCCL has read whether it may use peers' memory
	may  bool             // it may
}

// idleMost is how many sets of communicators are kept that no team uses: more than
// programs want at once, since one takes long to make, and a process that made and
// destroyed them all the time was seen to grow. On four H200 one takes 0.15 s and 0.2 GB
// of each GPU, which grow to 1.6 when it first gathers, sends and receives, and that
// takes as long again.
const idleMost = 16

// tellNCCL has NCCL stay off peers' memory where some of it is not what the driver
// says; it reads that once, for all GPUs. The pool is locked.
func (s *system) tellNCCL(t *team) error {
	deceit := s.Reach.Deceives()
	switch {
	case s.pool.told && s.pool.may && deceit && t.checkPeerAccess() != nil:
		return fmt.Errorf("%w: NCCL uses peers' memory since before it turned out that some of it cannot be used; in a new process %s=off prevents it", device.ErrUnsupported, P2PVariable)
	case s.pool.told:
		return nil
	case deceit && cabi.Callable:
		if err := cabi.Setenv(ncclPeersVariable, "1"); err != nil {
			return err
		}
	}
	s.pool.told, s.pool.may = true, !deceit
	return nil
}

// ncclPeersVariable keeps NCCL off peers' memory where it is 1.
const ncclPeersVariable = "NCCL_P2P_DISABLE"

// communicators returns the team's, as they are made first.
func (t *team) communicators() (*communicators, error) {
	if t.nccl != nil {
		return t.nccl, nil
	}
	open := t.w.m.sys.communicators
	if t.w.peers != nil {
		open = joinNCCL
	}
	g, err := open(t)
	if err == nil {
		g.lib = g.own.Watched(&t.w.hung.calls)
		t.nccl = g
	}
	return g, err
}

// communicators returns some for the team's devices, new ones where none are left.
func (s *system) communicators(t *team) (*communicators, error) {
	lib, err := s.NCCL()
	if err != nil {
		return nil, err
	}
	var devs []nvlib.Device
	for _, m := range t.members {
		devs = append(devs, m.dev.site.gpu.Device)
	}
	key := fmt.Sprint(devs)
	calls := &t.w.hung.calls
	if !calls.Hold(&s.pool.mu) {
		return nil, t.w.hung.why()
	}
	defer calls.Release(&s.pool.mu)
	for i, g := range slices.Backward(s.pool.idle) {
		if g.key == key {
			s.pool.idle = slices.Delete(s.pool.idle, i, i+1)
			return g, nil
		}
	}
	if err := s.tellNCCL(t); err != nil {
		return nil, err
	}
	g := &communicators{own: lib, key: key, exercised: map[string]bool{}}
	err = t.members[0].dev.bound(func() (err error) {
		g.comms, err = lib.Watched(calls).InitAll(devs)
		return err
	})
	if apart := t.checkPeerAccess(); err != nil && apart != nil {
		return nil, fmt.Errorf("%w; NCCL's communicators for GPUs %v: %w", apart, devs, err)
	}
	if err != nil {
		return nil, fmt.Errorf("NCCL's communicators for GPUs %v: %w", devs, err)
	}
	return g, nil
}

// keep takes communicators back that nothing uses any more.
func (s *system) keep(g *communicators) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.pool.idle = append(s.pool.idle, g)
}

// trimNCCL destroys what has been idle longest until no more than so many sets are
// left, and reports whether there were more. NCCL gives memory back meanwhile, for
// which the driver may wait until devices rest: that needs the issue lock, without which
// nothing is done.
func trimNCCL(w *world, most int) bool {
	if !w.issueLocked {
		return false
	}
	pool := &w.m.sys.pool
	pool.mu.Lock()
	n := max(len(pool.idle)-most, 0)
	surplus := slices.Clone(pool.idle[:n])
	pool.idle = slices.Delete(pool.idle, 0, n)
	pool.mu.Unlock()
	for _, g := range surplus {
		g.destroy()
	}
	return n > 0
}

// leaveNCCL gives up the team's communicators: for the next team, unless they
// failed.
func (t *team) leaveNCCL(sound bool) {
	g := t.nccl
	switch t.nccl = nil; {
	case g == nil:
	case sound && !g.failed && !g.ended && g.joined:
		g.destroy() // another team would have to agree on whose they are
	case sound && !g.failed && !g.ended:
		t.w.m.sys.keep(g)
	default:
		g.abort()
	}
}

// destroy gives back what is idle.
func (g *communicators) destroy() { g.end(g.own.Destroy) }

// abort ends what runs, unfinished.
func (g *communicators) abort() { g.end(g.own.Abort) }

// endPatience bounds how long an end is waited for: an abort may wait itself for
// kernels that nothing ends.
const endPatience = 2 * time.Second

// end calls last for every communicator, from a thread of its own, since one's end
// may wait for another's; it stays with the process where that takes too long.
func (g *communicators) end(last func(nvlib.Comm) error) {
	if g.ended {
		return
	}
	g.ended = true
	own := slices.DeleteFunc(slices.Clone(g.comms), func(c nvlib.Comm) bool { return c == 0 })
	done := make(chan struct{}, len(own))
	for _, c := range own {
		go func() {
			_ = last(c) // there is nobody left to care
			done <- struct{}{}
		}()
	}
	late := time.After(endPatience)
	for range own {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}

// readNCCL ends the world if work given to NCCL failed. The caller holds mu.
func readNCCL(w *world) {
	for _, t := range w.teams {
		if t.nccl != nil {
			readCommunicators(w, t, t.nccl)
		}
	}
}

func readCommunicators(w *world, t *team, g *communicators) {
	if !g.used || g.ended {
		return
	}
	for i, c := range g.comms {
		if c == 0 {
			continue
		}
		if err := g.lib.AsyncError(c); err != nil && w.cause == nil {
			g.failed = true
			m := t.members[i]
			w.end(&device.Fault{Rank: m.dev.rank, Stream: m.stream.name, ID: m.id, Err: err})
		}
	}
}

// ncclPatience is how long a world that is being closed waits for its work before
// it ends NCCL's.
const ncclPatience = 2 * time.Second

// abortNCCL ends what NCCL runs. The caller holds mu.
func abortNCCL(w *world) {
	for _, t := range w.teams {
		if t.nccl != nil {
			t.nccl.abort()
		}
	}
}

// closeNCCL gives up all communicators once the devices are at rest.
func closeNCCL(w *world, errs []error) {
	sound := errors.Join(errs...) == nil
	for _, s := range w.sites {
		sound = sound && !s.lost()
	}
	for _, t := range w.teams {
		t.leaveNCCL(sound)
	}
}
