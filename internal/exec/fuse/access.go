package fuse

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
)

// access is one use of a buffer by a command.
type access struct {
	cmd    int
	ref    plan.Ref
	writes bool
}

// uses lists the uses of a buffer of one rank.
type uses struct {
	all     []access       // in the order of the plan
	streams map[int32]bool // the streams of all uses
	// by stream and byte interval, because an unrolled loop contains many writes of the same interval
	writers map[written]span
}

// written identifies writes of the bytes [lo, hi) by commands of one stream.
type written struct {
	stream int32
	lo, hi int64
}

// span holds the first and the last command that write the same bytes on the same stream.
type span struct{ first, last int }

// accesses holds the uses of all buffers that occur in the commands of the candidate Norms.
type accesses struct {
	p     *plan.Plan
	norms map[int32]*Norm
	of    map[place]*uses
	late  bool            // whether some waits precede, in the plan, the record that they wait for
	order map[int][]int32 // cached results of the method reached; nil until it is first called
}

// accessesOf returns the uses of the buffers that occur in the commands of norms.
func accessesOf(p *plan.Plan, norms map[int32]*Norm) *accesses {
	a := &accesses{p: p, norms: norms, of: map[place]*uses{}}
	for _, n := range norms {
		for _, m := range n.Members {
			for _, r := range []plan.Ref{m.Part(p).Out, m.Residual(p), p.Cmds[m.Add].Outs[0], p.Cmds[m.Norm].Ins[1]} {
				a.of[placeOf(r)] = &uses{streams: map[int32]bool{}, writers: map[written]span{}}
			}
		}
	}
	for i := range p.Cmds {
		a.late = a.late || p.Cmds[i].Late
		reads, writes := p.Accesses(&p.Cmds[i])
		for _, r := range reads {
			a.add(access{i, r, false})
		}
		for _, r := range writes {
			a.add(access{i, r, true})
		}
	}
	return a
}

func (a *accesses) add(x access) {
	u := a.of[placeOf(x.ref)]
	if u == nil {
		return
	}
	u.all = append(u.all, x)
	stream := a.p.Cmds[x.cmd].Stream
	u.streams[stream] = true
	if x.writes {
		lo, hi := x.ref.Span()
		w := written{stream, lo, hi}
		s, again := u.writers[w]
		if !again {
			s.first = x.cmd
		}
		s.last = x.cmd
		u.writers[w] = s
	}
}

// free reports whether one launch can replace a member's part of a Norm: only the add uses the sum of the all_reduce,
// and the operands that the launch reads early are complete before the all_reduce.
func (a *accesses) free(m NormMember) bool {
	sum := m.Part(a.p).Out
	unread := a.p.Cmds[m.Add].Outs[0].Same(sum) || a.unread(sum, m.Add)
	return unread && a.early(m, m.Residual(a.p)) && a.early(m, a.p.Cmds[m.Norm].Ins[1])
}

// stored reports whether the launch must store the result of the add: another command than the rms_norm may read it, or
// the rms_norm also reads it as weights.
func (a *accesses) stored(m NormMember) bool {
	total := a.p.Cmds[m.Add].Outs[0]
	return !a.unread(total, m.Norm) || a.p.Cmds[m.Norm].Ins[1].Overlaps(total)
}

// early reports whether every write of r that precedes the add also precedes the all_reduce: each such write is on this
// stream, or on a stream that this stream has waited for. Only the all_reduce itself could order any other write.
func (a *accesses) early(m NormMember, r plan.Ref) bool {
	lo, hi := r.Span()
	stream := a.p.Cmds[m.Reduce].Stream
	for w, s := range a.of[placeOf(r)].writers {
		later := s.first > m.Norm && !a.late
		if w.stream != stream && w.lo < hi && lo < w.hi && !later && int32(s.last) > a.reachedBy(m.Reduce)[w.stream] {
			return false
		}
	}
	return true
}

// reachedBy returns, by stream, the last command that is known to precede a member's all_reduce; -1 if there is none.
func (a *accesses) reachedBy(reduce int) []int32 {
	if a.order == nil {
		reduces := map[int]bool{}
		for _, n := range a.norms {
			for _, m := range n.Members {
				reduces[m.Reduce] = true
			}
		}
		a.order = reached(a.p, reduces)
	}
	return a.order[reduce]
}

// reached returns, for each command in the list of and each stream, the last command of the stream that is known to
// precede that command. Known are the order of each stream, and the order by events whose records precede their waits
// in the plan.
func reached(p *plan.Plan, of map[int]bool) map[int][]int32 {
	now, events := make([][]int32, len(p.Streams)), make([][]int32, p.Events)
	for s := range now {
		now[s] = slices.Repeat([]int32{-1}, len(p.Streams))
	}
	at := map[int][]int32{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		mine := now[c.Stream]
		if of[i] {
			at[i] = slices.Clone(mine)
		}
		mine[c.Stream] = int32(i)
		switch c.Kind {
		case plan.Record:
			events[c.Event] = slices.Clone(mine)
		case plan.WaitEvent:
			for s, j := range events[c.Event] {
				mine[s] = max(mine[s], j)
			}
		}
	}
	return at
}

// unread reports whether no command but reader reads the value of r that was written last before reader. This is the
// case if only one stream uses the buffer of r, and the next command that uses the bytes of r overwrites them.
func (a *accesses) unread(r plan.Ref, reader int) bool {
	at := placeOf(r)
	if u := a.of[at]; len(u.streams) > 1 || !private(a.p, at) {
		return false
	}
	all := a.of[at].all
	next, _ := slices.BinarySearchFunc(all, reader, func(x access, cmd int) int { return cmp.Compare(x.cmd, cmd) })
	for _, x := range all[next:] {
		switch {
		case !x.ref.Overlaps(r), x.cmd == reader && !x.writes:
		case x.writes:
			return covers(x.ref, r)
		default:
			return false
		}
	}
	return true
}

// covers reports whether a write of w overwrites all bytes of r.
func covers(w, r plan.Ref) bool {
	wlo, whi := w.Span()
	rlo, rhi := r.Span()
	return w.Dense() && wlo <= rlo && rhi <= whi
}
