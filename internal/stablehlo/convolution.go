package stablehlo

import (
	"slices"
	"strconv"

	"hocket.example/hocket/internal/graph"
)

// convolution translates a convolution to one matrix product for each group of features. The first factor concatenates
// the elements of the operand at each position of the window, and the second is the window.
func (b *shapes) convolution(in []tens) tens {
	x, w, t := in[0], in[1], b.result()
	dims := b.op.attrs["dim_numbers"]
	if dims == nil {
		dims = b.op.attrs["dimension_numbers"]
	}
	if dims == nil || len(dims.list) != 3 {
		b.wrong("it has no dimension numbers")
	}
	n := len(x.t.shape) - 2
	if n < 0 || len(w.t.shape) != n+2 || len(t.shape) != n+2 || x.t.dt != w.t.dt {
		b.wrong("operands of types %s and %s", x.t, w.t)
	}
	window := func(name, generic string, def int64) []int64 {
		a := b.op.attrs[generic]
		if d := b.op.attrs["window"]; d != nil && d.dict[name] != nil {
			a = d.dict[name]
		}
		list := slices.Repeat([]int64{def}, n)
		if a != nil {
			list = a.ints()
		}
		if len(list) != n {
			b.wrong("attribute %s has %d elements, want %d", name, len(list), n)
		}
		return list
	}
	strides, base := window("stride", "window_strides", 1), window("lhs_dilate", "lhs_dilation", 1)
	dilation, reversed := window("rhs_dilate", "rhs_dilation", 1), window("reverse", "window_reversal", 0)
	// The operand becomes [batch, positions…, features], and the window [positions…, in, out].
	x = b.transposed(x, b.convDims(dims.list[0], n, "b", "f"))
	perm := b.convDims(dims.list[1], n, "", "i", "o")
	w = b.transposed(w, perm)
	for d, r := range reversed {
		if r != 0 {
			w = b.reversed(w, d)
		}
	}
	groups, batches := b.count("feature_group_count"), b.count("batch_group_count")
	size := w.t.shape[:n]
	if graph.Product(size) > maxWindow || graph.Product(size) < 1 {
		b.refuse("a window of %d elements; the limit is %d", graph.Product(size), maxWindow)
	}
	pads := b.convPads(n)
	fill := b.like(x, 0)
	for d := range n {
		if strides[d] < 1 || base[d] < 1 || dilation[d] < 1 {
			b.wrong("strides %v, base dilations %v and window dilations %v must be positive", strides, base, dilation)
		}
		x = b.padding(x, fill, d+1, pads[2*d], pads[2*d+1], base[d]-1)
	}
	var parts []tens // for each position in the window: [batch, positions of the result…, 1, features]
	for k := range graph.Product(size) {
		part := b.windowPart(x, 1, k, size, dilation, strides)
		parts = append(parts, b.reshapedTo(part, slices.Insert(slices.Clone(part.t.shape), n+1, 1)))
	}
	y := b.joined(n+1, parts...)
	places, rows := slices.Clone(y.t.shape[1:n+1]), y.t.shape[0]
	features, per, out := y.t.shape[n+2], w.t.shape[n], w.t.shape[n+1]
	if groups < 1 || batches < 1 || groups > 1 && batches > 1 || features != per*groups || out%(groups*batches) != 0 ||
		rows%batches != 0 {
		b.wrong("%d groups of features and %d groups of batches do not fit operands of types %s and %s",
			groups, batches, in[0].t, in[1].t)
	}
	// The factors become [g, rows, window, in] and [g, window, in, out].
	g, area := groups*batches, graph.Product(size)
	positions := rows / batches * graph.Product(places)
	y = b.reshapedTo(y, []int64{batches, positions, area, groups, per})
	y = b.reshapedTo(b.transposed(y, []int64{0, 3, 1, 2, 4}), []int64{g, positions, area * per})
	w = b.reshapedTo(b.transposed(b.reshapedTo(w, []int64{area * per, g, out / g}), []int64{1, 0, 2}),
		[]int64{g, area * per, out / g})
	z := b.batched(y, w, t.dt) // [g, rows·places, out/g]
	z = b.reshapedTo(z, slices.Concat([]int64{g, rows / batches}, places, []int64{out / g}))
	front := slices.Concat(graph.Counting(n + 3)[1:n+2], []int64{0, int64(n + 2)})
	z = b.reshapedTo(b.transposed(z, front), slices.Concat([]int64{rows / batches}, places, []int64{out}))
	z = b.transposed(z, graph.Inverse(b.convDims(dims.list[2], n, "b", "f")))
	if !slices.Equal(z.t.shape, t.shape) {
		b.wrong("the result has shape %v, but its type is %s", z.t.shape, t)
	}
	return b.convert(z, t)
}

