package planner

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// match matches the commands that ranks execute together. Within each team, match pairs the parts of a collective by
// their order. Within each lane, match pairs sends with recvs by their order. It also checks that waits for counters
// require no more signals than there are.
func (w *world) match() error {
	for _, t := range w.teams {
		if err := w.matchTeam(t); err != nil {
			return err
		}
	}
	for _, l := range w.lanes {
		if err := w.matchLane(l); err != nil {
			return err
		}
	}
	return w.matchCounters()
}

// matchTeam creates the plan's Colls from the issues of a team. The k-th issues of all members form one collective. The
// channel of the collective is determined by the streams on which the members issue it.
func (w *world) matchTeam(t *team) error {
	channels := map[string]int32{}
	longest := 0
	for m := range t.issued {
		if len(t.issued[m]) > len(t.issued[longest]) {
			longest = m
		}
	}
	seqs := map[int32]int32{}
	for k := range t.issued[longest] {
		coll, err := w.matchColl(t, longest, k)
		if err != nil {
			return err
		}
		coll.Channel = w.channel(t, k, channels)
		coll.Seq = seqs[coll.Channel]
		seqs[coll.Channel]++
		w.p.Colls = append(w.p.Colls, coll)
	}
	return nil
}

// matchColl checks that the k-th collective of every member is compatible with that of the member lead.
func (w *world) matchColl(t *team, lead, k int) (plan.Coll, error) {
	first := t.issued[lead][k]
	coll := first.coll
	coll.Parts = make([]plan.CollPart, len(t.ranks))
	for m, rank := range t.ranks {
		if k >= len(t.issued[m]) {
			return coll, w.neverIssued(t, lead, m, k)
		}
		is := &t.issued[m][k]
		coll.Parts[m] = is.part
		w.cmds[rank][is.cmd].Coll = int32(len(w.p.Colls))
		if why := differs(&first, is); why != "" {
			return coll, w.mismatch(t, lead, m, k, why)
		}
	}
	if m, why := partsFit(&coll); why != "" {
		other := lead
		if m == lead && len(t.ranks) > 1 {
			other = (lead + 1) % len(t.ranks)
		}
		// all other calls are equal, so the mistake is in the call of member m
		if here := describe(&t.issued[m][k]); here == describe(&t.issued[other][k]) {
			c := w.issued(t, m, k)
			return coll, w.diag("match", c, "%s: %s (%s)", here, why, w.where(c))
		}
		return coll, w.mismatch(t, other, m, k, why)
	}
	return coll, nil
}

func (w *world) issued(t *team, m, k int) *plan.Cmd { return &w.cmds[t.ranks[m]][t.issued[m][k].cmd] }

func (w *world) neverIssued(t *team, lead, m, k int) error {
	c := w.issued(t, lead, k)
	d := w.diag("match", c, "this %s has no matching collective on rank %d (%s)", w.p.Sites[c.Site].Op, t.ranks[m], w.where(c))
	d.Help = fmt.Sprintf("every rank of the team %v must issue the collective, but rank %d issues %d collectives over this team, and rank %d only %d",
		t.ranks, t.ranks[lead], len(t.issued[lead]), t.ranks[m], len(t.issued[m]))
	if n := len(t.issued[m]); n > 0 {
		last := w.issued(t, m, n-1)
		d.Notes = append(d.Notes, w.note(last, "the last collective of rank %d over this team is this %s (%s)", t.ranks[m], w.p.Sites[last.Site].Op, w.where(last)))
	}
	return d
}

func (w *world) mismatch(t *team, lead, m, k int, why string) error {
	a, b := w.issued(t, lead, k), w.issued(t, m, k)
	d := w.diag("match", b, "%s is matched with %s: %s (%s)", describe(&t.issued[m][k]), describe(&t.issued[lead][k]), why, w.where(b))
	d.Notes = append(d.Notes, w.note(a, "the other collective (%s)", w.where(a)))
	d.Help = fmt.Sprintf("the ranks of a team must issue the same collectives in the same order; these are the collectives number %d of the team %v", k+1, t.ranks)
	return d
}

