package verify

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// overlapWatch searches for loops whose iterations run on different streams but are nevertheless ordered one after the
// other. Such loops are correct, but they are as slow as loops on one stream. The search covers only the first rank,
// because all ranks execute the same text.
type overlapWatch struct {
	ix *index
	// order contains the commands that define the order: all commands of ix or, for a quotient, only those that order
	// streams of rank 0.
	order  *index
	mem    *memory
	groups []iteration
	opens  []int32 // for each command: 1 + index of the group whose work on a stream begins with the command, or 0
	loops  []watched
}

// iteration holds the work of one iteration of one loop.
type iteration struct {
	loop  int32
	prev  int32 // the previous iteration, or -1
	index int64 // value of the loop's variable
	spans []span
}

// span holds an iteration's work on one stream.
type span struct {
	stream      int32
	first, last int32 // positions in the stream
	firstCmd    int32
}

// watched holds the state of one loop.
type watched struct {
	stmt           *ir.Stmt
	ordered, freed int      // number of pairs of adjacent iterations that are ordered, and number of those that are not
	pair           [2]int32 // the first pair of adjacent iterations that is ordered
	first          span     // the work in the pair's second iteration that is ordered after the first iteration
}

type loopKey struct {
	loop   *ir.Stmt
	prefix string
}

// newOverlapWatch groups the first rank's work by iterations.
func newOverlapWatch(ix *index, mem *memory, prog *ir.Program) *overlapWatch {
	w := &overlapWatch{ix: ix, order: ix, mem: mem, opens: make([]int32, len(ix.p.Cmds))}
	loopAt := enclosingLoops(prog)
	last := map[loopKey]int32{}
	ids := map[*ir.Stmt]int32{}
	for i := range ix.p.Cmds {
		c := &ix.p.Cmds[i]
		if c.Rank != 0 || len(c.Iter) == 0 || !works(c) {
			continue
		}
		loop := loopAt[ix.p.Sites[c.Site].Pos]
		if loop == nil {
			continue
		}
		depth := len(c.Iter) - 1
		k := loopKey{loop, prefixKey(c.Iter[:depth])}
		g, seen := last[k]
		if !seen || w.groups[g].index != c.Iter[depth] {
			prev := int32(-1)
			if seen && w.groups[g].index == c.Iter[depth]-1 {
				prev = g
			}
			if _, known := ids[loop]; !known {
				ids[loop] = int32(len(w.loops))
				w.loops = append(w.loops, watched{stmt: loop})
			}
			g = int32(len(w.groups))
			w.groups = append(w.groups, iteration{loop: ids[loop], prev: prev, index: c.Iter[depth]})
			last[k] = g
		}
		w.add(g, c.Stream, int32(i))
	}
	return w
}

func works(c *plan.Cmd) bool {
	return c.Kind == plan.Compute || c.Kind == plan.Copy || c.Kind == plan.Collective || c.Kind == plan.Group
}

func prefixKey(iter []int64) string {
	if len(iter) == 0 {
		return ""
	}
	var b []byte
	for _, v := range iter {
		b = binary.AppendVarint(b, v)
	}
	return string(b)
}

func (w *overlapWatch) add(g, stream, cmd int32) {
	it := &w.groups[g]
	at := w.ix.pos[cmd]
	for i := range it.spans {
		if it.spans[i].stream == stream {
			it.spans[i].last = at
			return
		}
	}
	it.spans = append(it.spans, span{stream: stream, first: at, last: at, firstCmd: cmd})
	w.opens[cmd] = g + 1
}

// enclosingLoops maps the position of each statement that may do work to the innermost loop around it. The entry is nil
// for a statement outside of loops. The entry is also nil if lowering has generated statements with the same position
// in several loops.
func enclosingLoops(prog *ir.Program) map[ir.Pos]*ir.Stmt {
	out := map[ir.Pos]*ir.Stmt{}
	var visit func(b *ir.Block, loop *ir.Stmt)
	visit = func(b *ir.Block, loop *ir.Stmt) {
		if b == nil {
			return
		}
		for _, s := range b.Stmts {
			if class := s.Op.Info().Class; class != ir.ClassMemory && class != ir.ClassOrder && s.Op != ir.OpOn {
				if other, seen := out[s.Pos]; seen && other != loop {
					out[s.Pos] = nil
				} else {
					out[s.Pos] = loop
				}
			}
			inner := loop
			if s.Op == ir.OpFor {
				inner = s
			}
			visit(s.Body, inner)
			visit(s.Else, inner)
		}
	}
	for _, f := range prog.Funcs {
		visit(f.Body, nil)
	}
	return out
}

