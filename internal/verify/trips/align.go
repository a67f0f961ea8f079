package trips

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// align checks the assumptions that All makes about a plan. No edge between commands may lead back to an earlier
// iteration of a long loop, and no edge may span more iterations than the proof allows. The result describes the first
// violation; it is "" if there is none.
func align(p *plan.Plan, prog *ir.Program, a *trips) string {
	al := &alignment{p: p, loops: loopsOfSites(p, prog, a), far: a.every + 2*a.apart}
	return al.check()
}

// alignment checks the edges between the commands of a plan.
type alignment struct {
	p     *plan.Plan
	loops [][]int // for each site: the enclosing long loops, as indices of Cmd.Iter
	far   int64
}

func (al *alignment) check() string {
	p := al.p
	meets := make([]int32, len(p.Colls))
	sides := map[plan.P2P]int32{}
	records := make([]int32, p.Events)
	raised := map[[3]int32][]int32{}
	for i := range meets {
		meets[i] = -1
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		switch c.Kind {
		case plan.Record:
			records[c.Event] = int32(i)
		case plan.Signal:
			k := [3]int32{c.Counter, c.Peer, c.Elem}
			raised[k] = append(raised[k], int32(i))
		}
		for _, r := range refsOf(p, c) {
			if r.Elements() == 0 && len(al.loops[c.Site]) > 0 {
				return fmt.Sprintf("line %d: the proof unrolls the loop to short lengths, at which blocks are empty", p.Sites[c.Site].Pos.Line)
			}
		}
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		why := ""
		switch c.Kind {
		case plan.WaitEvent:
			why = al.edge(records[c.Event], int32(i))
		case plan.WaitCounter:
			why = al.edge(raised[[3]int32{c.Counter, c.Rank, c.Elem}][c.Value-1], int32(i))
		case plan.Collective:
			if meets[c.Coll] < 0 {
				meets[c.Coll] = int32(i)
			}
			why = al.same(meets[c.Coll], int32(i))
		case plan.Group:
			for _, t := range c.Group {
				if o, ok := sides[plan.P2P{Pair: t.Pair, Send: !t.Send}]; ok && why == "" {
					why = al.same(o, int32(i))
				}
				sides[t] = int32(i)
			}
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// same checks that two commands that synchronize with each other, such as the parts of a collective, belong to the same
// iteration.
func (al *alignment) same(x, y int32) string {
	a, b := &al.p.Cmds[x], &al.p.Cmds[y]
	la, lb := al.loops[a.Site], al.loops[b.Site]
	ok := len(la) == len(lb)
	for i := range la {
		ok = ok && a.Iter[la[i]] == b.Iter[lb[i]]
	}
	if ok {
		return ""
	}
	return fmt.Sprintf("line %d accesses the same memory as line %d in another iteration of a long loop", al.line(a), al.line(b))
}

// edge checks an edge from command x to command y, which waits for x. Either y must belong to the same iteration as x
// or to an iteration that is a few iterations later, or x must be near an end of its loop.
func (al *alignment) edge(x, y int32) string {
	a, b := &al.p.Cmds[x], &al.p.Cmds[y]
	la, lb := al.loops[a.Site], al.loops[b.Site]
	if len(la) == 0 {
		return "" // command x is not in a long loop
	}
	if len(la) == 1 && a.Iter[la[0]] <= al.far {
		if len(lb) == 0 || len(lb) == 1 && b.Iter[lb[0]] >= a.Iter[la[0]] {
			return "" // x and y are near the beginning of the loop
		}
	}
	if len(lb) == 0 {
		return al.nearEnd(a, la, b)
	}
	if len(la) != len(lb) {
		return fmt.Sprintf("line %d waits for line %d, which is at another nesting depth", al.line(b), al.line(a))
	}
	for i := range la {
		if d := b.Iter[lb[i]] - a.Iter[la[i]]; d < 0 || d > al.far {
			return fmt.Sprintf("line %d waits for line %d, %d iterations away in a long loop", al.line(b), al.line(a), d)
		}
	}
	return ""
}

// nearEnd checks that a wait after a loop waits for work of the last iterations.
func (al *alignment) nearEnd(a *plan.Cmd, la []int, b *plan.Cmd) string {
	last := make([]int64, len(la))
	for i := range al.p.Cmds {
		c := &al.p.Cmds[i]
		if c.Site == a.Site {
			for k, at := range la {
				last[k] = max(last[k], c.Iter[at])
			}
		}
	}
	for k, at := range la {
		if last[k]-a.Iter[at] > al.far {
			return fmt.Sprintf("line %d waits for an iteration of line %d in the middle of a long loop", al.line(b), al.line(a))
		}
	}
	return ""
}

func (al *alignment) line(c *plan.Cmd) int32 { return al.p.Sites[c.Site].Pos.Line }

func refsOf(p *plan.Plan, c *plan.Cmd) []plan.Ref {
	switch c.Kind {
	case plan.Compute, plan.Copy:
		return append(append([]plan.Ref(nil), c.Ins...), c.Outs...)
	case plan.Collective:
		part := &p.Colls[c.Coll].Parts[c.Part]
		out := part.Reads()
		if part.Out.Present() {
			out = append(out[:len(out):len(out)], part.Out)
		}
		return out
	}
	return nil
}

// loopsOfSites returns for each site the long loops that enclose it.
func loopsOfSites(p *plan.Plan, prog *ir.Program, a *trips) [][]int {
	byPos := map[ir.Pos][]int{}
	var visit func(b *ir.Block, depth int, in []int)
	visit = func(b *ir.Block, depth int, in []int) {
		if b == nil {
			return
		}
		for _, s := range b.Stmts {
			byPos[s.Pos] = in
			inner, d := in, depth
			if s.Op == ir.OpFor {
				if d++; a.long[s.Pos] {
					inner = append(append([]int(nil), in...), depth)
				}
			}
			visit(s.Body, d, inner)
			visit(s.Else, d, inner)
		}
	}
	for _, f := range prog.Funcs {
		if f.Name == p.Func {
			visit(f.Body, 0, nil)
		}
	}
	out := make([][]int, len(p.Sites))
	for i := range p.Sites {
		out[i] = byPos[p.Sites[i].Pos]
	}
	return out
}
