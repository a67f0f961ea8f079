package verify

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
)

// likeness checks whether all ranks execute the same commands. For each rank, it compares the rank's commands with
// those of rank 0, translated to the position of the rank in the grid (see symmetry.go).
type likeness struct {
	grid     *grid
	p        *plan.Plan // the tables that all ranks share, in their state after rank 0 was unrolled
	rank     *plan.Rank // the commands of rank 0
	buffers  []rotations
	counters []rotations

	// The following fields describe rank 0. For each command, they hold its tensors in order, with the rotations that
	// move each tensor. For each sequence of consecutive waits or signals, they hold the sorted keys, stored at its
	// first command.
	opens []int32
	refs  []placed
	sets  [][]orderKey // for each command: the sorted keys of the waits or signals that begin there, or nil
	why   string
}

// placed is a tensor of rank 0 with the rotations that move it.
type placed struct {
	ref    *plan.Ref
	moving rotations
}

// orderKey holds the properties by which waits or signals are compared. Their positions in the program are not
// compared.
type orderKey struct {
	kind          plan.Kind
	event, peer   int32
	counter, elem int32
	value         int64
}

func compareKeys(a, b orderKey) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.event, b.event), cmp.Compare(a.counter, b.counter),
		cmp.Compare(a.elem, b.elem), cmp.Compare(a.peer, b.peer), cmp.Compare(a.value, b.value))
}

func newLikeness(g *grid, p *plan.Plan, first *plan.Rank) *likeness {
	a := &likeness{grid: g, p: p, rank: first, buffers: make([]rotations, len(p.Buffers)),
		counters: make([]rotations, len(p.Counters))}
	// Buffers get consecutive aligned offsets, so that the regions of different buffers do not overlap.
	at := int64(0)
	for i := range p.Buffers {
		b := &p.Buffers[i]
		b.Offset = at
		at += plan.Aligned(b.Bytes)
		if at > maxReach {
			a.why = "the buffers are too large"
			return a
		}
	}
	p.ArenaBytes, p.HostBytes = at, at
	return a
}

// fail records a reason if rank 0 executes a collective whose members have different roles: one with a root, or one
// with a number of rows for each rank in the program's text.
func (a *likeness) fail() {
	for i := range a.rank.Joins {
		j := &a.rank.Joins[i]
		switch {
		case len(j.Team) > 1 && rooted(j.Coll.Op):
			a.why = fmt.Sprintf("%s has a root", j.Coll.Op)
		case len(j.Part.Rows) > 0:
			a.why = fmt.Sprintf("the text lists a number of rows of each rank for %s", j.Coll.Op)
		}
	}
}

// refsOfRank calls the function f with each tensor of a command, in an order that is the same on all ranks.
func refsOfRank(r *plan.Rank, c *plan.Cmd, f func(ref *plan.Ref, write bool)) {
	visit := func(ref *plan.Ref, write bool) {
		if ref.Present() {
			f(ref, write)
		}
	}
	switch c.Kind {
	case plan.Compute, plan.Copy:
		for i := range c.Ins {
			visit(&c.Ins[i], false)
		}
		for i := range c.Outs {
			visit(&c.Outs[i], true)
		}
	case plan.Collective:
		part := &r.Joins[c.Coll].Part
		visit(&part.In, false)
		for i := range part.Counts {
			visit(&part.Counts[i], false)
		}
		visit(&part.Out, true)
	case plan.Group:
		for _, e := range c.Group {
			visit(&r.Ends[e.Pair].Ref, !e.Send)
		}
	case plan.Input:
		visit(&r.Inputs[c.IO], true)
	case plan.Output:
		visit(&r.Outputs[c.IO], false)
		visit(&r.Outputs[c.IO], true)
	}
}

// kindOfSet returns 1 if a command is a wait, which may belong to a set of consecutive waits, 2 if it is a signal, and
// 0 otherwise.
func kindOfSet(c *plan.Cmd) int {
	switch c.Kind {
	case plan.WaitEvent, plan.WaitCounter:
		return 1
	case plan.Signal:
		return 2
	}
	return 0
}