// start examines a command that starts in the first run, given the knowledge of the command's stream. Work on a stream
// that the previous iteration also used is not examined, since the text requires its order.
func (w *overlapWatch) start(v *view, cmd int32) {
	g := w.opens[cmd] - 1
	if g < 0 || w.groups[g].prev < 0 {
		return
	}
	it, prev := &w.groups[g], &w.groups[w.groups[g].prev]
	if prev.uses(v.stream) {
		return
	}
	loop := &w.loops[it.loop]
	for _, s := range prev.spans {
		if !v.knows(epoch{s.stream, s.last}) {
			loop.freed++
			return
		}
	}
	if loop.ordered++; loop.ordered == 1 {
		loop.pair = [2]int32{it.prev, g}
		loop.first = *it.on(v.stream)
	}
}

// on returns an iteration's work on a stream, or nil if the iteration does not use the stream.
func (it *iteration) on(stream int32) *span {
	for i := range it.spans {
		if it.spans[i].stream == stream {
			return &it.spans[i]
		}
	}
	return nil
}

func (it *iteration) uses(stream int32) bool { return it.on(stream) != nil }

// findings reports the loops whose iterations are all ordered although no access to memory requires the order.
func (w *overlapWatch) findings() []Finding {
	var out []Finding
	for i := range w.loops {
		l := &w.loops[i]
		if l.ordered == 0 || l.freed > 0 || w.depends(l) {
			continue
		}
		out = append(out, w.tell(l))
	}
	return out
}

// piece identifies an atom of a rank's buffer. Two buffers on the same bytes have separate pieces, because the examined
// order may be the reason why the buffers can share bytes.
type piece struct{ rank, buf, atom int32 }

// depends reports whether, in the first ordered pair of iterations of a loop, the second iteration needs work of the
// first. There are two such cases: work on the waiting stream, or work that it needs, conflicts with work of the first
// iteration; or the first command on the waiting stream needs work on a stream that the first iteration uses.
func (w *overlapWatch) depends(l *watched) bool {
	a, b := &w.groups[l.pair[0]], &w.groups[l.pair[1]]
	work := w.work(b)
	_, streams := w.needs(work, func(cmd int32) bool { return cmd == l.first.firstCmd })
	for stream := range streams {
		if a.uses(stream) {
			return true
		}
	}
	used, _ := w.needs(work, func(cmd int32) bool { return w.ix.p.Cmds[cmd].Stream == l.first.stream })
	return slices.ContainsFunc(w.work(a), func(cmd int32) bool { return w.conflicts(used, cmd) })
}

// work returns the commands of an iteration that compute, copy or communicate, in the order of issue.
func (w *overlapWatch) work(it *iteration) (cmds []int32) {
	for _, s := range it.spans {
		for _, cmd := range w.ix.streams[s.stream][s.first-1 : s.last] {
			if works(&w.ix.p.Cmds[cmd]) {
				cmds = append(cmds, cmd)
			}
		}
	}
	slices.Sort(cmds)
	return cmds
}

// needs returns the pieces of memory that the selected commands of an iteration, and the commands that these need,
// access. The map's value for a piece is true if the piece is written. The second result is the streams of all these
// commands.
func (w *overlapWatch) needs(work []int32, of func(cmd int32) bool) (used map[piece]bool, streams map[int32]bool) {
	used, streams = map[piece]bool{}, map[int32]bool{}
	for _, cmd := range slices.Backward(work) {
		if !of(cmd) && !w.conflicts(used, cmd) {
			continue
		}
		streams[w.ix.p.Cmds[cmd].Stream] = true
		w.each(cmd, func(at piece, write bool) { used[at] = used[at] || write })
	}
	return used, streams
}

// conflicts reports whether a command writes a piece in the map used, or reads a piece that the map marks as written.
func (w *overlapWatch) conflicts(used map[piece]bool, cmd int32) (found bool) {
	w.each(cmd, func(at piece, write bool) {
		if written, both := used[at]; both && (written || write) {
			found = true
		}
	})
	return found
}

func (w *overlapWatch) each(cmd int32, f func(at piece, write bool)) {
	for k := w.mem.opens[cmd]; k < w.mem.opens[cmd+1]; k++ {
		x := &w.mem.access[k]
		for _, atom := range w.mem.pieces[x.region] {
			f(piece{x.rank, x.buf, atom}, x.write)
		}
	}
}

