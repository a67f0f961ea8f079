package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// reduceSlots infers the type of reduce_slots %slots, axis=0, lo..hi into %acc. The result has the slots' type without
// the axis. The accumulator may instead have the dtype Accum of the slots' dtype, so that later sums can be added
// without rounding in between.
func (in *indexRules) reduceSlots() *ir.Type {
	x, acc := in.args[0], in.in.Into[in.s].Type
	lo, hi := in.s.Exprs[0], in.s.Exprs[1]
	d, ok := in.axisAttr("axis", 0, len(x.Dims))
	ok = ok &&
		in.require(in.s, ir.CheckAtMost, ir.Int(0), lo, lo.Pos, "the range of slots begins before the tensor",
			"slots are counted from 0") &&
		in.require(in.s, ir.CheckAtMost, lo, hi, lo.Pos, "the range of slots ends before it begins",
			"the range is LO..HI, without HI") &&
		in.require(in.s, ir.CheckAtMost, hi, x.Dims[d].Extent, hi.Pos, "the range of slots ends after the tensor",
			"the range is LO..HI, without HI")
	if !ok {
		return nil
	}
	out := x.Clone()
	out.Dims = slices.Delete(out.Dims, d, d+1)
	if acc.DType == x.DType.Accum() {
		out.DType = acc.DType
	}
	return out
}
