package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
	"strings"
)

// relations decides the relations between extents and indices, or stores them for a later check.
type relations struct {
	*names
	in *ir.Info
	// lateIf is the number of enclosing ifs and loops whose conditions or bounds Bind cannot evaluate. unsure is the
	// number of enclosing blocks that may never run.
	lateIf, unsure int
}

// inRange reports an error if the index e is known to be outside of 0..count and the statement is known to run. If the
// range cannot be checked symbolically, it is checked when the value of e is known.
func (c *relations) inRange(e, count *ir.Expr, what string) bool {
	if c.unsure > 0 || c.norm.atMost(ir.Int(0), e) != no && c.norm.atMost(count, e) != yes {
		return true
	}
	c.errorf("type", e.Pos, "%s %s is not in 0..%s", what, ir.Brief(e), ir.Brief(count)).help("indices are counted from 0")
	return false
}

// place resolves an operand and checks its index. It returns nil after an error.
func (c *names) place(st *ir.Stmt, p *ir.Place) *ir.Sym {
	s := c.lookup(p.Name, p.Pos)
	if s == nil {
		return nil
	}
	if p.Index != nil && (!c.wholeExpr(p.Pos, p.Index) || !c.checkExpr(p.Index)) {
		return nil
	}
	switch {
	case s.Count == nil && p.Index != nil:
		c.errorf("type", p.Pos, "%%%s is not an array, so it cannot have an index", p.Name).help(rowHelp(s, p))
		return nil
	case s.Count != nil && p.Index == nil:
		c.errorf("type", p.Pos, "%%%s is an array, so it needs an index",
			p.Name).help("name an element: %" + p.Name + "[0]")
		return nil
	}
	if pos, freed := c.ended.freed(s); freed {
		if st.Op == ir.OpFree {
			c.errorf("lifetime", p.Pos, "%%%s is freed twice", p.Name).at(pos, "first here").help("remove one of them")
		} else {
			c.errorf("lifetime", p.Pos, "%%%s is used after it was freed", p.Name).at(pos, "freed here").
				help("move the free after the last use")
		}
		return nil
	}
	return s
}

// rowHelp returns the help for an index on an object that is not an array. rowHelp shows how to select a part of the
// object.
func rowHelp(s *ir.Sym, p *ir.Place) string {
	if s.Kind == ir.SymValue || s.Kind == ir.SymBuffer {
		return fmt.Sprintf("name the row first: %%row = select %%%s, axis=0, index=%s", p.Name, p.Index)
	}
	return "only names that are declared as arrays, such as stream[4], can have an index"
}

// kinded resolves an operand whose symbol must have one of the given kinds.
func (c *names) kinded(s *ir.Stmt, p *ir.Place, kinds ...ir.SymKind) *ir.Sym {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = k.String()
	}
	want := strings.Join(words, " or ")
	if p.Main {
		c.errorf("type", p.Pos, "%s takes %s, but main is a stream", s.Op,
			want).help(s.Op.String() + ": " + s.Op.Info().Doc)
		return nil
	}
	sym := c.place(s, p)
	if sym == nil {
		return nil
	}
	if !slices.Contains(kinds, sym.Kind) {
		c.errorf("type", p.Pos, "%s takes %s, but %%%s is %s", s.Op, want, p.Name, sym.Kind).
			at(sym.Pos, "defined here").help(s.Op.String() + ": " + s.Op.Info().Doc)
		return nil
	}
	return sym
}

// tensors resolves all operands as tensors. It returns false after an error, or if an error in an operand was reported
// before.
func (c *checker) tensors(s *ir.Stmt) ([]*ir.Sym, bool) {
	ok := true
	syms := make([]*ir.Sym, len(s.Args))
	for i := range s.Args {
		syms[i] = c.kinded(s, &s.Args[i], ir.SymValue, ir.SymBuffer)
		ok = ok && syms[i] != nil && syms[i].Type != nil
	}
	c.in.Operands[s] = syms
	return syms, ok
}

// destination resolves the place in an into clause, and checks that it may be written.
func (c *checker) destination(s *ir.Stmt) *ir.Sym {
	d := c.kinded(s, s.Into, ir.SymBuffer, ir.SymValue)
	if d == nil || d.Type == nil || !c.writable(d, s.Into.Pos) {
		return nil
	}
	c.in.Into[s] = d
	return d
}

// writable reports an error if the destination is read-only.
func (c *names) writable(d *ir.Sym, pos ir.Pos) bool {
	root := d.Root()
	claim, claimed := c.ended.claimed(d)
	switch {
	case root.Kind == ir.SymValue && root.Param != nil:
		c.errorf("alias", pos, "the parameter %%%s is read-only", root.Name).at(root.Pos, "declared here").
			help("declare it inout, or write to a buffer: %b = alloc …")
	case root.Kind == ir.SymValue:
		c.errorf("alias", pos, "%%%s is a value and cannot be written", root.Name).at(root.Pos, "defined here").
			help("values are immutable; write to a buffer: %b = alloc …")
	case claimed:
		c.errorf("alias", pos, "%%%s was claimed as a value and can no longer be written", root.Name).at(claim,
			"claimed here").
			help("write before the claim, or to another buffer")
	default:
		return true
	}
	return false
}

// require reports an error if a relation between a and b does not hold. If it cannot decide the relation, it stores a
// constraint, which Bind or the unrolling of the program checks. It also stores a constraint if the relation is false
// but the statement may never run. The message describes the error if the relation is violated.
func (c *relations) require(s *ir.Stmt, rel ir.CheckKind, a, b *ir.Expr, pos ir.Pos, message, help string) bool {
	var t tri
	switch rel {
	case ir.CheckEqual:
		t = c.norm.equal(a, b)
	case ir.CheckMultiple:
		t = c.norm.multiple(a, b)
	case ir.CheckAtMost:
		t = c.norm.atMost(a, b)
	case ir.CheckLess:
		t = c.norm.atMost(ir.Bin(ir.ExprAdd, a, ir.Int(1)), b)
	}
	switch {
	case t == yes:
		return true
	case t == no && c.unsure == 0:
		c.errorf("type", pos, "%s: %s", message, rel.Broken(a, b, ir.Brief(a), ir.Brief(b))).help(help)
		return false
	}
	k := ir.Constraint{Pos: pos, Rel: rel, A: a, B: b, Message: message, Help: help}
	k.Late = c.lateIf > 0 || !ir.Static(a) || !ir.Static(b)
	c.in.Constraints[s] = append(c.in.Constraints[s], k)
	return true
}
