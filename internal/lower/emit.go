package lower

import "hocket.example/hocket/ir"

// writer writes the statements of one reshard. Values on the way are called
// name.1, name.2 and so on; the last one is name and has the type dst.
type writer struct {
	names *names
	pos   ir.Pos
	name  string
	dst   *ir.Type
	out   []*ir.Stmt
}

// walk writes steps from the value arg on and returns the last value's name.
// last says that the reshard ends with them; then, where there is no step,
// the value is copied, because it must have the name.
func (w *writer) walk(arg string, steps []step, last bool) string {
	if last && len(steps) == 0 {
		w.out = append(w.out, value(w.pos, w.name, w.dst, ir.OpCopy, nil, arg))
		return w.name
	}
	for i, st := range steps {
		name, t := w.next(last && i == len(steps)-1, st.after)
		w.step(st, name, t, arg)
		arg = name
	}
	return arg
}

// next names the value a step makes.
func (w *writer) next(last bool, t *ir.Type) (string, *ir.Type) {
	if last {
		return w.name, w.dst
	}
	return w.names.count(w.name), t
}

func (w *writer) step(st step, name string, t *ir.Type, arg string) {
	over := overAttr(st.axes...)
	var attrs []ir.Attr
	var op ir.Op
	switch st.kind {
	case stepCut:
		w.cut(st, name, t, arg)
		return
	case stepReduceScatter:
		op, attrs = ir.OpReduceScatter, []ir.Attr{over, redAttr(st.red), exprAttr("axis", int64(st.dim))}
	case stepExchange:
		op, attrs = ir.OpAllToAll, []ir.Attr{over, exprAttr("split", int64(st.to)), exprAttr("concat", int64(st.dim))}
	case stepAllReduce:
		op, attrs = ir.OpAllReduce, []ir.Attr{over, redAttr(st.red)}
	case stepGather:
		op, attrs = ir.OpAllGather, []ir.Attr{over, exprAttr("axis", int64(st.dim))}
	}
	w.out = append(w.out, value(w.pos, name, t, op, attrs, arg))
}

// cut keeps each rank's own block of a dimension that it holds whole. A block
// of any but the outermost dimension is not dense and is copied first.
func (w *writer) cut(st step, name string, t *ir.Type, arg string) {
	index, count := rankOf(st.axes[0]), sizeOf(st.axes[0])
	for _, a := range st.axes[1:] {
		index = ir.Bin(ir.ExprAdd, ir.Bin(ir.ExprMul, index, sizeOf(a)), rankOf(a))
		count = ir.Bin(ir.ExprMul, count, sizeOf(a))
	}
	view := w.names.fresh(w.name, "v")
	w.out = append(w.out, chunk(w.pos, view, arg, st.dim, index, count))
	if st.dim > 0 {
		dense := w.names.fresh(w.name, "c")
		w.out = append(w.out, result(w.pos, dense, ir.OpCopy, nil, view))
		view = dense
	}
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, view))
}
