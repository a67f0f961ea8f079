package cuda

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// prepareNCCL returns what each member launches.
func prepareNCCL(t *team, c *coll.Collective) ([][]step, error) {
	if c.Op == ir.OpBarrier {
		var err error
		if c, err = t.barrier(); err != nil {
			return nil, err
		}
	}
	w, err := coll.PlanNCCL(c, len(t.members))
	if err != nil {
		return nil, err
	}
	group, err := t.communicators()
	if err != nil {
		return nil, err
	}
	m := &meeting{what: fmt.Sprintf("%s by %s", c.Op, ncclName)}
	if err := group.exercise(t, w); err != nil {
		return nil, err
	}
	calls := make([]coll.NCCLCall, len(t.members))
	steps := make([][]step, len(t.members))
	for i, mem := range t.members {
		if !w.TakesPart(i) {
			continue
		}
		at := &attendee{meeting: m, stream: mem.stream}
		if calls[i], err = packAround(t, w, i, at); err != nil {
			return nil, err
		}
		if mem.dev.site.foreign { // its process gives NCCL its share
			continue
		}
		m.members = append(m.members, at)
		steps[i] = []step{at}
	}
	known := regionsGiven(t, calls)
	m.call = func() error {
		if t.w.capture != nil {
			for _, r := range known {
				r.Known = true
			}
		}
		return group.issue(t, w, func(i int) (coll.NCCLCall, nvlib.Stream, bool) {
			return calls[i], t.members[i].stream.h, steps[i] != nil
		})
	}
	return steps, nil
}

// regionsGiven returns the regions that calls give NCCL something of.
func regionsGiven(t *team, calls []coll.NCCLCall) (list []*gpu.Region) {
	for i, m := range t.members {
		if m.dev.site.foreign {
			continue
		}
		for _, at := range []nvlib.Ptr{calls[i].In, calls[i].Out} {
			if r := m.dev.site.heaps[device.Shared].RegionOf(at); r != nil {
				list = append(list, r)
			}
		}
	}
	return list
}

// packAround adds the copies that member i needs and returns what NCCL gets. Of a member of another process it
// reserves what that does.
func packAround(t *team, w *coll.NCCLWork, i int, at *attendee) (coll.NCCLCall, error) {
	s := &w.Shares[i]
	var call coll.NCCLCall
	if s.In != nil {
		call.In = s.In.Addr
		if s.Pack || s.Staged {
			mem, err := t.reserve("inputs for NCCL", s.In.Bytes())
			if err != nil {
				return call, err
			}
			call.In = mem.At[i]
			if t.members[i].dev.site.foreign {
				return packOut(t, s, i, at, call)
			}
			steps, err := t.members[i].copySteps(s.In.At(call.In), *s.In)
			if err != nil {
				return call, err
			}
			at.before = append(at.before, steps...)
		}
	}
	return packOut(t, s, i, at, call)
}

// packOut is packAround of the result.
func packOut(t *team, s *coll.NCCLShare, i int, at *attendee, call coll.NCCLCall) (coll.NCCLCall, error) {
	if s.Out != nil {
		call.Out = s.Out.Addr
		if s.Unpack {
			mem, err := t.reserve("results of NCCL", s.Out.Bytes())
			if err != nil || t.members[i].dev.site.foreign {
				return call, err
			}
			call.Out = mem.At[i]
			steps, err := t.members[i].copySteps(*s.Out, s.Out.At(call.Out))
			if err != nil {
				return call, err
			}
			at.after = append(at.after, steps...)
		}
	}
	return call, nil
}

// issue gives NCCL all members' shares that are this process's as one group.
func (g *communicators) issue(t *team, w *coll.NCCLWork, member func(i int) (coll.NCCLCall, nvlib.Stream, bool)) error {
	g.used = true
	err := g.lib.GroupStart()
	if err != nil {
		return err
	}
	for i := range g.comms {
		if call, s, ok := member(i); ok && err == nil && g.comms[i] != 0 {
			err = w.Issue(g.lib, g.comms[i], i, call, s)
		}
	}
	if err = errors.Join(err, g.lib.GroupEnd()); err == nil && g.joined {
		err = g.settle(t)
	}
	return err
}

