package verify

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// structure checks everything in a plan that needs no simulation, and builds the index at the same time. Each check may
// assume that the earlier checks succeeded.
type structure struct {
	p      *plan.Plan
	ix     *index
	faults []Finding
}

// newIndex returns the index of a plan, or findings that describe the errors in the plan's structure.
func newIndex(p *plan.Plan) (*index, []Finding) {
	s := &structure{p: p, ix: &index{p: p}}
	for _, check := range []func(){s.buffers, s.streams, s.channels, s.counters, s.tables, s.commands, s.events, s.signals, s.collectives, s.transfers, s.callers} {
		if check(); len(s.faults) > 0 {
			return nil, s.faults
		}
	}
	return s.ix, nil
}

// fault records an error and the commands that it concerns.
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
			s.fault(KindBounds, nil, "buffer %s has %d bytes at offset %d, but its memory space has only %d", b.Name,
				b.Bytes, b.Offset, size)
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
			s.fault(KindMatch, nil, "channel %d has %d members but %d streams", i, len(ch.Team), len(ch.Streams))
			continue
		}
		seen := map[int32]bool{}
		for m, r := range ch.Team {
			st := ch.Streams[m]
			if seen[r] || !within(st, len(s.p.Streams)) || s.p.Streams[st].Rank != r {
				s.fault(KindMatch, nil, "channel %d: member %d is in the team twice, or its stream belongs to "+
					"another rank", i, m)
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
			s.fault(KindMatch, nil, "counter %s has %d elements on each of %d ranks, but numbers of signals for "+
				"%d elements", c.Name, c.Len, s.p.Ranks, len(c.PerRun))
			return
		}
		s.ix.elemOff[i] = int32(len(s.ix.elems))
		for range c.PerRun {
			s.ix.elems = append(s.ix.elems, elem{stream: -1, rank: -1})
		}
	}
}

// tables checks the references in collectives and transfers.
func (s *structure) tables() {
	for i := range s.p.Colls {
		c := &s.p.Colls[i]
		if !within(c.Channel, len(s.p.Channels)) || len(c.Parts) != len(s.p.Channels[c.Channel].Team) {
			s.fault(KindMatch, nil, "collective %d has no channel, or another number of members than its channel", i)
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
				s.fault(KindMatch, nil, "parameter or result %s has %d blocks for %d ranks", ios[i].Name,
					len(ios[i].Parts), s.p.Ranks)
			}
		}
	}
}

// ref checks that a tensor lies within its buffer and on the correct rank.
func (s *structure) ref(cmds []int32, r *plan.Ref, rank int32, what string) {
	if !r.Present() {
		return
	}
	if !within(r.Buf, len(s.p.Buffers)) || r.Rank != rank || !within(rank, s.p.Ranks) {
		s.fault(KindBounds, cmds, "%sa tensor is in buffer %d of rank %d, but must be on rank %d", what, r.Buf,
			r.Rank, rank)
		return
	}
	b := &s.p.Buffers[r.Buf]
	end, ok := reach(r)
	if !ok || r.Off < 0 || end > b.Bytes || r.Off > b.Bytes-end {
		s.fault(KindBounds, cmds, "%s%s%v at byte %d is not inside %s, which has %d bytes", what, r.DType, r.Shape, r.Off, b.Name, b.Bytes)
	}
}

// maxReach limits the number of bytes from the first to the last byte of a tensor. The limit is larger than the memory
// of any machine, and so small that the sum of two such numbers does not overflow.
const maxReach = 1 << 60

// reach returns the number of bytes from the first byte of a tensor to the end of its last element, or 0 for an empty
// tensor. The second result is false if an extent or stride is negative or if a product overflows.
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

// commands checks each command by itself and appends it to the list of its stream.
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
				s.fault(KindMatch, me, "command %d has an unknown operation", i)
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
			s.fault(KindBounds, me, "the command lacks an operand")
			continue
		}
		s.ref(me, &refs[i], rank, "")
	}
}

// copy checks a put, a get or a local copy: at most one side belongs to a peer, and that side is a symmetric buffer.
func (s *structure) copy(me []int32, c *plan.Cmd) {
	if len(c.Ins) != 1 || len(c.Outs) != 1 || !c.Ins[0].Present() || !c.Outs[0].Present() {
		s.fault(KindMatch, me, "a copy has one source and one destination")
		return
	}
	in, out := &c.Ins[0], &c.Outs[0]
	if in.DType != out.DType || !slices.Equal(in.Shape, out.Shape) {
		s.fault(KindMatch, me, "the source and the destination of a copy differ in type: %s%v and %s%v", in.DType,
			in.Shape, out.DType, out.Shape)
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
		s.fault(KindMatch, me, "buffer %s is accessed on rank %d by another rank, but is not symmetric",
			s.p.Buffers[remote.Buf].Name, remote.Rank)
	}
}
