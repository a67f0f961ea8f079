package stablehlo

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// dotGeneral translates a contraction of two tensors over some of their dimensions.
func (b *shapes) dotGeneral(in []tens) tens {
	x, y := in[0], in[1]
	var bx, by, cx, cy []int64
	if a := b.op.attrs["dot_dimension_numbers"]; a != nil {
		bx, by = a.dict["lhs_batching_dimensions"].ints(), a.dict["rhs_batching_dimensions"].ints()
		cx, cy = a.dict["lhs_contracting_dimensions"].ints(), a.dict["rhs_contracting_dimensions"].ints()
	} else {
		pair := func(name string) (l, r []int64) {
			if a := b.op.attrs[name]; a != nil && len(a.list) == 2 {
				return a.list[0].ints(), a.list[1].ints()
			}
			return nil, nil
		}
		bx, by = pair("batching_dims")
		cx, cy = pair("contracting_dims")
	}
	b.inRange(slices.Concat(bx, cx), len(x.t.shape))
	b.inRange(slices.Concat(by, cy), len(y.t.shape))
	if len(bx) != len(by) || len(cx) != len(cy) {
		b.wrong("%d batching and contracting dimensions of the first operand, but %d of the second",
			len(bx)+len(cx), len(by)+len(cy))
	}
	for i, d := range slices.Concat(bx, cx) {
		if e := slices.Concat(by, cy)[i]; x.t.shape[d] != y.t.shape[e] {
			b.wrong("dimension %d of %s and dimension %d of %s have different extents", d, x.t, e, y.t)
		}
	}
	return b.contracted(x, y, bx, by, cx, cy)
}

func (b *shapes) dot(in []tens) tens {
	x, y := in[0], in[1]
	if len(x.t.shape) == 0 || len(y.t.shape) == 0 || x.t.shape[len(x.t.shape)-1] != y.t.shape[0] {
		b.wrong("operands of types %s and %s", x.t, y.t)
	}
	return b.contracted(x, y, nil, nil, []int64{int64(len(x.t.shape) - 1)}, []int64{0})
}

// rest lists the dimensions of a tensor of the given rank that are not in the lists.
func rest(rank int, lists ...[]int64) []int64 {
	taken := slices.Concat(lists...)
	list := []int64{}
	for d := range int64(rank) {
		if !slices.Contains(taken, d) {
			list = append(list, d)
		}
	}
	return list
}

// contracted returns the product of x and y over their contracting dimensions, for each index of the batching
// dimensions, as a matrix product. The remaining dimensions of x are not merged, so that the layout of each is
// preserved.
func (b *shapes) contracted(x, y tens, bx, by, cx, cy []int64) tens {
	t := b.result()
	dt := t.dt
	wide := dt
	for _, v := range []tens{x, y} { // both operands are converted to one type: the type of the result or a wider type
		if v.t.dt != wide && (wide == graph.F16 || wide == graph.BF16) {
			wide = graph.F32
		}
	}
	cast := func(v tens) tens {
		if v.t.dt == wide {
			return v
		}
		return b.elementwise(graph.Cast, wide, v)
	}
	x, y = cast(x), cast(y)
	lifted := anyLifted(x, y)
	fx, fy := rest(len(x.t.shape), bx, cx), rest(len(y.t.shape), by, cy)
	out := slices.Concat(graph.Pick(x.t.shape, bx), graph.Pick(x.t.shape, fx), graph.Pick(y.t.shape, fy))
	if !slices.Equal(out, t.shape) {
		b.wrong("the result has shape %v, but its type is %s", out, t)
	}
	k := graph.Product(graph.Pick(x.t.shape, cx))
	xt := b.transposed(x, slices.Concat(bx, fx, cx))
	yt := b.transposed(y, slices.Concat(by, cy, fy))
	batch := graph.Pick(x.t.shape, bx)
	rows, cols := graph.Pick(x.t.shape, fx), graph.Pick(y.t.shape, fy)
	if k == 0 {
		return tens{v: b.g.Scalar(dt, 0), t: t}
	}
	// Without batching, the result is a single matrix product: the leading dimensions of x are its rows.
	left := slices.Concat(batch, rows, []int64{k})
	if lifted || len(bx) > 0 || len(rows) == 0 {
		left = slices.Concat(batch, []int64{graph.Product(rows), k})
	}
	xv := b.fullAs(b.reshapedTo(xt, left), lifted)
	yv := b.fullAs(b.reshapedTo(yt, slices.Concat(batch, []int64{k, graph.Product(cols)})), lifted)
	v := b.add(graph.MatMul, graph.Attrs{}, wide, xv, yv)
	if wide != dt {
		v = b.add(graph.Cast, graph.Attrs{}, dt, v)
	}
	if lifted {
		out = append([]int64{b.lift}, out...)
	}
	return tens{v: b.reshaped(v, out), t: t, lifted: lifted}
}
