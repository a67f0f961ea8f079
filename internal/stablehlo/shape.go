package stablehlo

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// otherOps holds the operations that can have any number of operands and results.
var otherOps map[string]func(b *builder, in []tens) []tens

func init() {
	one := func(n int, f func(b *builder, in []tens) tens) func(*builder, []tens) []tens {
		return func(b *builder, in []tens) []tens {
			if n > 0 {
				b.want(in, n)
			}
			return []tens{f(b, in)}
		}
	}
	same := func(b *builder, in []tens) []tens { return in }
	otherOps = map[string]func(*builder, []tens) []tens{
		"constant":             one(0, (*builder).constant),
		"sdy.constant":         one(0, (*builder).constant),
		"iota":                 one(0, (*builder).iota),
		"broadcast_in_dim":     one(1, (*builder).broadcastInDim),
		"reshape":              one(1, (*builder).reshape),
		"transpose":            one(1, (*builder).transpose),
		"slice":                one(1, (*builder).slice),
		"concatenate":          one(-1, (*builder).concatenate),
		"pad":                  one(2, (*builder).pad),
		"reverse":              one(1, (*builder).reverse),
		"select":               one(3, (*builder).choice),
		"clamp":                one(3, (*builder).clamp),
		"dynamic_slice":        one(-1, (*builder).dynamicSlice),
		"dynamic_update_slice": one(-1, (*builder).dynamicUpdateSlice),
		"dot_general":          one(2, (*builder).dotGeneral),
		"dot":                  one(2, (*builder).dot),
		"gather":               one(2, (*builder).gather),
		"top_k":                (*builder).topK,
		"convolution":          one(2, (*builder).convolution),
		"sort":                 (*builder).sort,
		"bitcast_convert":      one(1, (*builder).bitcast),
		"custom_call":          (*builder).customCall,
		"optimization_barrier": same,

		"sdy.sharding_constraint":     one(1, (*builder).constraint),
		"sdy.reshard":                 one(1, (*builder).constraint),
		"sdy.all_gather":              one(1, (*builder).constraint),
		"sdy.all_slice":               one(1, (*builder).constraint),
		"sdy.all_to_all":              one(1, (*builder).constraint),
		"sdy.collective_permute":      one(1, (*builder).constraint),
		"sdy.replicated_to_unreduced": same,
		"sdy.propagation_barrier":     same,

		"reduce_precision": one(1, (*builder).reducePrecision),

		"interpreter.run_parallel": (*builder).runParallel,
		"call":                     (*builder).call,
		"func.call":                (*builder).call,
		"composite":                (*builder).composite,

		"all_reduce":         (*builder).allReduce,
		"all_gather":         (*builder).allGather,
		"reduce_scatter":     (*builder).reduceScatter,
		"all_to_all":         (*builder).allToAll,
		"collective_permute": (*builder).collectivePermute,
		"partition_id":       (*builder).partition,
		"replica_id":         (*builder).partition,
	}
}

// shapes builds contractions and operations that move elements.
type shapes struct {
	arithmetic
	long bool // an input has type i64, which f64 does not represent exactly
}

func (b *shapes) constant([]tens) tens {
	a := b.op.attrs["value"]
	if a == nil || a.dense == nil {
		b.refuse("a constant that is not dense<…>")
	}
	return b.constantOf(a.dense)
}

// constantOf returns a constant. In a test the constant becomes an input, so that the values that the test computes are
// not known in advance.
func (b *nodes) constantOf(d *dense) tens {
	t := d.t
	b.tensor(t)
	if b.given && len(b.checks) == 0 && b.calls == 0 && t.narrow == "" && t.dt != graph.Bool && b.op.name != "" &&
		!isCheck(b.op.name) {
		v := b.g.Input(fmt.Sprintf("in%d", len(b.g.Inputs)), t.dt, t.shape)
		v.Layout = make(graph.Layout, len(t.shape))
		v.Data = &graph.Tensor{DType: t.dt, Shape: t.shape, Elems: d.all()}
		return tens{v: v, t: t}
	}
	if d.splat || len(d.elems) == 1 {
		return tens{v: b.g.Scalar(t.dt, d.elems[0]), t: t}
	}
	return tens{v: b.g.Constant("constant", &graph.Tensor{DType: t.dt, Shape: t.shape, Elems: d.elems}), t: t}
}

