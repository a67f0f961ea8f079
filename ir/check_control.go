package ir

import "maps"

// checkControl checks on, for, if, call and return.
func (c *checker) checkControl(s *Stmt) {
	switch s.Op {
	case OpOn:
		if !s.Args[0].Main {
			c.in.Operands[s] = []*Sym{c.kinded(s, &s.Args[0], SymStream)}
		} else {
			c.in.Operands[s] = []*Sym{nil}
		}
		c.checkBlock(s.Body)
	case OpFor:
		c.checkFor(s)
	case OpIf:
		c.checkIf(s)
	case OpCall:
		c.checkCall(s)
	case OpReturn:
		c.checkReturn(s)
	}
}

func (c *checker) checkFor(s *Stmt) {
	for _, e := range s.Exprs {
		if c.rankDependent(e) {
			c.errorf("structure", e.Pos, "a loop's bounds must be the same on every rank, and %s is not", e).
				help("loop over all and choose with an if inside (S9)")
		}
	}
	mark := c.scope.open()
	i := &Sym{Kind: SymIndex, Name: s.Results[0].Text, Pos: s.Results[0].Pos, Def: s}
	c.define(i)
	c.in.Results[s] = []*Sym{i}
	c.loops++
	c.checkBlock(s.Body)
	c.loops--
	c.scope.close(mark)
}

func (c *checker) checkIf(s *Stmt) {
	dep := c.rankDependent(s.Exprs[0]) || c.rankDependent(s.Exprs[1])
	if dep {
		c.rankIf++
	}
	before := maps.Clone(c.freed)
	c.checkBlock(s.Body)
	if s.Else != nil {
		afterThen := c.freed
		c.freed = before
		c.checkBlock(s.Else)
		maps.Copy(c.freed, afterThen)
	}
	if dep {
		c.rankIf--
	}
}

// checkCall checks operands against the callee's parameters and defines the results.
func (c *checker) checkCall(s *Stmt) {
	syms, ok := c.tensors(s)
	f := c.funcs[s.Callee.Text]
	if f == nil {
		c.errorf("scope", s.Callee.Pos, "there is no function %s", s.Callee.Text).help(didYouMean(s.Callee.Text, c.funcNames()))
		c.defineBad(s)
		return
	}
	if len(syms) != len(f.Params) || (len(s.Results) != len(f.Results) && len(s.Results) > 0) {
		c.errorf("type", s.Pos, "%s takes %s and has %s; the call gives %d and names %d", f.Name,
			plural(len(f.Params), "parameter"), plural(len(f.Results), "result"), len(syms), len(s.Results)).at(f.Pos, "declared here")
		c.defineBad(s)
		return
	}
	if ok {
		c.checkArguments(s, f, syms)
	}
	for i, r := range s.Results {
		sym := &Sym{Kind: SymValue, Name: r.Text, Pos: r.Pos, Def: s, Type: f.Results[i]}
		c.define(sym)
		c.in.Results[s] = append(c.in.Results[s], sym)
	}
	if s.Type == nil || len(s.Results) != 1 || !c.checkType(s.Type) {
		return
	}
	if sym := c.in.Results[s][0]; c.sameShape(s, sym.Type, s.Type, s.Type.Pos) && !SameLayout(sym.Type, s.Type) {
		c.in.Natural[s] = sym.Type
		sym.Type = s.Type
	}
}

func (c *checker) checkArguments(s *Stmt, f *Func, syms []*Sym) {
	needs := make([]*Type, len(syms))
	reshard := false
	for i, p := range f.Params {
		pos := s.Args[i].Pos
		switch {
		case p.Inout:
			if syms[i].Kind != SymBuffer || syms[i].ReadOnly() {
				c.errorf("type", pos, "%%%s of %s is inout and takes a buffer, but %%%s is %s", p.Name, f.Name, syms[i].Name, syms[i].Kind)
				continue
			}
			c.assignable(s, p.Type.LocalType(), syms[i].Type, pos)
		case syms[i].Kind == SymBuffer:
			// Like return: the callee's layout is claimed for the buffer.
			c.assignable(s, syms[i].Type, p.Type.LocalType(), pos)
		case c.sameShape(s, syms[i].Type, p.Type, pos) && !SameLayout(syms[i].Type, p.Type):
			needs[i], reshard = p.Type, true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
}

// checkReturn checks the returned places against the signature.
func (c *checker) checkReturn(s *Stmt) {
	c.returned = true
	syms, ok := c.tensors(s)
	if len(syms) != len(c.fn.Results) {
		c.errorf("type", s.Pos, "%s has %s, and return names %d", c.fn.Name, plural(len(c.fn.Results), "result"), len(syms)).
			at(c.fn.Pos, "declared here")
		return
	}
	if !ok {
		return
	}
	needs := make([]*Type, len(syms))
	reshard := false
	for i, sym := range syms {
		want, pos := c.fn.Results[i], s.Args[i].Pos
		if sym.Kind == SymBuffer {
			c.assignable(s, sym.Type, want.LocalType(), pos)
			continue
		}
		if c.sameShape(s, sym.Type, want, pos) && !SameLayout(sym.Type, want) {
			needs[i], reshard = want, true
		}
	}
	if reshard {
		c.in.Needs[s] = needs
	}
}

// sameShape demands equal dtype and global extents.
func (c *checker) sameShape(s *Stmt, have, want *Type, pos Pos) bool {
	if have.DType != want.DType || len(have.Dims) != len(want.Dims) {
		c.errorf("type", pos, "this is %s, but %s is wanted", have, want).help(castHelp(have, want))
		return false
	}
	for i := range have.Dims {
		if !c.require(s, CheckEqual, have.Dims[i].Extent, want.Dims[i].Extent, pos,
			"dimension "+itoa(i)+" of "+have.String()+" does not fit "+want.String(), "") {
			return false
		}
	}
	return true
}

// assignable demands equal dtype and local extents of two local types.
func (c *checker) assignable(s *Stmt, have, want *Type, pos Pos) bool {
	if have.DType != want.DType || len(have.Dims) != len(want.Dims) {
		c.errorf("type", pos, "this is %s on each rank, but %s is wanted", have, want).help(castHelp(have, want))
		return false
	}
	for i := range have.Dims {
		if !c.require(s, CheckEqual, have.Dims[i].Extent, want.Dims[i].Extent, pos,
			"dimension "+itoa(i)+" of "+have.String()+" does not fit "+want.String(), "") {
			return false
		}
	}
	return true
}

func castHelp(have, want *Type) string {
	if len(have.Dims) == len(want.Dims) && have.DType != want.DType {
		return "convert it with cast"
	}
	return ""
}
