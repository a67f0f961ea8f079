package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// indexRules determines the types of results of three kinds of operations: those whose results are indices, those
// that select elements by indices, and those that depend on positions.
type indexRules struct{ *inference }

func ofIndexing(in *inference) *indexRules { return &indexRules{in} }

// iota uses the type and layout of the annotation or of the destination.
func (in *indexRules) iota() *ir.Type {
	t := in.s.Type
	if in.s.Into != nil {
		t = in.in.Into[in.s].Type
	}
	switch {
	case t == nil:
		in.errorf("type", in.s.Pos, "iota has no result type").
			help("annotate the result: %i: i32[T] = iota, or write into a buffer")
		return nil
	case len(t.Partial) > 0:
		in.errorf("layout", t.Pos, "the result of iota cannot be partial").help("remove partial(…)")
		return nil
	case len(t.Dims) == 0:
		in.errorf("type", in.s.Pos, "iota cannot make a scalar, which has no dimension to count along").help(
			"use fill to make a scalar")
		return nil
	}
	if _, ok := in.axisAttr("axis", len(t.Dims)-1, len(t.Dims)); !ok || !in.constant("start", t.DType) {
		return nil
	}
	return t
}

// topK infers the type of topk and argtopk x[…, N] → […, K]. The last dimension must be whole.
func (in *indexRules) topK() *ir.Type {
	k := in.s.Attr("k").Exprs[0]
	if !in.wantRank(0, 1, "the operand") || !in.extentOf(k) {
		return nil
	}
	last := len(in.args[0].Dims) - 1
	if !in.require(in.s, ir.CheckAtMost, k, in.args[0].Dims[last].Extent, k.Pos,
		"k= exceeds the number of elements of a row",
		"choose a k= that is at most the extent of the last dimension") {
		return nil
	}
	out := in.wholeAlong(0, last).Clone()
	if out.Dims[last].Extent = in.fold(k); in.s.Op == ir.OpArgTopK {
		out.DType = ir.I32
	}
	return out
}

// argsort types argsort x[…, N]. The last dimension must be whole.
func (in *indexRules) argsort() *ir.Type {
	if !in.wantRank(0, 1, "the operand") {
		return nil
	}
	out := in.wholeAlong(0, len(in.args[0].Dims)-1).Clone()
	out.DType = ir.I32
	return out
}

// takeAlong infers the type of take_along x[…, N] by at[…, K] → […, K]. The last dimension must be whole.
func (in *indexRules) takeAlong() *ir.Type {
	if !in.integers(1, "indices") || !in.wantRank(0, 1, "the first operand") {
		return nil
	}
	x, at := in.args[0], in.args[1]
	last := len(x.Dims) - 1
	if len(at.Dims) != len(x.Dims) {
		in.errorf("type", in.s.Args[1].Pos, "the indices must have as many dimensions as the first operand, %d, "+
			"but %%%s has %d",
			last+1, in.syms[1].Name, len(at.Dims)).
			help("reshape or broadcast one of them")
		return nil
	}
	for d := range last {
		if !in.equalExtents(x.Dims[d].Extent, at.Dims[d].Extent, in.s.Args[1].Pos,
			"the indices differ from the first operand in dimension "+itoa(d)) {
			return nil
		}
	}
	out := in.wholeAlong(0, last).Clone()
	out.Dims[last].Extent = at.Dims[last].Extent
	if !in.local {
		need := out.Clone()
		need.DType = at.DType
		in.need(1, need)
	}
	return out
}

// bincount infers the type of bincount ids[…] → i32[n]. If the ids are split, the result is a partial sum.
func (in *indexRules) bincount() *ir.Type {
	n := in.s.Attr("n").Exprs[0]
	if !in.integers(0, "ids") || !in.extentOf(n) {
		return nil
	}
	ids := in.args[0].Reduced()
	in.need(0, ids)
	out := &ir.Type{Pos: ids.Pos, DType: ir.I32, Dims: []ir.Dimension{{Extent: in.fold(n)}}, Mesh: ids.Mesh}
	if !in.local {
		for _, d := range ids.Dims {
			out.Partial = append(out.Partial, partialOver(d.Axes, ir.Sum)...)
		}
	}
	return out
}

// indexAdd infers the type of index_add x[…, D], ids[…] → [n, D]. The result has the required layout. The axes over
// which the required layout splits the result are removed from x by a gather. If rows of x are still split over other
// axes, the result is a partial sum.
func (in *indexRules) indexAdd() *ir.Type {
	n := in.s.Attr("n").Exprs[0]
	if !in.integers(1, "ids") || !in.wantRank(0, 1, "the first operand") || !in.extentOf(n) {
		return nil
	}
	x, ids := in.args[0].Reduced(), in.args[1]
	last := len(x.Dims) - 1
	if len(ids.Dims) != last {
		in.errorf("type", in.s.Args[1].Pos, "index_add needs one id for each row of the first operand, so %s, but "+
			"%%%s has %d",
			plural(last, "dimension"),
			in.syms[1].Name, len(ids.Dims)).
			help("index_add: " + ir.OpIndexAdd.Info().Doc)
		return nil
	}
	for d := range last {
		if !in.equalExtents(x.Dims[d].Extent, ids.Dims[d].Extent, in.s.Args[1].Pos,
			"the ids differ from the first operand in dimension "+itoa(d)) {
			return nil
		}
	}
	need := x.Clone()
	out := &ir.Type{Pos: x.Pos, DType: x.DType, Mesh: x.Mesh,
		Dims: []ir.Dimension{{Extent: in.fold(n)},
			{Extent: x.Dims[last].Extent, Axes: slices.Clone(x.Dims[last].Axes)}}}
	if in.local {
		return out
	}
	in.splitLike(out, []int{0})
	byID := need.Clone()
	byID.DType, byID.Dims = ids.DType, byID.Dims[:last]
	for d := range last {
		need.Dims[d].Axes = without(need.Dims[d].Axes, out.Dims[0].Axes)
		byID.Dims[d].Axes = slices.Clone(need.Dims[d].Axes)
		out.Partial = append(out.Partial, partialOver(need.Dims[d].Axes, ir.Sum)...)
	}
	in.need(0, need)
	in.need(1, byID)
	return out
}