// number returns an integer attribute of the operation. The pretty form may use another name for it.
func (b *nodes) number(names ...string) int64 {
	for _, n := range names {
		if a := b.op.attrs[n]; a != nil {
			return int64(a.number)
		}
	}
	b.wrong("it has no %s", names[0])
	return 0
}

// ints returns an attribute of the operation that is a list of integers.
func (b *nodes) ints(names ...string) []int64 {
	for _, n := range names {
		if a := b.op.attrs[n]; a != nil {
			return a.ints()
		}
	}
	return []int64{}
}

// dims returns an attribute that lists dimensions of a shape. The dimensions must be distinct.
func (b *nodes) dims(shape []int64, names ...string) []int64 {
	list := b.ints(names...)
	b.inRange(list, len(shape))
	return list
}

func (b *nodes) inRange(list []int64, rank int) {
	for i, d := range list {
		if d < 0 || d >= int64(rank) || slices.Contains(list[:i], d) {
			b.wrong("%v are not dimensions of a tensor of %d dimensions", list, rank)
		}
	}
}

func (b *shapes) iota([]tens) tens {
	t := b.result()
	d := b.number("iota_dimension", "dim")
	if d < 0 || d >= int64(len(t.shape)) {
		b.wrong("%s has no dimension %d", t, d)
	}
	return b.retyped(b.counted(t.dt, t.shape, int(d)), t)
}

// spend counts the elements of constants that the builder makes, and reports an error if they exceed their limit.
func (b *nodes) spend(n int64) {
	if b.folder.Elems -= n; b.folder.Elems < 0 {
		b.refuse("%v", graph.ErrTooLarge)
	}
}

// broadcastInDim returns a tensor that broadcasts to the result's shape. It repeats no elements.
func (b *shapes) broadcastInDim(in []tens) tens {
	x, t := in[0], b.result()
	dims := b.dims(t.shape, "broadcast_dimensions", "dims")
	if len(dims) != len(x.t.shape) {
		b.wrong("%d broadcast dimensions for an operand of type %s", len(dims), x.t)
	}
	for i, d := range dims {
		if e := x.t.shape[i]; e != 1 && e != t.shape[d] {
			b.wrong("dimension %d of %s cannot be broadcast to extent %d", i, x.t, t.shape[d])
		}
	}
	return b.spread(x, t, dims)
}

// spread returns x with type t. Dimension i of x becomes dimension dims[i] of t.
func (b *nodes) spread(x tens, t typ, dims []int64) tens {
	order := graph.Counting(len(dims)) // the dimensions of x in the order of the result's dimensions
	slices.SortFunc(order, func(i, j int64) int { return int(dims[i] - dims[j]) })
	v := b.permuted(b.padded(x, x.lifted), shifted(order, x.off()))
	shape := slices.Repeat([]int64{1}, len(t.shape))
	for i, d := range dims {
		shape[d] = x.v1()[i]
	}
	if x.lifted {
		return tens{v: b.reshaped(v, append([]int64{x.v.Shape[0]}, shape...)), t: t, lifted: true}
	}
	for len(shape) > 0 && shape[0] == 1 {
		shape = shape[1:]
	}
	return tens{v: b.reshaped(v, shape), t: t}
}

// v1 returns the shape of x.v with extents of 1 in front, and without the dimension of devices.
func (x tens) v1() []int64 {
	s := x.v.Shape[x.off():]
	return append(slices.Repeat([]int64{1}, len(x.t.shape)-len(s)), s...)
}

// shifted returns a permutation that leaves the first off dimensions in place and permutes the others.
func shifted(perm []int64, off int) []int64 {
	list := graph.Counting(off)
	for _, p := range perm {
		list = append(list, p+int64(off))
	}
	return list
}

