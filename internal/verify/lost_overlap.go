package verify

import (
	"encoding/binary"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// overlapWatch looks for loops whose iterations run on different streams and
// are in order nevertheless: correct, and as slow as on one stream. It follows
// the first rank, whose text all ranks share.
type overlapWatch struct {
	ix     *index
	mem    *memory
	groups []iteration
	opens  []int32 // by command: 1 + the group that it is the first of, on its stream; or 0
	loops  []watched
}

// iteration is the work of one iteration of one loop.
type iteration struct {
	loop  int32
	prev  int32 // the iteration before, -1 for none
	index int64 // the loop's variable
	spans []span
}

// span is an iteration's work on one stream.
type span struct {
	stream      int32
	first, last int32 // as places in the stream
	firstCmd    int32
}

// watched is one loop.
type watched struct {
	stmt           *ir.Stmt
	ordered, freed int      // pairs of neighbouring iterations in order, and not
	pair           [2]int32 // the first pair in order
}

type loopKey struct {
	loop   *ir.Stmt
	prefix string
}

// newOverlapWatch groups the first rank's work by iterations.
func newOverlapWatch(ix *index, mem *memory, prog *ir.Program) *overlapWatch {
	w := &overlapWatch{ix: ix, mem: mem, opens: make([]int32, len(ix.p.Cmds))}
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

// enclosingLoops maps the position of each statement to its innermost loop.
func enclosingLoops(prog *ir.Program) map[ir.Pos]*ir.Stmt {
	out := map[ir.Pos]*ir.Stmt{}
	var visit func(b *ir.Block, loop *ir.Stmt)
	visit = func(b *ir.Block, loop *ir.Stmt) {
		if b == nil {
			return
		}
		for _, s := range b.Stmts {
			if loop != nil {
				out[s.Pos] = loop
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

// start is told what a stream knows when a command starts in the first run.
func (w *overlapWatch) start(v *view, cmd int32) {
	g := w.opens[cmd] - 1
	if g < 0 || w.groups[g].prev < 0 {
		return
	}
	it, prev := &w.groups[g], &w.groups[w.groups[g].prev]
	for _, s := range prev.spans {
		for _, t := range it.spans {
			if s.stream == t.stream {
				return // one stream: the text asks for this order
			}
		}
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
	}
}

// findings reports the loops whose iterations are all in order though no
// memory asks for it.
func (w *overlapWatch) findings() []Finding {
	var out []Finding
	for i := range w.loops {
		l := &w.loops[i]
		if l.ordered == 0 || l.freed > 0 || w.depends(&w.groups[l.pair[0]], &w.groups[l.pair[1]]) {
			continue
		}
		out = append(out, w.tell(l))
	}
	return out
}

// depends reports whether two iterations touch the same bytes and one writes.
func (w *overlapWatch) depends(a, b *iteration) bool {
	wrote := map[[2]int32]bool{} // by rank and atom: whether a writes it
	w.each(a, func(x *access, atom int32) {
		k := [2]int32{x.rank, atom}
		wrote[k] = wrote[k] || x.write
	})
	found := false
	w.each(b, func(x *access, atom int32) {
		if write, both := wrote[[2]int32{x.rank, atom}]; both && (write || x.write) {
			found = true
		}
	})
	return found
}

func (w *overlapWatch) each(it *iteration, f func(x *access, atom int32)) {
	for _, s := range it.spans {
		for pos := s.first; pos <= s.last; pos++ {
			cmd := w.ix.streams[s.stream][pos-1]
			for k := w.mem.opens[cmd]; k < w.mem.opens[cmd+1]; k++ {
				for _, atom := range w.mem.pieces[w.mem.access[k].region] {
					f(&w.mem.access[k], atom)
				}
			}
		}
	}
}

func (w *overlapWatch) tell(l *watched) Finding {
	a, b := w.groups[l.pair[0]].spans[0], w.groups[l.pair[1]].spans[0]
	acts := []Act{w.ix.act(epoch{a.stream, a.last}), w.ix.act(epoch{b.stream, b.first})}
	f := Finding{
		Warning: true, Kind: KindOverlap, Acts: acts, Count: l.ordered,
		Message: fmt.Sprintf("lost overlap: the iterations of the loop at line %d run on different streams, but one after the other", l.stmt.Pos.Line),
		Picture: picture(w.ix, acts[0], acts[1]),
	}
	f.Acts[0].What = "the last of one iteration"
	f.Acts[1].What = "the first of the next, which waits for it"
	inside := []string{}
	for _, cmd := range orderingWaits(w.ix, epoch{a.stream, a.last}, b.stream, b.firstCmd) {
		act := Act{Cmd: cmd, What: "is one of the edges that order them"}
		f.Acts = append(f.Acts, act)
		s := w.ix.p.Sites[w.ix.p.Cmds[cmd].Site]
		word := fmt.Sprintf("%s (line %d)", s.Text, s.Pos.Line)
		if !slices.Contains(inside, word) {
			inside = append(inside, word)
		}
	}
	switch len(inside) {
	case 0:
	case 1:
		f.Help = fmt.Sprintf("move %s out of the loop: let every worker wait before it, join all workers behind it", inside[0])
	default:
		f.Help = fmt.Sprintf("move %s behind the loop, and %s before it", inside[len(inside)-1], inside[0])
	}
	return f
}

// orderingWaits returns the waits by which stream to learned of e before cmd,
// from the last back to the first.
func orderingWaits(ix *index, e epoch, to, cmd int32) []int32 {
	by := map[int32]int32{} // by stream: the wait it learned of e by
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
