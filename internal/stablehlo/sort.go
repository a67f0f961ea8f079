package stablehlo

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// sort sorts the operand that the comparator compares, and permutes the other operands in the same way.
func (b *shapes) sort(in []tens) []tens {
	key, desc := b.comparator(len(in))
	shape := in[0].t.shape
	d := len(shape) - 1
	if a := b.op.attrs["dimension"]; a != nil {
		d = int(a.number)
	}
	for _, x := range in {
		if !slices.Equal(x.t.shape, shape) {
			b.wrong("operands are of types %s and %s", in[0].t, x.t)
		}
	}
	if d < 0 || d >= len(shape) {
		b.wrong("%s has no dimension %d", in[0].t, d)
	}
	if anyLifted(in...) {
		b.refuse("values that differ between devices")
	}
	last := len(shape) - 1
	x := b.full(b.moved(in[key], d, last))
	if x.DType == graph.Bool {
		x = b.add(graph.Cast, graph.Attrs{}, graph.I32, x)
	}
	n, err := b.g.Add(graph.SortOp, graph.Attrs{Axis: last, Desc: desc},
		graph.Origin{Name: b.op.name}, []graph.DType{x.DType, graph.I64}, x)
	if err != nil {
		b.wrong("%v", err)
	}
	var out []tens
	for _, y := range in {
		v := n.Out[1]
		if !b.counts(y, d) {
			z := b.full(b.moved(y, d, last))
			if !z.DType.IsFloat() { // hocket's language selects elements by index from floating-point tensors only
				z = b.add(graph.Cast, graph.Attrs{}, graph.F64, z)
			}
			v = b.add(graph.TakeAlong, graph.Attrs{Axis: last}, z.DType, z, n.Out[1])
		}
		t := typ{dt: v.DType, shape: v.Shape}
		out = append(out, b.moved(b.convert(tens{v: v, t: t}, y.t), last, d))
	}
	return out
}

// counts reports whether the elements of x are equal to their positions along dimension d.
func (b *shapes) counts(x tens, d int) bool {
	n := x.t.shape[d]
	list := b.known(x)
	if list == nil || int64(len(list.Elems)) != n || x.v1()[d] != n {
		return false
	}
	for i, e := range list.Elems {
		if e != float64(i) {
			return false
		}
	}
	return true
}

// comparator returns which of n operands the comparator of a sort compares, and whether the order is descending.
func (b *shapes) comparator(n int) (key int, desc bool) {
	blk := b.op.region(&b.nodes, 0)
	if len(blk.args) != 2*n || len(blk.ops) == 0 || len(blk.ops[len(blk.ops)-1].in) != 1 {
		b.wrong("a comparator with %d parameters for %d operands", len(blk.args), n)
	}
	made := map[string]*op{}
	for _, o := range blk.ops {
		if len(o.out) == 1 {
			made[o.out[0]] = o
		}
	}
	// An operand of the comparison is an argument, or a selection that replaces zeros or NaNs of an argument.
	argument := func(name string) int {
		for range blk.ops {
			o := made[name]
			if o == nil || o.name != "stablehlo.select" || len(o.in) != 3 {
				break
			}
			name = o.in[2]
		}
		return slices.IndexFunc(blk.args, func(a arg) bool { return a.name == name })
	}
	o := made[blk.ops[len(blk.ops)-1].in[0]]
	if o != nil && o.name == "stablehlo.compare" && len(o.in) == 2 {
		l, r := argument(o.in[0]), argument(o.in[1])
		before := b.op
		b.op = o
		how := b.direction()
		b.op = before
		switch {
		case l < 0 || r < 0 || how != "LT" && how != "GT":
		case l%2 == 0 && r == l+1:
			return l / 2, how == "GT"
		case r%2 == 0 && l == r+1:
			return r / 2, how == "LT"
		}
	}
	b.refuse("a comparator that does not compare two elements of one operand")
	return 0, false
}
