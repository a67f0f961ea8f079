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

// Pool keeps the process's unused groups of communicators, and records whether NCCL may use peer access.
type Pool struct {
	mu   sync.Mutex
	idle []*Group // the unused groups; the one that has been unused longest is first
	told bool     // NCCL has read the setting for peer access
	may  bool     // the setting permits peer access
}

// IdleMost is the number of unused groups of communicators that are kept, which is more than programs usually need at
// once. Creating a group takes long, and the memory of a process that repeatedly created and destroyed groups grew. On
// four H200, creating a group took 0.15 s and 0.2 GB on each GPU. The first gather, send and receive of the group took
// another 0.15 s, and raised the memory to 1.6 GB.
const IdleMost = 16

// PeersVariable is NCCL's environment variable that disables peer access if its value is 1.
const PeersVariable = "NCCL_P2P_DISABLE"

// UsesPeers reports whether NCCL was permitted to use peer access.
func (p *Pool) UsesPeers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.may
}

// tell sets NCCL's environment variable: it disables NCCL's peer access if peer access between some GPUs does not work
// although the driver reports it. NCCL reads this setting only once, for all GPUs. The pool is locked.
func (p *Pool) tell(t *Team) error {
	deceit := t.System.Reach.Deceives()
	switch {
	case p.told && p.may && deceit && t.Apart() != nil:
		return fmt.Errorf("%w: NCCL already used peers' memory when a test found that transfers between peers fail; "+
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

// take returns a group for the team's devices: an idle one, or a new one.
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
		return nil, fmt.Errorf("%w; creating NCCL's communicators for GPUs %v: %w", apart, devs, err)
	}
	if err != nil {
		return nil, fmt.Errorf("creating NCCL's communicators for GPUs %v: %w", devs, err)
	}
	return g, nil
}

// pick removes an unused group for the GPUs of this key from the pool, and returns it. It selects the group that has
// exercised the most kinds of collectives, because NCCL allocates memory for each kind in each group and does not free
// it. The pool is locked.
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

// Leave returns a group to the pool for another team. It destroys the group instead if the group has failed or is
// shared with other processes. The flag sound reports that all work of the group has ended.
func (p *Pool) Leave(g *Group, sound bool) {
	switch sound = sound && !g.failed && !g.ended; {
	case sound && g.joined:
		g.destroy() // a group shared with processes is not reused: all would have to agree on its next team
	case sound:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, g)
	default:
		g.Abort()
	}
}

// Trim destroys the groups that have been unused longest until at most the given number of unused groups remains. It
// reports whether it destroyed any group. NCCL then frees memory, for which the driver may wait until devices are idle.
// The caller therefore holds the issue lock.
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
