package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
)

// checkControl checks on, for, if, call and return.
func (c *checker) checkControl(s *ir.Stmt) {
	switch s.Op {
	case ir.OpOn:
		if !s.Args[0].Main {
			c.in.Operands[s] = []*ir.Sym{c.kinded(s, &s.Args[0], ir.SymStream)}
		} else {
			c.in.Operands[s] = []*ir.Sym{nil}
		}
		c.checkBlock(s.Body)
	case ir.OpFor:
		c.checkFor(s)
	case ir.OpIf:
		c.checkIf(s)
	case ir.OpCall:
		c.checkCall(s)
	case ir.OpYield:
		c.checkYield(s)
	case ir.OpReturn:
		c.checkReturn(s)
	}
}

func (c *checker) checkFor(s *ir.Stmt) {
	for _, e := range s.Exprs {
		if c.rankDependent(e) {
			c.errorf("structure", e.Pos, "a loop's bounds must be the same on every rank, but %s may differ between ranks", e).
				help("loop over the whole range on every rank, and select iterations with an if in the loop (S9)")
		}
	}
	begin, ok := c.tensors(s)
	if !ok {
		c.defineBad(s)
		return
	}
	carried := c.carriedTypes(s, begin)
	if carried == nil {
		c.defineBad(s)
		return
	}
	mark := c.scope.open()
	i := &ir.Sym{Kind: ir.SymIndex, Name: s.Results[0].Text, Pos: s.Results[0].Pos, Def: s}
	c.of(i).value = c.loopVariable(s)
	c.define(i)
	for k, name := range s.Carry {
		c.define(&ir.Sym{Kind: ir.SymValue, Name: name.Text, Pos: name.Pos, Def: s, Type: carried[k]})
	}
	c.loops++
	outer, outerTypes := c.carrying, c.carriedTo
	c.carrying, c.carriedTo = nil, carried
	if len(s.Carry) > 0 {
		c.carrying = s.Body
		n, lost := len(s.Body.Stmts), c.lost.All || len(c.lost.Lines[c.fn]) > 0
		if !lost && (n == 0 || s.Body.Stmts[n-1].Op != ir.OpYield) {
			c.errorf("structure", s.Pos,
				"a loop that carries values must end with yield").help("%y = for %i in 0..L carry %h = %x { … yield %z }")
		}
	}
	c.lateBlock(s, s.Body, c.holds(ir.LT, s.Exprs[0], s.Exprs[1]))
	c.carrying, c.carriedTo = outer, outerTypes
	c.loops--
	c.scope.close(mark)
	c.in.Results[s] = []*ir.Sym{i}
	for k, name := range s.Results[1:] {
		sym := &ir.Sym{Kind: ir.SymValue, Name: name.Text, Pos: name.Pos, Def: s, Type: carried[k]}
		c.define(sym)
		c.in.Results[s] = append(c.in.Results[s], sym)
	}
}

