package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// quotient describes a program in which all ranks do the same as rank 0. A quotient contains only the commands of rank
// 0. Stream s of rank r has the number r·lanes + s. Only the streams of rank 0 are executed, but their vector clocks
// have entries for the streams of all ranks.
type quotient struct {
	grid *grid
	p    *plan.Plan // tables that all ranks share
	rep  *likeness
	prog *ir.Program // program in which the loop around a command is found; if nil, lost overlap is not searched for

	cmds    []plan.Cmd // the commands of rank 0
	lanes   int32      // number of streams of a rank
	streams [][]int32  // for each stream: its commands
	elems   map[[2]int32]*qelem
	joins   []qjoin   // one element for each collective that rank 0 issues
	groups  [][]qside // for each command: the other sides of a group's transfers
	rows    map[int32][]int32
	faults  []Finding
	shown   *index // index of the commands to which the acts of findings refer
	unsure  string // the reason why nothing can be decided
}

// qelem describes an element of a counter on rank 0.
type qelem struct {
	perRun int32
	from   int32 // the rank that raises the element
	stream int32 // the stream of that rank that raises the element
}

// qjoin determines the knowledge that each member of a collective has after the collective.
type qjoin struct {
	all   bool    // set if every member has the knowledge of all members
	coset []int32 // for each rank: the number of the coset (the translated team) that contains it
	from  int32   // for a permute: the rank from which the data come, or -1
}

// qside is the other side of a transfer: the given rank executes it in the group command with index cmd in the list of
// rank 0.
type qside struct{ cmd, rank int32 }

func (q *quotient) check() *Result {
	q.cmds, q.lanes = q.rep.rank.Cmds, int32(len(q.rep.rank.Streams))
	r := new(Result)
	for _, step := range []func(){q.structure, q.signals, q.collectives, q.transfers} {
		if step(); len(q.faults) > 0 || q.unsure != "" {
			return q.close(r)
		}
	}
	mem, fault := q.memory()
	if fault != nil {
		q.faults = []Finding{*fault}
		return q.close(r)
	}
	s := newQsim(q, mem, false)
	s.run()
	r.Stats = s.stats
	r.Stats.Atoms = mem.atoms
	if f := s.deadlock(); f != nil {
		q.faults = []Finding{*f}
		return q.close(r)
	}
	q.found(mem)
	serial := newQsim(q, nil, true)
	serial.run()
	f := serial.deadlock()
	if r.SerialSafe = f == nil; f != nil {
		f.Warning, f.Kind = true, KindSerial
		f.Message = "the program depends on streams that run concurrently: if each rank's ops run one by one in issue order, a " + f.Message
		q.faults = append(q.faults, *f)
	}
	if !slices.ContainsFunc(q.faults, func(f Finding) bool { return !f.Warning }) {
		q.faults = append(q.faults, q.lostOverlap(mem)...)
	}
	return q.close(r)
}

// fault records an error in commands of rank 0.
func (q *quotient) fault(kind string, cmd int32, format string, args ...any) {
	if len(q.faults) < maxFindings {
		q.faults = append(q.faults, Finding{Kind: kind, Message: fmt.Sprintf(format, args...), Acts: []Act{{Cmd: cmd}},
			Count: q.grid.n})
	}
}

// structure checks each command of rank 0 separately, as structure.commands does for the commands of a plan.
func (q *quotient) structure() {
	p := *q.p
	p.Ranks = q.grid.n
	s := &structure{p: &p}
	q.streams = make([][]int32, q.lanes)
	recorded := make([]bool, q.rep.rank.Events)
	for i := range q.cmds {
		c := &q.cmds[i]
		q.streams[c.Stream] = append(q.streams[c.Stream], int32(i))
	}
	s.buffers()
	inout := map[int32]bool{}
	for i, r := range q.rep.rank.Inputs {
		if p.Inputs[i].Inout && r.Present() {
			inout[r.Buf] = true
		}
	}
	for i := range q.cmds {
		c, me := &q.cmds[i], int32(i)
		switch c.Kind {
		case plan.Compute:
			if !isOp(c.Op) {
				q.fault(KindMatch, me, "has an unknown operation")
			}
			s.own(nil, c.Ins, 0)
			s.own(nil, c.Outs, 0)
		case plan.Copy:
			s.copy(nil, c)
		case plan.Record:
			if recorded[c.Event] {
				q.fault(KindMatch, me, "an event is recorded twice")
			}
			recorded[c.Event] = true
		case plan.WaitEvent:
			if !recorded[c.Event] {
				q.fault(KindIssue, me, "the host issues this wait before the event is recorded: on a GPU the wait would have no effect")
			}
		case plan.Input, plan.Output:
			if c.Stream != 0 {
				q.fault(KindMatch, me, "the caller's transfer is not on main")
			}
		default:
			refsOfRank(q.rep.rank, c, func(r *plan.Ref, _ bool) { s.ref(nil, r, 0, "") })
		}
		if c.Kind != plan.Input && c.Kind != plan.Output {
			refsOfRank(q.rep.rank, c, func(r *plan.Ref, write bool) {
				if write && p.Buffers[r.Buf].Role == plan.RoleInput && !inout[r.Buf] {
					q.fault(KindMatch, me, "writes the parameter %s, which is not inout", p.Buffers[r.Buf].Name)
				}
			})
		}
		if len(s.faults) > 0 {
			q.fault(s.faults[0].Kind, me, "%s", s.faults[0].Message)
			return
		}
	}
}

