package verify

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// structure checks what can be seen without executing, and builds the index on
// the way. Each check may rely on the ones before it.
type structure struct {
	p      *plan.Plan
	ix     *index
	faults []Finding
}

// newIndex returns the index of a plan, or what is wrong with its structure.
func newIndex(p *plan.Plan) (*index, []Finding) {
	s := &structure{p: p, ix: &index{p: p}}
	for _, check := range []func(){s.buffers, s.streams, s.channels, s.counters, s.tables, s.commands, s.events, s.signals, s.collectives, s.transfers, s.callers} {
		if check(); len(s.faults) > 0 {
			return nil, s.faults
		}
	}
	return s.ix, nil
}

// fault notes what is wrong, with the commands it concerns.
func (s *structure) fault(kind string, cmds []int32, format string, args ...any) {
	if len(s.faults) == maxFindings {
		return
	}
	f := Finding{Kind: kind, Message: fmt.Sprintf(format, args...), Count: 1}
	for _, c := range cmds {
		f.Acts = append(f.Acts, Act{Cmd: c})
	}
	s.faults = append(s.faults, f)
}

func within(i int32, n int) bool { return i >= 0 && int(i) < n }

func (s *structure) buffers() {
	for i := range s.p.Buffers {
		b := &s.p.Buffers[i]
		size := s.p.ArenaBytes
		if b.Space == plan.Host {
			size = s.p.HostBytes
		}
		if b.Space > plan.Host || b.Offset < 0 || b.Bytes < 0 || b.Bytes > size || b.Offset > size-b.Bytes {
			s.fault(KindBounds, nil, "%s takes %d bytes at %d, and its space has %d", b.Name, b.Bytes, b.Offset, size)
		}
	}
}

func (s *structure) streams() {
	if s.p.Ranks < 1 || len(s.p.Main) != s.p.Ranks {
		s.fault(KindMatch, nil, "%d main streams for %d ranks", len(s.p.Main), s.p.Ranks)
		return
	}
	for i, st := range s.p.Streams {
		if !within(st.Rank, s.p.Ranks) {
			s.fault(KindMatch, nil, "stream %d belongs to no rank", i)
		}
	}
	for r, m := range s.p.Main {
		if !within(m, len(s.p.Streams)) || int(s.p.Streams[m].Rank) != r {
			s.fault(KindMatch, nil, "the main stream of rank %d is not its own", r)
		}
	}
}

func (s *structure) channels() {
	for i := range s.p.Channels {
		ch := &s.p.Channels[i]
		if len(ch.Team) == 0 || len(ch.Streams) != len(ch.Team) {
			s.fault(KindMatch, nil, "channel %d has %d members and %d streams", i, len(ch.Team), len(ch.Streams))
			continue
		}
		seen := map[int32]bool{}
		for m, r := range ch.Team {
			st := ch.Streams[m]
			if seen[r] || !within(st, len(s.p.Streams)) || s.p.Streams[st].Rank != r {
				s.fault(KindMatch, nil, "channel %d: member %d is twice in the team, or its stream is another rank's", i, m)
			}
			seen[r] = true
		}
	}
}

func (s *structure) counters() {
	s.ix.elemOff = make([]int32, len(s.p.Counters))
	for i := range s.p.Counters {
		c := &s.p.Counters[i]
		if c.Len < 0 || int64(len(c.PerRun)) != int64(c.Len)*int64(s.p.Ranks) {
			s.fault(KindMatch, nil, "counter %s has %d elements on %d ranks, and %d numbers of signals", c.Name, c.Len, s.p.Ranks, len(c.PerRun))
			return
		}
		s.ix.elemOff[i] = int32(len(s.ix.elems))
		for range c.PerRun {
			s.ix.elems = append(s.ix.elems, elem{stream: -1, rank: -1})
		}
	}
}

// tables checks the references of collectives and transfers.
func (s *structure) tables() {
	for i := range s.p.Colls {
		c := &s.p.Colls[i]
		if !within(c.Channel, len(s.p.Channels)) || len(c.Parts) != len(s.p.Channels[c.Channel].Team) {
			s.fault(KindMatch, nil, "collective %d has no channel, or another number of members than that", i)
			return
		}
		team := s.p.Channels[c.Channel].Team
		if why := fits(c); why != "" {
			s.fault(KindMatch, nil, "collective %d, %s over the ranks %v: %s", i, c.Op, team, why)
		}
		for m := range c.Parts {
			s.ref(nil, &c.Parts[m].In, team[m], "")
			s.ref(nil, &c.Parts[m].Out, team[m], "")
			for i := range c.Parts[m].Counts {
				s.ref(nil, &c.Parts[m].Counts[i], team[m], "")
			}
		}
	}
	for i := range s.p.Pairs {
		p := &s.p.Pairs[i]
		s.ref(nil, &p.Src, p.Src.Rank, "")
		s.ref(nil, &p.Dst, p.Dst.Rank, "")
		if !p.Src.Present() || !p.Dst.Present() || p.Src.DType != p.Dst.DType || len(s.faults) == 0 && p.Src.Elements() != p.Dst.Elements() {
			s.fault(KindMatch, nil, "transfer %d sends %s%v and receives %s%v", i, p.Src.DType, p.Src.Shape, p.Dst.DType, p.Dst.Shape)
		}
	}
	for _, ios := range [][]plan.IO{s.p.Inputs, s.p.Outputs} {
		for i := range ios {
			for r := range ios[i].Parts {
				s.ref(nil, &ios[i].Parts[r].Ref, int32(r), "")
			}
			if len(ios[i].Parts) != s.p.Ranks {
				s.fault(KindMatch, nil, "%s has %d blocks for %d ranks", ios[i].Name, len(ios[i].Parts), s.p.Ranks)
			}
		}
	}
}

