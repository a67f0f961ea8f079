package nccl

import (
	"fmt"
	"slices"
	"sync"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// Pool is the process's groups that no team uses, and what NCCL was told of its GPUs.
type Pool struct {
	mu   sync.Mutex
	idle []*Group // the longest idle first
	told bool     // NCCL has read whether it may use peers' memory
	may  bool     // it may
}

// IdleMost is how many groups are kept that no team uses: more than
// programs want at once, since one takes long to make, and a process that made and
// destroyed them all the time was seen to grow. On four H200 one takes 0.15 s and 0.2 GB
// of each GPU, which grow to 1.6 when it first gathers, sends and receives, and that
// takes as long again.
const IdleMost = 16

// PeersVariable names the environment variable of NCCL's that keeps it off peers' memory where it is 1.
const PeersVariable = "NCCL_P2P_DISABLE"

// UsesPeers reports whether NCCL was told that it may use peers' memory.
func (p *Pool) UsesPeers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.may
}

// tell has NCCL stay off peers' memory where some of it is not what the driver
// says; it reads that once, for all GPUs. The pool is locked.
func (p *Pool) tell(t *Team) error {
	deceit := t.System.Reach.Deceives()
	switch {
	case p.told && p.may && deceit && t.Apart() != nil:
		return fmt.Errorf("%w: NCCL already used peers' memory when a transfer between peers was found to fail; "+
			"start a new process with %s=off",
			device.ErrUnsupported, gpu.P2PVariable)
	case p.told:
		return nil
	case deceit && cabi.Callable:
		if err := cabi.Setenv(PeersVariable, "1"); err != nil {
			return err
		}
	}
	p.told, p.may = true, !deceit
	return nil
}

// take returns a group for the team's devices, a new one where none is left.
func (p *Pool) take(t *Team) (*Group, error) {
	lib, err := t.System.NCCL()
	if err != nil {
		return nil, err
	}
	var devs []nvlib.Device
	for _, m := range t.Members {
		devs = append(devs, m.Device)
	}
	key := fmt.Sprint(devs)
	if !t.Calls.Hold(&p.mu) {
		return nil, t.GivenUp()
	}
	defer t.Calls.Release(&p.mu)
	if g := p.pick(key); g != nil {
		return g, nil
	}
	if err := p.tell(t); err != nil {
		return nil, err
	}
	g := &Group{own: lib, key: key, exercised: map[string]bool{}}
	err = t.Members[0].Bound(func() (err error) {
		g.comms, err = lib.Watched(t.Calls).InitAll(devs)
		return err
	})
	if apart := t.Apart(); err != nil && apart != nil {
		return nil, fmt.Errorf("%w; NCCL's communicators for GPUs %v: %w", apart, devs, err)
	}
	if err != nil {
		return nil, fmt.Errorf("NCCL's communicators for GPUs %v: %w", devs, err)
	}
	return g, nil
}

// pick takes a group from those that are idle: the one that has done the most kinds of work, since NCCL takes memory
// for each kind in each group, and keeps it. The pool is locked.
func (p *Pool) pick(key string) *Group {
	best := -1
	for i, g := range p.idle {
		if g.key == key && (best < 0 || len(g.exercised) >= len(p.idle[best].exercised)) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	g := p.idle[best]
	p.idle = slices.Delete(p.idle, best, best+1)
	return g
}

// Leave returns a group to the pool for the next team. A group that failed is destroyed. Unless sound is false, all
// its work has ended.
func (p *Pool) Leave(g *Group, sound bool) {
	switch sound = sound && !g.failed && !g.ended; {
	case sound && g.joined:
		g.destroy() // another team would have to agree on whose they are
	case sound:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, g)
	default:
		g.Abort()
	}
}

// Trim destroys what has been idle longest until no more than so many groups are left, and reports whether there were
// more. NCCL gives memory back meanwhile, for which the driver may wait until devices rest: the caller holds the issue
// lock.
func (p *Pool) Trim(most int) bool {
	p.mu.Lock()
	n := max(len(p.idle)-most, 0)
	surplus := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.mu.Unlock()
	for _, g := range surplus {
		g.destroy()
	}
	return n > 0
}