// raised is called with a signal c of rank 0 to a peer. The corresponding signal of another rank raises an element of a
// counter of rank 0. The results are this element and that rank.
func (q *quotient) raised(c *plan.Cmd) (key [2]int32, from int32) {
	from = q.grid.add(0, c.Peer, -1)
	return [2]int32{c.Counter, int32(q.rep.counters[c.Counter].turn(q.grid, int64(c.Elem), c.Peer, -1))}, from
}

// signals determines the ranks that raise the elements of counters of rank 0. It checks that there are enough signals
// for each wait.
func (q *quotient) signals() {
	q.elems = map[[2]int32]*qelem{}
	for i := range q.cmds {
		c := &q.cmds[i]
		if c.Kind != plan.Signal {
			continue
		}
		key, from := q.raised(c)
		e := q.elems[key]
		if e == nil {
			e = &qelem{from: from, stream: c.Stream}
			q.elems[key] = e
		}
		if e.perRun++; e.from != from {
			q.fault(KindMatch, int32(i), "%s[%d] is raised by several ranks, but only one rank may raise a counter element",
				q.p.Counters[c.Counter].Name, key[1])
			return
		}
		if e.stream != c.Stream {
			q.unsure = fmt.Sprintf("%s[%d] is raised from several streams", q.p.Counters[c.Counter].Name, key[1])
			return
		}
	}
	for i := range q.cmds {
		c := &q.cmds[i]
		if c.Kind != plan.WaitCounter {
			continue
		}
		have := int64(0)
		if e := q.elems[[2]int32{c.Counter, c.Elem}]; e != nil {
			have = int64(e.perRun)
		}
		if c.Value < 1 || c.Value > have {
			q.fault(KindDeadlock, int32(i), "waits for %s[%d] >= %d, but each run signals the element only %d times",
				q.p.Counters[c.Counter].Name, c.Elem, c.Value, have)
			return
		}
	}
}

// collectives checks that the parts of each collective on rank 0's teams match, and sets the field joins.
func (q *quotient) collectives() {
	type teamKey = *int
	cosets := map[teamKey][]int32{}
	cmdOf := make([]int32, len(q.rep.rank.Joins))
	for i := range q.cmds {
		if q.cmds[i].Kind == plan.Collective {
			cmdOf[q.cmds[i].Coll] = int32(i)
		}
	}
	var parts []plan.CollPart
	for i := range q.rep.rank.Joins {
		j := &q.rep.rank.Joins[i]
		coset := cosets[&j.Team[0]]
		if coset == nil {
			if coset = q.coset(j.Team); coset == nil {
				q.unsure = fmt.Sprintf("%s: the ranks to which its members are translated are not a team", j.Coll.Op)
				return
			}
			cosets[&j.Team[0]] = coset
		}
		at := map[int32]int32{}
		if j.Coll.Op == ir.OpPermute {
			for m, r := range j.Team {
				at[int32(r)] = int32(m)
			}
		}
		parts = parts[:0]
		for _, r := range j.Team {
			part := j.Part
			if part.To >= 0 {
				part.To = at[q.grid.add(int32(j.Team[part.To]), int32(r), 1)]
			}
			if part.From >= 0 {
				part.From = at[q.grid.add(int32(j.Team[part.From]), int32(r), 1)]
			}
			parts = append(parts, part)
		}
		coll := j.Coll
		coll.Parts = parts
		if why := fits(&coll); why != "" {
			q.fault(KindMatch, cmdOf[i], "%s: %s", coll.Op, why)
			return
		}
		out := qjoin{all: coll.Op != ir.OpPermute, coset: coset, from: -1}
		if !out.all && j.Part.From >= 0 {
			out.from = int32(j.Team[j.Part.From])
		}
		q.joins = append(q.joins, out)
	}
}

