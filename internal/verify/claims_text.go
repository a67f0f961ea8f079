package verify

import (
	"fmt"
	"maps"

	"hocket.example/hocket/ir"
)

// This file visits the statements of functions for the analysis of claims.

// function analyses the body of a function. The facts about its parameters must have been set.
func (c *claims) function(f *ir.Func) {
	params := c.info.Params[f]
	for _, p := range params {
		c.tensors[p.Name] = p
	}
	c.block(f.Body)
	for _, p := range params {
		if p.Param.Inout {
			c.check(p, p.Param.Type, p.Pos, fmt.Sprintf("the inout parameter %%%s says that it is", p.Name))
		}
	}
}

func (c *claims) block(b *ir.Block) {
	if b == nil {
		return
	}
	for _, s := range b.Stmts {
		c.stmt(s)
	}
}

func (c *claims) stmt(s *ir.Stmt) {
	for _, r := range c.info.Results[s] {
		c.tensors[r.Name] = r
	}
	args := c.info.Operands[s]
	switch s.Op {
	case ir.OpFor:
		c.loop(s)
	case ir.OpIf:
		c.branch(s)
	case ir.OpOn, ir.OpGroup:
		c.block(s.Body)
	case ir.OpCall:
		c.claimed(s)
		c.call(s)
	case ir.OpYield:
		c.yields = c.all(args)
	case ir.OpReturn:
		c.returns = c.all(args)
		c.claimed(s)
	case ir.OpLet:
		if v, err := s.Exprs[0].Eval(c.everywhere()); err == nil {
			c.vars[s.Results[0].Text] = v
		} else {
			delete(c.vars, s.Results[0].Text)
		}
	case ir.OpAlloc:
		if c.of[c.info.Results[s][0]] = unwritten; s.Flags&ir.Zero != 0 {
			c.of[c.info.Results[s][0]] = constants
		}
	case ir.OpLaunch:
		for i, a := range args {
			if s.Launch.Operand(i).Writes() {
				c.set(a, content{})
			}
		}
	case ir.OpPut, ir.OpGet:
		c.set(c.info.Into[s], content{})
	case ir.OpRecv:
		c.set(args[0], content{})
	case ir.OpClaim:
		c.check(args[0], s.Type, s.Pos, fmt.Sprintf("%%%s is claimed to be", s.Results[0].Text))
		c.write(s, c.know(args[0]))
	default:
		switch s.Op.Info().Class {
		case ir.ClassTensor:
			c.write(s, c.computed(s))
		case ir.ClassView:
			c.write(s, c.know(args[0]))
		case ir.ClassCollective:
			c.write(s, c.collected(s))
		}
	}
}

// loop analyses the first iteration of a loop. It then repeats the analysis with the facts that hold in all iterations,
// until these facts do not change.
func (c *claims) loop(s *ir.Stmt) {
	name := s.Results[0].Text
	outer, shadows := c.vars[name]
	lo, errLo := s.Exprs[0].Eval(c.everywhere())
	hi, errHi := s.Exprs[1].Eval(c.everywhere())
	sure := errLo == nil && errHi == nil
	now := c.all(c.info.Operands[s])
	before, begin := maps.Clone(c.of), now
	if !sure {
		c.quiet++
	}
	if !sure || lo < hi {
		if delete(c.vars, name); errLo == nil {
			c.vars[name] = lo
		}
		now = c.iteration(s, now)
		delete(c.vars, name)
		c.quiet++
		for again := !sure || hi-lo > 1; again; {
			first := maps.Clone(c.of)
			next := c.iteration(s, now)
			fewer := c.meet(first)
			again = meetAll(next, now) || fewer
			now = next
		}
		c.quiet--
	}
	if !sure {
		c.quiet--
		c.meet(before)
		meetAll(now, begin)
	}
	if delete(c.vars, name); shadows {
		c.vars[name] = outer
	}
	for k, r := range c.info.Results[s][1:] {
		c.set(r, now[k])
		c.follow(r, c.carry[carried{s, s.Carry[k].Text}])
	}
}