// ref checks that a tensor lies in its buffer, on the rank it should.
func (s *structure) ref(cmds []int32, r *plan.Ref, rank int32, what string) {
	if !r.Present() {
		return
	}
	if !within(r.Buf, len(s.p.Buffers)) || r.Rank != rank || !within(rank, s.p.Ranks) {
		s.fault(KindBounds, cmds, "%sa tensor in buffer %d of rank %d, where rank %d's is meant", what, r.Buf, r.Rank, rank)
		return
	}
	b := &s.p.Buffers[r.Buf]
	end, ok := reach(r)
	if !ok || r.Off < 0 || end > b.Bytes || r.Off > b.Bytes-end {
		s.fault(KindBounds, cmds, "%s%s%v at byte %d leaves %s, which has %d bytes", what, r.DType, r.Shape, r.Off, b.Name, b.Bytes)
	}
}

// maxReach bounds the bytes between the ends of a tensor: far more than any
// machine has, and small enough for sums of two.
const maxReach = 1 << 60

// reach returns the bytes from a tensor's first to behind its last, 0 for an
// empty one; false when an extent or stride is negative or a product overflows.
func reach(r *plan.Ref) (int64, bool) {
	if r.DType == ir.InvalidDType || !slices.Contains(ir.DTypes(), r.DType) || len(r.Shape) != len(r.Strides) {
		return 0, false
	}
	empty, last, count := false, uint64(0), uint64(1)
	for i, e := range r.Shape {
		if e < 0 || r.Strides[i] < 0 {
			return 0, false
		}
		empty = empty || e == 0
		if e == 0 {
			continue
		}
		hi, step := bits.Mul64(uint64(e-1), uint64(r.Strides[i]))
		hi2, n := bits.Mul64(count, uint64(e))
		if hi != 0 || hi2 != 0 || step > maxReach || n > maxReach {
			return 0, false
		}
		if last, count = last+step, n; last > maxReach {
			return 0, false
		}
	}
	if empty {
		return 0, true
	}
	return (int64(last) + 1) * r.DType.Size(), last < maxReach/8
}

// commands checks each command on its own and files it under its stream.
func (s *structure) commands() {
	p, ix := s.p, s.ix
	ix.streams = make([][]int32, len(p.Streams))
	ix.pos = make([]int32, len(p.Cmds))
	ix.kinds = make([]plan.Kind, len(p.Cmds))
	for i := range p.Cmds {
		c := &p.Cmds[i]
		me := []int32{int32(i)}
		if c.Kind > plan.Output || !within(c.Rank, p.Ranks) || !within(c.Stream, len(p.Streams)) || p.Streams[c.Stream].Rank != c.Rank || !within(c.Site, len(p.Sites)) {
			s.fault(KindMatch, nil, "command %d has no kind or site, or a stream of another rank", i)
			return
		}
		ix.streams[c.Stream] = append(ix.streams[c.Stream], int32(i))
		ix.pos[i] = int32(len(ix.streams[c.Stream]))
		ix.kinds[i] = c.Kind
		switch c.Kind {
		case plan.Compute:
			if !isOp(c.Op) {
				s.fault(KindMatch, me, "command %d computes nothing that there is", i)
			}
			s.own(me, c.Ins, c.Rank)
			s.own(me, c.Outs, c.Rank)
		case plan.Copy:
			s.copy(me, c)
		case plan.Input, plan.Output:
			ios := p.Inputs
			if c.Kind == plan.Output {
				ios = p.Outputs
			}
			if !within(c.IO, len(ios)) || !ios[c.IO].Parts[c.Rank].Ref.Present() || c.Stream != p.Main[c.Rank] {
				s.fault(KindMatch, me, "the caller's transfer has no block on this rank, or is not on main")
			}
		}
	}
}

func (s *structure) own(me []int32, refs []plan.Ref, rank int32) {
	for i := range refs {
		if !refs[i].Present() {
			s.fault(KindBounds, me, "an operand is missing")
			continue
		}
		s.ref(me, &refs[i], rank, "")
	}
}

