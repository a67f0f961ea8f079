package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// events checks that each event is recorded once, and that its record precedes each of its waits in host issue order. A
// wait for an event that is not yet recorded would have no effect.
func (s *structure) events() {
	p, ix := s.p, s.ix
	if p.Events < 0 || p.Events > len(p.Cmds) {
		s.fault(KindMatch, nil, "%d events for %d commands", p.Events, len(p.Cmds))
		return
	}
	ix.records, ix.waits = make([]int32, p.Events), make([]int32, p.Events)
	for e := range ix.records {
		ix.records[e] = -1
	}
	var early []int32
	for i, kind := range ix.kinds {
		if kind != plan.Record && kind != plan.WaitEvent {
			continue
		}
		c := &p.Cmds[i]
		if !within(c.Event, p.Events) {
			s.fault(KindMatch, []int32{int32(i)}, "there is no event %d", c.Event)
			return
		}
		at := &ix.records[c.Event]
		switch {
		case c.Kind == plan.WaitEvent:
			ix.waits[c.Event]++
			if *at < 0 {
				early = append(early, int32(i))
			}
		case *at >= 0:
			s.fault(KindMatch, []int32{*at, int32(i)}, "event %d is recorded twice", c.Event)
		default:
			*at = int32(i)
		}
	}
	for _, w := range early {
		e := p.Cmds[w].Event
		if rec := ix.records[e]; rec >= 0 {
			s.fault(KindIssue, []int32{w, rec}, "the host issues this wait before the event is recorded: on a GPU the wait would have no effect")
		} else {
			s.fault(KindIssue, []int32{w}, "waits for an event that is never recorded")
		}
	}
}

// signals counts the signals of each counter element and determines the rank that raises it.
func (s *structure) signals() {
	p, ix := s.p, s.ix
	for i, kind := range ix.kinds {
		if kind != plan.Signal && kind != plan.WaitCounter {
			continue
		}
		c := &p.Cmds[i]
		if !within(c.Counter, len(p.Counters)) || !within(c.Elem, int(p.Counters[c.Counter].Len)) || c.Kind == plan.Signal && !within(c.Peer, p.Ranks) {
			s.fault(KindMatch, []int32{int32(i)}, "the element of a counter to which this refers does not exist")
			return
		}
		if c.Kind == plan.WaitCounter {
			continue
		}
		e := &ix.elems[ix.elem(c.Counter, c.Peer, c.Elem)]
		if e.rank >= 0 && e.rank != c.Rank {
			s.fault(KindMatch, []int32{int32(i)}, "rank %d's %s[%d] is raised by rank %d and by rank %d, but only one rank may raise a counter element", c.Peer, p.Counters[c.Counter].Name, c.Elem, e.rank, c.Rank)
		}
		e.many = e.many || e.stream >= 0 && e.stream != c.Stream
		e.rank, e.stream = c.Rank, c.Stream
		e.perRun++
	}
	base := int32(0)
	for k := range p.Counters {
		ctr := &p.Counters[k]
		for j, want := range ctr.PerRun {
			e := &ix.elems[int(ix.elemOff[k])+j]
			if e.base = base; int64(e.perRun) != want {
				s.fault(KindMatch, nil, "counter %s: element %d is signalled %d times in a run, but the plan "+
					"states %d", ctr.Name, j, e.perRun, want)
			}
			base += e.perRun
		}
	}
	if len(s.faults) == 0 {
		s.counterWaits()
	}
}

// counterWaits checks that the signals of one run suffice for each wait. It also checks that these signals precede the
// wait in the list of commands, unless the wait is marked Late.
func (s *structure) counterWaits() {
	p, ix := s.p, s.ix
	fired := make([]int32, len(ix.elems))
	for i, kind := range ix.kinds {
		c := &p.Cmds[i]
		switch kind {
		case plan.Signal:
			fired[ix.elem(c.Counter, c.Peer, c.Elem)]++
		case plan.WaitCounter:
			k := ix.elem(c.Counter, c.Rank, c.Elem)
			name := p.Counters[c.Counter].Name
			switch {
			case c.Value < 1 || c.Value > int64(ix.elems[k].perRun):
				s.fault(KindDeadlock, []int32{int32(i)}, "waits for %s[%d] >= %d, but each run signals the element only %d times", name, c.Elem, c.Value, ix.elems[k].perRun)
			case !c.Late && int64(fired[k]) < c.Value:
				s.fault(KindIssue, []int32{int32(i)}, "the host issues this wait before the signals that it needs, and the plan does not mark it as late")
			}
		}
	}
}