// off returns the number of dimensions in front of v for devices.
func (x tens) off() int { return offOf(x.lifted) }

func offOf(lifted bool) int {
	if lifted {
		return 1
	}
	return 0
}

func (b *shapes) reshape(in []tens) tens {
	return b.reshapedTo(in[0], b.result().shape)
}

// reshapedTo returns x with its elements in another shape.
func (b *shapes) reshapedTo(x tens, shape []int64) tens {
	t := typ{dt: x.t.dt, shape: shape}
	if graph.Product(shape) != graph.Product(x.t.shape) {
		b.wrong("%s has another number of elements than shape %v", x.t, shape)
	}
	if x.v.Count() == 1 && !x.lifted {
		return tens{v: b.reshaped(x.v, []int64{}), t: t}
	}
	v := b.full(x)
	return tens{v: b.reshaped(v, slices.Concat(v.Shape[:x.off()], shape)), t: t, lifted: x.lifted}
}

func (b *shapes) transpose(in []tens) tens {
	perm := b.ints("permutation", "dims")
	b.inRange(perm, len(in[0].t.shape))
	if len(perm) != len(in[0].t.shape) {
		b.wrong("%v is not a permutation of the dimensions of %s", perm, in[0].t)
	}
	return b.transposed(in[0], perm)
}

// transposed returns x with its dimensions in another order.
func (b *nodes) transposed(x tens, perm []int64) tens {
	t := typ{dt: x.t.dt, shape: graph.Pick(x.t.shape, perm)}
	if x.v.Count() == 1 && !x.lifted {
		return tens{v: x.v, t: t}
	}
	return tens{v: b.permuted(b.padded(x, x.lifted), shifted(perm, x.off())), t: t, lifted: x.lifted}
}

func (b *shapes) slice(in []tens) tens {
	x := in[0]
	var lo, hi, step []int64
	if a := b.op.attrs["list"]; a != nil {
		for _, r := range a.list {
			l := r.ints()
			if len(l) < 2 {
				b.wrong("a range has no end")
			}
			lo, hi, step = append(lo, l[0]), append(hi, l[1]), append(step, append(l, 1)[2])
		}
	} else {
		lo, hi, step = b.ints("start_indices"), b.ints("limit_indices"), b.ints("strides")
	}
	if n := len(x.t.shape); len(lo) != n || len(hi) != n || len(step) != n {
		b.wrong("%d ranges for an operand of type %s", len(lo), x.t)
	}
	for d := range lo {
		if lo[d] < 0 || hi[d] < lo[d] || hi[d] > x.t.shape[d] || step[d] < 1 {
			b.wrong("%d:%d:%d is no range of dimension %d of %s", lo[d], hi[d], step[d], d, x.t)
		}
		x = b.strided(x, d, lo[d], hi[d], step[d])
	}
	return x
}

// cut returns the part lo..hi of x along a dimension.
func (b *nodes) cut(x tens, d int, lo, hi int64) tens {
	t := typ{dt: x.t.dt, shape: graph.WithExtent(x.t.shape, d, hi-lo)}
	if lo == 0 && hi == x.t.shape[d] {
		return x
	}
	k := d - (len(x.t.shape) - (len(x.v.Shape) - x.off())) // dimension of v for d; negative if v lacks it
	if k < 0 || x.v.Shape[k+x.off()] == 1 && x.t.shape[d] != 1 {
		return tens{v: x.v, t: t, lifted: x.lifted}
	}
	k += x.off()
	v := x.v
	if c := v.Made(graph.Concat); c != nil && c.Attrs.Axis == k { // the slice of a concat is a concat of slices
		var parts []*graph.Value
		at := int64(0)
		for _, p := range c.In {
			from, to := max(lo-at, 0), min(hi-at, p.Shape[k])
			at += p.Shape[k]
			if from < to {
				parts = append(parts, b.cut(tens{v: p, t: typ{dt: t.dt, shape: p.Shape}}, k, from, to).v)
			}
		}
		switch {
		case len(parts) == 1:
			return tens{v: parts[0], t: t, lifted: x.lifted}
		case len(parts) > 1:
			return tens{v: b.add(graph.Concat, graph.Attrs{Axis: k}, t.dt, parts...), t: t, lifted: x.lifted}
		}
	}
	if c := v.Made(graph.Broadcast); c != nil { // the slice of a broadcast is a smaller broadcast
		shape := graph.WithExtent(v.Shape, k, hi-lo)
		if j := k - (len(v.Shape) - len(c.In[0].Shape)); j < 0 || c.In[0].Shape[j] == 1 {
			return tens{v: b.add(graph.Broadcast, graph.Attrs{Shape: shape}, t.dt, c.In[0]), t: t, lifted: x.lifted}
		}
	}
	v = b.add(graph.SliceOp, graph.Attrs{Axis: k, Lo: lo, Hi: hi, Step: 1}, t.dt, v)
	return tens{v: v, t: t, lifted: x.lifted}
}

