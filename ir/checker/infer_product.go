package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// productRules infers the types of matrix products with a weight, and the scales of their operands.
type productRules struct{ *inference }

func ofProduct(in *inference) *productRules { return &productRules{in} }

// linear types linear x[…, K], w[N, K] (, b[N]). The weight keeps its layout (S20). The operand x is resharded so that
// its last dimension is split as w's K, and no other dimension is split over an axis of w. If K is split, the result is
// a partial sum.
func (in *productRules) linear() *ir.Type {
	if len(in.args) == 4 {
		return in.scaledLinear()
	}
	if !in.accumulates(false) {
		return nil
	}
	if !in.sameDType() || !in.wantRank(0, 1, "the input") || !in.matrixWeight() {
		return nil
	}
	x, w := in.args[0], in.args[1]
	last := len(x.Dims) - 1
	if !in.equalExtents(x.Dims[last].Extent, w.Dims[1].Extent, in.s.Args[1].Pos,
		"the contracted dimensions of input and weight differ") {
		return nil
	}
	if len(in.args) == 3 && !in.linearBias() {
		return nil
	}
	out := x.Clone()
	out.Dims[last] = ir.Dimension{Extent: w.Dims[0].Extent, Axes: slices.Clone(w.Dims[0].Axes)}
	if in.local {
		return out
	}
	need := in.activationLayout(x, w, last, w.Dims[1].Axes)
	in.need(0, need)
	in.need(1, w.Reduced())
	for i := range last {
		out.Dims[i].Axes = slices.Clone(need.Dims[i].Axes)
	}
	out.Mesh = w.Mesh
	out.Partial = partialOver(w.Dims[1].Axes, ir.Sum)
	if len(in.args) == 3 && !in.placeBias(out) {
		return nil
	}
	return out
}

func (in *productRules) matrixWeight() bool {
	if n := len(in.args[1].Dims); n != 2 {
		in.errorf("type", in.s.Args[1].Pos, "the weight of linear must be a matrix [N, K], but %%%s has %s",
			in.syms[1].Name,
			plural(n, "dimension")).help("use matmul for a batch of matrices")
		return false
	}
	return true
}

func (in *productRules) linearBias() bool {
	b, w := in.args[2], in.args[1]
	if len(b.Dims) != 1 {
		in.errorf("type", in.s.Args[2].Pos, "the bias of linear must have one dimension [N], but %%%s has %d",
			in.syms[2].Name, len(b.Dims)).help("use add for a tensor of another shape")
		return false
	}
	return in.equalExtents(b.Dims[0].Extent, w.Dims[0].Extent, in.s.Args[2].Pos, "bias and weight differ in N")
}

// placeBias infers the type of the bias of a linear in value mode. If the product is partial, the bias is added after
// the reduction (S10): the operation's own result is then the partial product, and the final result has the required
// layout.
func (in *productRules) placeBias(out *ir.Type) bool {
	if in.s.Type != nil && len(in.s.Type.Partial) > 0 {
		in.errorf("layout", in.s.Type.Pos,
			"a linear with a bias cannot leave a partial value: each rank would add the bias").
			help("add the bias after the reduction, with add")
		return false
	}
	target := out.Reduced()
	if len(out.Partial) > 0 {
		if in.want != nil && len(in.want.Dims) == len(out.Dims) && in.want.Mesh == out.Mesh {
			target = out.WithLayout(in.want)
		}
		in.after = target
	}
	b := in.args[2].Reduced().Clone()
	b.Dims[0].Axes = slices.Clone(target.Dims[len(target.Dims)-1].Axes)
	b.Mesh = target.Mesh
	in.need(2, b)
	return true
}

// activationLayout returns x's layout for a product with weight w. Dimension last is split over the axes in
// contraction, and no other dimension is split over an axis of w.
func (in *productRules) activationLayout(x, w *ir.Type, last int, contraction []string) *ir.Type {
	need := x.Reduced().Clone()
	used := w.Reduced().Axes()
	for i := range need.Dims {
		need.Dims[i].Axes = without(need.Dims[i].Axes, used)
	}
	need.Dims[last].Axes = slices.Clone(contraction)
	need.Mesh = w.Mesh
	if x.Mesh != w.Mesh { // axes of x do not belong to the mesh of w
		for i := range need.Dims {
			if i != last {
				need.Dims[i].Axes = nil
			}
		}
	}
	return need
}

// matmul infers the type of a[…, M, K] · b[…, K, N]. The second operand keeps its layout, including that of its batch
// dimensions.
func (in *productRules) matmul() *ir.Type {
	if !in.sameDType() || !in.wantRank(0, 2, "the first operand") || !in.wantRank(1, 2, "the second operand") {
		return nil
	}
	a, b := in.args[0], in.args[1]
	n := len(a.Dims)
	batched := len(b.Dims) == n
	if !batched && len(b.Dims) != 2 {
		in.errorf("type", in.s.Args[1].Pos,
			"the operands of matmul must have the same number of dimensions, or the second must have 2; they have "+
				"%d and %d", n,
			len(b.Dims)).help("reshape one of them")
		return nil
	}
	m, ka := n-2, n-1
	if in.s.Word("ta", "false") == "true" {
		m, ka = ka, m
	}
	kb, nb := len(b.Dims)-2, len(b.Dims)-1
	if in.s.Word("tb", "false") == "true" {
		kb, nb = nb, kb
	}
	if !in.equalExtents(a.Dims[ka].Extent, b.Dims[kb].Extent, in.s.Args[1].Pos,
		"the contracted dimensions of matmul differ") {
		return nil
	}
	for i := 0; batched && i < n-2; i++ {
		if !in.equalExtents(a.Dims[i].Extent, b.Dims[i].Extent, in.s.Args[1].Pos,
			"batch dimension "+itoa(i)+" of matmul differs") {
			return nil
		}
	}
	need := a
	if !in.local {
		need = in.activationLayout(a, b, ka, b.Dims[kb].Axes)
		for i := 0; batched && i < n-2; i++ {
			need.Dims[i].Axes = slices.Clone(b.Dims[i].Axes)
		}
		in.need(0, need)
		in.need(1, b.Reduced())
	}
	out := need.Reduced().Clone()
	out.Dims[n-2] = ir.Dimension{Extent: a.Dims[m].Extent, Axes: slices.Clone(need.Dims[m].Axes)}
	out.Dims[n-1] = ir.Dimension{Extent: b.Dims[nb].Extent, Axes: slices.Clone(b.Dims[nb].Axes)}
	if !in.local {
		out.Mesh = b.Mesh
		out.Partial = partialOver(b.Dims[kb].Axes, ir.Sum)
	}
	return out
}