// trialMost bounds the memory of an exercise: beyond, NCCL does what it does at
// this size.
const trialMost = 64 << 20

// exercise runs the call once on memory of its own, so that NCCL makes its
// connections and loads its kernels now.
func (g *communicators) exercise(t *team, w *coll.NCCLWork) error {
	trial := *w
	n := int64(len(g.comms))
	if most := trialMost / w.DType.Size() / n; trial.Count > most {
		trial.Count = most
	}
	key := fmt.Sprint(w.Op, w.Red, w.DType, w.Root, bits.Len64(uint64(trial.Count)))
	if g.exercised[key] {
		return nil
	}
	bytes := trial.Count * w.DType.Size() * n
	calls := make([]coll.NCCLCall, n)
	mems, err := allocEach(t, 2*bytes, device.Private)
	inUse := false
	defer func() {
		if !inUse {
			dropAll(mems) // else they go with the world
		}
	}()
	if err != nil {
		return err
	}
	for i, m := range t.members {
		if m.dev.site.foreign {
			continue
		}
		at := mems[i].addr
		if err := m.set(at, 0, 2*bytes/4); err != nil {
			return err
		}
		calls[i] = coll.NCCLCall{In: at, Out: at + nvlib.Ptr(bytes)}
	}
	issue := func() error {
		return g.issue(t, &trial, func(i int) (coll.NCCLCall, nvlib.Stream, bool) {
			return calls[i], t.members[i].stream.h, w.TakesPart(i)
		})
	}
	if err := t.firstOwn().dev.bound(issue); err != nil {
		return fmt.Errorf("a trial run: %w", err)
	}
	inUse = true
	if err := g.awaitTrial(t); err != nil {
		g.failed = true
		return fmt.Errorf("a trial run: %w", err)
	}
	g.exercised[key], inUse = true, false
	return nil
}

// awaitTrial waits until the members' streams have done a trial, but not for ever: where
// GPUs or processes are kept apart in a way that NCCL does not see, it may never end. Others
// go on meanwhile, and may end the world. The caller holds the world exclusively.
func (g *communicators) awaitTrial(t *team) error {
	for _, m := range t.members {
		if !m.dev.site.foreign {
			m.stream.worked()
		}
	}
	limit := t.w.m.opts.teamTimeout()
	return t.w.aside(func() error {
		for began := time.Now(); !t.w.ended.Load(); gpu.Pause(time.Since(began)) {
			idle, err := membersIdle(t)
			if idle || err != nil {
				return err
			}
			if time.Since(began) > limit {
				return fmt.Errorf("NCCL has not ended it after %v; NCCL_DEBUG=INFO has NCCL tell what it does, in a new process %s=off keeps it off peers' memory, and %s=%v waits longer",
					limit, P2PVariable, TimeoutVariable, 10*limit)
			}
		}
		return nil
	})
}

// membersIdle reports whether the members' streams have done all they were given.
func membersIdle(t *team) (bool, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	for _, m := range t.members {
		if m.dev.site.foreign {
			continue
		}
		if idle, err := m.stream.idle(); !idle || err != nil {
			return false, err
		}
	}
	return true, nil
}

// allocEach reserves memory on every member; on an error it returns what it has.
func allocEach(t *team, bytes int64, kind device.MemKind) (mems []*memory, err error) {
	for _, m := range t.members {
		mem, err := m.dev.alloc(bytes, kind)
		if err != nil {
			return mems, err
		}
		mems = append(mems, mem)
	}
	return mems, nil
}

// dropAll gives memory back that nothing uses any more.
func dropAll(mems []*memory) {
	for _, m := range mems {
		m.freed = true
		if m.nowhere {
			continue
		}
		_ = m.dev.bound(func() error { return m.dev.site.heaps[m.kind].Free(m.addr, m.bytes) })
	}
}
