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
		c.errorf("type", s.Count.Pos, "an array's length must be the same on every rank, and %s is not",
			s.Count).help("make it as long as the longest")
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
		c.errorf("layout", s.Type.Pos, "a buffer is local to each rank: neither partial nor placed on a mesh").
			help("write what one rank holds: " + s.Type.LocalType().String())
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
				"a symmetric buffer has the same size on every rank, and %s depends on the rank",
				d.Extent).help("alloc the largest and use a slice of it")
			return false
		}
	}
	if s.Flags&ir.Symmetric != 0 && c.rankIf > 0 {
		c.errorf("structure", s.Pos, "a symmetric alloc is an op of the whole team and cannot stand in a rank-dependent if").
			help("move it above the if")
	}
	if s.Flags&ir.Symmetric != 0 && s.Flags&ir.Host != 0 {
		c.errorf("structure", s.Pos, "a host buffer cannot be symmetric").help("peers reach device memory only")
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
			"declared here").help("leave the free out")
	case sym.Base != nil:
		c.errorf("lifetime", s.Pos, "%%%s is a view; free what it is a view of", sym.Name).at(sym.Base.Pos, "of %%%s",
			sym.Base.Name).help("views need no free")
	case sym.Def.Op != ir.OpAlloc:
		c.errorf("lifetime", s.Pos, "%%%s is freed by itself after its last use",
			sym.Name).help("free is for what alloc made")
	case sym.Count != nil && !claimed:
		// The statement frees one element of an array. Later uses of that element are detected during planning, when
		// the values of indices are known.
	case claimed:
		c.errorf("lifetime", s.Pos, "%%%s was claimed as a value and lives as long as that", sym.Name).at(claim,
			"claimed here").help("leave the free out")
	case c.of(sym).depth < c.loops:
		c.errorf("lifetime", s.Pos, "%%%s would be freed once in each iteration", sym.Name).at(sym.Pos,
			"it is defined outside the loop").
			help("free it behind the loop")
	default:
		c.ended.set(sym, bufferEnd{pos: s.Pos})
	}
}
