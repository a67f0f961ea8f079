package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file emits transfers for a mesh whose size the text does not give. One rank, the root, sends a block to every
// other rank or receives a block from every other rank. The root and the ranks that hold the other blocks form a team
// over the axes that split the value. Within the team, scatter and gather move only the blocks. For these collectives,
// the blocks of a value that is split in several dimensions are packed contiguously.

// splitAxes returns the axes over which t's dimensions are split, in mesh order, and the remaining axes.
func (pl *place) splitAxes(t *ir.Type) (split, rest []string) {
	used := dimAxes(t)
	for _, a := range pl.axisNames() {
		if slices.Contains(used, a) {
			split = append(split, a)
		} else {
			rest = append(rest, a)
		}
	}
	return split, rest
}

// coord returns the coordinate along an axis that a rank of the main mesh has.
func (pl *place) coord(axis string, rank int64) *ir.Expr {
	if rank == 0 {
		return ir.Int(0)
	}
	k := pl.axis(axis)
	e := ir.Int(rank)
	if behind := pl.axisNames()[k+1:]; len(behind) > 0 {
		e = ir.FloorDiv(e, sizeOfAxes(behind))
	}
	if k > 0 {
		e = ir.Mod(e, ir.Size(axis))
	}
	return e
}

// numberOf returns the number that a rank has in its team over axes.
func (pl *place) numberOf(axes []string, rank int64) *ir.Expr {
	if slices.Equal(axes, pl.axisNames()) {
		return ir.Int(rank)
	}
	return number(axes, axes, func(a string) *ir.Expr { return pl.coord(a, rank) })
}

// beside returns stmts in a branch that only the ranks with the same coordinates along axes as rank execute.
func (w *writer) beside(rank int64, axes []string, at *place, stmts ...*ir.Stmt) []*ir.Stmt {
	for _, a := range slices.Backward(axes) {
		stmts = []*ir.Stmt{{Op: ir.OpIf, Pos: w.pos, Cmp: ir.EQ, Exprs: []*ir.Expr{ir.Rank(a), at.coord(a, rank)},
			Body: &ir.Block{Stmts: stmts, End: w.pos}}}
	}
	return stmts
}

// blocks describes a rank's whole tensor in the form that a collective requires, in which the blocks are consecutive
// along one dimension.
type blocks struct {
	name string
	axis int
	// views holds the statements that, on one rank, copy the whole tensor into name or copy name into the whole
	// tensor.
	views []*ir.Stmt
}

// blocksOf returns the blocks of %whole, a tensor with t's extents. Each rank of the team over the axes split holds one
// block of it. If the blocks are contiguous along a dimension, the result is %whole itself. Otherwise the result is a
// packed buffer: if pack is set, %whole is copied into it, and if not, it is copied into %whole.
func (w *writer) blocksOf(whole string, t *ir.Type, split []string, pack bool) blocks {
	for d := range t.Dims {
		if slices.Equal(t.Dims[d].Axes, split) {
			return blocks{name: whole, axis: d}
		}
	}
	packed, local := w.names.fresh(w.name, "p"), t.LocalType()
	w.out = append(w.out, alloc(w.pos, packed, withRows(local, 0, ir.Mul(sizeOfAxes(split), local.Dims[0].Extent))))

	// inWhole and inPacked are the shapes of views of the whole tensor and of the packed buffer. The dimensions of
	// these views are the coordinates along the axes and the indices inside a block.
	var inWhole, inPacked []*ir.Expr
	var inside []int64 // for each index inside a block, its dimension in the view of the whole tensor
	axisAt := make([]int64, len(split))
	for _, a := range split {
		inPacked = append(inPacked, ir.Size(a))
	}
	for d := range t.Dims {
		for _, a := range t.Dims[d].Axes {
			axisAt[slices.Index(split, a)] = int64(len(inWhole))
			inWhole = append(inWhole, ir.Size(a))
		}
		inside = append(inside, int64(len(inWhole)))
		inWhole = append(inWhole, local.Dims[d].Extent)
		inPacked = append(inPacked, local.Dims[d].Extent)
	}
	cut, ordered, target := w.names.fresh(w.name, "v"), w.names.fresh(w.name, "v"), w.names.fresh(w.name, "v")
	var perm []*ir.Expr
	for _, i := range append(axisAt, inside...) {
		perm = append(perm, ir.Int(i))
	}
	b := blocks{name: packed}
	b.views = []*ir.Stmt{
		reshape(w.pos, cut, whole, inWhole),
		result(w.pos, ordered, ir.OpTranspose, []ir.Attr{{Name: "perm", Kind: ir.AttrExprs, Exprs: perm, Paren: true}}, cut),
		reshape(w.pos, target, packed, inPacked),
	}
	if pack {
		b.views = append(b.views, into(w.pos, ir.OpCopy, ordered, target))
	} else {
		b.views = append(b.views, into(w.pos, ir.OpCopy, target, ordered))
	}
	return b
}

// scatterFrom emits statements that send each rank of the mesh at its block of %whole, which is on the rank root.
// scatterFrom returns the name of the buffer that receives the block. The root first scatters the blocks to its team.
// The members of the team then broadcast their blocks along the other axes.
func (w *writer) scatterFrom(root int64, whole string, want *ir.Type, at *place) string {
	split, rest := at.splitAxes(want)
	if len(split) == 0 {
		return w.broadcastFrom(whole, want, []string{ir.WorldAxis}, ir.Int(root))
	}
	b := w.blocksOf(whole, want, split, true)
	if len(b.views) > 0 {
		w.out = append(w.out, onRank(w.pos, root, b.views...))
	}
	mine := w.names.fresh(w.name, "a")
	w.out = append(w.out, alloc(w.pos, mine, want.LocalType()))
	w.out = append(w.out, w.beside(root, rest, at, into(w.pos, ir.OpScatter, b.name, mine,
		ir.Over(split...), rootAttr(at.numberOf(split, root)), ir.ExprAttr("axis", ir.Int(int64(b.axis)))))...)
	if len(rest) == 0 {
		return mine
	}
	return w.broadcastFrom(mine, want, rest, at.numberOf(rest, root))
}

func (w *writer) broadcastFrom(buf string, t *ir.Type, over []string, root *ir.Expr) string {
	all := w.names.fresh(w.name, "a")
	w.out = append(w.out, alloc(w.pos, all, t.LocalType()), into(w.pos, ir.OpBroadcast, buf, all, ir.Over(over...), rootAttr(root)))
	return all
}

// gatherTo emits a gather of %arg into a buffer on the rank root, and returns the name of the buffer. %arg has type t,
// which is split but not partial. The blocks are sent by the ranks that have the same coordinates as root along the
// axes over which t is not split.
func (w *writer) gatherTo(root int64, arg string, t *ir.Type, at *place) string {
	split, rest := at.splitAxes(t)
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, wholeOf(t).LocalType()))
	b := w.blocksOf(buf, t, split, false)
	w.out = append(w.out, w.beside(root, rest, at, into(w.pos, ir.OpGather, arg, b.name,
		ir.Over(split...), rootAttr(at.numberOf(split, root)), ir.ExprAttr("axis", ir.Int(int64(b.axis)))))...)
	if len(b.views) > 0 {
		w.out = append(w.out, onRank(w.pos, root, b.views...))
	}
	return buf
}

func rootAttr(e *ir.Expr) ir.Attr {
	return ir.Attr{Name: "root", Kind: ir.AttrExpr, Exprs: []*ir.Expr{e}}
}
