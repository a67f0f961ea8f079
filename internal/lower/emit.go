package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// writer builds the statements of one reshard. Intermediate values have the names name.1, name.2 and so on; the last
// value has the name w.name and the type dst.
type writer struct {
	names *names
	pos   ir.Pos
	name  string
	dst   *ir.Type
	out   []*ir.Stmt
}

// walk emits the statements of steps, applied to the value arg on the mesh at, and returns the name of the last value.
// The argument last says that the reshard ends with these steps. If last is set and there are no steps, walk emits a
// copy, so that a value with the reshard's name exists.
func (w *writer) walk(arg string, steps []step, at *place, last bool) string {
	if last && len(steps) == 0 {
		w.out = append(w.out, value(w.pos, w.name, w.dst, ir.OpCopy, nil, arg))
		return w.name
	}
	for i, st := range steps {
		name, t := w.next(last && i == len(steps)-1, st.after)
		w.step(st, name, t, arg, at)
		arg = name
	}
	return arg
}

// next returns the name and type of the value that a step defines.
func (w *writer) next(last bool, t *ir.Type) (string, *ir.Type) {
	if last {
		return w.name, w.dst
	}
	return w.names.count(w.name), t
}

func (w *writer) step(st step, name string, t *ir.Type, arg string, at *place) {
	over := ir.Over(st.axes...)
	var attrs []ir.Attr
	var op ir.Op
	switch st.kind {
	case stepCut:
		w.cut(st, name, t, arg, at)
		return
	case stepPermute:
		w.permute(st, name, t, arg)
		return
	case stepReduceScatter:
		op, attrs = ir.OpReduceScatter, []ir.Attr{over, ir.WordAttr("op", st.red.String()), ir.ExprAttr("axis", ir.Int(int64(st.dim)))}
	case stepExchange:
		op, attrs = ir.OpAllToAll, []ir.Attr{over, ir.ExprAttr("split", ir.Int(int64(st.to))), ir.ExprAttr("concat", ir.Int(int64(st.dim)))}
	case stepAllReduce:
		op, attrs = ir.OpAllReduce, []ir.Attr{over, ir.WordAttr("op", st.red.String())}
	case stepGather:
		op, attrs = ir.OpAllGather, []ir.Attr{over, ir.ExprAttr("axis", ir.Int(int64(st.dim)))}
	}
	w.out = append(w.out, value(w.pos, name, t, op, attrs, arg))
}

// cut emits statements by which each rank keeps only its own block of a dimension. A block of a dimension other than
// the outermost has gaps, so it is copied.
func (w *writer) cut(st step, name string, t *ir.Type, arg string, at *place) {
	if !at.main {
		w.cutOnSome(st, name, t, arg, at)
		return
	}
	block := w.names.fresh(w.name, "v")
	w.out = append(w.out, w.ownBlock(st, block, arg))
	if st.dim > 0 {
		dense := w.names.fresh(w.name, "c")
		w.out = append(w.out, result(w.pos, dense, ir.OpCopy, nil, block))
		block = dense
	}
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, block))
}

// cutOnSome emits a cut on a sub-mesh. Ranks outside the sub-mesh do not have the value and must not name it. The view
// and the copy of the block are therefore in a branch that only the ranks of the sub-mesh execute.
func (w *writer) cutOnSome(st step, name string, t *ir.Type, arg string, at *place) {
	dense := w.names.fresh(w.name, "c")
	w.out = append(w.out, alloc(w.pos, dense, t.LocalType()))
	for _, r := range slices.Sorted(slices.Values(at.devices)) {
		block := w.names.fresh(w.name, "v")
		w.out = append(w.out, onRank(w.pos, r, w.ownBlock(st, block, arg), into(w.pos, ir.OpCopy, block, dense)))
	}
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, dense))
}

// ownBlock returns the statement for a view of this rank's block. The rank's coordinates along the step's axes select
// the block; the first axis is major.
func (w *writer) ownBlock(st step, name, arg string) *ir.Stmt {
	index, count := ir.Rank(st.axes[0]), ir.Size(st.axes[0])
	for _, a := range st.axes[1:] {
		index = ir.Bin(ir.ExprAdd, ir.Bin(ir.ExprMul, index, ir.Size(a)), ir.Rank(a))
		count = ir.Bin(ir.ExprMul, count, ir.Size(a))
	}
	return chunk(w.pos, name, arg, st.dim, index, count)
}
