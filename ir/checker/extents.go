package checker

import "hocket.example/hocket/ir"

// This file limits the size of the extents in inferred types. The extent of a view is an expression that contains the
// extent of its operand, so in a long chain of views it would double at each view. Above a limit, the expression refers
// to the operand instead: extent(%x, 0).

// maxExtentNodes is the maximum size of an extent that is written out, in nodes.
const maxExtentNodes = 64

// boundedType returns the type of an operand, in which large extents are replaced by references to the operand.
func (c *names) boundedType(s *ir.Sym) *ir.Type {
	t := s.Type
	for i, d := range s.Type.Dims {
		if nodes(d.Extent, maxExtentNodes) <= maxExtentNodes {
			continue
		}
		if t == s.Type {
			t = s.Type.Clone()
		}
		e := &ir.Expr{Kind: ir.ExprExtent, Pos: s.Pos, Name: s.Name, Val: int64(i)}
		if len(d.Axes) > 0 { // the dimension is split, so its extent is that of a block and divides exactly
			e = ir.Bin(ir.ExprMul, e, ir.SizeOf(d.Axes))
		}
		t.Dims[i].Extent = e
	}
	return t
}

// nodes returns the number of nodes of the expression tree e, or a number above most as soon as the count exceeds most.
func nodes(e *ir.Expr, most int) int {
	n := 1
	for _, a := range e.Args {
		if n > most {
			break
		}
		n += nodes(a, most-n)
	}
	return n
}

// localType returns the type of one rank's shard of an operand. For a partial value, localType returns the type of one
// rank's contribution.
func (c *names) localType(s *ir.Sym) *ir.Type {
	t := c.boundedType(s)
	if s.Kind == ir.SymBuffer {
		return t
	}
	return c.localTypeOf(t)
}

func (c *names) localTypeOf(t *ir.Type) *ir.Type { return c.foldExtents(t.LocalType()) }

// foldExtents replaces constant extents by numbers.
func (c *names) foldExtents(t *ir.Type) *ir.Type {
	for i := range t.Dims {
		t.Dims[i].Extent = c.fold(t.Dims[i].Extent)
	}
	return t
}

// fold replaces an expression with a constant value by that constant.
func (c *names) fold(e *ir.Expr) *ir.Expr {
	if e.Kind == ir.ExprInt || e.Kind == ir.ExprName {
		return e
	}
	if v, ok := c.norm.norm(e).constValue(); ok {
		return &ir.Expr{Kind: ir.ExprInt, Val: v, Pos: e.Pos}
	}
	return e
}