// endOfSet returns the index after the consecutive waits, or signals, on one stream that begin at command i.
func endOfSet(cmds []plan.Cmd, i int) int {
	end, kind := i, kindOfSet(&cmds[i])
	for kind != 0 && end < len(cmds) && kindOfSet(&cmds[end]) == kind && cmds[end].Stream == cmds[i].Stream {
		end++
	}
	return end
}

// guess derives the rotations along an axis from two ranks that are neighbours along the axis. It compares the
// offsets of tensors and the elements of counters that the two ranks use. A wrong guess is detected later, when all
// ranks are compared.
func (a *likeness) guess(axis int, rank, next *plan.Rank) string {
	if len(next.Cmds) != len(rank.Cmds) {
		return fmt.Sprintf("rank %d has %d commands, rank %d %d", next.Rank, len(next.Cmds), rank.Rank, len(rank.Cmds))
	}
	size := int64(a.grid.sizes[axis])
	note := func(rs *rotations, from, to int64) bool {
		if from == to {
			return true
		}
		r, ok := guessed(axis, size, from, to)
		if ok && !slices.Contains(*rs, r) {
			*rs = append(*rs, r)
		}
		return ok && len(*rs) <= maxRotations
	}
	var theirs []*plan.Ref
	for i := range rank.Cmds {
		c, d := &rank.Cmds[i], &next.Cmds[i]
		if c.Kind != d.Kind || c.Site != d.Site {
			return a.differ(next, i, "it executes another statement")
		}
		if kindOfSet(c) == 1 {
			continue // consecutive waits may be in a different order on the next rank
		}
		if c.Kind == plan.Signal && within(c.Counter, len(a.counters)) && c.Counter == d.Counter &&
			!note(&a.counters[c.Counter], int64(c.Elem), int64(d.Elem)) {
			return a.differ(next, i, "it signals another element of a counter")
		}
		theirs = theirs[:0]
		refsOfRank(next, d, func(ref *plan.Ref, _ bool) { theirs = append(theirs, ref) })
		k, why := 0, ""
		refsOfRank(rank, c, func(ref *plan.Ref, _ bool) {
			if k < len(theirs) && theirs[k].Buf == ref.Buf && within(ref.Buf, len(a.buffers)) &&
				!note(&a.buffers[ref.Buf], ref.Off, theirs[k].Off) {
				why = "it uses another part of a buffer"
			}
			k++
		})
		if why != "" {
			return a.differ(next, i, why)
		}
	}
	return ""
}

// settle checks that the guessed rotations form an action of the group of translations, and records how the rotations
// act on the tensors that rank 0 uses.
func (a *likeness) settle() string {
	for i := range a.buffers {
		if !a.buffers[i].settle(a.p.Buffers[i].Bytes) {
			return fmt.Sprintf("the ranks use parts of %s that are not translations of each other", a.p.Buffers[i].Name)
		}
	}
	for i := range a.counters {
		if !a.counters[i].settle(int64(a.p.Counters[i].Len)) {
			return fmt.Sprintf("the ranks use elements of %s that are not translations of each other",
				a.p.Counters[i].Name)
		}
	}
	cmds := a.rank.Cmds
	a.opens, a.sets = make([]int32, len(cmds)+1), make([][]orderKey, len(cmds))
	for i := range cmds {
		why := ""
		refsOfRank(a.rank, &cmds[i], func(ref *plan.Ref, _ bool) {
			moving, ok := a.buffers[ref.Buf].movers(a.p, ref)
			if !ok {
				why = fmt.Sprintf("line %d uses parts of %s that are not translations of each other on different "+
					"ranks", a.line(i),
					a.p.Buffers[ref.Buf].Name)
			}
			a.refs = append(a.refs, placed{ref, moving})
		})
		if why != "" {
			return why
		}
		a.opens[i+1] = int32(len(a.refs))
	}
	for i := 0; i < len(cmds); i++ {
		if end := endOfSet(cmds, i); end > i {
			a.sets[i] = keysOfSet(cmds[i:end], nil)
			i = end - 1
		}
	}
	return ""
}

// maxRotations limits the number of rotations of one buffer or counter.
const maxRotations = 8