// iteration analyses a loop's body once, and returns the contents that it yields.
func (c *claims) iteration(s *ir.Stmt, in []content) []content {
	for k, arg := range c.info.Operands[s] {
		if sym := c.carry[carried{s, s.Carry[k].Text}]; sym != nil {
			c.tensors[sym.Name] = sym
			c.set(sym, in[k])
			c.follow(sym, arg)
		}
	}
	c.yields = nil
	c.block(s.Body)
	out := c.yields
	if len(out) != len(in) {
		return make([]content, len(in))
	}
	if len(s.Carry) > 0 {
		yield := s.Body.Stmts[len(s.Body.Stmts)-1]
		for k, from := range c.info.Operands[yield] {
			c.follow(c.carry[carried{s, s.Carry[k].Text}], from)
		}
	}
	return out
}

// follow adds the origins of the tensor from to those of the tensor to.
func (c *claims) follow(to, from *ir.Sym) {
	if to == nil || from == nil {
		return
	}
	for i := range c.axes {
		if o, ok := c.origins[originKey{from.Root(), i}]; ok {
			c.origins[originKey{to.Root(), i}] = o
		}
	}
}

// meet removes the facts that the map others lacks from the current state, and reports whether the result has fewer
// facts than others.
func (c *claims) meet(others map[*ir.Sym]content) bool {
	less := false
	for sym, k := range others {
		if now, ok := c.of[sym]; ok {
			c.of[sym] = now.and(k)
		} else {
			c.of[sym] = k
		}
		less = less || c.of[sym] != k
	}
	return less
}

// meetAll removes from each element of ks the facts that the corresponding element of others lacks, and reports whether
// some result has fewer facts than that element of others.
func meetAll(ks, others []content) bool {
	less := false
	for i := range ks {
		ks[i] = ks[i].and(others[i])
		less = less || ks[i] != others[i]
	}
	return less
}

func (c *claims) branch(s *ir.Stmt) {
	a, errA := s.Exprs[0].Eval(c.everywhere())
	b, errB := s.Exprs[1].Eval(c.everywhere())
	if errA == nil && errB == nil {
		if s.Cmp.Holds(a, b) {
			c.block(s.Body)
		} else {
			c.block(s.Else)
		}
		return
	}
	c.quiet++
	before := maps.Clone(c.of)
	c.block(s.Body)
	after := c.of
	c.of = before
	c.block(s.Else)
	c.meet(after)
	c.quiet--
}

// call analyses the callee's body in place of the call.
func (c *claims) call(s *ir.Stmt) {
	f := c.info.Prog.Func(s.Callee.Text)
	args, params := c.info.Operands[s], c.info.Params[f]
	for i, p := range params {
		c.set(p, c.know(args[i]))
		c.follow(p, args[i])
	}
	vars, tensors := c.vars, c.tensors
	c.vars, c.tensors, c.returns = map[string]int64{}, map[string]*ir.Sym{}, nil
	c.function(f)
	c.vars, c.tensors = vars, tensors
	for i, p := range params {
		if !p.Param.Inout {
			continue
		}
		k := c.know(p)
		if args[i].Base != nil || args[i].Root().Count != nil {
			k = k.and(c.know(args[i]))
		}
		c.set(args[i], k)
		c.follow(args[i], p)
	}
	for i, r := range c.info.Results[s] {
		if i < len(c.returns) {
			c.set(r, c.returns[i])
			c.follow(r, returned(c.info, f, i))
		}
	}
}

// returned returns the symbol that a function returns as result i, or nil.
func returned(info *ir.Info, f *ir.Func, i int) *ir.Sym {
	if n := len(f.Body.Stmts); n > 0 && f.Body.Stmts[n-1].Op == ir.OpReturn {
		return info.Operands[f.Body.Stmts[n-1]][i]
	}
	return nil
}
