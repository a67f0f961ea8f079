package cuda

import (
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// The functions of this file connect teams to NCCL. Package nccl manages the communicators.

// ncclName is the name of the algorithm that calls NVIDIA's library NCCL. NCCL adds in an order that it chooses. If
// this order can change the bits of a result, NCCL is used only for collectives that permit any order.
const ncclName = coll.NCCLName

// supportsNCCL returns an error if NCCL cannot carry out c.
func supportsNCCL(t *team, c *coll.Collective) error {
	if t.w.peers != nil && !t.w.hosted && !t.crosses() {
		return fmt.Errorf("%w: NCCL cannot connect processes of one node", device.ErrUnsupported)
	}
	if err := nccl.Usable(t.w.m.sys.System, c.Op); err != nil {
		return err
	}
	sites := map[any]int{} // by GPU
	for _, m := range t.members {
		on := any(m.dev.site)
		if p := m.dev.site.place; p.Key != "" {
			on = fmt.Sprint(t.w.Node(m.dev.rank), p.Host, p.PCI)
		}
		if o, shared := sites[on]; shared {
			return fmt.Errorf("%w: members %d and %d share GPU %s, but NCCL needs one GPU for each member", device.ErrUnsupported, o, m.index, m.dev.site.gpu.Text())
		}
		sites[on] = m.index
	}
	if len(sites) < 2 {
		return fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	if c.Op == ir.OpBarrier {
		return nil
	}
	_, err := coll.PlanNCCL(c, len(t.members))
	return err
}

// crosses reports whether the team's members are on more than one node.
func (t *team) crosses() bool {
	for _, m := range t.members {
		if t.w.Node(m.dev.rank) != t.w.Node(t.members[0].dev.rank) {
			return true
		}
	}
	return false
}

// prepareNCCL returns the steps of each member's launch, of which one calls NCCL.
func prepareNCCL(t *team, c *coll.Collective) ([][]step, error) {
	w, err := nccl.Plan(c, len(t.members), t.reserve)
	if err != nil {
		return nil, err
	}
	if err := openNCCL(t); err != nil {
		return nil, err
	}
	m := &meeting{what: fmt.Sprintf("%s by %s", c.Op, ncclName)}
	if err := exerciseNCCL(t, w); err != nil {
		return nil, err
	}
	packed := make([]nccl.Share, len(t.members)) // also of foreign members, so that all processes allocate in the same way
	for i := range t.members {
		if !w.TakesPart(i) {
			continue
		}
		var err error
		if packed[i], err = nccl.Pack(w, i, t.reserve); err != nil {
			return nil, err
		}
	}
	steps := make([][]step, len(t.members))
	for _, mem := range t.own {
		if !w.TakesPart(mem.index) {
			continue
		}
		x, at := packed[mem.index], &attendee{meeting: m, stream: mem.stream}
		if at.before, err = mem.copies(x.Before); err == nil {
			at.after, err = mem.copies(x.After)
		}
		if err != nil {
			return nil, err
		}
		m.members = append(m.members, at)
		steps[mem.index] = []step{at}
	}
	known := regionsGiven(t.own, packed)
	m.library = &nccl.Call{Group: t.nccl, Team: t.ncclTeam, Work: w, Shares: packed}
	m.call = func() error {
		if t.w.capture != nil {
			for _, r := range known {
				r.Known = true
			}
		}
		return m.library.Issue()
	}
	return steps, nil
}

// regionsGiven returns the memory regions that the members' NCCL calls access.
func regionsGiven(members []*member, packed []nccl.Share) (list []*gpu.Region) {
	for _, m := range members {
		call := packed[m.index].Call
		for _, at := range []nvlib.Ptr{call.In, call.Out} {
			if r := m.dev.site.heaps[device.Shared].RegionOf(at); r != nil {
				list = append(list, r)
			}
		}
	}
	return list
}

// copies returns the steps that make the copies in list.
func (m *member) copies(list []coll.Copy) (steps []step, err error) {
	for _, c := range list {
		more, err := m.copySteps(c.Dst, c.Src)
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

// openNCCL opens the team's communicators.
func openNCCL(t *team) (err error) {
	if t.nccl != nil {
		return nil
	}
	w, limit := t.w, t.w.m.opts.teamTimeout()
	t.ncclTeam = &nccl.Team{System: w.m.sys.System, Peers: w.peers, Calls: &w.guard.Calls, Patience: limit,
		Longer: fmt.Sprintf("set %s=%v to wait longer", TimeoutVariable, 10*limit), GivenUp: w.guard.GivenUp, Ended: w.guard.Ended,
		Aside: w.guard.Aside, Apart: func() error { return anyApart(w.Apart, t.members) }}
	for _, m := range t.members {
		t.ncclTeam.Members = append(t.ncclTeam.Members, nccl.Member{Rank: m.dev.rank, Device: m.dev.site.gpu.Device,
			Foreign: true, Bound: m.dev.bound})
	}
	for _, m := range t.own {
		t.ncclTeam.Members[m.index].Foreign, t.ncclTeam.Members[m.index].Stream = false, m.stream.h
	}
	t.nccl, err = w.m.sys.NCCLs.Open(t.ncclTeam)
	return err
}

// exerciseNCCL makes NCCL execute the call of w once, on scratch memory.
func exerciseNCCL(t *team, w *coll.NCCLWork) error {
	var mems []*memory
	return t.nccl.Exercise(t.ncclTeam, w, nccl.Trial{
		Reserve: func(bytes int64) (at []nvlib.Ptr, err error) {
			for _, m := range t.members {
				mem, err := m.dev.alloc(bytes, device.Private)
				if err != nil {
					return nil, err
				}
				mems, at = append(mems, mem), append(at, mem.addr)
			}
			for _, m := range t.own {
				if err := m.set(at[m.index], 0, bytes/4); err != nil {
					return nil, err
				}
			}
			return at, nil
		},
		Drop: func() {
			for _, m := range mems {
				_ = m.giveBack() // the function cannot return an error
			}
		},
		Issued: func() {
			for _, m := range t.own {
				m.stream.worked()
			}
		},
		Idle: func() (bool, error) { return membersIdle(t) },
	})
}

// membersIdle reports whether the members' streams have completed all work that they have received.
func membersIdle(t *team) (bool, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	for _, m := range t.own {
		if idle, err := m.stream.idle(); !idle || err != nil {
			return false, err
		}
	}
	return true, nil
}

// leaveNCCL returns the team's communicators to the pool. If sound is set, all work of the communicators has ended, so
// that another team may use them.
func leaveNCCL(t *team, sound bool) {
	if t.nccl != nil {
		t.w.m.sys.NCCLs.Leave(t.nccl, sound)
	}
	t.nccl = nil
}

// trimNCCL destroys unused communicators until at most the given number of unused ones remains. If the world does not
// hold the issue lock, trimNCCL does nothing.
func trimNCCL(w *world, most int) bool { return w.guard.HoldsIssue() && w.m.sys.NCCLs.Trim(most) }

// readNCCL reads NCCL's errors, and ends the world if work that was issued to NCCL has failed. The caller holds mu.
func readNCCL(w *world) {
	for _, t := range w.teams {
		if t.nccl == nil {
			continue
		}
		if i, err := t.nccl.Failure(); err != nil && w.cause == nil {
			m := t.members[i]
			w.end(&device.Fault{Rank: m.dev.rank, Stream: m.given.Name(), ID: m.id, Err: err})
		}
	}
}

// ncclPatience limits how long the closing of a world waits for work to end before it aborts NCCL's work.
const ncclPatience = 2 * time.Second

// abortNCCL aborts all of NCCL's work in the world. The caller holds mu.
func abortNCCL(w *world) {
	for _, t := range w.teams {
		if t.nccl != nil {
			t.nccl.Abort()
		}
	}
}

// closeNCCL returns all communicators to the pool once the devices are idle.
func closeNCCL(w *world, errs []error) {
	sound := errors.Join(errs...) == nil
	for _, s := range w.sites {
		sound = sound && !s.lost()
	}
	for _, t := range w.teams {
		leaveNCCL(t, sound)
	}
}