func describe(is *issue) string {
	if r := is.part.In; r.Present() && is.coll.Op != ir.OpBarrier {
		return fmt.Sprintf("%s of %s%v", is.coll.Op, r.DType, r.Shape)
	}
	return is.coll.Op.String()
}

// differs describes the difference between two members' calls of a collective.
func differs(a, b *issue) string {
	x, y := &a.coll, &b.coll
	switch {
	case x.Op != y.Op:
		return "the operations differ"
	case x.Red != y.Red:
		return fmt.Sprintf("op=%s and op=%s", y.Red, x.Red)
	case x.Root != y.Root:
		return fmt.Sprintf("root=%d and root=%d", y.Root, x.Root)
	case x.Axis != y.Axis || x.Split != y.Split:
		return "the axes differ"
	case x.AnyOrd != y.AnyOrd:
		return "order= differs"
	case x.Algo != y.Algo:
		return "algorithm= differs"
	case x.CTAs != y.CTAs:
		return fmt.Sprintf("ctas=%d and ctas=%d", y.CTAs, x.CTAs)
	}
	return countsDiffer(a, b)
}

// partsFit compares the members' tensors: their dtypes must be equal, and their shapes must be related as the op
// requires. partsFit returns the first member whose tensors do not fit, and the reason.
func partsFit(c *plan.Coll) (int, string) {
	p := int64(len(c.Parts))
	dt := ir.InvalidDType
	var in, out []int64
	for m := range c.Parts {
		for _, side := range []struct {
			r     *plan.Ref
			shape *[]int64
			what  string
		}{{&c.Parts[m].In, &in, "operands"}, {&c.Parts[m].Out, &out, "results"}} {
			if !side.r.Present() {
				continue
			}
			if dt == ir.InvalidDType {
				dt = side.r.DType
			}
			if side.r.DType != dt {
				return m, fmt.Sprintf("element types %s and %s", side.r.DType, dt)
			}
			if *side.shape == nil {
				*side.shape = append([]int64{}, side.r.Shape...)
			}
			if !slices.Equal(*side.shape, side.r.Shape) {
				return m, fmt.Sprintf("the %s have the shapes %v and %v", side.what, side.r.Shape, *side.shape)
			}
		}
	}
	if c.Op == ir.OpPermute {
		if m := unpairedPermute(c); m >= 0 {
			return m, "to= and from= of the ranks do not match"
		}
	}
	if in == nil || out == nil {
		return 0, ""
	}
	want := append([]int64{}, in...)
	switch c.Op {
	case ir.OpAllGather, ir.OpGather:
		want[c.Axis] *= p
	case ir.OpReduceScatter, ir.OpScatter:
		if want[c.Axis]%p != 0 {
			return 0, fmt.Sprintf("%d rows are not divisible by %d ranks", want[c.Axis], p)
		}
		want[c.Axis] /= p
	case ir.OpAllToAll:
		if want[c.Split]%p != 0 {
			return 0, fmt.Sprintf("%d rows are not divisible by %d ranks", want[c.Split], p)
		}
		want[c.Split] /= p
		want[c.Axis] *= p
	case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		if m, why := countsFit(c, in, out); why != "" {
			return m, why
		}
		want[c.Axis] = out[c.Axis]
	}
	if !slices.Equal(want, out) {
		return 0, fmt.Sprintf("an operand of shape %v gives a result of shape %v, not %v", in, want, out)
	}
	return 0, ""
}

// unpairedPermute returns a member of a permute whose attribute to= or from= does not match the attributes of the
// member that it names.
func unpairedPermute(c *plan.Coll) int {
	for m, part := range c.Parts {
		if part.To >= 0 && c.Parts[part.To].From != int32(m) || part.From >= 0 && c.Parts[part.From].To != int32(m) {
			return m
		}
	}
	return -1
}