// coset numbers the cosets of a team that is a subgroup of the group of translations. It returns nil if the team is not
// a subgroup.
func (q *quotient) coset(team []int) []int32 {
	out := slices.Repeat([]int32{-1}, q.grid.n)
	n := int32(0)
	for r := range out {
		if out[r] >= 0 {
			continue
		}
		for _, t := range team {
			x := q.grid.add(int32(r), int32(t), 1)
			if out[x] >= 0 {
				return nil
			}
			out[x] = n
		}
		n++
	}
	if !slices.Contains(team, 0) {
		return nil
	}
	for _, t := range team {
		for _, u := range team {
			if out[q.grid.add(int32(t), int32(u), 1)] != out[0] {
				return nil
			}
		}
	}
	return out
}

// transfers matches rank 0's sends with the recvs of its peers.
func (q *quotient) transfers() {
	type lane struct {
		axis string
		peer int32
		send bool
	}
	type end struct {
		cmd int32
		ref *plan.Ref
	}
	lanes := map[lane][]end{}
	q.groups = make([][]qside, len(q.cmds))
	for i := range q.cmds {
		if q.cmds[i].Kind != plan.Group {
			continue
		}
		for _, g := range q.cmds[i].Group {
			e := &q.rep.rank.Ends[g.Pair]
			k := lane{e.Axis, e.Peer, g.Send}
			lanes[k] = append(lanes[k], end{int32(i), &e.Ref})
		}
	}
	for k, mine := range lanes {
		theirs := lanes[lane{k.axis, q.grid.add(0, k.peer, -1), !k.send}]
		for n, e := range mine {
			if n >= len(theirs) {
				q.fault(KindMatch, e.cmd, "this transfer has no other side on rank %d", k.peer)
				return
			}
			o := theirs[n]
			if e.ref.DType != o.ref.DType || e.ref.Elements() != o.ref.Elements() {
				q.fault(KindMatch, e.cmd, "a transfer of %s%v is matched with one of %s%v", e.ref.DType, e.ref.Shape,
					o.ref.DType,
					o.ref.Shape)
				return
			}
			q.groups[e.cmd] = append(q.groups[e.cmd], qside{o.cmd, k.peer})
		}
	}
}

// memory builds the model of rank 0's memory, including the accesses by other ranks. If a command of rank 0 accesses
// memory of rank d, then the translated command of rank -d accesses memory of rank 0.
func (q *quotient) memory() (*memory, *Finding) {
	p := *q.p
	p.Ranks, p.Cmds = 1, nil
	p.Streams = nil
	first := q.rep.rank
	home := func(r plan.Ref) plan.Ref {
		if r.Present() && r.Rank != 0 {
			r.Off = q.moving(&r).turn(q.grid, r.Off, r.Rank, -1)
			r.Rank = 0
		}
		return r
	}
	p.Inputs, p.Outputs = slices.Clone(p.Inputs), slices.Clone(p.Outputs)
	for i := range p.Inputs {
		p.Inputs[i].Parts = []plan.IOPart{{Ref: first.Inputs[i]}}
	}
	for i := range p.Outputs {
		p.Outputs[i].Parts = []plan.IOPart{{Ref: first.Outputs[i]}}
	}
	for i := range first.Joins {
		c := first.Joins[i].Coll
		c.Parts = []plan.CollPart{first.Joins[i].Part}
		p.Colls = append(p.Colls, c)
	}
	for _, e := range first.Ends {
		p.Pairs = append(p.Pairs, plan.Pair{Src: e.Ref, Dst: e.Ref})
	}
	p.Cmds = slices.Clone(q.cmds)
	ix := &index{p: &p, streams: make([][]int32, int(q.lanes)*q.grid.n), pos: make([]int32, len(p.Cmds))}
	for st := range ix.streams {
		ix.streams[st] = q.streams[st%int(q.lanes)]
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		c.Part = 0
		if c.Kind == plan.Copy {
			c.Ins, c.Outs = []plan.Ref{home(c.Ins[0])}, []plan.Ref{home(c.Outs[0])}
		}
	}
	for _, list := range q.streams {
		for k, i := range list {
			ix.pos[i] = int32(k) + 1
		}
	}
	return newMemory(ix)
}

// moving returns the rotations that move a tensor of rank 0's commands.
func (q *quotient) moving(r *plan.Ref) rotations {
	moving, _ := q.rep.buffers[r.Buf].movers(q.p, r)
	return moving
}

