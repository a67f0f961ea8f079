package kernels

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// randomChain draws links over operands of the given types.
func randomChain(rng *rand.Rand, ins []ir.DType, length int) []device.Link {
	ops := []ir.Op{ir.OpCast, ir.OpCopy}
	for op, info := range elementwiseOps() {
		if info.MinArgs > 0 {
			ops = append(ops, op)
		}
	}
	types := slices.Clone(ins)
	args := make([]int, len(ins))
	for i := range args {
		args[i] = i
	}
	var links []device.Link
	for len(links) < length {
		l := device.Link{Op: ops[rng.IntN(len(ops))], Numbers: ir.Reals(-1.5, 2.5)}
		a := rng.IntN(len(args))
		if len(links) > 0 && rng.IntN(4) > 0 {
			a = len(args) - 1 // usually the operand is the result of the previous link
		}
		l.Args, l.DType = []int{args[a]}, types[a]
		if info := l.Op.Info(); info.Floats && l.DType.IsInt() {
			continue
		}
		var alike []int
		for i, dt := range types {
			if dt == l.DType {
				alike = append(alike, args[i])
			}
		}
		for len(l.Args) < l.Op.Info().MinArgs {
			l.Args = append(l.Args, alike[rng.IntN(len(alike))])
		}
		if l.Op == ir.OpCast {
			l.DType = ir.ArithmeticTypes()[rng.IntN(len(ir.ArithmeticTypes()))]
		}
		if l.DType.IsInt() {
			l.Numbers = someNumbers
		}
		types, args = append(types, l.DType), append(args, ^len(links))
		links = append(links, l)
	}
	return links
}

// TestChains computes random chains in one pass and link by link: all bits of all results must be equal.
func TestChains(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 15))
	b := newBench(t)
	cases := 120
	if testing.Short() {
		cases = 30
	}
	wide, more := 0, 0
	for n := range cases {
		shape, kinds := someShapes[rng.IntN(len(someShapes))], len(layouts)
		dense := n%10 == 0 // 16-bit types without gaps, so that pieces have 16 bytes
		if dense {
			shape, kinds = []int64{3, 16}, 1
		}
		var ins []Operand
		var types []ir.DType
		for range 1 + rng.IntN(3) {
			dt := ir.ArithmeticTypes()[rng.IntN(len(ir.ArithmeticTypes()))]
			if dense || rng.IntN(2) == 0 {
				dt = ir.BF16
			}
			v := noise(dt, shape...)
			if rng.IntN(2) == 0 {
				slices.Reverse(v.vals)
			}
			o := b.put(dt, layouts[rng.IntN(kinds)], v.vals, shape...)
			if !dense && len(shape) > 1 && rng.IntN(4) == 0 { // one row, repeated
				o.Strides = slices.Clone(o.Strides)
				o.Strides[0] = 0
			}
			ins, types = append(ins, o), append(types, dt)
		}
		links := randomChain(rng, types, 1+rng.IntN(6))
		at := func(arg int, results []Operand) Operand {
			if arg < 0 {
				return results[^arg]
			}
			return ins[arg]
		}
		var results []Operand
		for _, l := range links {
			p := Computation{Op: device.OpOf(l.Op, ir.Attrs{Numbers: l.Numbers}), Out: b.room(l.DType, layouts[0], shape...)}
			for _, a := range l.Args {
				p.Ins = append(p.Ins, at(a, results))
			}
			results = append(results, p.Out)
			b.add("link", p, func() {})
		}
		op := device.Chain{Links: links}
		var outs []Operand
		for i := range links {
			if i == len(links)-1 || rng.IntN(4) == 0 {
				outs = append(outs, b.room(links[i].DType, layouts[rng.IntN(min(kinds, 2))], shape...))
				op.Stored = append(op.Stored, i)
			}
		}
		more += len(outs) - 1
		op.Stored = op.Stored[:len(outs)-1]
		p := Computation{Op: op, Ins: ins, Out: outs[len(outs)-1], Stored: outs[:len(outs)-1]}
		what := fmt.Sprintf("chain %d, %s of %v, stored %v", n, device.Name(op), shape, op.Stored)
		b.add(what, p, func() {
			for r, link := range append(slices.Clone(op.Stored), len(links)-1) {
				size := outs[r].DType.Size()
				from, to := places(results[link]), places(outs[r])
				for i := range from {
					want, got := b.mem[from[i]:from[i]+size], b.mem[to[i]:to[i]+size]
					if !bytes.Equal(want, got) {
						t.Fatalf("%s: element %d of result %d is %x as a chain, %x link by link", what, i, r, got, want)
					}
				}
			}
		})
		if code := b.launches[len(b.launches)-1].code; strings.Contains(code.symbol, "v8") {
			wide++
		}
	}
	if wide == 0 {
		t.Error("no chain moves 16 bytes at a time")
	}
	if more < cases/2 {
		t.Errorf("%d chains store only %d results of earlier links", cases, more)
	}
	b.run()
}

