package devicetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/ir"
)

// testChains runs random chains of operations as one kernel, and as one kernel for each operation: all bits of all
// results must be equal.
func testChains(r *rig) {
	if !r.m.Caps().Chains {
		r.Skip("the machine supports no chains")
	}
	r.open(1)
	rng := seeded("chains")
	for n := range 24 {
		shape := [][]int64{{7}, {64}, {3, 16}, {2, 3, 40}, {4099}, {70001}}[rng.IntN(6)]
		var ins []device.View
		for i := range 1 + rng.IntN(3) {
			dt := r.dtypes()[rng.IntN(len(r.dtypes()))]
			if rng.IntN(2) == 0 {
				dt = ir.BF16
			}
			v := r.put(0, random(rng, dt, shape...), layouts[rng.IntN(2)])
			if i > 0 && len(shape) > 1 && rng.IntN(3) == 0 { // all rows are the same memory
				v.Strides = slices.Clone(v.Strides)
				v.Strides[0] = 0
			}
			ins = append(ins, v)
		}
		op := device.Chain{Links: drawLinks(rng, ins)}
		for i := range op.Links[1:] {
			if rng.IntN(3) == 0 {
				op.Stored = append(op.Stored, i)
			}
		}
		r.fused(fmt.Sprintf("chain %d of %v", n, shape), ins, op, layouts[rng.IntN(2)])
	}
	r.sub("in place", testChainInPlace)
	r.sub("results", testChainResults)
	r.sub("product and relu", testProductRelu)
}

// testProductRelu compares GEMMs that end in a relu with two separate operations. A machine may decline each.
func testProductRelu(r *rig) {
	rng := seeded("relu")
	for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
		for _, bias := range []bool{false, true} {
			ins := []device.View{r.put(0, random(rng, dt, 48, 64)), r.put(0, random(rng, dt, 32, 64))}
			if bias {
				ins = append(ins, r.put(0, random(rng, dt, 32)))
			}
			apart, one := r.empty(0, dt, 48, 32), r.empty(0, dt, 48, 32)
			l, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Linear{Product: device.Product{Relu: true}}, Ins: ins, Outs: []device.View{one}})
			if errors.Is(err, device.ErrUnsupported) {
				r.Logf("%s, bias %v: %v", dt, bias, err)
				continue
			}
			r.must(err)
			r.must(r.mainOf(0).Launch(l))
			r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Linear{}, Ins: ins, Outs: []device.View{apart}})
			r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}, Ins: []device.View{apart}, Outs: []device.View{apart}})
			got, want := r.contents(0, one), r.contents(0, apart)
			r.equal(fmt.Sprintf("linear and relu of %s, bias %v", dt, bias), got, want)
			if !slices.Contains(got, 0) || slices.Max(got) == 0 {
				r.Errorf("%s: the relu changed no element, or it changed all elements", dt)
			}
		}
	}
}

// drawLinks draws up to five operations of a chain. The operand of most of them is the result of the previous
// operation.
func drawLinks(rng *rand.Rand, ins []device.View) []device.Link {
	ops := []ir.Op{ir.OpCast, ir.OpCast}
	for _, op := range ir.Ops() {
		_, is := pointwise.Of(op)
		if domain := op == ir.OpDiv || op == ir.OpExp || slices.Contains(positives, op); is && !domain && op.Info().MinArgs > 0 {
			ops = append(ops, op)
		}
	}
	var types []ir.DType
	var args []int
	for i, v := range ins {
		types, args = append(types, v.DType), append(args, i)
	}
	var links []device.Link
	for want := 2 + rng.IntN(4); len(links) < want; {
		op, a := ops[rng.IntN(len(ops))], len(args)-1
		if rng.IntN(3) == 0 {
			a = rng.IntN(len(args))
		}
		l := device.Link{Op: op, Args: []int{args[a]}, DType: types[a], Numbers: ir.Reals(-1.5, 2.5)}
		switch {
		case l.DType.IsInt() && op.Info().Floats:
			continue
		case l.DType.IsInt():
			l.Numbers = []ir.Number{ir.Whole(-3), ir.Whole(4)}
		}
		if op == ir.OpCast {
			l.DType = []ir.DType{ir.F32, ir.BF16, ir.F16, ir.I32}[rng.IntN(4)]
		}
		for len(l.Args) < op.Info().MinArgs {
			if b := rng.IntN(len(args)); types[b] == l.DType {
				l.Args = append(l.Args, args[b])
			}
		}
		types, args = append(types, l.DType), append(args, ^len(links))
		links = append(links, l)
	}
	return links
}