// row returns, for each rank, the rank to which translation t takes it.
func (q *quotient) row(t int32) []int32 {
	if q.rows == nil {
		q.rows = map[int32][]int32{}
	}
	row := q.rows[t]
	if row == nil {
		row = q.grid.row(t)
		q.rows[t] = row
	}
	return row
}

// shifted translates the view v of a stream of rank 0 to the view of the corresponding stream of rank d.
func (q *quotient) shifted(v *view, d int32) *view {
	out := &view{stream: d*q.lanes + v.stream, done: v.done}
	if v.vec != nil {
		out.vec = make([]int32, len(v.vec))
		for x, y := range q.row(d) {
			copy(out.vec[y*q.lanes:(y+1)*q.lanes], v.vec[int32(x)*q.lanes:])
		}
	}
	return out
}

// join adds the snapshot s of rank 0, translated to rank d, to a view of rank 0.
func (q *quotient) join(v *view, s snapshot, d int32) bool {
	place := epoch{d*q.lanes + s.stream, s.done}
	if v.knows(place) {
		return false
	}
	width := q.grid.n * int(q.lanes)
	switch {
	case v.vec == nil:
		v.vec = make([]int32, width)
	case v.shared:
		v.vec = append(make([]int32, 0, width), v.vec...)
	}
	v.shared = false
	if s.vec != nil {
		n := q.lanes
		for x, y := range q.row(d) {
			from, to := s.vec[int32(x)*n:int32(x+1)*n], v.vec[y*n:(y+1)*n]
			for i, k := range from {
				if k > to[i] {
					to[i] = k
				}
			}
		}
	}
	v.vec[place.stream] = max(v.vec[place.stream], place.pos)
	return true
}

// together returns the combined knowledge of all members of rank 0's collective, as a vector clock.
func (q *quotient) together(v *view, j *qjoin) []int32 {
	n := q.lanes
	cosets := 0
	for _, c := range j.coset {
		cosets = max(cosets, int(c)+1)
	}
	most := make([]int32, cosets*int(n))
	if v.vec != nil {
		for x, c := range j.coset {
			to := most[c*n : (c+1)*n]
			for i, k := range v.vec[int32(x)*n : int32(x+1)*n] {
				to[i] = max(to[i], k)
			}
		}
	}
	mine := j.coset[0]*n + v.stream
	most[mine] = max(most[mine], v.done)
	all := make([]int32, q.grid.n*int(n))
	for x, c := range j.coset {
		copy(all[int32(x)*n:int32(x+1)*n], most[c*n:])
	}
	return all
}

// found reports the findings about the memory of rank 0, with the ranks whose commands conflict in this memory.
func (q *quotient) found(mem *memory) {
	if len(mem.order) == 0 && len(mem.unread) == 0 {
		return
	}
	ranks := []int32{0}
	add := func(e epoch) {
		if r := e.stream / q.lanes; e.pos > 0 && !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	for _, r := range mem.order {
		add(r.a)
		add(r.b)
		if len(ranks) > maxFindings {
			break // findings does not list more
		}
	}
	for _, b := range mem.unread {
		add(b.at)
		add(b.last)
	}
	q.shown = q.excerpt(ranks)
	mem.ix = q.shown
	fs, _ := mem.findings()
	for i := range fs {
		fs[i].Count *= q.grid.n
	}
	q.faults = append(q.faults, fs...)
}

// excerpt returns an index of a plan that has only the commands of the given ranks, rank 0's first.
func (q *quotient) excerpt(ranks []int32) *index {
	p := *q.p
	p.Ranks, p.Streams, p.Cmds = q.grid.n, nil, nil
	for r := range int32(q.grid.n) {
		for _, st := range q.rep.rank.Streams {
			st.Rank = r
			p.Streams = append(p.Streams, st)
		}
	}
	ix := &index{p: &p, streams: make([][]int32, len(p.Streams))}
	for _, r := range ranks {
		for _, c := range q.cmds {
			c.Rank = r
			c.Stream += c.Rank * q.lanes
			ix.streams[c.Stream] = append(ix.streams[c.Stream], int32(len(p.Cmds)))
			ix.pos = append(ix.pos, int32(len(ix.streams[c.Stream])))
			p.Cmds = append(p.Cmds, c)
		}
	}
	return ix
}

// close determines the verdict. The acts of faults refer to the commands of rank 0, or to those of the excerpt that the
// method found has made.
func (q *quotient) close(r *Result) *Result {
	if q.shown == nil && len(q.faults) > 0 {
		q.shown = q.excerpt([]int32{0})
	}
	if q.shown != nil {
		r.Plan = q.shown.p
	}
	if r.close(q.faults); q.unsure != "" {
		r.Verdict, r.Reason = Unknown, q.unsure
	}
	return r
}