// strided returns every step-th element of x from lo to hi along a dimension.
func (b *shapes) strided(x tens, d int, lo, hi, step int64) tens {
	if step == 1 || hi-lo <= 1 {
		return b.cut(x, d, lo, hi)
	}
	n := (hi - lo + step - 1) / step
	end := lo + n*step
	if have := x.t.shape[d]; end > have { // pad at the end; the padding is removed again
		x = b.joined(d, x, b.stretched(b.like(x, 0), graph.WithExtent(x.t.shape, d, end-have)))
	}
	x = b.cut(x, d, lo, end)
	shape := slices.Insert(slices.Clone(x.t.shape), d+1, step)
	shape[d] = n
	x = b.cut(b.reshapedTo(x, shape), d+1, 0, 1)
	return b.reshapedTo(x, slices.Delete(slices.Clone(x.t.shape), d+1, d+2))
}

func (b *shapes) concatenate(in []tens) tens {
	d := int(b.number("dimension", "dim"))
	t := b.result()
	if d < 0 || d >= len(t.shape) || len(in) == 0 {
		b.wrong("%s has no dimension %d", t, d)
	}
	for _, x := range in {
		if len(x.t.shape) != len(t.shape) || x.t.dt != t.dt {
			b.wrong("an operand of type %s cannot be a part of %s", x.t, t)
		}
	}
	return b.joined(d, in...)
}

// joined concatenates the values along a dimension. It omits values without elements.
func (b *shapes) joined(d int, in ...tens) tens {
	t := typ{dt: in[0].t.dt, shape: slices.Clone(in[0].t.shape)}
	t.shape[d] = 0
	lifted := anyLifted(in...)
	axis := d + offOf(lifted)
	var parts []*graph.Value
	for _, x := range in {
		t.shape[d] += x.t.shape[d]
		if x.t.shape[d] == 0 {
			continue
		}
		v := b.fullAs(x, lifted)
		if c := v.Made(graph.Concat); c != nil && c.Attrs.Axis == axis {
			parts = append(parts, c.In...)
		} else {
			parts = append(parts, v)
		}
	}
	switch len(parts) {
	case 0:
		return in[0]
	case 1:
		return tens{v: parts[0], t: t, lifted: lifted}
	}
	return tens{v: b.add(graph.Concat, graph.Attrs{Axis: axis}, t.dt, parts...), t: t, lifted: lifted}
}

func (b *shapes) pad(in []tens) tens {
	x, fill := in[0], in[1]
	low, high := b.ints("edge_padding_low", "low"), b.ints("edge_padding_high", "high")
	interior := b.ints("interior_padding", "interior")
	if n := len(x.t.shape); len(low) != n || len(high) != n || len(interior) != n || len(fill.t.shape) != 0 {
		b.wrong("padding of %d dimensions for an operand of type %s", len(low), x.t)
	}
	for d := range low {
		x = b.padding(x, fill, d, low[d], high[d], interior[d])
	}
	return x
}

