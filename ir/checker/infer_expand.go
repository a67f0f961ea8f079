package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// inferExpand determines the type of broadcast %x, shape=(…). Dimensions are aligned at the end. A dimension whose
// extent is the number 1 is repeated; other dimensions keep their extents. New and repeated dimensions are split as
// the annotation requires, and are not split without one.
func inferExpand(in *inference) *ir.Type {
	x := in.args[0]
	shape := in.s.Attr("shape").Exprs
	skip := len(shape) - len(x.Dims)
	if skip < 0 {
		in.errorf("type", in.s.Attr("shape").Pos, "broadcast cannot remove dimensions: %%%s has %s, but the shape "+
			"has %d",
			in.syms[0].Name, plural(len(x.Dims), "dimension"), len(shape)).
			help("reshape it first")
		return nil
	}
	need, out := x.Clone(), x.Clone()
	out.Dims = make([]ir.Dimension, len(shape))
	var free []int // dimensions that repeat
	for i, e := range shape {
		if !in.extentOf(e) {
			return nil
		}
		out.Dims[i].Extent = in.fold(e)
		if i < skip || in.stretches(x.Dims[i-skip].Extent, e) {
			free = append(free, i)
			if i >= skip {
				need.Dims[i-skip].Axes = nil
			}
			continue
		}
		if !in.equalExtents(x.Dims[i-skip].Extent, e, e.Pos,
			"broadcast repeats only dimensions of extent 1, but dimension "+itoa(i-skip)+" has another extent") {
			return nil
		}
		out.Dims[i].Axes = slices.Clone(x.Dims[i-skip].Axes)
	}
	if in.local {
		return out
	}
	in.need(0, need)
	in.splitLike(out, free)
	return out
}

// stretches reports whether a dimension of extent have is repeated to the extent want.
func (in *inference) stretches(have, want *ir.Expr) bool {
	v, ok := in.norm.norm(have).constValue()
	return ok && v == 1 && in.norm.equal(have, want) != yes
}

// splitLike splits dimensions of out over the axes that they have in the required layout, except over axes that split
// another dimension of out.
func (in *inference) splitLike(out *ir.Type, dims []int) {
	if in.want == nil || in.want.Mesh != out.Mesh || len(in.want.Dims) != len(out.Dims) {
		return
	}
	used := out.Axes()
	for _, i := range dims {
		out.Dims[i].Axes = without(in.want.Dims[i].Axes, used)
	}
	in.requireShards(out)
}

// extentOf checks that e may be an extent of a shape that is the same on all ranks.
func (in *inference) extentOf(e *ir.Expr) bool {
	if in.rankDependent(e) {
		in.errorf("type", e.Pos, "an extent must be the same on every rank, but %s may differ between ranks",
			ir.Brief(e)).help("use dims and sizes")
		return false
	}
	return in.require(in.s, ir.CheckAtMost, ir.Int(0), e, e.Pos, "an extent cannot be negative", "0 is allowed")
}
