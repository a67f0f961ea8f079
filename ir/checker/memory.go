package checker

import "hocket.example/hocket/ir"

// checkMemory checks alloc, free, stream, event, counter and let.
func (c *checker) checkMemory(s *ir.Stmt) {
	if s.Op == ir.OpFree {
		c.checkFree(s)
		return
	}
	sym := &ir.Sym{Def: s, Name: s.Results[0].Text, Pos: s.Results[0].Pos, Count: s.Count}
	switch s.Op {
	case ir.OpAlloc:
		sym.Kind = ir.SymBuffer
		if c.checkAlloc(s) {
			sym.Type = c.foldExtents(s.Type.LocalType())
		}
	case ir.OpStream:
		sym.Kind = ir.SymStream
	case ir.OpEvent:
		sym.Kind = ir.SymEvent
	case ir.OpCounter:
		sym.Kind = ir.SymCounter
	case ir.OpLet:
		sym.Kind = ir.SymIndex
		sym.RankDependent = c.rankDependent(s.Exprs[0])
		c.of(sym).value = c.norm.norm(s.Exprs[0])
	}
	if s.Count != nil {
		c.checkCount(s)
	}
	c.define(sym)
	c.in.Results[s] = []*ir.Sym{sym}
}

func (c *checker) checkCount(s *ir.Stmt) {
	if c.rankDependent(s.Count) {
		c.errorf("type", s.Count.Pos, "the length of an array must be the same on every rank, but %s may differ "+
			"between ranks",
			s.Count).help("use the largest length on all ranks")
		return
	}
	c.require(s, ir.CheckAtMost, ir.Int(0), s.Count, s.Count.Pos, "an array's length cannot be negative",
		"0 is allowed")
}

func (c *checker) checkAlloc(s *ir.Stmt) bool {
	if !c.checkType(s.Type) {
		return false
	}
	if len(s.Type.Partial) > 0 || s.Type.Mesh != "" {
		c.errorf("layout", s.Type.Pos, "a buffer is local to each rank, so its type cannot be partial or name a mesh").
			help("write the type of the part that one rank holds: " + s.Type.LocalType().String())
		return false
	}
	for _, d := range s.Type.Dims {
		if len(d.Axes) > 0 {
			c.require(s, ir.CheckMultiple, d.Extent, ir.SizeOf(d.Axes), s.Type.Pos,
				"a dimension is not divisible by the size of "+ir.SizeWords(d.Axes), shardHelp)
		}
		c.require(s, ir.CheckAtMost, ir.Int(0), d.Extent, s.Type.Pos, "an extent cannot be negative", "0 is allowed")
		if s.Flags&ir.Symmetric != 0 && c.rankDependent(d.Extent) {
			c.errorf("type", s.Type.Pos,
				"a symmetric buffer must have the same size on every rank, but %s may differ between ranks",
				d.Extent).help("allocate the largest size, and use a slice of the buffer")
			return false
		}
	}
	if s.Flags&ir.Symmetric != 0 && c.rankIf > 0 {
		c.errorf("structure", s.Pos, "all ranks must execute a symmetric alloc, so it cannot be in an if that "+
			"depends on the rank").
			help("move it above the if")
	}
	if s.Flags&ir.Symmetric != 0 && s.Flags&ir.Host != 0 {
		c.errorf("structure", s.Pos, "a host buffer cannot be symmetric").help("peers can access only device memory")
	}
	return true
}

func (c *checker) checkFree(s *ir.Stmt) {
	sym := c.kinded(s, &s.Args[0], ir.SymBuffer)
	c.in.Operands[s] = []*ir.Sym{sym}
	if sym == nil {
		return
	}
	claim, claimed := c.ended.claimed(sym)
	switch {
	case sym.Param != nil:
		c.errorf("lifetime", s.Pos, "%%%s belongs to the caller and cannot be freed", sym.Name).at(sym.Pos,
			"declared here").help("remove the free")
	case sym.Base != nil:
		c.errorf("lifetime", s.Pos, "%%%s is a view, and only the buffer that owns the memory can be freed",
			sym.Name).at(sym.Base.Pos, "of %%%s", sym.Base.Name).help("free the buffer, or remove the free")
	case sym.Def.Op != ir.OpAlloc:
		c.errorf("lifetime", s.Pos, "%%%s was not allocated with alloc; it is freed automatically after its last use",
			sym.Name).help("remove the free")
	case sym.Count != nil && !claimed:
		// The statement frees one element of an array. Later uses of that element are detected during planning, when
		// the values of indices are known.
	case claimed:
		c.errorf("lifetime", s.Pos, "%%%s was claimed as a value, and its memory is in use as long as the value",
			sym.Name).at(claim,
			"claimed here").help("remove the free")
	case c.of(sym).depth < c.loops:
		c.errorf("lifetime", s.Pos, "%%%s would be freed once in each iteration", sym.Name).at(sym.Pos,
			"it is defined outside the loop").
			help("free it after the loop")
	default:
		c.ended.set(sym, bufferEnd{pos: s.Pos})
	}
}