// padding pads a dimension.
func (b *shapes) padding(x, fill tens, d int, low, high, interior int64) tens {
	const most = 1 << 40
	if low < -most || low > most || high < -most || high > most || interior < 0 || interior > most {
		b.wrong("a padding of %d before, %d after and %d between elements", low, high, interior)
	}
	of := func(n int64, shape []int64, d int) tens { return b.stretched(fill, graph.WithExtent(shape, d, n)) }
	if n := x.t.shape[d]; interior > 0 && n > 1 {
		y := b.reshapedTo(x, slices.Insert(slices.Clone(x.t.shape), d+1, 1))
		y = b.joined(d+1, y, of(interior, y.t.shape, d+1))
		all := n * (interior + 1)
		x = b.cut(b.reshapedTo(y, graph.WithExtent(x.t.shape, d, all)), d, 0, all-interior)
	}
	n := x.t.shape[d]
	from, to := max(-low, 0), n-max(-high, 0)
	if from > n || to < from {
		if n+low+high < 0 {
			b.wrong("a padding of %d and %d removes more than dimension %d of %s has", low, high, d, x.t)
		}
		b.refuse("a padding that leaves nothing of dimension %d of %s", d, x.t)
	}
	x = b.cut(x, d, from, to)
	list := []tens{x}
	if low > 0 {
		list = []tens{of(low, x.t.shape, d), x}
	}
	if high > 0 {
		list = append(list, of(high, x.t.shape, d))
	}
	return b.joined(d, list...)
}

func (b *shapes) reverse(in []tens) tens {
	x := in[0]
	for _, d := range b.dims(x.t.shape, "dimensions", "dims") {
		x = b.reversed(x, int(d))
	}
	return x
}

// reversed returns x with the elements along a dimension in reverse order.
func (b *shapes) reversed(x tens, d int) tens {
	n := x.t.shape[d]
	switch {
	case n < 2:
		return x
	case n > 64 && b.known(x) == nil:
		b.refuse("a reversal of %d elements; the limit is 64", n)
	case n > 4096:
		b.refuse("a reversal of %d elements; the limit is 4096", n)
	}
	var parts []tens
	for i := n - 1; i >= 0; i-- {
		parts = append(parts, b.cut(x, d, i, i+1))
	}
	return b.joined(d, parts...)
}

func (b *arithmetic) choice(in []tens) tens {
	is, x, y := in[0], in[1], in[2]
	if is.t.dt != graph.Bool || x.t.dt != y.t.dt || !slices.Equal(x.t.shape, y.t.shape) ||
		len(is.t.shape) > 0 && !slices.Equal(is.t.shape, x.t.shape) {
		b.wrong("operands are of types %s, %s and %s", is.t, x.t, y.t)
	}
	if c, ok := b.uniform(is); ok {
		if c != 0 {
			return x
		}
		return y
	}
	return b.retyped(b.elementwise(graph.Where, x.t.dt, b.stretched(is, x.t.shape), x, y), x.t)
}

func (b *arithmetic) clamp(in []tens) tens {
	return b.retyped(b.minimum(b.maximum(in[1], in[0], in[1].t), in[2], in[1].t), in[1].t)
}

func (b *shapes) topK(in []tens) []tens {
	b.want(in, 1)
	x := in[0]
	if len(b.op.types) != 2 || x.lifted {
		b.refuse("a value that differs between devices, or another number of results than two")
	}
	n, err := b.g.Add(graph.TopK, graph.Attrs{K: b.number("k")}, graph.Origin{Name: b.op.name},
		[]graph.DType{x.t.dt, graph.I32}, b.full(x))
	if err != nil {
		b.wrong("%v", err)
	}
	return []tens{{v: n.Out[0], t: b.op.types[0]}, {v: n.Out[1], t: b.op.types[1]}}
}

func (b *shapes) customCall(in []tens) []tens {
	target := ""
	if len(b.op.words) > 0 {
		target = b.op.words[0]
	} else if a := b.op.attrs["call_target_name"]; a != nil {
		target = a.text
	}
	switch target {
	case "Sharding", "annotate_device_placement", "LayoutConstraint":
		return in
	}
	b.refuse("target @%s", target)
	return nil
}