// collectives checks that every member issues every collective of its channel exactly once, in order, and on the
// channel's stream.
func (s *structure) collectives() {
	p := s.p
	type member struct{ channel, part int32 }
	next := map[member]int32{}
	perChannel := make([]int32, len(p.Channels))
	for i := range p.Colls {
		perChannel[p.Colls[i].Channel]++
	}
	for i, kind := range s.ix.kinds {
		if kind != plan.Collective {
			continue
		}
		c := &p.Cmds[i]
		me := []int32{int32(i)}
		if !within(c.Coll, len(p.Colls)) || !within(c.Part, len(p.Colls[c.Coll].Parts)) {
			s.fault(KindMatch, me, "the part of a collective to which this refers does not exist")
			return
		}
		coll := &p.Colls[c.Coll]
		ch := &p.Channels[coll.Channel]
		if ch.Team[c.Part] != c.Rank || ch.Streams[c.Part] != c.Stream {
			s.fault(KindMatch, me, "this part of the collective belongs to rank %d, %s", ch.Team[c.Part], p.Streams[ch.Streams[c.Part]].Name)
			continue
		}
		k := member{coll.Channel, c.Part}
		if coll.Seq != next[k] {
			s.fault(KindMatch, me, "%s is number %d of its channel, and rank %d issues it as number %d: other ranks match it with another collective", coll.Op, coll.Seq+1, c.Rank, next[k]+1)
			return
		}
		next[k]++
	}
	for i := range p.Channels {
		for m, r := range p.Channels[i].Team {
			if n := next[member{int32(i), int32(m)}]; n != perChannel[i] {
				s.fault(KindMatch, nil, "rank %d issues %d of the %d collectives over the ranks %v", r, n, perChannel[i], p.Channels[i].Team)
			}
		}
	}
}

// transfers checks that each transfer has two sides, each on its own rank.
func (s *structure) transfers() {
	posted := map[plan.P2P]int32{}
	for i := range s.p.Cmds {
		c := &s.p.Cmds[i]
		for _, e := range c.Group {
			me := []int32{int32(i)}
			if c.Kind != plan.Group || !within(e.Pair, len(s.p.Pairs)) {
				s.fault(KindMatch, me, "transfer %d does not exist", e.Pair)
				return
			}
			rank := s.p.Pairs[e.Pair].Dst.Rank
			if e.Send {
				rank = s.p.Pairs[e.Pair].Src.Rank
			}
			if other, twice := posted[e]; twice {
				s.fault(KindMatch, []int32{other, int32(i)}, "one side of transfer %d is posted twice", e.Pair)
			}
			if rank != c.Rank {
				s.fault(KindMatch, me, "this side of transfer %d belongs to rank %d", e.Pair, rank)
			}
			posted[e] = int32(i)
		}
	}
	for i := range s.p.Pairs {
		_, sent := posted[plan.P2P{Pair: int32(i), Send: true}]
		_, received := posted[plan.P2P{Pair: int32(i)}]
		if !sent || !received {
			s.fault(KindMatch, nil, "one side of transfer %d is not in the plan", i)
		}
	}
}

// callers checks that parameters share no bytes with other buffers, because a caller may write a parameter once and
// then run the plan many times. It also checks that commands write no parameters except those that are inout.
func (s *structure) callers() {
	p := s.p
	inout := map[int32]bool{}
	for i := range p.Inputs {
		for _, part := range p.Inputs[i].Parts {
			if part.Ref.Present() && p.Inputs[i].Inout {
				inout[part.Ref.Buf] = true
			}
		}
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind == plan.Input || c.Kind == plan.Output {
			continue
		}
		refs(p, c, func(r *plan.Ref, write bool) {
			if write && p.Buffers[r.Buf].Role == plan.RoleInput && !inout[r.Buf] {
				s.fault(KindMatch, []int32{int32(i)}, "writes the parameter %s, which is not inout", p.Buffers[r.Buf].Name)
			}
		})
	}
	order := make([]int32, 0, len(p.Buffers))
	for i := range p.Buffers {
		if p.Buffers[i].Bytes > 0 {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(a, b int32) int {
		x, y := &p.Buffers[a], &p.Buffers[b]
		return compare3(int64(x.Space), int64(y.Space), x.Offset, y.Offset, x.Bytes, y.Bytes)
	})
	// Buffers are visited in the order of their addresses. The variable far is the visited buffer with the highest end
	// address, and farInput is the visited parameter with the highest end address.
	far, farInput := int32(-1), int32(-1)
	reaches := func(of, at int32) bool {
		if of < 0 {
			return false
		}
		x, y := &p.Buffers[of], &p.Buffers[at]
		return x.Space == y.Space && x.Offset+x.Bytes > y.Offset
	}
	end := func(i int32) int64 { return p.Buffers[i].Offset + p.Buffers[i].Bytes }
	for _, i := range order {
		with := farInput
		if p.Buffers[i].Role == plan.RoleInput {
			with = far
		}
		if reaches(with, i) {
			s.fault(KindReuse, nil, "%s and %s share bytes, and the caller may write a parameter once for many runs", p.Buffers[i].Name, p.Buffers[with].Name)
		}
		if !reaches(far, i) || end(i) > end(far) {
			far = i
		}
		if p.Buffers[i].Role == plan.RoleInput && (!reaches(farInput, i) || end(i) > end(farInput)) {
			farInput = i
		}
	}
}

func compare3(pairs ...int64) int {
	for i := 0; i < len(pairs); i += 2 {
		switch {
		case pairs[i] < pairs[i+1]:
			return -1
		case pairs[i] > pairs[i+1]:
			return 1
		}
	}
	return 0
}