// windowPart returns, for each position of a window, element k of the window. The window lies along the dimensions of x
// from first on.
func (b *shapes) windowPart(x tens, first int, k int64, size, dilation, strides []int64) tens {
	for i := len(size) - 1; i >= 0; i-- {
		d, lo := first+i, k%size[i]*dilation[i]
		k /= size[i]
		end := x.t.shape[d] - (size[i]-1)*dilation[i]
		if end < 1 {
			b.refuse("a window that is larger than the operand")
		}
		x = b.strided(x, d, lo, lo+end, strides[i])
	}
	return x
}

// batched returns the matrix products of x[g, m, k] and y[g, k, n] for each g.
func (b *shapes) batched(x, y tens, dt graph.DType) tens {
	if !dt.IsFloat() || x.t.dt != dt {
		dt = graph.F32
		if !x.t.dt.IsFloat() || x.t.dt == graph.F64 {
			dt = graph.F64 // f64 represents all integers below 2⁵³ exactly
		}
		x, y = b.convert(x, typ{dt: dt}), b.convert(y, typ{dt: dt})
	}
	t := typ{dt: dt, shape: []int64{x.t.shape[0], x.t.shape[1], y.t.shape[2]}}
	lifted := anyLifted(x, y)
	xv, yv := b.fullAs(x, lifted), b.fullAs(y, lifted)
	return tens{v: b.add(graph.MatMul, graph.Attrs{}, dt, xv, yv), t: t, lifted: lifted}
}

// convDims lists the dimensions of a tensor of a convolution: first the dimension named first, if there is one, then
// the spatial dimensions in order, and then those with the other names.
func (b *shapes) convDims(a *attr, n int, first string, last ...string) []int64 {
	find := func(name string) int64 {
		i := slices.IndexFunc(a.list, func(x *attr) bool {
			return x.text == name || x.text == "" && strconv.Itoa(int(x.number)) == name
		})
		if i < 0 || len(a.list) != n+2 {
			b.wrong("dimension numbers lack %s", name)
		}
		return int64(i)
	}
	var list []int64
	if first != "" {
		list = append(list, find(first))
	}
	for d := range n {
		list = append(list, find(strconv.Itoa(d)))
	}
	for _, name := range last {
		list = append(list, find(name))
	}
	return list
}

// count returns an attribute that is a number of groups.
func (b *nodes) count(name string) int64 {
	if b.op.attrs[name] == nil {
		return 1
	}
	return int64(b.op.attrs[name].number)
}

// convPads lists the padding before and after each spatial dimension.
func (b *shapes) convPads(n int) []int64 {
	a := b.op.attrs["padding"]
	if d := b.op.attrs["window"]; d != nil && d.dict["pad"] != nil {
		a = d.dict["pad"]
	}
	list := make([]int64, 2*n)
	switch {
	case a == nil:
	case a.dense != nil:
		list = a.ints()
	default:
		list = nil
		for _, pair := range a.list {
			list = append(list, pair.ints()...)
		}
	}
	if len(list) != 2*n {
		b.wrong("%d numbers of padding for %d dimensions", len(list), n)
	}
	return list
}
