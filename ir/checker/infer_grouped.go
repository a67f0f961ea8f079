package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// grouped infers the type of grouped_linear x[T, K], w[E, N, K], counts[E]. The weight keeps its layout (S20). x is
// split along K as w is; the rows of x are whole, since counts refer to row numbers. If K is split, the result is a
// partial sum. If E is split, the result is also a partial sum: each rank computes the rows of its experts and returns
// zeros for all other rows.
func (in *productRules) grouped() *ir.Type {
	x, w, counts := in.args[0], in.args[1], in.args[2]
	help := "grouped_linear: " + ir.OpGroupedLinear.Info().Doc
	switch {
	case !in.integers(2, "counts"):
		return nil
	case x.DType != w.DType:
		in.errorf("type", in.s.Args[1].Pos, "grouped_linear mixes %s and %s", x.DType,
			w.DType).help("convert one of the operands with cast")
		return nil
	}
	for i, want := range []int{2, 3, 1} {
		if n := len(in.args[i].Dims); n != want {
			in.errorf("type", in.s.Args[i].Pos,
				"grouped_linear takes x[T, K], w[E, N, K] and counts[E], but %%%s has %s", in.syms[i].Name,
				plural(n, "dimension")).help(help)
			return nil
		}
	}
	if !in.equalExtents(x.Dims[1].Extent, w.Dims[2].Extent, in.s.Args[1].Pos,
		"the contracted dimensions of input and weight differ") ||
		!in.equalExtents(w.Dims[0].Extent, counts.Dims[0].Extent, in.s.Args[2].Pos,
			"the number of counts differs from the number of weights") {
		return nil
	}
	out := x.Clone()
	out.Dims[1] = ir.Dimension{Extent: w.Dims[1].Extent, Axes: slices.Clone(w.Dims[1].Axes)}
	if in.local {
		return out
	}
	need := in.activationLayout(x, w, 1, w.Dims[2].Axes)
	need.Dims[0].Axes = nil
	in.need(0, need)
	in.need(1, w.Reduced())
	all := counts.Reduced().Clone()
	all.Dims[0].Axes, all.Mesh = nil, w.Mesh
	in.need(2, all)
	out.Dims[0].Axes, out.Mesh = nil, w.Mesh
	out.Partial = partialOver(append(slices.Clone(w.Dims[0].Axes), w.Dims[2].Axes...), ir.Sum)
	return out
}