// copy checks a put, a get or a local copy: at most one side is a peer's, and
// that side is a symmetric buffer.
func (s *structure) copy(me []int32, c *plan.Cmd) {
	if len(c.Ins) != 1 || len(c.Outs) != 1 || !c.Ins[0].Present() || !c.Outs[0].Present() {
		s.fault(KindMatch, me, "a copy has one source and one destination")
		return
	}
	in, out := &c.Ins[0], &c.Outs[0]
	if in.DType != out.DType || !slices.Equal(in.Shape, out.Shape) {
		s.fault(KindMatch, me, "a copy of %s%v to %s%v", in.DType, in.Shape, out.DType, out.Shape)
		return
	}
	for _, r := range []*plan.Ref{in, out} {
		want := c.Rank
		if c.Peer >= 0 && r.Rank != c.Rank {
			want = c.Peer
		}
		s.ref(me, r, want, "")
	}
	if len(s.faults) > 0 || in.Rank == out.Rank && in.Rank == c.Rank {
		return
	}
	remote := in
	if out.Rank != c.Rank {
		remote = out
	}
	if in.Rank != c.Rank && out.Rank != c.Rank || !s.p.Buffers[remote.Buf].Symmetric {
		s.fault(KindMatch, me, "%s is reached on rank %d, and is not symmetric", s.p.Buffers[remote.Buf].Name, remote.Rank)
	}
}

// events checks that each event is recorded once, and in host issue order
// before each of its waits: a wait for an event not yet recorded is silently
// none.
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
			s.fault(KindIssue, []int32{w, rec}, "the host issues this wait before the record it is for: on a GPU it would wait for nothing")
		} else {
			s.fault(KindIssue, []int32{w}, "waits for an event that is never recorded")
		}
	}
}

// signals counts the signals of each element and finds who raises it.
func (s *structure) signals() {
	p, ix := s.p, s.ix
	for i, kind := range ix.kinds {
		if kind != plan.Signal && kind != plan.WaitCounter {
			continue
		}
		c := &p.Cmds[i]
		if !within(c.Counter, len(p.Counters)) || !within(c.Elem, int(p.Counters[c.Counter].Len)) || c.Kind == plan.Signal && !within(c.Peer, p.Ranks) {
			s.fault(KindMatch, []int32{int32(i)}, "there is no such element of a counter")
			return
		}
		if c.Kind == plan.WaitCounter {
			continue
		}
		e := &ix.elems[ix.elem(c.Counter, c.Peer, c.Elem)]
		if e.rank >= 0 && e.rank != c.Rank {
			s.fault(KindMatch, []int32{int32(i)}, "rank %d's %s[%d] is raised by rank %d and by rank %d; an element has one raiser", c.Peer, p.Counters[c.Counter].Name, c.Elem, e.rank, c.Rank)
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
				s.fault(KindMatch, nil, "%s: element %d has %d signals a run, and the plan says %d", ctr.Name, j, e.perRun, want)
			}
			base += e.perRun
		}
	}
	if len(s.faults) == 0 {
		s.counterWaits()
	}
}

// counterWaits checks that each wait can be met by the signals of its run, and
// that those stand before it unless it says so.
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
				s.fault(KindDeadlock, []int32{int32(i)}, "waits for %s[%d] >= %d, which is signalled %d times a run", name, c.Elem, c.Value, ix.elems[k].perRun)
			case !c.Late && int64(fired[k]) < c.Value:
				s.fault(KindIssue, []int32{int32(i)}, "the host issues this wait before the signals it is for, and it is not marked late")
			}
		}
	}
}

// collectives checks that every member issues every collective of its channel
// once, in order, on its stream.
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
			s.fault(KindMatch, me, "there is no such part of a collective")
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

// transfers checks that each transfer has its two sides, each on its rank.
func (s *structure) transfers() {
	posted := map[plan.P2P]int32{}
	for i := range s.p.Cmds {
		c := &s.p.Cmds[i]
		for _, e := range c.Group {
			me := []int32{int32(i)}
			if c.Kind != plan.Group || !within(e.Pair, len(s.p.Pairs)) {
				s.fault(KindMatch, me, "there is no transfer %d", e.Pair)
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
				s.fault(KindMatch, me, "this side of transfer %d is rank %d's", e.Pair, rank)
			}
			posted[e] = int32(i)
		}
	}
	for i := range s.p.Pairs {
		_, sent := posted[plan.P2P{Pair: int32(i), Send: true}]
		_, received := posted[plan.P2P{Pair: int32(i)}]
		if !sent || !received {
			s.fault(KindMatch, nil, "transfer %d lacks a side", i)
		}
	}
}

// callers checks that parameters have their bytes for themselves, since the
// caller may write them once for many runs, and that only inout ones are written.
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
	// Going up, the buffer that reaches furthest, and the parameter that does.
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