func keysOfSet(cmds []plan.Cmd, into []orderKey) []orderKey {
	into = into[:0]
	for i := range cmds {
		c := &cmds[i]
		k := orderKey{kind: c.Kind, event: c.Event, counter: c.Counter, elem: c.Elem, value: c.Value}
		if c.Kind == plan.Signal {
			k.peer = c.Peer
		}
		into = append(into, k)
	}
	slices.SortFunc(into, compareKeys)
	return into
}

func (a *likeness) line(cmd int) int32 {
	if cmd >= len(a.rank.Cmds) {
		return 0
	}
	return a.p.Sites[a.rank.Cmds[cmd].Site].Pos.Line
}

func (a *likeness) differ(r *plan.Rank, cmd int, how string) string {
	return fmt.Sprintf("rank %d differs from rank 0 at line %d: %s", r.Rank, a.line(cmd), how)
}

// comparer compares ranks with rank 0. One goroutine uses it.
type comparer struct {
	*likeness
	p     *plan.Plan // tables shared by the ranks that this goroutine unrolls
	keys  []orderKey
	teams map[[2]*int]bool // cache for one rank: whether the second team of the key is the translated first team
}

func (a *likeness) comparer(p *plan.Plan) *comparer {
	return &comparer{likeness: a, p: p, teams: map[[2]*int]bool{}}
}

// differs compares the commands of a rank with the translated commands of rank 0, and describes the first
// difference. It returns "" if there is none.
func (c *comparer) differs(r *plan.Rank) string {
	clear(c.teams)
	mine := c.rank.Cmds
	if len(r.Streams) != len(c.rank.Streams) || r.Events != c.rank.Events {
		return fmt.Sprintf("rank %d has %d streams and %d events, but rank 0 has %d and %d", r.Rank, len(r.Streams),
			r.Events, len(c.rank.Streams), c.rank.Events)
	}
	for i := 0; i < min(len(mine), len(r.Cmds)); i++ {
		x, y := &mine[i], &r.Cmds[i]
		if keys := c.sets[i]; keys != nil {
			end := endOfSet(r.Cmds, i)
			if kindOfSet(y) != kindOfSet(x) || end-i != len(keys) || y.Stream != x.Stream ||
				!c.sameSet(r, i, end, keys) {
				return c.differ(r, i, "it waits for or signals another event or counter element")
			}
			i = end - 1
			continue
		}
		if how := c.sameCmd(r, i, x, y); how != "" {
			return c.differ(r, i, how)
		}
	}
	if len(mine) != len(r.Cmds) {
		return fmt.Sprintf("rank %d has %d commands, rank 0 %d", r.Rank, len(r.Cmds), len(mine))
	}
	return ""
}

// sameSet reports whether consecutive waits or signals, translated back to rank 0, are in any order equal to those of
// rank 0.
func (c *comparer) sameSet(r *plan.Rank, from, to int, want []orderKey) bool {
	for i := from; i < to; i++ {
		k := &r.Cmds[i]
		if k.Kind == plan.WaitEvent {
			continue
		}
		if !within(k.Counter, len(c.counters)) {
			return false
		}
		k.Elem = int32(c.counters[k.Counter].turn(c.grid, int64(k.Elem), r.Rank, -1))
		if k.Kind == plan.Signal {
			k.Peer = c.grid.add(k.Peer, r.Rank, -1)
		}
	}
	c.keys = keysOfSet(r.Cmds[from:to], c.keys)
	return slices.Equal(c.keys, want)
}

func (c *comparer) sameCmd(r *plan.Rank, i int, x, y *plan.Cmd) string {
	if x.Kind != y.Kind || x.Stream != y.Stream || x.Site != y.Site || x.Op != y.Op {
		return "it executes another statement, or on another stream"
	}
	switch x.Kind {
	case plan.Record:
		if x.Event != y.Event {
			return "it records another event"
		}
	case plan.Copy:
		if (x.Peer < 0) != (y.Peer < 0) || x.Peer >= 0 && y.Peer != c.grid.add(x.Peer, r.Rank, 1) {
			return "it copies to or from another rank"
		}
	case plan.Collective:
		if how := c.sameJoin(r, &c.rank.Joins[x.Coll], &r.Joins[y.Coll]); how != "" {
			return how
		}
	case plan.Group:
		if how := c.sameGroup(r, x, y); how != "" {
			return how
		}
	case plan.Input, plan.Output:
		if x.IO != y.IO {
			return "it uploads or reads back another block"
		}
	}
	return c.sameRefs(r, i, y)
}

