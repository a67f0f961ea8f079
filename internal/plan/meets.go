package plan

import (
	"hocket.example/hocket/ir"
)

// Meets reports whether the plan also terminates if, in every collective, each member waits until all members have
// begun. Section S5 of the language requires members to wait for each other only in collectives in which each
// member reads from every other; the root of a broadcast, for example, need not wait. No command prevents another
// from executing, so it suffices to examine one order of execution.
func (p *Plan) Meets() bool {
	for i := range p.Colls {
		switch p.Colls[i].Op {
		case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute:
			return newRehearsal(p).ends()
		}
	}
	return true
}

// rehearsal is a dry run of a plan. A rehearsal determines which commands can begin, and does not execute them.
type rehearsal struct {
	p       *Plan
	streams [][]int32 // remaining commands of each stream
	record  map[int32]int32
	done    map[int32]bool // events that have been recorded
	count   map[counterKey]int64
	begun   []int          // number of members of each collective that have begun
	posted  map[int32]int  // number of ranks of each send/recv pair that have posted their side
	arrived map[int32]bool // commands that have been counted in begun and posted
	waiting map[any][]int32
	ready   []int32 // streams that may be able to continue
}

type counterKey struct{ rank, counter, elem int32 }

// These types identify the events that streams wait for. Counters are identified by counterKey.
type (
	recordKey int32
	collKey   int32
	pairKey   int32
)

func newRehearsal(p *Plan) *rehearsal {
	r := &rehearsal{p: p, streams: make([][]int32, len(p.Streams)), record: map[int32]int32{}, done: map[int32]bool{},
		count: map[counterKey]int64{}, begun: make([]int, len(p.Colls)), posted: map[int32]int{}, arrived: map[int32]bool{}, waiting: map[any][]int32{}}
	latest := map[int32]int32{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		r.streams[c.Stream] = append(r.streams[c.Stream], int32(i))
		switch c.Kind {
		case Record:
			latest[c.Event] = int32(i)
		case WaitEvent:
			r.record[int32(i)] = latest[c.Event]
		}
	}
	for s := range r.streams {
		r.ready = append(r.ready, int32(s))
	}
	return r
}

func (r *rehearsal) ends() bool {
	for len(r.ready) > 0 {
		s := r.ready[len(r.ready)-1]
		r.ready = r.ready[:len(r.ready)-1]
		for len(r.streams[s]) > 0 {
			on := r.step(r.streams[s][0])
			if on != nil {
				r.waiting[on] = append(r.waiting[on], s)
				break
			}
			r.streams[s] = r.streams[s][1:]
		}
	}
	for _, left := range r.streams {
		if len(left) > 0 {
			return false
		}
	}
	return true
}

// step marks command i as done and returns nil, or returns the event that the command waits for.
func (r *rehearsal) step(i int32) any {
	c := &r.p.Cmds[i]
	switch c.Kind {
	case Record:
		r.done[i] = true
		r.wake(recordKey(i))
	case WaitEvent:
		if at := r.record[i]; !r.done[at] {
			return recordKey(at)
		}
	case Signal:
		k := counterKey{c.Peer, c.Counter, c.Elem}
		r.count[k]++
		r.wake(k)
	case WaitCounter:
		if k := (counterKey{c.Rank, c.Counter, c.Elem}); r.count[k] < c.Value {
			return k
		}
	case Collective:
		if !r.arrived[i] {
			r.arrived[i] = true
			r.begun[c.Coll]++
			r.wake(collKey(c.Coll))
		}
		if r.begun[c.Coll] < len(r.p.Colls[c.Coll].Parts) {
			return collKey(c.Coll)
		}
	case Group:
		if !r.arrived[i] {
			r.arrived[i] = true
			for _, t := range c.Group {
				r.posted[t.Pair]++
				r.wake(pairKey(t.Pair))
			}
		}
		for _, t := range c.Group {
			if r.posted[t.Pair] < 2 {
				return pairKey(t.Pair)
			}
		}
	}
	return nil
}

func (r *rehearsal) wake(k any) {
	r.ready = append(r.ready, r.waiting[k]...)
	delete(r.waiting, k)
}
