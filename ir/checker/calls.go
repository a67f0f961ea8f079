package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
)

// callGraph records which functions call each other, and which refine each other.
type callGraph struct {
	*heads
	// chainKnown holds the functions whose refines clauses have been followed. inCycle holds those whose refines
	// clauses lead back to the function itself.
	chainKnown, inCycle map[*ir.Func]bool
}

// checkRefines checks a "refines F" clause: the signatures must be equal, and the clauses must not form a cycle (S19).
func (c *callGraph) checkRefines(f *ir.Func) {
	if f.Refines.Text == "" {
		return
	}
	g := c.funcs[f.Refines.Text]
	if c.lost.Heads[f.Refines.Text] {
		return
	}
	if g == nil {
		c.errorf("scope", f.Refines.Pos, "the function %s, which this function refines, does not exist",
			f.Refines.Text).
			help(didYouMean(f.Refines.Text, c.funcNames()))
		return
	}
	if c.refinesItself(f) {
		c.errorf("structure", f.Refines.Pos, "%s refines itself",
			f.Name).help("a chain of refines must end at a function that refines no other")
		return
	}
	if d := c.signatureDifference(f, g); d != "" {
		c.errorf("type", f.Refines.Pos, "%s cannot refine %s: %s", f.Name, g.Name, d).
			at(g.Pos, "declared here").help("both must have the same parameters and results, layouts included")
	}
}

// refinesItself follows refines clauses from f and reports whether they lead back to f. refinesItself stores the result
// for every function that it visits.
func (c *callGraph) refinesItself(f *ir.Func) bool {
	var path []*ir.Func
	onPath := map[*ir.Func]bool{}
	h := f
	for h != nil && !onPath[h] && !c.chainKnown[h] {
		path, onPath[h] = append(path, h), true
		h = c.funcs[h.Refines.Text]
	}
	cycle := h != nil && onPath[h]
	for i := len(path) - 1; i >= 0; i-- {
		c.chainKnown[path[i]] = true
		if cycle {
			c.inCycle[path[i]] = true
			cycle = path[i] != h
		}
	}
	return c.inCycle[f]
}

func (c *callGraph) signatureDifference(f, g *ir.Func) string {
	if len(f.Params) != len(g.Params) || len(f.Results) != len(g.Results) {
		return fmt.Sprintf("it has %s and %s, but the other function has %d and %d", plural(len(f.Params), "parameter"),
			plural(len(f.Results), "result"), len(g.Params), len(g.Results))
	}
	for i, p := range f.Params {
		q := g.Params[i]
		if p.Inout != q.Inout {
			return "parameter %" + p.Name + " is inout in only one of the two functions"
		}
		if !c.sameType(p.Type, q.Type) {
			return "parameter %" + p.Name + " is " + p.Type.String() + " here and " + q.Type.String() + " there"
		}
		if p.Name != q.Name {
			return "parameter %" + q.Name + " is called %" + p.Name + " here"
		}
	}
	for i, t := range f.Results {
		if !c.sameType(t, g.Results[i]) {
			return "the result is " + t.String() + " here and " + g.Results[i].String() + " there"
		}
	}
	return ""
}

// sameType compares dtype, extents and layout. Extents whose equality cannot be decided count as different.
func (c *heads) sameType(t, u *ir.Type) bool {
	if t.DType != u.DType || !ir.SameLayout(t, u) {
		return false
	}
	for i := range t.Dims {
		if c.norm.equal(t.Dims[i].Extent, u.Dims[i].Extent) != yes {
			return false
		}
	}
	return true
}

// checkCalls reports recursion (S18).
func (c *callGraph) checkCalls() {
	const (
		white = iota
		grey
		black
	)
	state := map[*ir.Func]int{}
	var visit func(f *ir.Func, depth int)
	visit = func(f *ir.Func, depth int) {
		state[f] = grey
		f.Body.Walk(func(s *ir.Stmt) {
			g := c.funcs[s.Callee.Text]
			if s.Op != ir.OpCall || g == nil {
				return
			}
			switch {
			case state[g] == grey:
				c.errorf("structure", s.Pos, "the call of %s is recursive", g.Name).
					at(g.Pos, "the call is inside this function, directly or indirectly").help("calls are inlined and cannot recurse: write a loop")
			case depth > ir.MaxNesting:
				c.errorf("limit", s.Pos, "calls are nested deeper than %d",
					ir.MaxNesting).help("calls are inlined and cannot recurse: write a loop")
			case state[g] == white:
				visit(g, depth+1)
			}
		})
		state[f] = black
	}
	for _, f := range c.list {
		if state[f] == white {
			visit(f, 0)
		}
	}
}