// channel returns the channel for the streams on which the members issue their k-th collective.
func (w *world) channel(t *team, k int, known map[string]int32) int32 {
	key := make([]byte, 0, 4*len(t.ranks))
	for m := range t.ranks {
		s := w.issued(t, m, k).Stream
		key = append(key, byte(s), byte(s>>8), byte(s>>16), byte(s>>24))
	}
	id, ok := known[string(key)]
	if ok {
		return id
	}
	id = int32(len(w.p.Channels))
	known[string(key)] = id
	ch := plan.Channel{}
	for m, r := range t.ranks {
		ch.Team = append(ch.Team, int32(r))
		ch.Streams = append(ch.Streams, w.issued(t, m, k).Stream)
	}
	w.p.Channels = append(w.p.Channels, ch)
	return id
}

// matchLane pairs the k-th send of a lane with its k-th recv.
func (w *world) matchLane(l *lane) error {
	for k := range max(len(l.sends), len(l.recvs)) {
		switch {
		case k >= len(l.recvs):
			return w.unmatched(l, &l.sends[k], "send", "recv", l.key.dst)
		case k >= len(l.sends):
			return w.unmatched(l, &l.recvs[k], "recv", "send", l.key.src)
		}
		s, r := &l.sends[k], &l.recvs[k]
		if s.ref.DType != r.ref.DType || s.ref.Elements() != r.ref.Elements() {
			return w.unequalEnds(l, s, r, k)
		}
		id := int32(len(w.p.Pairs))
		w.p.Pairs = append(w.p.Pairs, plan.Pair{Src: s.ref, Dst: r.ref})
		w.cmds[s.rank][s.cmd].Group[s.entry].Pair = id
		w.cmds[r.rank][r.cmd].Group[r.entry].Pair = id
	}
	return nil
}

func (w *world) unmatched(l *lane, e *endpoint, what, other string, peer int32) error {
	c := &w.cmds[e.rank][e.cmd]
	d := w.b.Info.Prog.Diag("match", w.p.Sites[e.site].Pos, "this %s has no matching %s on rank %d (%s)", what, other, peer, w.where(c))
	d.Help = fmt.Sprintf("from rank %d to rank %d along %s there are %d sends and %d recvs", l.key.src, l.key.dst, l.key.axis, len(l.sends), len(l.recvs))
	return d
}

func (w *world) unequalEnds(l *lane, s, r *endpoint, k int) error {
	a, b := &w.cmds[s.rank][s.cmd], &w.cmds[r.rank][r.cmd]
	d := w.b.Info.Prog.Diag("match", w.p.Sites[s.site].Pos, "the send of %s%v is matched with a recv of %s%v (%s)", s.ref.DType, s.ref.Shape, r.ref.DType, r.ref.Shape, w.where(a))
	d.Notes = append(d.Notes, ir.Note{Pos: w.p.Sites[r.site].Pos, Message: fmt.Sprintf("the recv (%s)", w.where(b))})
	d.Help = fmt.Sprintf("both are number %d from rank %d to rank %d along %s", k+1, l.key.src, l.key.dst, l.key.axis)
	return d
}

// matchCounters checks that no wait requires more signals than one run sends.
func (w *world) matchCounters() error {
	for rank := range w.cmds {
		for i := range w.cmds[rank] {
			c := &w.cmds[rank][i]
			if c.Kind != plan.WaitCounter {
				continue
			}
			ctr := &w.p.Counters[c.Counter]
			have := ctr.PerRun[rank*int(ctr.Len)+int(c.Elem)]
			if c.Value <= have {
				continue
			}
			d := w.diag("deadlock", c, "the wait needs %s[%d] >= %d, but the counter is signalled only %d times "+
				"in a run (%s)", ctr.Name, c.Elem, c.Value, have, w.where(c))
			d.Help = "counters start at 0 in each run, so a wait can only count signals of the same run"
			return d
		}
	}
	return nil
}
