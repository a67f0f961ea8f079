package grad

import "hocket.example/hocket/ir"

// again reports whether the backward pass computes a value of block f again, instead of using the value that the
// forward pass computed.
func (g *gradder) again(f *forward, def *ir.Stmt) bool {
	if of := g.attentions[def]; of != nil { // one kernel computes both
		def = of
	}
	if def.Op == ir.OpFor || def.Op == ir.OpClaim || !alone(def) {
		return false
	}
	if f.parent != nil && free(def.Op) {
		return true
	}
	if g.recomputed != nil {
		name := def.Results[0].Text
		for f.parent == nil && def.Op.Info().Class == ir.ClassView { // a view is treated like the value that it is a view of
			of := f.defs[def.Args[0].Name]
			if of == nil {
				break
			}
			name, def = def.Args[0].Name, of
		}
		return g.recomputed[name] || g.split && len(g.types[name].Partial) > 0
	}
	switch g.keep {
	case KeepInputs:
		return true
	case KeepAuto:
		return g.cheap(def)
	}
	return g.folds(def)
}

// folds reports whether it costs nothing on a GPU to compute a value again: the value is elementwise in one operand,
// which is not larger, and only elementwise operations read the value. The gradients of these operations are
// elementwise, too, and one kernel computes them together with the value. The kernel then reads the operand instead of
// the value, which the forward pass need not store.
func (g *gradder) folds(def *ir.Stmt) bool {
	if !def.Op.Info().Elementwise || len(def.Args) != 1 {
		return false
	}
	y, x := def.Results[0].Text, def.Args[0].Name
	return !g.read[y] && g.types[x].DType.Size() <= g.types[y].DType.Size()
}

// alone reports whether a statement has the same meaning in another block. A statement has the same meaning if none of
// its expressions refers to a local extent.
func alone(s *ir.Stmt) bool {
	ok := true
	see := func(e *ir.Expr) { ok = ok && e.Kind != ir.ExprExtent }
	for _, e := range s.Exprs {
		e.Walk(see)
	}
	for _, a := range s.Attrs {
		for _, e := range a.Exprs {
			e.Walk(see)
		}
	}
	return ok
}

// free reports whether an operation costs almost nothing to repeat: it is a view, a fill or an iota.
func free(op ir.Op) bool {
	return op.Info().Class == ir.ClassView || op == ir.OpFill || op == ir.OpIota
}

// cheap reports whether the cost of computing a value again is small compared with the memory that it occupies. The
// cost is small for views, elementwise operations, operations that process rows separately, and gathers.
func (g *gradder) cheap(def *ir.Stmt) bool {
	switch def.Op {
	case ir.OpSoftmax, ir.OpRMSNorm, ir.OpRMSNormDX, ir.OpLayerNorm, ir.OpExpand, ir.OpConcat, ir.OpRope,
		ir.OpAllGather:
		return true
	case ir.OpReshard:
		return len(g.types[def.Args[0].Name].Partial) == 0
	}
	return free(def.Op) || def.Op.Info().Elementwise
}