// carriedTypes returns the types of the values that a loop carries. The types are the types of the initial values,
// without partial reductions. carriedTypes returns nil after an error.
func (c *checker) carriedTypes(s *ir.Stmt, begin []*ir.Sym) []*ir.Type {
	types, needs, reshard := make([]*ir.Type, len(begin)), make([]*ir.Type, len(begin)), false
	if len(begin) > 0 && s.Streams > 0 {
		c.errorf("structure", s.Pos, "a loop that carries values cannot use stream(…), because each iteration needs the result of the one before").help("remove stream(…)")
		return nil
	}
	for k, sym := range begin {
		if sym.Kind != ir.SymValue {
			c.errorf("type", s.Args[k].Pos, "a loop can carry only values, but %%%s is a buffer", sym.Name).at(sym.Root().Pos,
				"defined here").
				help("update the buffer in place; or " + c.claimHelp(sym, sym.Type))
			return nil
		}
		if types[k] = sym.Type.Reduced(); !ir.SameLayout(types[k], sym.Type) {
			needs[k], reshard = types[k], true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
	return types
}

// checkYield compares the values that a loop yields with the initial values of the carried values.
func (c *checker) checkYield(s *ir.Stmt) {
	syms, ok := c.tensors(s)
	if len(syms) != len(c.carriedTo) {
		c.errorf("type", s.Pos, "the loop carries %s, but yield has %d operands", plural(len(c.carriedTo), "value"),
			len(syms)).help("write one operand for each carried value")
		return
	}
	if !ok {
		return
	}
	needs, reshard := make([]*ir.Type, len(syms)), false
	for k, sym := range syms {
		want := c.carriedTo[k]
		switch {
		case sym.Kind != ir.SymValue:
			c.errorf("type", s.Args[k].Pos, "a loop can carry only values, but %%%s is a buffer", sym.Name).at(sym.Root().Pos,
				"defined here").
				help(c.claimHelp(sym, want))
		case c.sameShape(s, sym.Type, want, s.Args[k].Pos) && !ir.SameLayout(sym.Type, want):
			needs[k], reshard = want, true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
}

// claimHelp returns the help text that shows how to make a value of type t from a buffer. If the ranks of a mesh axis
// may each hold one contribution to a sum, the text also shows the claim of a partial value.
func (c *relations) claimHelp(buffer *ir.Sym, t *ir.Type) string {
	claim := func(t *ir.Type) string { return "%v: " + t.String() + " = claim %" + buffer.Name }
	text := "make the buffer a value: " + claim(t)
	if m, ok := c.typeMesh(t); ok && m != nil {
		for _, a := range m.Axes {
			if !slices.Contains(t.Axes(), a.Name) {
				part := t.Clone()
				part.Partial = append(part.Partial, ir.Partial{Axis: a.Name, Red: ir.Sum})
				return text + "; if each rank of " + a.Name + " has a part of a sum, " + claim(part)
			}
		}
	}
	return text
}

// loopVariable returns a new atom for the variable of a loop. The atom records that the variable is less than the upper
// bound of the loop.
func (c *names) loopVariable(s *ir.Stmt) poly {
	c.syms++
	lo, hi := c.norm.norm(s.Exprs[0]), c.norm.norm(s.Exprs[1])
	return c.norm.leaf("loop "+itoa(c.syms),
		atom{expr: &ir.Expr{Kind: ir.ExprVar, Name: s.Results[0].Text}, nonNegative: c.norm.nonNegative(lo), below: hi})
}

// lateBlock checks a block of s. The argument runs reports whether the block runs whenever s runs. If the condition
// or the bounds of s are not static, Bind cannot decide whether the block runs. The constraints in the block then
// become late constraints.
func (c *checker) lateBlock(s *ir.Stmt, b *ir.Block, runs tri) {
	late := !ir.Static(s.Exprs[0]) || !ir.Static(s.Exprs[1])
	if late {
		c.lateIf++
	}
	if runs != yes {
		c.unsure++
	}
	c.checkBlock(b)
	if runs != yes {
		c.unsure--
	}
	if late {
		c.lateIf--
	}
}

// holds decides whether a comparison is true for all values of its variables.
func (c *relations) holds(cmp ir.Cmp, a, b *ir.Expr) tri {
	less := func(a, b *ir.Expr) tri { return c.norm.atMost(ir.Bin(ir.ExprAdd, a, ir.Int(1)), b) }
	switch cmp {
	case ir.EQ:
		return c.norm.equal(a, b)
	case ir.NE:
		return -c.norm.equal(a, b)
	case ir.LT:
		return less(a, b)
	case ir.LE:
		return c.norm.atMost(a, b)
	case ir.GT:
		return less(b, a)
	}
	return c.norm.atMost(b, a)
}

func (c *checker) checkIf(s *ir.Stmt) {
	dep := c.rankDependent(s.Exprs[0]) || c.rankDependent(s.Exprs[1])
	if dep {
		c.rankIf++
	}
	mark := c.ended.mark()
	holds := c.holds(s.Cmp, s.Exprs[0], s.Exprs[1])
	c.lateBlock(s, s.Body, holds)
	if s.Else != nil {
		redo := c.ended.undo(mark)
		c.lateBlock(s, s.Else, -holds)
		redo()
	}
	if dep {
		c.rankIf--
	}
}

// checkCall checks the operands of a call against the callee's parameters, and defines the results.
func (c *checker) checkCall(s *ir.Stmt) {
	syms, ok := c.tensors(s)
	f := c.funcs[s.Callee.Text]
	if f == nil && c.lost.Heads[s.Callee.Text] {
		c.defineBad(s)
		return
	}
	if f == nil {
		c.errorf("scope", s.Callee.Pos, "the program has no function %s",
			s.Callee.Text).help(didYouMean(s.Callee.Text, c.funcNames()))
		c.defineBad(s)
		return
	}
	if len(syms) != len(f.Params) || (len(s.Results) != len(f.Results) && len(s.Results) > 0) {
		c.errorf("type", s.Pos, "%s has %s and %s, but the call has %d operands and %d result names", f.Name,
			plural(len(f.Params), "parameter"), plural(len(f.Results), "result"), len(syms), len(s.Results)).at(f.Pos,
			"declared here").help("%y = call " + f.Name + " %x, …")
		c.defineBad(s)
		return
	}
	if ok {
		c.checkArguments(s, f, syms)
	}
	for i, r := range s.Results {
		sym := &ir.Sym{Kind: ir.SymValue, Name: r.Text, Pos: r.Pos, Def: s, Type: f.Results[i]}
		c.define(sym)
		c.in.Results[s] = append(c.in.Results[s], sym)
	}
	if s.Type == nil {
		return
	}
	if len(s.Results) != 1 {
		c.errorf("structure", s.Pos, "only a call with one result can have a type annotation").help("remove the type")
		return
	}
	if !c.checkType(s.Type) || !c.stillPartial(s.Type, c.in.Results[s][0].Type) {
		return
	}
	if sym := c.in.Results[s][0]; c.sameShape(s, sym.Type, s.Type, s.Type.Pos) && !ir.SameLayout(sym.Type, s.Type) {
		c.in.Natural[s] = sym.Type
		sym.Type = s.Type
	}
}

func (c *checker) checkArguments(s *ir.Stmt, f *ir.Func, syms []*ir.Sym) {
	needs := make([]*ir.Type, len(syms))
	reshard := false
	for i, p := range f.Params {
		pos := s.Args[i].Pos
		switch {
		case p.Inout:
			if syms[i].Kind != ir.SymBuffer || syms[i].ReadOnly() {
				c.errorf("type", pos, "parameter %%%s of %s is inout and needs a buffer, but %%%s is %s", p.Name, f.Name,
					syms[i].Name, syms[i].Root().Kind).
					at(syms[i].Root().Pos, "defined here").help("copy it into a buffer first: %b = alloc …")
				continue
			}
			if c.writable(syms[i], pos) && c.assignable(s, syms[i].Type, c.localTypeOf(p.Type), pos) {
				c.checkArgAlias(s, f, syms, i)
			}
		case syms[i].Kind == ir.SymBuffer:
			// As for return, the buffer becomes a shard of a value with the layout of the callee's parameter.
			c.assignable(s, syms[i].Type, c.localTypeOf(p.Type), pos)
		case c.sameShape(s, syms[i].Type, p.Type, pos) && !ir.SameLayout(syms[i].Type, p.Type):
			needs[i], reshard = p.Type, true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
}

// checkArgAlias reports an error if the memory of an inout argument is also the memory of another argument, because
// the callee would treat the two as separate tensors.
func (c *checker) checkArgAlias(s *ir.Stmt, f *ir.Func, syms []*ir.Sym, i int) {
	for k, other := range syms {
		switch {
		case k == i || k < i && f.Params[k].Inout: // each pair is reported once
		case other.Root() != syms[i].Root() || other.Root().Count != nil && !samePlaces(&s.Args[k], &s.Args[i]):
		case other != syms[i] && other.Base != nil && syms[i].Base != nil: // the planner compares byte ranges
		default:
			c.errorf("alias", s.Args[max(i, k)].Pos, "%s may write %%%s, but the call passes it twice", f.Name,
				syms[i].Root().Name).
				at(f.Params[i].Pos, "%%%s is inout", f.Params[i].Name).help("pass a copy: %c = copy %" + other.Name)
			return
		}
	}
}

// checkReturn checks the types of the returned places against the result types of the signature.
func (c *checker) checkReturn(s *ir.Stmt) {
	c.returned = true
	syms, ok := c.tensors(s)
	if len(syms) != len(c.fn.Results) {
		c.errorf("type", s.Pos, "%s has %s, but return has %d operands", c.fn.Name, plural(len(c.fn.Results), "result"),
			len(syms)).
			at(c.fn.Pos, "declared here").help("write one operand for each result")
		return
	}
	if !ok {
		return
	}
	needs := make([]*ir.Type, len(syms))
	reshard := false
	for i, sym := range syms {
		want, pos := c.fn.Results[i], s.Args[i].Pos
		if sym.Kind == ir.SymBuffer {
			c.assignable(s, sym.Type, c.localTypeOf(want), pos)
			continue
		}
		if c.sameShape(s, sym.Type, want, pos) && !ir.SameLayout(sym.Type, want) {
			needs[i], reshard = want, true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
}

// sameShape checks that dtypes and global extents are equal.
func (c *relations) sameShape(s *ir.Stmt, have, want *ir.Type, pos ir.Pos) bool {
	return c.fits(s, have, want, pos, "")
}

// assignable checks that the dtypes and local extents of two local types are equal.
func (c *relations) assignable(s *ir.Stmt, have, want *ir.Type, pos ir.Pos) bool {
	return c.fits(s, have, want, pos, " on each rank")
}

func (c *relations) fits(s *ir.Stmt, have, want *ir.Type, pos ir.Pos, where string) bool {
	if have.DType != want.DType || len(have.Dims) != len(want.Dims) {
		c.errorf("type", pos, "this is %s%s, but %s is required", ir.Brief(have), where,
			ir.Brief(want)).help(fitHelp(have, want))
		return false
	}
	for i := range have.Dims {
		a, b := have.Dims[i].Extent, want.Dims[i].Extent
		if c.norm.equal(a, b) == yes {
			continue // skips building the error message
		}
		if !c.require(s, ir.CheckEqual, a, b, pos,
			fmt.Sprintf("dimension %d of %s differs from that of %s", i, ir.Brief(have), ir.Brief(want)),
			"use a slice of the tensor, or reshape it") {
			return false
		}
	}
	return true
}

func fitHelp(have, want *ir.Type) string {
	if len(have.Dims) != len(want.Dims) {
		return "change the number of dimensions with reshape or select"
	}
	return "convert it with cast"
}