// TestChainInPlace checks chains whose results are stored in the memory of operands: of one, and of two that the chain
// exchanges.
func TestChainInPlace(t *testing.T) {
	b := newBench(t)
	v := noise(ir.BF16, 5000)
	x := b.put(ir.BF16, layouts[0], v.vals, 5000)
	links := []device.Link{{Op: ir.OpNeg, Args: []int{0}, DType: ir.BF16}, {Op: ir.OpSub, Args: []int{0, ^0}, DType: ir.BF16}}
	b.add("in place", Computation{Op: device.Chain{Links: links}, Ins: []Operand{x}, Out: x}, func() {
		want := make([]float64, len(v.vals))
		for i, a := range v.vals {
			want[i] = 2 * a
		}
		same(t, "x - -x in place", b.vals(x), want, 0)
	})
	y, z := b.put(ir.BF16, layouts[0], v.vals, 5000), b.put(ir.BF16, layouts[0], repeatedValues(3, 5000), 5000)
	swap := []device.Link{{Op: ir.OpNeg, Args: []int{1}, DType: ir.BF16}, {Op: ir.OpNeg, Args: []int{0}, DType: ir.BF16}}
	b.add("exchange", Computation{Op: device.Chain{Links: swap, Stored: []int{0}}, Ins: []Operand{y, z}, Out: z,
		Stored: []Operand{y}}, func() {
		want := make([]float64, len(v.vals))
		for i, a := range v.vals {
			want[i] = -a
		}
		same(t, "-y in z", b.vals(z), want, 0)
		same(t, "-z in y", b.vals(y), repeatedValues(-3, 5000), 0)
	})
	b.run()
}

func repeatedValues(v float64, n int) []float64 { return slices.Repeat([]float64{v}, n) }

func TestChainRefused(t *testing.T) {
	x, i := op(ir.F32, 4, 8), op(ir.I32, 4, 8)
	link := func(op ir.Op, dt ir.DType, args ...int) device.Link {
		return device.Link{Op: op, DType: dt, Args: args}
	}
	two := func(stored ...int) device.Chain {
		return device.Chain{Links: []device.Link{link(ir.OpNeg, ir.F32, 0), link(ir.OpNeg, ir.F32, ^0)}, Stored: stored}
	}
	for want, p := range map[string]Computation{
		"no operand 1":                                     {Op: device.Chain{Links: []device.Link{link(ir.OpNeg, ir.F32, 1)}}},
		"no operand -1":                                    {Op: device.Chain{Links: []device.Link{link(ir.OpNeg, ir.F32, ^0)}}},
		"1 operands, but needs 2":                          {Op: device.Chain{Links: []device.Link{link(ir.OpAdd, ir.F32, 0)}}},
		"not elementwise":                                  {Op: device.Chain{Links: []device.Link{link(ir.OpSoftmax, ir.F32, 0)}}},
		"the result has type bf16":                         {Op: device.Chain{Links: []device.Link{link(ir.OpNeg, ir.BF16, 0)}}},
		"the result has type f32":                          {Op: device.Chain{Links: []device.Link{link(ir.OpCast, ir.BF16, 0)}}},
		"not defined for i32":                              {Op: device.Chain{Links: []device.Link{link(ir.OpExp, ir.I32, 1)}}, Ins: []Operand{x, i}},
		"different types, f32 and i":                       {Op: device.Chain{Links: []device.Link{link(ir.OpAdd, ir.F32, 0, 1)}}, Ins: []Operand{x, i}},
		"has shape [4]":                                    {Op: device.Chain{Links: []device.Link{link(ir.OpNeg, ir.F32, 0)}}, Ins: []Operand{op(ir.F32, 4)}},
		"1 results are given for 0 stored links":           {Op: two(), Stored: []Operand{x}},
		"0 results are given for 1 stored links":           {Op: two(0)},
		"result 0 is of link 2 of 2":                       {Op: two(2), Stored: []Operand{x}},
		"result 1 is of link 1 of 2":                       {Op: two(1), Stored: []Operand{x}},
		"result 1 is of link 0 of 2":                       {Op: two(0, 0), Stored: []Operand{x, x}},
		"link 0 computes f32, but the result has type i32": {Op: two(0), Stored: []Operand{i}},
		"result 0 has shape [4]":                           {Op: two(0), Stored: []Operand{op(ir.F32, 4)}},
	} {
		if p.Ins == nil {
			p.Ins = []Operand{x}
		}
		p.Out = x
		l := New(&fake{version: "1"}, nil)
		_, err := l.Steps(Target{Arch: "sm_90"}, p)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if unsupported := want == "not elementwise"; errors.Is(err, device.ErrUnsupported) != unsupported {
			t.Errorf("%q: unsupported is %v", want, !unsupported)
		}
	}
}
