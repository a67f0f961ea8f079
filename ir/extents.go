package ir

// This file keeps the extents of inferred types small. An extent of a view is
// an expression over that of its operand, so in a long chain of views it would
// double with each; past a bound it names the operand instead: extent(%x, 0).

// maxExtentNodes is the size up to which an extent is written out.
const maxExtentNodes = 64

// boundedType returns the type of an operand, large extents by name.
func (c *names) boundedType(s *Sym) *Type {
	t := s.Type
	for i, d := range s.Type.Dims {
		if nodes(d.Extent, maxExtentNodes) <= maxExtentNodes {
			continue
		}
		if t == s.Type {
			t = s.Type.clone()
		}
		e := &Expr{Kind: ExprExtent, Pos: s.Pos, Name: s.Name, Val: int64(i)}
		if len(d.Axes) > 0 { // extent is the block's, which divides exactly
			e = Bin(ExprMul, e, sizeOf(d.Axes))
		}
		t.Dims[i].Extent = e
	}
	return t
}

// nodes counts the nodes of e as a tree, and stops past most.
func nodes(e *Expr, most int) int {
	n := 1
	for _, a := range e.Args {
		if n > most {
			break
		}
		n += nodes(a, most-n)
	}
	return n
}

// localType returns what a rank holds of an operand; of a partial value, its
// contribution.
func (c *names) localType(s *Sym) *Type {
	t := c.boundedType(s)
	if s.Kind == SymBuffer {
		return t
	}
	return c.localTypeOf(t)
}

func (c *names) localTypeOf(t *Type) *Type { return c.foldExtents(t.LocalType()) }

// foldExtents makes numbers of the extents that are constant.
func (c *names) foldExtents(t *Type) *Type {
	for i := range t.Dims {
		t.Dims[i].Extent = c.fold(t.Dims[i].Extent)
	}
	return t
}

// fold makes a constant of an expression that is one.
func (c *names) fold(e *Expr) *Expr {
	if e.Kind == ExprInt || e.Kind == ExprName {
		return e
	}
	if v, ok := c.norm.norm(e).constValue(); ok {
		return &Expr{Kind: ExprInt, Val: v, Pos: e.Pos}
	}
	return e
}
