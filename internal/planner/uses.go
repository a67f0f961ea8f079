package planner

import (
	"sort"

	"hocket.example/hocket/internal/plan"
)

// use records how one stream uses one rank's copy of a buffer: the positions of the first and the last command of
// the stream that access the copy, and, in each of two runs, the knowledge of the stream before the first of these
// commands.
type use struct {
	stream      int32
	first, last int32
	next        int32 // index of the next use of the same copy, or -1
	before      [runs]clock
}

// holder records the uses of one rank's copy of a buffer.
type holder struct {
	rank int32
	uses int32 // index of the first use, or -1
	// begin and end are the indices of the first and the last command that uses the copy, in the list of all ranks'
	// commands.
	begin, end int32
}

// usage records which streams use which buffers, and when. Input buffers are omitted, because they live as long as the
// plan.
type usage struct {
	uses    []use
	holders [][]holder // by buffer, sorted by rank
	// opens[i]..opens[i+1] are the indices of the uses whose first command is command i.
	opens []int32
}

// refs is an iterator: it calls f for every tensor that command c accesses. For a collective or transfer, the accessed
// tensors are only those of the rank that executes c.
func refs(p *plan.Plan, c *plan.Cmd, f func(r *plan.Ref)) {
	visit := func(r *plan.Ref) {
		if r.Present() {
			f(r)
		}
	}
	switch c.Kind {
	case plan.Compute, plan.Copy:
		for i := range c.Ins {
			visit(&c.Ins[i])
		}
		for i := range c.Outs {
			visit(&c.Outs[i])
		}
	case plan.Collective:
		part := &p.Colls[c.Coll].Parts[c.Part]
		visit(&part.In)
		visit(&part.Out)
		for i := range part.Counts {
			visit(&part.Counts[i])
		}
	case plan.Group:
		for _, e := range c.Group {
			if e.Send {
				visit(&p.Pairs[e.Pair].Src)
			} else {
				visit(&p.Pairs[e.Pair].Dst)
			}
		}
	case plan.Input:
		visit(&p.Inputs[c.IO].Parts[c.Rank].Ref)
	case plan.Output:
		visit(&p.Outputs[c.IO].Parts[c.Rank].Ref)
	}
}

// findUses returns the usage of a merged plan and sets First and Last of its buffers.
func findUses(p *plan.Plan) *usage {
	u := &usage{holders: make([][]holder, len(p.Buffers)), opens: make([]int32, len(p.Cmds)+1)}
	pos := make([]int32, len(p.Streams))
	for i := range p.Cmds {
		c := &p.Cmds[i]
		pos[c.Stream]++
		refs(p, c, func(r *plan.Ref) {
			b := &p.Buffers[r.Buf]
			if b.First < 0 {
				b.First = int32(i)
			}
			b.Last = int32(i)
			if b.Role != plan.RoleInput {
				u.add(r, c.Stream, pos[c.Stream], int32(i))
			}
		})
		u.opens[i+1] = int32(len(u.uses))
	}
	return u
}

func (u *usage) add(r *plan.Ref, stream, pos, cmd int32) {
	h := u.holder(r.Buf, r.Rank)
	if h.uses < 0 {
		h.begin = cmd
	}
	h.end = cmd
	for k := h.uses; k >= 0; k = u.uses[k].next {
		if u.uses[k].stream == stream {
			u.uses[k].last = pos
			return
		}
	}
	u.uses = append(u.uses, use{stream: stream, first: pos, last: pos, next: h.uses})
	h.uses = int32(len(u.uses)) - 1
}

// holder returns the entry for rank's copy of a buffer, and creates it if it does not exist. Usually every rank has
// every buffer and ranks are added in order, so the entry is at index rank.
func (u *usage) holder(buf, rank int32) *holder {
	hs := u.holders[buf]
	if int(rank) < len(hs) && hs[rank].rank == rank {
		return &hs[rank]
	}
	i := sort.Search(len(hs), func(i int) bool { return hs[i].rank >= rank })
	if i == len(hs) || hs[i].rank != rank {
		hs = append(hs, holder{})
		copy(hs[i+1:], hs[i:])
		hs[i] = holder{rank: rank, uses: -1}
		u.holders[buf] = hs
	}
	return &hs[i]
}

// mayShare reports whether the buffers a and b may share bytes. On every rank that uses both, all uses of one must
// be done before the uses of the other begin. The uses of the other must then be done before those of the first
// begin again in the next run.
func (u *usage) mayShare(a, b int32) bool {
	x, y := u.holders[a], u.holders[b]
	for len(x) > 0 && len(y) > 0 {
		switch {
		case x[0].rank < y[0].rank:
			x = x[1:]
		case x[0].rank > y[0].rank:
			y = y[1:]
		default:
			if !u.alternate(&x[0], &y[0]) && !u.alternate(&y[0], &x[0]) {
				return false
			}
			x, y = x[1:], y[1:]
		}
	}
	return true
}

// covers reports whether b exists on all ranks of a, and whether before(x, y) holds on each of them for the holders x
// of a and y of b.
func (u *usage) covers(b, a int32, before func(x, y *holder) bool) bool {
	y := u.holders[b]
	for i := range u.holders[a] {
		x := &u.holders[a][i]
		for len(y) > 0 && y[0].rank < x.rank {
			y = y[1:]
		}
		if len(y) == 0 || y[0].rank != x.rank || !before(x, &y[0]) {
			return false
		}
	}
	return true
}

// alternate reports whether a's uses precede b's uses in each run, and b's uses precede a's uses of the next run.
func (u *usage) alternate(a, b *holder) bool {
	if a.end >= b.begin { // in the list of all commands, a is used after b
		return false
	}
	for i := a.uses; i >= 0; i = u.uses[i].next {
		x := &u.uses[i]
		for j := b.uses; j >= 0; j = u.uses[j].next {
			y := &u.uses[j]
			if !y.before[0].knows(x.stream, x.last) || !x.before[1].knows(y.stream, y.last) {
				return false
			}
		}
	}
	return true
}