func (w *overlapWatch) tell(l *watched) Finding {
	prev, b := &w.groups[l.pair[0]], l.first
	a := prev.spans[0]
	for _, s := range prev.spans { // prefers a stream that only the first of the two iterations uses
		if it := &w.groups[l.pair[1]]; it.uses(a.stream) && !it.uses(s.stream) {
			a = s
		}
	}
	acts := []Act{w.ix.act(epoch{a.stream, a.last}), w.ix.act(epoch{b.stream, b.first})}
	f := Finding{
		Warning: true, Kind: KindOverlap, Acts: acts, Count: l.ordered,
		Message: fmt.Sprintf("lost overlap: the iterations of the loop at line %d run on different streams, but one "+
			"after the other", l.stmt.Pos.Line),
		Picture: picture(w.ix, acts[0], acts[1]),
	}
	f.Acts[0].What = "is the last op of one iteration"
	f.Acts[1].What = "is the first op of the next iteration, and waits for it"
	var edges, names []string
	for _, cmd := range orderingWaits(w.order, epoch{a.stream, a.last}, b.stream, b.firstCmd) {
		f.Acts = append(f.Acts, Act{Cmd: cmd, What: "is one of the waits that order the two ops"})
		c := &w.ix.p.Cmds[cmd]
		s := w.ix.p.Sites[c.Site]
		name := fmt.Sprintf("%s (line %d)", s.Text, s.Pos.Line)
		names = append(names, name)
		if c.Kind == plan.WaitEvent {
			from := w.ix.p.Cmds[w.ix.records[c.Event]].Stream
			edges = append(edges, fmt.Sprintf("%s makes %s wait for %s", name, w.ix.p.Streams[c.Stream].Name,
				w.ix.p.Streams[from].Name))
		}
	}
	if len(edges) == 0 {
		return f
	}
	slices.Reverse(edges)
	f.Message += ": " + strings.Join(edges, ", and ")
	f.Help = fmt.Sprintf("remove %s: no memory that both iterations use requires this order", names[0])
	if len(names) > 1 {
		f.Help = fmt.Sprintf("move %s into a separate loop after this loop, so that no iteration waits for another",
			names[len(names)-1])
	}
	return f
}

// orderingWaits returns, from the last to the first, the chain of waits that orders epoch e before the given command of
// another stream.
func orderingWaits(ix *index, e epoch, to, cmd int32) []int32 {
	by := map[int32]int32{} // for each stream: the wait that ordered the stream after epoch e
	s := newSim(ix, nil)
	s.joined = func(lane int32, at int32, run int) {
		if _, known := by[lane]; !known && run == 0 && s.views[lane].knows(e) {
			by[lane] = at
		}
	}
	s.run()
	var out []int32
	for lane := to; lane != e.stream && len(out) < 4; {
		at, ok := by[lane]
		if !ok {
			break
		}
		out = append(out, at)
		c := &ix.p.Cmds[at]
		if c.Kind != plan.WaitEvent {
			break
		}
		lane = ix.p.Cmds[ix.records[c.Event]].Stream
	}
	return out
}

// lostOverlap returns the findings of lost overlap for the rank that represents all ranks. Only waits between the
// rank's own streams are taken into account.
func (q *quotient) lostOverlap(mem *memory) []Finding {
	if q.prog == nil {
		return nil
	}
	p := *q.p
	p.Ranks, p.Streams, p.Events, p.Cmds = 1, q.rep.rank.Streams, q.rep.rank.Events, q.cmds
	ix := &index{p: &p, streams: q.streams, pos: mem.ix.pos, records: make([]int32, p.Events),
		waits: make([]int32, p.Events)}
	alone := p
	alone.Cmds, alone.Colls, alone.Pairs = slices.Clone(p.Cmds), nil, nil
	for i := range alone.Cmds {
		switch c := &alone.Cmds[i]; c.Kind {
		case plan.Record:
			ix.records[c.Event] = int32(i)
		case plan.WaitEvent:
			ix.waits[c.Event]++
		case plan.Collective, plan.Group, plan.Signal, plan.WaitCounter:
			c.Kind = plan.Input // replaces the command by a kind of command that never waits
		}
	}
	order := *ix
	order.p = &alone
	w := newOverlapWatch(ix, mem, q.prog)
	w.order = &order
	s := newSim(&order, nil)
	s.passed = func(lane, cmd int32, run int) {
		if run == 0 {
			w.start(&s.views[lane], cmd)
		}
	}
	s.run()
	return w.findings()
}