// fused runs one kernel with all operations of a chain, and a kernel for each operation, and compares the results.
func (r *rig) fused(what string, ins []device.View, op device.Chain, l layout) {
	r.Helper()
	shape := ins[0].Shape
	var results []device.View
	for _, link := range op.Links {
		v := r.empty(0, link.DType, shape...)
		k := device.Kernel{Op: device.OpOf(link.Op, ir.Attrs{Numbers: link.Numbers}), Outs: []device.View{v}}
		for _, a := range link.Args {
			if a < 0 {
				k.Ins = append(k.Ins, results[^a])
			} else {
				k.Ins = append(k.Ins, ins[a])
			}
		}
		r.launch(r.mainOf(0), 0, k)
		results = append(results, v)
	}
	stored := append(slices.Clone(op.Stored), len(op.Links)-1)
	var outs []device.View
	for _, i := range stored {
		outs = append(outs, r.room(0, device.Shared, l, op.Links[i].DType, shape))
	}
	r.launch(r.mainOf(0), 0, device.Kernel{Op: op, Ins: ins, Outs: outs})
	for k, i := range stored {
		r.equal(fmt.Sprintf("%s: link %d of %v", what, i, op.Links), r.contents(0, outs[k]), r.contents(0, results[i]))
	}
}

// testChainResults stores both results of a chain in the memory of its operands, exchanged, and checks that machines
// decline results that overlap, and refuse a wrong number of results.
func testChainResults(r *rig) {
	rng := seeded("results")
	x, y := random(rng, ir.BF16, 5000), random(rng, ir.BF16, 5000)
	negated := func(vals []float64) []float64 {
		want := make([]float64, len(vals))
		for i := range want {
			want[i] = -vals[i]
		}
		return want
	}
	op := device.Chain{Links: []device.Link{{Op: ir.OpNeg, Args: []int{0}, DType: ir.BF16},
		{Op: ir.OpNeg, Args: []int{1}, DType: ir.BF16}}, Stored: []int{0}}
	ins := []device.View{r.put(0, x), r.put(0, y)}
	r.launch(r.mainOf(0), 0, device.Kernel{Op: op, Ins: ins, Outs: []device.View{ins[1], ins[0]}})
	r.equal("-x in place of y", r.contents(0, ins[1]), negated(x.vals))
	r.equal("-y in place of x", r.contents(0, ins[0]), negated(y.vals))

	room := r.empty(0, ir.BF16, 5000)
	for _, v := range []*device.View{&ins[0], &ins[1], &room} {
		v.Shape = []int64{4000}
	}
	for what, outs := range map[string][]device.View{
		"two results in one place":           {room, room},
		"results that overlap":               {room, shift(room)},
		"a stored result across an operand":  {shift(ins[0]), room},
		"the last result across an operand":  {room, shift(ins[1])},
		"a stored result across the other's": {shift(ins[1]), ins[0]},
	} {
		if _, err := r.w.Device(0).Prepare(device.Kernel{Op: op, Ins: ins, Outs: outs}); !errors.Is(err, device.ErrUnsupported) {
			r.Errorf("%s: %v, want %v", what, err, device.ErrUnsupported)
		}
	}
	for _, outs := range [][]device.View{{room}, {room, ins[0], ins[1]}} {
		if _, err := r.w.Device(0).Prepare(device.Kernel{Op: op, Ins: ins, Outs: outs}); err == nil || errors.Is(err, device.ErrUnsupported) {
			r.Errorf("%d results of a chain with 2: %v", len(outs), err)
		}
	}
}

// shift returns a view of the same shape that begins one element later.
func shift(v device.View) device.View {
	v.Off += v.DType.Size()
	return v
}

// testChainInPlace stores a chain's results in the memory of an operand. This is permitted if each element of the
// result depends only on the same element of the operand; otherwise a machine must decline.
func testChainInPlace(r *rig) {
	rng := seeded("in place")
	x, y := random(rng, ir.BF16, 5000), random(rng, ir.BF16, 5000)
	links := []device.Link{{Op: ir.OpNeg, Args: []int{0}, DType: ir.BF16}, {Op: ir.OpAdd, Args: []int{^0, 1}, DType: ir.BF16}}
	want := make([]float64, len(x.vals))
	for i := range want {
		want[i] = y.vals[i] - x.vals[i]
	}
	for i := range 2 {
		ins := []device.View{r.put(0, x), r.put(0, y)}
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Chain{Links: links}, Ins: ins, Outs: []device.View{ins[i]}})
		r.near(fmt.Sprintf("in place of operand %d", i), r.contents(0, ins[i]), want, answer{vals: want}.bound(ir.BF16))
	}
	ins := []device.View{r.put(0, x), r.put(0, y)}
	shifted := ins[0]
	shifted.Off, shifted.Shape = 2, []int64{4999}
	for i := range ins {
		ins[i].Shape = shifted.Shape
	}
	k := device.Kernel{Op: device.Chain{Links: links}, Ins: ins, Outs: []device.View{shifted}}
	l, err := r.w.Device(0).Prepare(k)
	if errors.Is(err, device.ErrUnsupported) {
		return
	}
	r.must(err)
	r.must(r.mainOf(0).Launch(l))
	r.near("in place, one element on", r.contents(0, shifted), want[:4999], answer{vals: want[:4999]}.bound(ir.BF16))
}
