package stablehlo

import (
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// reducer is a reduction that graphs support.
type reducer struct {
	op   graph.Op
	unit func(dt graph.DType) float64 // the neutral element
}

var reducers = map[string]reducer{
	"add":     {graph.SumOp, func(graph.DType) float64 { return 0 }},
	"maximum": {graph.MaxOf, func(dt graph.DType) float64 { return least(dt) }},
	"minimum": {graph.MinOf, func(dt graph.DType) float64 { return -least(dt) }},
}

// least returns the smallest number of a type. Its negation is at least as large as the largest number.
func least(dt graph.DType) float64 {
	switch dt {
	case graph.I32:
		return math.MinInt32
	case graph.I64:
		return math.MinInt64
	case graph.Bool:
		return 0
	}
	return math.Inf(-1)
}

// bodyOp returns the name of the only operation in a body that combines the body's two parameters. It returns "" for
// any other body.
func bodyOp(blk *block, i, n int) string {
	if len(blk.ops) == 0 || len(blk.args) != 2*n {
		return ""
	}
	end := blk.ops[len(blk.ops)-1]
	if !strings.HasSuffix(end.name, "return") || len(end.in) != n {
		return ""
	}
	for _, o := range blk.ops {
		if len(o.out) != 1 || o.out[0] != end.in[i] || len(o.in) != 2 {
			continue
		}
		l, r := blk.args[i].name, blk.args[n+i].name
		if o.in[0] == l && o.in[1] == r || o.in[0] == r && o.in[1] == l {
			name := strings.TrimPrefix(o.name, "stablehlo.")
			if len(o.types) == 1 && o.types[0].dt == graph.Bool {
				switch name {
				case "or", "add":
					return "maximum"
				case "and", "multiply":
					return "minimum"
				}
			}
			return name
		}
	}
	return ""
}

func (b *builder) reduce(in []tens, s *scope) []tens {
	o := b.op
	n := len(in) / 2
	if n == 0 || len(in) != 2*n || len(o.types) != n {
		b.wrong("it has %d operands and %d results", len(in), len(o.types))
	}
	dims := b.dims(in[0].t.shape, "dimensions")
	blk := o.region(&b.nodes, 0)
	for _, x := range in[n:] {
		if len(x.t.shape) != 0 {
			b.wrong("an initial value of type %s is not a scalar", x.t)
		}
	}
	for _, x := range in[:n] {
		if !slices.Equal(x.t.shape, in[0].t.shape) {
			b.wrong("operands are of types %s and %s", in[0].t, x.t)
		}
	}
	return b.reducedBy(blk, in[:n], in[n:], dims, s)
}

// reducedBy reduces the values in along the given dimensions by a body, with the initial values init.
func (b *builder) reducedBy(blk *block, in, init []tens, dims []int64, s *scope) []tens {
	var out []tens
	for i, x := range in {
		r, ok := reducers[bodyOp(blk, i, len(in))]
		if !ok {
			return b.fold(blk, in, init, dims, s)
		}
		out = append(out, b.reduced(r, x, init[i], dims))
	}
	return out
}

// reduced reduces x along the given dimensions, with the initial value init.
func (b *builder) reduced(r reducer, x, init tens, dims []int64) tens {
	t := typ{dt: x.t.dt, shape: graph.Pick(x.t.shape, rest(len(x.t.shape), dims))}
	var y tens
	if graph.Product(x.t.shape) == 0 {
		return b.stretched(init, t.shape)
	}
	if len(dims) == 0 {
		y = x
	} else {
		dt := x.t.dt
		v := b.full(x)
		axes := shifted(dims, x.off())[x.off():]
		slices.Sort(axes)
		y = tens{v: b.add(r.op, graph.Attrs{Axes: axes}, dt, v), t: t, lifted: x.lifted}
	}
	if c, ok := b.uniform(init); ok {
		if unit := r.unit(x.t.dt); c == unit || x.t.dt == graph.Bool && r.op == graph.MinOf && c == 1 ||
			r.op == graph.MinOf && !x.t.dt.IsFloat() && c >= -unit-1 {
			return y
		}
	}
	switch r.op {
	case graph.SumOp:
		return b.retyped(b.sum(y, init, t), t)
	case graph.MaxOf:
		return b.retyped(b.maximum(y, init, t), t)
	}
	return b.retyped(b.minimum(y, init, t), t)
}

// fold reduces with a body of arbitrary operations. To do so, it repeatedly combines the two halves of the elements.
// The body is translated with an additional first dimension for the elements.
func (b *builder) fold(blk *block, in, init []tens, dims []int64, s *scope) []tens {
	n := len(in)
	shape := graph.Pick(in[0].t.shape, rest(len(in[0].t.shape), dims))
	size, kept := graph.Product(graph.Pick(in[0].t.shape, dims)), graph.Product(shape)
	lifted := anyLifted(in...) || anyLifted(init...)
	if lifted {
		kept *= b.lift
	}
	list := make([]*graph.Value, n) // of shape [size, kept]; devices are the first factor of kept
	for i, x := range in {
		off := offOf(lifted)
		perm := slices.Concat(shifted(dims, off)[off:], shifted(rest(len(x.t.shape), dims), off))
		list[i] = b.reshaped(b.permuted(b.fullAs(x, lifted), perm), []int64{size, kept})
	}
	join := func(l, r []*graph.Value, rows int64) []*graph.Value {
		before, manual := b.lift, b.devs
		b.lift, b.devs = rows*kept, nil
		var args []tens
		for i, v := range slices.Concat(l, r) {
			args = append(args, tens{v: b.reshaped(v, []int64{rows * kept}), t: blk.args[i].t, lifted: true})
			if t := blk.args[i].t; len(t.shape) != 0 || t.dt != v.DType {
				b.wrong("the body has a parameter of type %s", t)
			}
		}
		out := b.inner(blk, args, s, n)
		var got []*graph.Value
		for i, x := range out {
			if x.t.dt != list[i].DType || len(x.t.shape) != 0 {
				b.wrong("the body returns type %s", x.t)
			}
			got = append(got, b.reshaped(b.fullAs(x, true), []int64{rows, kept}))
		}
		b.lift, b.devs = before, manual
		return got
	}
	part := func(v *graph.Value, lo, hi int64) *graph.Value {
		return b.cut(tens{v: v, t: typ{dt: v.DType, shape: v.Shape}}, 0, lo, hi).v
	}
	for size > 1 {
		half := size / 2
		var l, r []*graph.Value
		for _, v := range list {
			l, r = append(l, part(v, 0, half)), append(r, part(v, half, 2*half))
		}
		got := join(l, r, half)
		if size%2 == 1 {
			for i := range got {
				got[i] = b.add(graph.Concat, graph.Attrs{Axis: 0}, got[i].DType, got[i], part(list[i], size-1, size))
			}
		}
		list, size = got, half+size%2
	}
	first := make([]*graph.Value, n)
	for i, x := range init {
		first[i] = b.add(graph.Broadcast, graph.Attrs{Shape: []int64{1, kept}}, x.t.dt, b.initial(x, kept))
	}
	if size == 0 {
		list = first
	} else {
		list = join(first, list, 1)
	}
	var out []tens
	want := shape
	if lifted {
		want = append([]int64{b.lift}, shape...)
	}
	for _, v := range list {
		out = append(out, tens{v: b.reshaped(v, want), t: typ{dt: v.DType, shape: shape}, lifted: lifted})
	}
	return out
}

// initial returns the initial value of a reduction, repeated for each of the kept elements.
func (b *builder) initial(x tens, kept int64) *graph.Value {
	if !x.lifted {
		return x.v
	}
	each := kept / b.lift
	v := b.reshaped(b.fullAs(x, true), []int64{b.lift, 1})
	return b.reshaped(b.add(graph.Broadcast, graph.Attrs{Shape: []int64{b.lift, each}}, v.DType, v), []int64{kept})
}

// maxWindow is the largest number of elements in a window.
const maxWindow = 4096

// reduceWindow reduces over windows. If the windows form a cumulative sum, the result is a Cumsum operation; otherwise
// one part of the operand is combined for each element of a window.
func (b *builder) reduceWindow(in []tens, s *scope) []tens {
	o := b.op
	n := len(in) / 2
	if n == 0 || len(in) != 2*n {
		b.wrong("it has %d operands", len(in))
	}
	x := in[0]
	rank := len(x.t.shape)
	window := b.ints("window_dimensions")
	ones := slices.Repeat([]int64{1}, rank)
	or := func(list, other []int64) []int64 {
		if len(list) == 0 {
			return other
		}
		return list
	}
	strides := or(b.ints("window_strides"), ones)
	base, dilation := or(b.ints("base_dilations"), ones), or(b.ints("window_dilations"), ones)
	pads := or(b.ints("padding"), make([]int64, 2*rank))
	if len(window) != rank || len(strides) != rank || len(base) != rank || len(dilation) != rank ||
		len(pads) != 2*rank {
		b.wrong("a window of %d dimensions does not fit an operand of type %s", len(window), x.t)
	}
	blk := o.region(&b.nodes, 0)
	if n == 1 && bodyOp(blk, 0, 1) == "add" {
		if d := cumulative(x.t.shape, window, strides, base, dilation, pads); d >= 0 {
			if c, ok := b.uniform(in[1]); ok && c == 0 {
				v := b.add(graph.Cumsum, graph.Attrs{Axis: d + x.off()}, x.t.dt, b.full(x))
				return []tens{{v: v, t: x.t, lifted: x.lifted}}
			}
		}
	}
	size := int64(1)
	for d, w := range window {
		if w < 1 || w > maxWindow || strides[d] < 1 || dilation[d] < 1 || base[d] < 1 {
			b.refuse("a window of %d elements; the limit is %d", w, maxWindow)
		}
		if size *= w; size > maxWindow {
			b.refuse("a window of more than %d elements", maxWindow)
		}
	}
	// For each element of a window, there is one part of the operand. The parts are concatenated along an additional
	// first dimension.
	stacks := make([][]tens, n)
	for i := range n {
		y := in[i]
		for d := range window {
			y = b.padding(y, in[n+i], d, pads[2*d], pads[2*d+1], base[d]-1)
		}
		for k := range size {
			part := b.windowPart(y, 0, k, window, dilation, strides)
			stacks[i] = append(stacks[i], b.reshapedTo(part, append([]int64{1}, part.t.shape...)))
		}
	}
	var list []tens
	for _, parts := range stacks {
		list = append(list, b.joined(0, parts...))
	}
	return b.reducedBy(blk, list, in[n:], []int64{0}, s)
}

// cumulative returns the dimension along which window i contains the elements 0 to i. It returns -1 if the windows do
// not have this form.
func cumulative(shape, window, strides, base, dilation, pads []int64) int {
	at := -1
	for d, w := range window {
		if strides[d] != 1 || base[d] != 1 || dilation[d] != 1 || pads[2*d+1] != 0 {
			return -1
		}
		switch {
		case w == 1 && pads[2*d] == 0:
		case at < 0 && w == shape[d] && pads[2*d] == w-1:
			at = d
		default:
			return -1
		}
	}
	return at
}
