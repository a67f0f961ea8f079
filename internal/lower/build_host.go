package lower

import "hocket.example/hocket/ir"

// This file builds the statements that occur only in explicit programs: streams, waits, loops and one-sided transfers.

// declare returns the statement "%name = op", where op is stream, counter or event. If count is not nil, the statement
// declares an array of count elements.
func declare(pos ir.Pos, op ir.Op, name string, count *ir.Expr) *ir.Stmt {
	return &ir.Stmt{Op: op, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Count: count}
}

// let returns the statement "let %name = e".
func let(pos ir.Pos, name string, e *ir.Expr) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpLet, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Exprs: []*ir.Expr{e}}
}

// on returns the statement "on %stream { stmts }".
func on(pos ir.Pos, stream string, stmts ...*ir.Stmt) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpOn, Pos: pos, Args: places(pos, []string{stream}), Body: &ir.Block{Stmts: stmts, End: pos}}
}

// loop returns the statement "for %name in lo..hi { stmts }".
func loop(pos ir.Pos, name string, lo, hi *ir.Expr, stmts ...*ir.Stmt) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpFor, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Exprs: []*ir.Expr{lo, hi},
		Body: &ir.Block{Stmts: stmts, End: pos}}
}

// unless returns the statement "if a != b { stmts }".
func unless(pos ir.Pos, a, b *ir.Expr, stmts ...*ir.Stmt) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpIf, Pos: pos, Cmp: ir.NE, Exprs: []*ir.Expr{a, b}, Body: &ir.Block{Stmts: stmts, End: pos}}
}

// where returns the statement "if a == b { stmts }".
func where(pos ir.Pos, a, b *ir.Expr, stmts ...*ir.Stmt) *ir.Stmt {
	s := unless(pos, a, b, stmts...)
	s.Cmp = ir.EQ
	return s
}

// waitMain returns "wait main".
func waitMain(pos ir.Pos) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpWait, Pos: pos, Args: []ir.Place{{Pos: pos, Main: true}}}
}

// waitStream returns "wait %stream".
func waitStream(pos ir.Pos, stream string) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpWait, Pos: pos, Args: places(pos, []string{stream})}
}

// waitFor returns the statement "wait %counter[index] >= count".
func waitFor(pos ir.Pos, counter string, index, count *ir.Expr) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpWait, Pos: pos, Args: []ir.Place{{Pos: pos, Name: counter, Index: index}}, Exprs: []*ir.Expr{count}}
}

// put returns the statement "put %arg into %dst at peer".
func put(pos ir.Pos, arg, dst string, peer *ir.Peer) *ir.Stmt {
	s := into(pos, ir.OpPut, arg, dst)
	s.Peer = peer
	return s
}

// signal returns the statement "signal %counter[index] at peer".
func signal(pos ir.Pos, counter string, index *ir.Expr, peer *ir.Peer) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpSignal, Pos: pos, Args: []ir.Place{{Pos: pos, Name: counter, Index: index}}, Peer: peer}
}

// sumSlots returns the statement "reduce_slots %slots, axis=0, 0..count into %dst".
func sumSlots(pos ir.Pos, slots string, count *ir.Expr, dst string) *ir.Stmt {
	s := into(pos, ir.OpReduceSlots, slots, dst, ir.ExprAttr("axis", ir.Int(0)))
	s.Exprs = []*ir.Expr{ir.Int(0), count}
	return s
}

// reshape returns the statement "%name = reshape %arg, shape=(extents)".
func reshape(pos ir.Pos, name, arg string, extents []*ir.Expr) *ir.Stmt {
	return result(pos, name, ir.OpReshape, []ir.Attr{{Name: "shape", Kind: ir.AttrExprs, Exprs: extents, Paren: true}}, arg)
}

// selectFirst returns the statement "%name = select %arg, axis=0, index=index".
func selectFirst(pos ir.Pos, name, arg string, index *ir.Expr) *ir.Stmt {
	return result(pos, name, ir.OpSelect, []ir.Attr{ir.ExprAttr("axis", ir.Int(0)), ir.ExprAttr("index", index)}, arg)
}

// firstRows returns the statement "%name = slice %arg, axis=axis, 0..count".
func firstRows(pos ir.Pos, name, arg string, axis int, count *ir.Expr) *ir.Stmt {
	s := result(pos, name, ir.OpSlice, []ir.Attr{ir.ExprAttr("axis", ir.Int(int64(axis)))}, arg)
	s.Exprs = []*ir.Expr{ir.Int(0), count}
	return s
}

// symmetric returns the statement "%name = alloc t symmetric".
func symmetric(pos ir.Pos, name string, t *ir.Type) *ir.Stmt {
	s := alloc(pos, name, t)
	s.Flags = ir.Symmetric
	return s
}

// plain returns the dtype and extents of t for an alloc. Split dimensions remain split. Partial reductions and the mesh
// are removed, because the type of a buffer has neither.
func plain(t *ir.Type) *ir.Type {
	u := t.Clone()
	u.Partial, u.Mesh = nil, ""
	return u
}

// withRows returns plain(t) with extent rows in dimension d.
func withRows(t *ir.Type, d int, rows *ir.Expr) *ir.Type {
	u := plain(t)
	u.Dims[d] = ir.Dimension{Extent: rows}
	return u
}

// sizeOfAxes returns the product of the axes' sizes.
func sizeOfAxes(axes []string) *ir.Expr {
	n := ir.Size(axes[0])
	for _, a := range axes[1:] {
		n = ir.Mul(n, ir.Size(a))
	}
	return n
}
