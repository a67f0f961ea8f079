package exec

import (
	"cmp"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// An all_reduce, the add of a residual and the rms_norm of that, which end a block
// of a model split over devices, become one launch on each member where its team
// has such launches and they are faster (comm decides). They must be next to each
// other on the stream of every member: then nobody can wait for one of them alone.
// The launch goes where the all_reduce is, and does not store the plain sum, so
// nobody else may read that; and it reads the residual and the weights before the
// other members have come, so those must not come from elsewhere.

// tail is what follows an all_reduce on every member.
type tail struct {
	members []member
	norm    device.Norm
}

// member is one member's share: its commands.
type member struct{ reduce, add, norm int }

// findTails sets what follows collectives, where the machine may have such launches.
func (p *Program) findTails() error {
	if _, ok := p.world.(device.Teams); !ok || p.opts.NoChains {
		return nil
	}
	p.tails = p.neighbours()
	p.keepTails(p.connected)
	if len(p.tails) == 0 {
		return nil
	}
	p.keepTails(p.accessesOf(p.tails).free)
	for _, t := range p.tails {
		if err := p.describeNorm(t); err != nil {
			return err
		}
	}
	return nil
}

// keepTails keeps those of which ok holds on every member.
func (p *Program) keepTails(ok func(member) bool) {
	maps.DeleteFunc(p.tails, func(_ int32, t *tail) bool {
		return slices.ContainsFunc(t.members, func(m member) bool { return !ok(m) })
	})
}

// neighbours lists the sums that an add and a rms_norm follow, by collective, with
// nothing between them on the stream of any member.
func (p *Program) neighbours() map[int32]*tail {
	cmds := p.plan.Cmds
	type two struct{ before, last int }
	streams := make([]two, len(p.plan.Streams))
	for i := range streams {
		streams[i] = two{-1, -1}
	}
	found := map[int32]*tail{}
	for i := range cmds {
		c := &cmds[i]
		m := member{streams[c.Stream].before, streams[c.Stream].last, i}
		streams[c.Stream] = two{m.add, i}
		if c.Kind != plan.Compute || c.Op != ir.OpRMSNorm || m.reduce < 0 || cmds[m.reduce].Kind != plan.Collective ||
			cmds[m.add].Kind != plan.Compute || cmds[m.add].Op != ir.OpAdd {
			continue
		}
		at := cmds[m.reduce].Coll
		if coll := &p.plan.Colls[at]; coll.Op != ir.OpAllReduce || coll.Red != ir.Sum {
			continue
		}
		t := found[at]
		if t == nil {
			t = &tail{}
			found[at] = t
		}
		t.members = append(t.members, m)
	}
	for at, t := range found {
		if len(t.members) != len(p.plan.Colls[at].Parts) || slices.ContainsFunc(t.members, func(m member) bool { return cmds[m.norm].Attr.Value != cmds[t.members[0].norm].Attr.Value }) {
			delete(found, at) // not all members do so
		}
	}
	return found
}

// part is the member's share of the all_reduce.
func (p *Program) part(m member) *plan.CollPart {
	c := &p.plan.Cmds[m.reduce]
	return &p.plan.Colls[c.Coll].Parts[c.Part]
}

// residual is what the member adds to the plain sum: the other operand.
func (p *Program) residual(m member) plan.Ref {
	ins := p.plan.Cmds[m.add].Ins
	if sameRef(ins[0], p.part(m).Out) {
		return ins[1]
	}
	return ins[0]
}

// connected reports whether the add takes the plain sum, once, and the rms_norm
// what the add gives.
func (p *Program) connected(m member) bool {
	part, add, norm := p.part(m), &p.plan.Cmds[m.add], &p.plan.Cmds[m.norm]
	if !part.In.Present() || !part.Out.Present() || len(add.Ins) != 2 || len(norm.Ins) != 2 || !sameRef(norm.Ins[0], add.Outs[0]) {
		return false
	}
	residual := p.residual(m)
	return (sameRef(add.Ins[0], part.Out) || sameRef(add.Ins[1], part.Out)) && !overlap(residual, part.Out)
}

// overlap reports whether two tensors may share bytes of a buffer.
func overlap(a, b plan.Ref) bool {
	if a.Rank != b.Rank || a.Buf != b.Buf {
		return false
	}
	alo, ahi := a.Span()
	blo, bhi := b.Span()
	return alo < bhi && blo < ahi
}

// access is a command's use of a buffer.
type access struct {
	cmd    int
	ref    plan.Ref
	writes bool
}

// uses is who uses a buffer of a rank, and how.
type uses struct {
	all     []access         // in order
	streams map[int32]bool   // on which
	writers map[written]span // writes that are alike, as a loop has many
}

// written are the bytes [lo, hi), by a command of a stream.
type written struct {
	stream int32
	lo, hi int64
}

// span is from the first command to the last.
type span struct{ first, last int }

// accesses are the uses of some buffers.
type accesses struct {
	p     *Program
	tails map[int32]*tail
	of    map[place]*uses
	late  bool            // some waits come before what they wait for
	order map[int][]int32 // see reached; nil until somebody asks
}

// accessesOf lists the uses of what matters to tails.
func (p *Program) accessesOf(tails map[int32]*tail) *accesses {
	a := &accesses{p: p, tails: tails, of: map[place]*uses{}}
	for _, t := range tails {
		for _, m := range t.members {
			for _, r := range []plan.Ref{p.part(m).Out, p.residual(m), p.plan.Cmds[m.norm].Ins[1]} {
				a.of[place{r.Rank, r.Buf}] = &uses{streams: map[int32]bool{}, writers: map[written]span{}}
			}
		}
	}
	for i := range p.plan.Cmds {
		a.late = a.late || p.plan.Cmds[i].Late
		reads, writes := p.accessed(&p.plan.Cmds[i])
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
	u := a.of[place{x.ref.Rank, x.ref.Buf}]
	if u == nil {
		return
	}
	u.all = append(u.all, x)
	stream := a.p.plan.Cmds[x.cmd].Stream
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

// free reports whether nobody but the add needs the member's plain sum, and what is
// read early is there early.
func (a *accesses) free(m member) bool {
	return a.unread(m) && a.early(m, a.p.residual(m)) && a.early(m, a.p.plan.Cmds[m.norm].Ins[1])
}

// early reports whether r is written before the all_reduce begins, if it is before
// the add: by a command of this stream, or one that the stream has waited for. What
// else writes it could be waited for by the all_reduce itself.
func (a *accesses) early(m member, r plan.Ref) bool {
	lo, hi := r.Span()
	stream := a.p.plan.Cmds[m.reduce].Stream
	for w, s := range a.of[place{r.Rank, r.Buf}].writers {
		later := s.first > m.norm && !a.late
		if w.stream != stream && w.lo < hi && lo < w.hi && !later && int32(s.last) > a.reachedBy(m.reduce)[w.stream] {
			return false
		}
	}
	return true
}

// reachedBy returns up to which command of each stream a member's all_reduce comes
// behind, -1 for none.
func (a *accesses) reachedBy(reduce int) []int32 {
	if a.order == nil {
		reduces := map[int]bool{}
		for _, t := range a.tails {
			for _, m := range t.members {
				reduces[m.reduce] = true
			}
		}
		a.order = reached(a.p.plan, reduces)
	}
	return a.order[reduce]
}

// reached returns up to which command of each stream each of some commands comes
// behind, for certain: by the order of streams and by events, which are told by the
// list of commands alone.
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

// unread reports whether the plain sum is read by the add only: its buffer is used
// on this stream alone, and who uses these bytes next writes over them.
func (a *accesses) unread(m member) bool {
	sum := a.p.part(m).Out
	at := place{sum.Rank, sum.Buf}
	if sameRef(a.p.plan.Cmds[m.add].Outs[0], sum) {
		return true
	}
	if u := a.of[at]; len(u.streams) > 1 || !a.p.private(at) {
		return false
	}
	all := a.of[at].all
	next, _ := slices.BinarySearchFunc(all, m.add, func(x access, cmd int) int { return cmp.Compare(x.cmd, cmd) })
	for _, x := range all[next:] {
		switch {
		case !overlap(x.ref, sum), x.cmd == m.add && !x.writes:
		case x.writes:
			return covers(x.ref, sum)
		default:
			return false
		}
	}
	return true
}

// covers reports whether what writes w leaves nothing of r.
func covers(w, r plan.Ref) bool {
	wlo, whi := w.Span()
	rlo, rhi := r.Span()
	return w.Dense() && wlo <= rlo && rhi <= whi
}

// describeNorm fills in what the team is asked to do.
func (p *Program) describeNorm(t *tail) error {
	coll := p.plan.Cmds[t.members[0].reduce].Coll
	t.norm = device.Norm{Eps: p.plan.Cmds[t.members[0].norm].Attr.Value, Parts: make([]device.NormPart, len(p.plan.Colls[coll].Parts))}
	for _, m := range t.members {
		norm := &p.plan.Cmds[m.norm]
		vs, err := p.views([]plan.Ref{p.part(m).In, p.residual(m), norm.Ins[1], norm.Ins[0], norm.Outs[0]})
		if err != nil {
			return err
		}
		t.norm.Parts[p.plan.Cmds[m.reduce].Part] = device.NormPart{In: vs[0], Residual: vs[1], Weight: vs[2], Sum: vs[3], Out: vs[4]}
	}
	return nil
}

// joinTails has nothing more issued for what all_reduces do too, now that it is
// known which of them do.
func (p *Program) joinTails() {
	if len(p.tails) > 0 && p.chains == nil {
		p.chains = map[int]*fusion{}
	}
	joined := 0
	for i, t := range p.tails {
		if coll := &p.plan.Colls[i]; !p.channels[coll.Channel].Normed(int(coll.Seq)) {
			continue
		}
		joined++
		for _, m := range t.members {
			f := &fusion{[]int{m.reduce, m.add, m.norm}, "all_reduce+add+rms_norm"}
			for _, c := range f.members {
				p.chains[c] = f
			}
			for _, c := range f.members[1:] {
				p.cmds[c] = command{kind: plan.Compute, stream: p.streams[p.plan.Cmds[c].Stream]}
			}
		}
	}
	p.log.Debug("all_reduces with an add and a rms_norm behind them", "found", len(p.tails), "joined", joined)
	p.tails = nil // channels have what they need of them
}
