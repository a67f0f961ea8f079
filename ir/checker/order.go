package checker

import "hocket.example/hocket/ir"

// checkTransfer checks put, get, send, recv and group.
func (c *checker) checkTransfer(s *ir.Stmt) {
	if s.Op == ir.OpGroup {
		outer := c.inGroup
		if outer {
			c.errorf("structure", s.Pos,
				"groups do not nest").help("everything in the outer group is posted together already")
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
			c.errorf("type", pos, "%s reaches the peer's copy of a symmetric buffer, and %%%s is none", s.Op,
				remote.Root().Name).
				at(remote.Root().Pos, "defined here").help("alloc it with the word symmetric behind its type")
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
		c.errorf("structure", a.Pos, "ctas= bounds the blocks of a kernel, and this %s goes by a copy engine, which takes none", s.Op).
			help("write engine=sm beside it, or leave it out")
	}
}

// onDevice reports an error for a host buffer that peers or the members of a team would have to access.
func (c *relations) onDevice(s *ir.Stmt, syms []*ir.Sym) bool {
	before := c.failed
	for i, sym := range syms {
		if sym != nil && flagsOf(sym)&ir.Host != 0 {
			c.errorf("type", s.Args[i].Pos, "%s needs device memory, but %%%s is a host buffer", s.Op,
				sym.Root().Name).
				at(sym.Root().Pos, "defined here").help("copy it to a buffer of the device first")
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
			c.errorf("structure", s.Pos, "only a counter is waited for with >=, and main is a stream").help("wait main")
		}
		return
	}
	sym := c.kinded(s, p, ir.SymStream, ir.SymEvent, ir.SymCounter)
	c.in.Operands[s] = []*ir.Sym{sym}
	switch {
	case sym == nil:
	case sym.Kind == ir.SymCounter && len(s.Exprs) == 0:
		c.errorf("structure", s.Pos, "waiting for the counter %%%s needs a least value",
			p.Name).help("wait " + p.String() + " >= 1")
	case sym.Kind != ir.SymCounter && len(s.Exprs) > 0:
		c.errorf("structure", s.Pos, "only a counter is waited for with >=, and %%%s is %s", p.Name,
			sym.Kind).help("wait " + p.String())
	}
}