func (c *comparer) sameJoin(r *plan.Rank, x, y *plan.Join) string {
	a, b := &x.Coll, &y.Coll
	if a.Op != b.Op || a.Red != b.Red || a.Axis != b.Axis || a.Split != b.Split || a.AnyOrd != b.AnyOrd ||
		a.Algo != b.Algo || a.CTAs != b.CTAs ||
		x.Part.In.Present() != y.Part.In.Present() || x.Part.Out.Present() != y.Part.Out.Present() ||
		len(x.Part.Counts) != len(y.Part.Counts) || len(y.Part.Rows) > 0 {
		return "it issues another collective"
	}
	k := [2]*int{&x.Team[0], &y.Team[0]}
	same, known := c.teams[k]
	if !known {
		same = c.sameTeam(x.Team, y.Team, r.Rank)
		c.teams[k] = same
	}
	if !same {
		return "its collective is over another team"
	}
	for _, p := range [][2]int32{{x.Part.To, y.Part.To}, {x.Part.From, y.Part.From}} {
		if (p[0] < 0) != (p[1] < 0) || p[0] >= 0 && int32(y.Team[p[1]]) != c.grid.add(int32(x.Team[p[0]]), r.Rank, 1) {
			return "it permutes with another rank"
		}
	}
	return ""
}

// sameTeam reports whether the ranks of y are those of x, translated by t.
func (c *comparer) sameTeam(x, y []int, t int32) bool {
	if len(x) != len(y) {
		return false
	}
	in := make(map[int32]bool, len(y))
	for _, r := range y {
		in[int32(r)] = true
	}
	for _, r := range x {
		if !in[c.grid.add(int32(r), t, 1)] {
			return false
		}
	}
	return len(in) == len(x)
}

func (c *comparer) sameGroup(r *plan.Rank, x, y *plan.Cmd) string {
	if len(x.Group) != len(y.Group) {
		return "it posts other transfers"
	}
	for k := range x.Group {
		a, b := &c.rank.Ends[x.Group[k].Pair], &r.Ends[y.Group[k].Pair]
		if x.Group[k].Send != y.Group[k].Send || a.Axis != b.Axis || b.Peer != c.grid.add(a.Peer, r.Rank, 1) {
			return "it posts other transfers"
		}
	}
	return ""
}

// sameRefs compares the tensors that a command uses with the translated tensors of the corresponding command of
// rank 0. It describes the first difference, or returns "".
func (c *comparer) sameRefs(r *plan.Rank, i int, y *plan.Cmd) string {
	k, end, how := c.opens[i], c.opens[i+1], ""
	refsOfRank(r, y, func(ref *plan.Ref, _ bool) {
		if k == end {
			how = "it uses more tensors"
			return
		}
		want := &c.refs[k]
		k++
		o := want.ref
		if ref.Buf != o.Buf || ref.DType != o.DType || ref.Rank != c.grid.add(o.Rank, r.Rank, 1) ||
			!slices.Equal(ref.Shape, o.Shape) || !slices.Equal(ref.Strides, o.Strides) {
			how = "it uses another tensor"
			return
		}
		if off := want.moving.turn(c.grid, o.Off, r.Rank, 1); ref.Off != off {
			how = "it uses another part of " + c.likeness.p.Buffers[o.Buf].Name
		}
	})
	if how == "" && k < end {
		how = "it uses fewer tensors"
	}
	if how == "" && (y.Kind == plan.Compute || y.Kind == plan.Copy) && !c.sameSharing(&c.rank.Cmds[i], y) {
		how = "its operands and results share memory in another way"
	}
	return how
}

// sameSharing reports whether the operands and results of command y share memory in the same way as those of the
// command x of rank 0.
func (c *comparer) sameSharing(x, y *plan.Cmd) bool {
	for i := range x.Outs {
		for j := range x.Ins {
			if x.Ins[j].Buf == x.Outs[i].Buf && samePlace(&x.Outs[i], &x.Ins[j]) != samePlace(&y.Outs[i], &y.Ins[j]) {
				return false
			}
		}
	}
	return true
}
