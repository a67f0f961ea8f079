package checker

import "hocket.example/hocket/ir"

// This file infers the types of operations that need all elements along one dimension: softmax and the norms. The other
// dimensions may be split.

// wholeAlong requires that operand i have no partial reductions and that its dimension d be whole. wholeAlong returns
// the type of the operand after the reshard.
func (in *inference) wholeAlong(i, d int) *ir.Type {
	x := in.args[i].Reduced().Clone()
	x.Dims[d].Axes = nil
	in.need(i, x)
	return x
}

func inferSoftmax(in *inference) *ir.Type {
	if !in.floats() || !in.wantRank(0, 1, "the operand") {
		return nil
	}
	n := len(in.args[0].Dims)
	d, ok := in.axisAttr("axis", n-1, n)
	if !ok {
		return nil
	}
	return in.wholeAlong(0, d)
}

// inferNorm infers the type of rms_norm x[…, D], w[D] and layer_norm x[…, D], w[D], b[D]. The weight and the bias must
// be whole on the mesh of x.
func inferNorm(in *inference) *ir.Type {
	if !in.floats() || !in.sameDType() || !in.wantRank(0, 1, "the input") || !in.rightEps() {
		return nil
	}
	last := len(in.args[0].Dims) - 1
	for i, w := range in.args[1:] {
		pos := in.s.Args[i+1].Pos
		if len(w.Dims) != 1 {
			in.errorf("type", pos, "the weight and bias of %s must have one dimension [D], but %%%s has %d", in.s.Op,
				in.syms[i+1].Name, len(w.Dims)).
				help(in.s.Op.String() + ": " + in.s.Op.Info().Doc)
			return nil
		}
		if !in.equalExtents(in.args[0].Dims[last].Extent, w.Dims[0].Extent, pos,
			"%"+in.syms[i+1].Name+" differs in length from the input's last dimension") {
			return nil
		}
	}
	x := in.wholeAlong(0, last)
	for i := 1; i < len(in.args); i++ {
		w := in.args[i].Reduced().Clone()
		w.Dims[0].Axes, w.Mesh = nil, x.Mesh
		in.need(i, w)
	}
	return x
}

// inferNormGrad infers the type of rms_norm_dx x[…, D], w[D], dy[…, D] and rms_norm_dw x[…, D], dy[…, D]. dy must have
// the layout of x, and w must be whole on the mesh of x. The result of rms_norm_dw is a partial sum over the axes that
// split the rows.
func inferNormGrad(in *inference) *ir.Type {
	if !in.floats() || !in.sameDType() || !in.wantRank(0, 1, "the input") || !in.rightEps() {
		return nil
	}
	dims := in.args[0].Dims
	last := len(dims) - 1
	for i, t := range in.args[1:] {
		want := dims
		if i+2 < len(in.args) {
			want = dims[last:]
		}
		pos := in.s.Args[i+1].Pos
		if len(t.Dims) != len(want) {
			in.errorf("type", pos, "%s of %s needs %s here, but %%%s has %d", in.s.Op, ir.Brief(in.args[0]),
				plural(len(want), "dimension"), in.syms[i+1].Name, len(t.Dims)).
				help(in.s.Op.String() + ": " + in.s.Op.Info().Doc)
			return nil
		}
		for d := range want {
			if !in.equalExtents(want[d].Extent, t.Dims[d].Extent, pos,
				"%"+in.syms[i+1].Name+" differs from the input in length") {
				return nil
			}
		}
	}
	x := in.wholeAlong(0, last)
	in.need(len(in.args)-1, x)
	if in.s.Op == ir.OpRMSNormDX {
		w := in.args[1].Reduced().Clone()
		w.Dims[0].Axes, w.Mesh = nil, x.Mesh
		in.need(1, w)
		return x
	}
	out := x.Clone()
	out.DType, out.Dims = x.DType.Accum(), out.Dims[last:]
	for _, d := range x.Dims[:last] {
		out.Partial = append(out.Partial, partialOver(d.Axes, ir.Sum)...)
	}
	return out
}

// rightEps reports an error for an eps that is not a small positive number.
func (in *inference) rightEps() bool {
	a := in.s.Attr("eps")
	if a == nil || !a.IsNum || a.Num >= 0 {
		return true
	}
	in.errorf("type", a.Pos, "eps=%v is not a small positive number; it is added under a root",
		a.Num).help("write, for example, eps=1e-6")
	return false
}
