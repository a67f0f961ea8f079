package checker

import "hocket.example/hocket/ir"

// checkTransfer checks put, get, send, recv and group.
func (c *checker) checkTransfer(s *ir.Stmt) {
	if s.Op == ir.OpGroup {
		outer := c.inGroup
		if outer {
			c.errorf("structure", s.Pos,
				"a group cannot contain another group").help("remove the inner group: the outer group already " +
				"posts all of its transfers together")
		}
		c.inGroup = true
		c.checkBlock(s.Body)
		c.inGroup = outer
		return
	}
	syms, ok := c.tensors(s)
	ok = c.onDevice(s, syms) && ok
	switch s.Op {
	case ir.OpPut, ir.OpGet:
		c.blocksOfCopy(s)
		dst := c.destination(s)
		if !ok || dst == nil {
			return
		}
		c.sameLocal(s, syms[0], dst)
		remote, pos := dst, s.Into.Pos
		if s.Op == ir.OpGet {
			remote, pos = syms[0], s.Args[0].Pos
		}
		if flagsOf(remote)&ir.Symmetric == 0 {
			c.errorf("type", pos, "%s accesses the peer's copy of a buffer, so the buffer must be symmetric, but "+
				"%%%s is not", s.Op,
				remote.Root().Name).
				at(remote.Root().Pos, "defined here").help("add the word symmetric after the type in its alloc " +
				"statement")
		}
	case ir.OpRecv:
		if ok {
			c.writable(syms[0], s.Args[0].Pos)
		}
	}
}

// blocksOfCopy reports an error for an attribute that limits the thread blocks of a copy, if the copy is not performed
// by a kernel.
func (c *checker) blocksOfCopy(s *ir.Stmt) {
	if a := s.Attr("ctas"); a != nil && s.Word("engine", "") != "sm" {
		c.errorf("structure", a.Pos, "ctas= limits the thread blocks of a kernel, but this %s uses a copy engine",
			s.Op).
			help("add engine=sm, or remove ctas=")
	}
}

// onDevice reports an error for a host buffer that peers or the members of a team would have to access.
func (c *relations) onDevice(s *ir.Stmt, syms []*ir.Sym) bool {
	before := c.failed
	for i, sym := range syms {
		if sym != nil && flagsOf(sym)&ir.Host != 0 {
			c.errorf("type", s.Args[i].Pos, "%s needs device memory, but %%%s is a host buffer", s.Op,
				sym.Root().Name).
				at(sym.Root().Pos, "defined here").help("copy it to a device buffer first")
		}
	}
	return c.failed == before
}

// flagsOf returns the flags of the alloc that allocated the memory of s.
func flagsOf(s *ir.Sym) ir.AllocFlags {
	if d := s.Root().Def; d != nil && d.Op == ir.OpAlloc {
		return d.Flags
	}
	return 0
}

// sameLocal checks that the two ends of a transfer have the same dtype and local shape.
func (c *relations) sameLocal(s *ir.Stmt, from, to *ir.Sym) {
	// For a partial value, the transfer moves the rank's contribution.
	c.assignable(s, c.localType(from), c.localType(to), s.Into.Pos)
}

// checkOrder checks wait, record, signal and barrier.
func (c *checker) checkOrder(s *ir.Stmt) {
	switch s.Op {
	case ir.OpBarrier:
		return
	case ir.OpSignal:
		c.in.Operands[s] = []*ir.Sym{c.kinded(s, &s.Args[0], ir.SymCounter)}
		return
	case ir.OpRecord:
		c.in.Operands[s] = []*ir.Sym{c.kinded(s, &s.Args[0], ir.SymEvent)}
		return
	}
	p := &s.Args[0]
	if p.Main {
		c.in.Operands[s] = []*ir.Sym{nil}
		if len(s.Exprs) > 0 {
			c.errorf("structure", s.Pos, ">= is only for waits for counters, but main is a stream").help(
				"write wait main")
		}
		return
	}
	sym := c.kinded(s, p, ir.SymStream, ir.SymEvent, ir.SymCounter)
	c.in.Operands[s] = []*ir.Sym{sym}
	switch {
	case sym == nil:
	case sym.Kind == ir.SymCounter && len(s.Exprs) == 0:
		c.errorf("structure", s.Pos, "the wait for the counter %%%s has no least value",
			p.Name).help("wait " + p.String() + " >= 1")
	case sym.Kind != ir.SymCounter && len(s.Exprs) > 0:
		c.errorf("structure", s.Pos, ">= is only for waits for counters, but %%%s is %s", p.Name,
			sym.Kind).help("wait " + p.String())
	}
}
