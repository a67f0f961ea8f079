package devicetest

import (
	"fmt"
	"math"
	"math/cmplx"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// epsilon is twice the largest relative error of one rounding to dt, because a machine may round twice. Integers are
// exact.
func epsilon(dt ir.DType) float64 {
	switch dt {
	case ir.F32:
		return 0x1p-23
	case ir.F16:
		return 0x1p-10
	case ir.BF16:
		return 0x1p-7
	case ir.F64:
		return 0x1p-52
	}
	return 0
}

// answer is an expected result in float64. If the result is a sum, answer has the number of terms and the sum of their
// magnitudes.
type answer struct {
	vals, size []float64
	terms      int64
}

// bound returns the largest permitted error of a result. It includes the accumulator's errors, which grow with the
// number of terms, one rounding of the result, and the error of a subnormal result.
func (a answer) bound(dt ir.DType) []float64 {
	tiny := map[ir.DType]float64{ir.F16: 0x1p-24, ir.BF16: 0x1p-133, ir.F32: 0x1p-149}[dt]
	b := make([]float64, len(a.vals))
	for i, v := range a.vals {
		b[i] = epsilon(dt)*math.Abs(v) + tiny
		if a.size != nil {
			b[i] += float64(a.terms+2) * epsilon(dt.Accum()) * a.size[i]
		}
	}
	return b
}

// check runs kernel k on operands in the given layout and compares the result with the expected one.
func (r *rig) check(what string, k device.Kernel, l layout, want answer, dt ir.DType, shape []int64, ins ...host) {
	r.Helper()
	for _, in := range ins {
		k.Ins = append(k.Ins, r.put(0, in, l))
	}
	out := r.room(0, device.Private, l, dt, shape)
	k.Outs = []device.View{out}
	r.launch(r.mainOf(0), 0, k)
	got := r.contents(0, out)
	for i, v := range want.vals {
		want.vals[i] = tensor.Round(dt, v)
	}
	r.near(fmt.Sprintf("%s of %s%v, %s", what, dt, shape, l.name), got, want.vals, want.bound(dt))
	for _, v := range k.Ins {
		r.must(v.Mem.Free())
	}
	r.must(out.Mem.Free())
}

// each runs f for every dtype and layout, with a subtest for each dtype.
func (r *rig) each(f func(r *rig, dt ir.DType, l layout)) {
	r.types(1, func(r *rig, dt ir.DType) {
		for _, l := range layouts {
			f(r, dt, l)
		}
	})
}

// types runs f as a subtest for every dtype, one after another in one world, or concurrently in separate worlds.
func (r *rig) types(ranks int, f func(r *rig, dt ir.DType)) {
	if !r.beside {
		r.open(ranks)
	}
	for _, dt := range r.dtypes() {
		r.sub(dt.String(), func(r *rig) {
			if r.beside {
				r.Parallel()
				r.open(ranks)
			}
			f(r, dt)
		})
	}
}

// elementCase is an elementwise operation, which its field f or three computes in float64. numbers holds the
// operation's numeric attributes, if it has any.
type elementCase struct {
	op      ir.Op
	args    int
	numbers []float64
	f       func(a, b float64) float64
	three   func(a, b, c float64) float64
}

var pointwises = []elementCase{
	{op: ir.OpAdd, args: 2, f: func(a, b float64) float64 { return a + b }},
	{op: ir.OpSub, args: 2, f: func(a, b float64) float64 { return a - b }},
	{op: ir.OpMul, args: 2, f: func(a, b float64) float64 { return a * b }},
	{op: ir.OpNeg, args: 1, f: func(a, _ float64) float64 { return -a }},
	{op: ir.OpScale, args: 1, numbers: []float64{3}, f: func(a, _ float64) float64 { return a * 3 }},
	{op: ir.OpRelu, args: 1, f: func(a, _ float64) float64 { return max(a, 0) }},
	{op: ir.OpClamp, args: 1, numbers: []float64{-2, 3}, f: func(a, _ float64) float64 { return min(max(a, -2), 3) }},
	{op: ir.OpCopy, args: 1, f: func(a, _ float64) float64 { return a }},
	{op: ir.OpExpand, args: 1, f: func(a, _ float64) float64 { return a }},
	{op: ir.OpFill, args: 0, numbers: []float64{-5}, f: func(_, _ float64) float64 { return -5 }},
	{op: ir.OpAbs, args: 1, f: func(a, _ float64) float64 { return math.Abs(a) }},
	{op: ir.OpMaximum, args: 2, f: func(a, b float64) float64 { return math.Max(a, b) }},
	{op: ir.OpMinimum, args: 2, f: func(a, b float64) float64 { return math.Min(a, b) }},
	{op: ir.OpLess, args: 2, f: func(a, b float64) float64 { return flag(a < b) }},
	{op: ir.OpLessEqual, args: 2, f: func(a, b float64) float64 { return flag(a <= b) }},
	{op: ir.OpGreater, args: 2, f: func(a, b float64) float64 { return flag(a > b) }},
	{op: ir.OpGreaterEqual, args: 2, f: func(a, b float64) float64 { return flag(a >= b) }},
	{op: ir.OpEqual, args: 2, f: func(a, b float64) float64 { return flag(a == b) }},
	{op: ir.OpNotEqual, args: 2, f: func(a, b float64) float64 { return flag(a != b) }},
	{op: ir.OpWhere, args: 3, three: func(a, b, c float64) float64 {
		if a == 0 {
			return c
		}
		return b
	}},
}

func flag(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

func (p elementCase) of(ins []host, n int64) answer {
	a := answer{vals: make([]float64, n)}
	for i := range a.vals {
		var x [3]float64
		for j, in := range ins {
			x[j] = in.vals[i]
		}
		if p.three != nil {
			a.vals[i] = p.three(x[0], x[1], x[2])
			continue
		}
		a.vals[i] = p.f(x[0], x[1])
	}
	return a
}

func testElementwise(r *rig) {
	for _, op := range ir.Ops() {
		tested := func(p elementCase) bool { return p.op == op }
		if _, is := pointwise.Of(op); is && !slices.ContainsFunc(pointwises, tested) && !slices.ContainsFunc(functions, tested) {
			r.Errorf("there is no test case of %s", op)
		}
	}
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, shape := range append(someShapes, []int64{70001}) {
			if elements(shape) > 70000 && l.name != "dense" {
				continue
			}
			for _, p := range pointwises {
				rng := seeded(dt, shape, p.op)
				var ins []host
				for range p.args {
					ins = append(ins, random(rng, dt, shape...))
				}
				var numbers []ir.Number
				for _, n := range p.numbers {
					numbers = append(numbers, ir.Whole(int64(n)))
				}
				k := device.Kernel{Op: device.OpOf(p.op, ir.Attrs{Numbers: numbers})}
				r.check(p.op.String(), k, l, p.of(ins, elements(shape)), dt, shape, ins...)
			}
		}
	})
}

// positives lists the functions that are computed only for positive numbers.
var positives = []ir.Op{ir.OpPow, ir.OpReciprocal, ir.OpLog, ir.OpSqrt, ir.OpRsqrt}

// functions lists the floating-point functions, in float64.
var functions = []elementCase{
	{op: ir.OpGelu, args: 1, f: func(a, _ float64) float64 { return a / 2 * (1 + math.Erf(a/math.Sqrt2)) }},
	{op: ir.OpSilu, args: 1, f: func(a, _ float64) float64 { return a / (1 + math.Exp(-a)) }},
	{op: ir.OpSoftplus, args: 1, f: func(a, _ float64) float64 { return math.Log1p(math.Exp(-math.Abs(a))) + max(a, 0) }},
	{op: ir.OpExp, args: 1, f: func(a, _ float64) float64 { return math.Exp(a) }},
	{op: ir.OpRsqrt, args: 1, f: func(a, _ float64) float64 { return 1 / math.Sqrt(a) }},
	{op: ir.OpDiv, args: 2, f: func(a, b float64) float64 { return a / b }},
	{op: ir.OpTanh, args: 1, f: func(a, _ float64) float64 { return math.Expm1(2*a) / (math.Expm1(2*a) + 2) }},
	{op: ir.OpGeluTanh, args: 1, f: func(a, _ float64) float64 {
		return a / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*math.Pow(a, 3))))
	}},
	{op: ir.OpSigmoid, args: 1, f: func(a, _ float64) float64 { return (1 + math.Tanh(a/2)) / 2 }},
	{op: ir.OpSqrt, args: 1, f: func(a, _ float64) float64 { return math.Exp(math.Log(a) / 2) }},
	{op: ir.OpSin, args: 1, f: func(a, _ float64) float64 { return imag(cmplx.Exp(complex(0, a))) }},
	{op: ir.OpCos, args: 1, f: func(a, _ float64) float64 { return real(cmplx.Exp(complex(0, a))) }},
	{op: ir.OpErf, args: 1, f: func(a, _ float64) float64 { return math.Erf(a) }},
	{op: ir.OpLog, args: 1, f: func(a, _ float64) float64 { return math.Log10(a) * math.Ln10 }},
	{op: ir.OpFloor, args: 1, f: func(a, _ float64) float64 { return -math.Ceil(-a) }},
	{op: ir.OpReciprocal, args: 1, f: func(a, _ float64) float64 { return math.Exp(-math.Log(a)) }},
	{op: ir.OpPow, args: 1, numbers: []float64{3}, f: func(a, _ float64) float64 { return a * a * a }},
}

func testFunctions(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, p := range functions {
			if dt.IsInt() {
				k := device.Kernel{Op: device.OpOf(p.op, ir.Attrs{Numbers: ir.Reals(p.numbers...)}), Outs: []device.View{r.empty(0, dt, 3)}}
				for range p.args {
					k.Ins = append(k.Ins, r.empty(0, dt, 3))
				}
				_, err := r.w.Device(0).Prepare(k)
				r.refused(p.op.String()+" of integers", err)
				continue
			}
			a, b := random(seeded(dt, p.op), dt, 300), random(seeded(dt, p.op, 2), dt, 300)
			copy(a.vals, []float64{0, 1, -1, 30, -30})
			for i := range a.vals {
				if slices.Contains(positives, p.op) {
					a.vals[i] = tensor.Round(dt, math.Abs(a.vals[i])+0.125)
				}
				if b.vals[i] == 0 {
					b.vals[i] = 1
				}
			}
			if p.op == ir.OpExp && dt == ir.F16 {
				a.vals[3] = 10 // exp(10) is within the range of f16
			}
			ins := []host{a, b}[:p.args]
			want := p.of(ins, 300)
			want.size, want.terms = make([]float64, 300), 4
			for i, y := range want.vals {
				want.size[i] = max(math.Abs(y), math.Abs(a.vals[i]))
			}
			r.check(p.op.String(), device.Kernel{Op: device.OpOf(p.op, ir.Attrs{Numbers: ir.Reals(p.numbers...)})}, l, want, dt, []int64{300}, ins...)
		}
	})
}

// testExpand checks operands with strides of 0, which repeat one element or one row.
func testExpand(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		x := random(seeded(dt), dt, 3, 5)
		in, out := r.put(0, x, l), r.room(0, device.Private, l, dt, []int64{4, 3, 5})
		in.Shape, in.Strides = []int64{4, 3, 5}, append([]int64{0}, in.Strides...)
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Copy{Op: ir.OpExpand}, Ins: []device.View{in}, Outs: []device.View{out}})
		var want []float64
		for range 4 {
			want = append(want, x.vals...)
		}
		r.equal("broadcast of rows", r.contents(0, out), want)
		in.Strides, want = []int64{0, 0, 0}, nil
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Copy{Op: ir.OpExpand}, Ins: []device.View{in}, Outs: []device.View{out}})
		for range 60 {
			want = append(want, x.vals[0])
		}
		r.equal("broadcast of one element", r.contents(0, out), want)
	})
}

func testCast(r *rig) {
	r.open(1)
	vals := []float64{0, 1, -1, 0.5, 1.5, 2.5, -2.5, 255, 257, 258.5, 1e-3, -1e-8, 65504, 65520, 1e5, -1e20, 2147483647, -2147483649, 3e9, 1 << 40,
		16777217, 1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-30, 1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 0x1p-24, 0x1p-25, math.Inf(1), math.Inf(-1), math.NaN()}
	for _, from := range r.allTypes() {
		in := given(from, []int64{2, int64(len(vals)) / 2})
		for _, v := range vals {
			in.vals = append(in.vals, tensor.Round(from, v))
		}
		for _, to := range r.allTypes() {
			want := answer{}
			for _, v := range in.vals {
				want.vals = append(want.vals, tensor.Round(to, v))
			}
			for _, l := range layouts {
				out := r.room(0, device.Private, l, to, in.shape)
				r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Cast{}, Ins: []device.View{r.put(0, in, l)}, Outs: []device.View{out}})
				r.equal(fmt.Sprintf("%s to %s, %s", from, to, l.name), r.contents(0, out), want.vals)
			}
		}
	}
}

// axesCases lists shapes with the axes to reduce. The order of the axes must not change the result.
var axesCases = []struct {
	shape []int64
	axes  []int
}{
	{[]int64{7}, []int{0}}, {[]int64{5000}, []int{0}}, {[]int64{6, 5}, []int{0}}, {[]int64{6, 5}, []int{1}}, {[]int64{6, 5}, []int{1, 0}},
	{[]int64{3, 4, 5}, []int{1}}, {[]int64{3, 4, 5}, []int{0, 2}}, {[]int64{3, 4, 5}, []int{2, 1}}, {[]int64{1, 1}, []int{1}},
	{[]int64{2, 3}, nil}, {[]int64{0, 3}, []int{0}}, {[]int64{3, 0}, []int{0}}, {[]int64{4, 3000}, []int{0}}, {[]int64{3000, 4}, []int{0}},
	{[]int64{37, 700}, []int{0}}, {[]int64{1300, 37}, []int{1}}, {[]int64{1, 2050}, []int{1}}, {[]int64{9, 2, 70, 3}, []int{3, 1}},
}

func testAxes(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range axesCases {
			in := random(seeded(dt, c.shape), dt, c.shape...)
			for i := range in.vals {
				in.vals[i] = tensor.Round(dt, in.vals[i]/4)
			}
			for _, op := range []ir.Op{ir.OpSum, ir.OpMax, ir.OpMin, ir.OpMean} {
				if op == ir.OpMean && dt.IsInt() {
					continue
				}
				want, shape := overAxes(op, in, c.axes)
				r.check(fmt.Sprintf("%s over %v of %v", op, c.axes, c.shape), device.Kernel{Op: device.OpOf(op, ir.Attrs{Axes: c.axes})}, l, want, dt, shape, in)
			}
		}
	})
}

func overAxes(op ir.Op, in host, axes []int) (answer, []int64) {
	gone := map[int]bool{}
	for _, a := range axes {
		gone[a] = true
	}
	var shape []int64
	terms := int64(1)
	for i, e := range in.shape {
		if gone[i] {
			terms *= e
		} else {
			shape = append(shape, e)
		}
	}
	n := elements(shape)
	want := answer{vals: make([]float64, n), size: make([]float64, n), terms: terms}
	for i := range want.vals {
		switch op {
		case ir.OpMax:
			want.vals[i] = math.Inf(-1)
		case ir.OpMin:
			want.vals[i] = math.Inf(1)
		}
	}
	for i, v := range in.vals {
		at, step, rest := int64(0), int64(1), int64(i)
		for a := len(in.shape) - 1; a >= 0; a-- {
			if !gone[a] {
				at += rest % in.shape[a] * step
				step *= in.shape[a]
			}
			rest /= in.shape[a]
		}
		switch op {
		case ir.OpMax:
			want.vals[at] = max(want.vals[at], v)
		case ir.OpMin:
			want.vals[at] = min(want.vals[at], v)
		default:
			want.vals[at] += v
			want.size[at] += math.Abs(v)
		}
	}
	for i := range want.vals {
		if op == ir.OpMean {
			want.vals[i] /= float64(terms)
			want.size[i] /= float64(max(terms, 1))
		}
	}
	return want, shape
}

// product computes a[m, d] · b[n, d]ᵀ (+ bias) in float64, and stores it in c.
func product(c, size []float64, a, b func(i, k int64) float64, bias []float64, m, n, d int64) {
	for i := range m {
		for j := range n {
			var sum, mag float64
			for k := range d {
				p := float64(a(i, k) * b(j, k))
				sum += p
				mag += math.Abs(p)
			}
			if bias != nil {
				sum += bias[j]
				mag += math.Abs(bias[j])
			}
			c[i*n+j], size[i*n+j] = sum, mag
		}
	}
}

func testLinear(r *rig) {
	cases := []struct {
		lead []int64
		k, n int64
	}{
		{[]int64{1}, 1, 1}, {[]int64{3}, 5, 2}, {[]int64{2, 3}, 17, 9}, {nil, 4, 3}, {[]int64{65}, 33, 130}, {[]int64{130}, 70, 65},
		{[]int64{0}, 4, 3}, {[]int64{3}, 0, 2}, {[]int64{3}, 4, 0}, {[]int64{2}, 1500, 3},
	}
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range cases {
			rng := seeded(dt, c)
			x := random(rng, dt, append(append([]int64{}, c.lead...), c.k)...)
			w, bias := random(rng, dt, c.n, c.k), random(rng, dt, c.n)
			shape := append(append([]int64{}, c.lead...), c.n)
			for _, ins := range [][]host{{x, w}, {x, w, bias}} {
				total := elements(shape)
				want := answer{vals: make([]float64, total), size: make([]float64, total), terms: c.k}
				var add []float64
				if len(ins) == 3 {
					add = bias.vals
				}
				product(want.vals, want.size, rows(x, c.k), rows(w, c.k), add, elements(c.lead), c.n, c.k)
				r.check("linear", device.Kernel{Op: device.Linear{}}, l, want, dt, shape, ins...)
			}
		}
	})
}

func rows(h host, width int64) func(i, k int64) float64 {
	return func(i, k int64) float64 { return h.vals[i*width+k] }
}

func testMatmul(r *rig) {
	type size struct{ b, m, k, n int64 }
	sizes := []size{{1, 1, 1, 1}, {1, 3, 5, 7}, {4, 9, 6, 2}, {3, 0, 4, 5}, {2, 3, 0, 4}, {0, 2, 2, 2}, {1, 66, 20, 129}}
	r.each(func(r *rig, dt ir.DType, l layout) {
		for i, s := range sizes {
			for t := range 4 {
				ta, tb := t&1 != 0, t&2 != 0
				rng := seeded(dt, s)
				a, b := stored(s.b, s.m, s.k, ta), stored(s.b, s.k, s.n, tb)
				shape := []int64{s.b, s.m, s.n}
				if i%3 == 1 { // no batch axis
					a, b, shape = a[1:], b[1:], shape[1:]
				}
				if i%3 == 2 { // two batch axes
					a, b, shape = append([]int64{1}, a...), append([]int64{1}, b...), append([]int64{1}, shape...)
				}
				if elements(shape[:len(shape)-2]) != s.b {
					s.b = 1
				}
				x, y := random(rng, dt, a...), random(rng, dt, b...)
				want := batched(x, y, s.b, s.m, s.k, s.n, ta, tb)
				r.check(fmt.Sprintf("matmul ta=%v tb=%v", ta, tb), device.Kernel{Op: device.Matmul{TA: ta, TB: tb}}, l, want, dt, shape, x, y)
			}
		}
	})
}

func stored(b, m, n int64, transposed bool) []int64 {
	if transposed {
		m, n = n, m
	}
	return []int64{b, m, n}
}

func batched(x, y host, batch, m, d, n int64, ta, tb bool) answer {
	want := answer{vals: make([]float64, batch*m*n), size: make([]float64, batch*m*n), terms: d}
	for b := range batch {
		a := func(i, k int64) float64 { return x.vals[b*m*d+pick(ta, i, k, m, d)] }
		c := func(j, k int64) float64 { return y.vals[b*d*n+pick(tb, k, j, d, n)] }
		product(want.vals[b*m*n:], want.size[b*m*n:], a, c, nil, m, n, d)
	}
	return want
}

// pick returns the index of element (i, j) of an m×n matrix in memory.
func pick(transposed bool, i, j, m, n int64) int64 {
	if transposed {
		return j*m + i
	}
	return i*n + j
}

func testReductions(r *rig) {
	ranks := r.some(3)
	r.types(ranks, func(r *rig, dt ir.DType) {
		for _, shape := range [][]int64{{0}, {1}, {3, 5}, {40001}} {
			for _, red := range []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg} {
				for n := 1; n <= 5; n++ {
					if elements(shape) > 40000 && n != 3 {
						continue
					}
					r.reduce(dt, shape, red, n, ranks, layouts[n%len(layouts)])
				}
			}
		}
	})
}

// reduce reduces n operands on different ranks; the result replaces the last operand on rank 0.
func (r *rig) reduce(dt ir.DType, shape []int64, red ir.Red, n, ranks int, l layout) {
	r.Helper()
	rng := seeded(dt, shape, red, n)
	k := device.Kernel{Op: device.ReduceOperands{Red: red}}
	var ins []host
	for i := range n {
		ins = append(ins, random(rng, dt, shape...))
		rank := i % ranks
		k.Ins = append(k.Ins, r.put(rank, ins[i], l))
		if rank == 0 {
			k.Outs = k.Ins[i:]
		}
	}
	k.Outs = k.Outs[:1]
	want := joined(red, ins)
	r.sync()
	r.launch(r.mainOf(0), 0, k)
	got := r.contents(0, k.Outs[0])
	for i := range want.vals {
		want.vals[i] = tensor.Round(dt, want.vals[i])
	}
	r.near(fmt.Sprintf("%s of %d × %s%v", red, n, dt, shape), got, want.vals, want.bound(dt))
	for _, v := range k.Ins {
		r.must(v.Mem.Free())
	}
}

func joined(red ir.Red, ins []host) answer {
	a := answer{vals: append([]float64(nil), ins[0].vals...), size: make([]float64, len(ins[0].vals)), terms: int64(len(ins))}
	for i := range a.vals {
		a.size[i] = math.Abs(a.vals[i])
		for _, in := range ins[1:] {
			v := in.vals[i]
			switch red {
			case ir.Max:
				a.vals[i] = max(a.vals[i], v)
			case ir.Min:
				a.vals[i] = min(a.vals[i], v)
			default:
				a.vals[i] += v
			}
			a.size[i] += math.Abs(v)
		}
		if red == ir.Avg {
			a.vals[i] /= float64(len(ins))
			if ins[0].dt.IsInt() {
				a.vals[i] = math.Trunc(a.vals[i])
			}
		}
	}
	return a
}

// testInPlace stores an elementwise result in the memory of an operand.
func testInPlace(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		rng := seeded(dt, l.name)
		x, y := signs(rng, dt, 61, 67), signs(rng, dt, 61, 67)
		a, b := r.put(0, x, l), r.put(0, y, l)
		s := r.mainOf(0)
		r.launch(s, 0, device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{a, b}, Outs: []device.View{b}})
		r.launch(s, 0, device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{b}, Outs: []device.View{b}})
		want := make([]float64, len(x.vals))
		for i := range want {
			want[i] = -(x.vals[i] + y.vals[i])
		}
		r.equal("in place", r.contents(0, b), want)
	})
}

func testNotNumbers(r *rig) {
	r.open(1)
	nan, inf := math.NaN(), math.Inf(1)
	for _, dt := range r.dtypes() {
		if dt.IsInt() {
			continue
		}
		dense := layouts[0]
		x := given(dt, []int64{4}, nan, -1, inf, -inf)
		y := given(dt, []int64{4}, 1, nan, 1, inf)
		r.check("relu", device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}}, dense, answer{vals: []float64{nan, 0, inf, 0}}, dt, x.shape, x)
		r.check("add", device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}}, dense, answer{vals: []float64{nan, nan, inf, nan}}, dt, x.shape, x, y)
		r.check("max", device.Kernel{Op: device.ReduceAxes{Op: ir.OpMax, Axes: []int{0}}}, dense, answer{vals: []float64{nan}}, dt, nil, x)
		r.check("sum", device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}}, dense, answer{vals: []float64{nan}}, dt, nil, y)
		for _, red := range []ir.Red{ir.Max, ir.Min} {
			k := device.Kernel{Op: device.ReduceOperands{Red: red}}
			hi := map[bool]float64{true: inf, false: 1}[red == ir.Max]
			lo := map[bool]float64{true: inf, false: -inf}[red == ir.Max]
			r.check("all "+red.String(), k, dense, answer{vals: []float64{nan, nan, hi, lo}}, dt, x.shape, x, y)
		}
		// A factor of zero must not hide a NaN: 0·NaN is NaN.
		zero := given(dt, []int64{1, 2}, 0, 1)
		w := given(dt, []int64{2, 2}, nan, 1, 3, inf)
		r.check("linear", device.Kernel{Op: device.Linear{}}, dense, answer{vals: []float64{nan, inf}}, dt, []int64{1, 2}, zero, w)
	}
}

func testIntegersWrap(r *rig) {
	r.open(1)
	for _, dt := range r.dtypes() {
		if dt != ir.I32 {
			continue
		}
		big := given(dt, []int64{2}, 1<<31-1, -1<<31)
		dense := layouts[0]
		r.exactly("add", device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}}, dense, dt, big.shape, []float64{-2, 0}, big, big)
		r.exactly("neg", device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}}, dense, dt, big.shape, []float64{-(1<<31 - 1), -1 << 31}, big)
		r.exactly("scale", device.Kernel{Op: device.Elementwise{Op: ir.OpScale, Numbers: ir.Reals(2)}}, dense, dt, big.shape, []float64{-2, 0}, big)
		r.exactly("sum", device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}}, dense, dt, nil, []float64{-1}, big)
		r.exactly("max of nothing", device.Kernel{Op: device.ReduceAxes{Op: ir.OpMax, Axes: []int{0}}}, dense, dt, nil, []float64{-1 << 31}, given(dt, []int64{0}))
		r.exactly("linear", device.Kernel{Op: device.Linear{}}, dense, dt, []int64{1}, []float64{1}, big, given(dt, []int64{1, 2}, 1<<31-1, -1<<31))
		r.exactly("all sum", device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}}, dense, dt, big.shape, []float64{1<<31 - 3, -1 << 31}, big, big, big)
	}
}

// exactly is like check, for expected results that need no rounding.
func (r *rig) exactly(what string, k device.Kernel, l layout, dt ir.DType, shape []int64, want []float64, ins ...host) {
	r.Helper()
	r.check(what, k, l, answer{vals: want}, dt, shape, ins...)
}

func testBadKernels(r *rig) {
	r.open(1)
	v := func(dt ir.DType, shape ...int64) device.View { return r.empty(0, dt, shape...) }
	f, g := v(ir.F32, 2, 3), v(ir.F32, 3, 2)
	twice := f
	twice.Strides = []int64{0, 1}
	views := func(vs ...device.View) []device.View { return vs }
	bad := map[string]device.Kernel{
		"no result":          {Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(f)},
		"two results":        {Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(f), Outs: views(f, f)},
		"no operand":         {Op: device.Elementwise{Op: ir.OpNeg}, Outs: views(f)},
		"too many operands":  {Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(f, f), Outs: views(f)},
		"another shape":      {Op: device.Elementwise{Op: ir.OpAdd}, Ins: views(f, g), Outs: views(f)},
		"another type":       {Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(v(ir.I32, 2, 3)), Outs: views(f)},
		"written twice":      {Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(f), Outs: views(twice)},
		"copy another shape": {Op: device.Copy{Op: ir.OpCopy}, Ins: views(g), Outs: views(f)},
		"cast another shape": {Op: device.Cast{}, Ins: views(v(ir.I32, 7)), Outs: views(f)},
		"axis too large":     {Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{2}}, Ins: views(f), Outs: views(v(ir.F32, 2))},
		"axis negative":      {Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{-1}}, Ins: views(f), Outs: views(v(ir.F32, 2))},
		"axis twice":         {Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{1, 1}}, Ins: views(f), Outs: views(v(ir.F32, 2))},
		"wrong axis":         {Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}, Ins: views(f), Outs: views(v(ir.F32, 2))},
		"linear K":           {Op: device.Linear{}, Ins: views(f, g), Outs: views(v(ir.F32, 2, 3))},
		"linear N":           {Op: device.Linear{}, Ins: views(f, f), Outs: views(v(ir.F32, 2, 3))},
		"linear bias":        {Op: device.Linear{}, Ins: views(f, f, v(ir.F32, 3)), Outs: views(v(ir.F32, 2, 2))},
		"matmul K":           {Op: device.Matmul{}, Ins: views(f, f), Outs: views(v(ir.F32, 2, 3))},
		"matmul ranks":       {Op: device.Matmul{}, Ins: views(v(ir.F32, 1, 2, 3), g), Outs: views(v(ir.F32, 1, 2, 2))},
		"matmul vectors":     {Op: device.Matmul{}, Ins: views(v(ir.F32, 3), v(ir.F32, 3)), Outs: views(v(ir.F32))},
		"half an integer":    {Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(0.5)}, Outs: views(v(ir.I32, 2))},
		"softmax axis":       {Op: device.Softmax{Axis: 2}, Ins: views(f), Outs: views(f)},
		"softmax no axis":    {Op: device.Softmax{Axis: -1}, Ins: views(f), Outs: views(f)},
		"norm weight":        {Op: device.RMSNorm{}, Ins: views(f, v(ir.F32, 2)), Outs: views(f)},
		"norm bias missing":  {Op: device.LayerNorm{}, Ins: views(f, v(ir.F32, 3)), Outs: views(f)},
		"attention heads":    {Op: device.Attention{}, Ins: views(v(ir.F32, 1, 3, 4), v(ir.F32, 1, 2, 4), v(ir.F32, 1, 2, 4)), Outs: views(v(ir.F32, 1, 3, 4))},
		"gradient weight":    {Op: device.NormGrad{Op: ir.OpRMSNormDX}, Ins: views(f, v(ir.F32, 2), f), Outs: views(f)},
		"gradient of norm":   {Op: device.NormGrad{Op: ir.OpRMSNormDW}, Ins: views(f, v(ir.F32, 2)), Outs: views(v(ir.F32, 2))},
		"gradient heads":     {Op: device.AttentionGrad{Op: ir.OpAttentionLSE}, Ins: views(v(ir.F32, 1, 3, 4), v(ir.F32, 1, 2, 4)), Outs: views(v(ir.F32, 1, 3))},
		"gradient operands":  {Op: device.AttentionGrad{Op: ir.OpAttentionDQ}, Ins: views(v(ir.F32, 1, 2, 4), v(ir.F32, 1, 2, 4)), Outs: views(v(ir.F32, 1, 2, 4))},
		"gradient of rows":   {Op: device.AttentionGrad{Op: ir.OpAttentionLSE}, Ins: views(v(ir.BF16, 1, 2, 4), v(ir.BF16, 1, 2, 4)), Outs: views(v(ir.BF16, 1, 2))},
		"attention blind":    {Op: device.Attention{Causal: true}, Ins: views(v(ir.F32, 2, 1, 4), v(ir.F32, 1, 1, 4), v(ir.F32, 1, 1, 4)), Outs: views(v(ir.F32, 2, 1, 4))},
		"index_add ids":      {Op: device.IndexAdd{Rows: 2}, Ins: views(v(ir.F32, 2, 3), v(ir.F32, 2)), Outs: views(v(ir.F32, 2, 3))},
		"index_add part":     {Op: device.IndexAdd{First: 1, Rows: 2}, Ins: views(v(ir.F32, 2, 3), v(ir.I32, 2)), Outs: views(v(ir.F32, 2, 3))},
		"embedding ids":      {Op: device.Embedding{Rows: 2}, Ins: views(v(ir.F32, 2), f), Outs: views(v(ir.F32, 2, 3))},
		"embedding part":     {Op: device.Embedding{First: 1, Rows: 2}, Ins: views(v(ir.I32, 2), f), Outs: views(v(ir.F32, 2, 3))},
		"concat rows":        {Op: device.Concat{Axis: 0}, Ins: views(f, f), Outs: views(f)},
		"concat shapes":      {Op: device.Concat{Axis: 0}, Ins: views(f, g), Outs: views(v(ir.F32, 5, 3))},
		"slots type":         {Op: device.ReduceSlots{Axis: 0}, Ins: views(f), Outs: views(v(ir.F64, 3))},
		"slots resumed":      {Op: device.ReduceSlots{Axis: 0}, Ins: views(f, v(ir.F32, 2)), Outs: views(v(ir.F32, 3))},
		"slots axis":         {Op: device.ReduceSlots{Axis: 2}, Ins: views(f), Outs: views(v(ir.F32, 2))},
		"mean of integers":   {Op: device.ReduceAxes{Op: ir.OpMean, Axes: []int{0}}, Ins: views(v(ir.I32, 2)), Outs: views(v(ir.I32))},
		"reduce nothing":     {Op: device.ReduceOperands{Red: ir.Sum}, Outs: views(f)},
		"reduce shapes":      {Op: device.ReduceOperands{Red: ir.Sum}, Ins: views(f, g), Outs: views(f)},
		"unknown reduction":  {Op: device.ReduceOperands{Red: 77}, Ins: views(f), Outs: views(f)},
		"no kernel":          {Op: device.Elementwise{Op: ir.OpWait}, Ins: views(f), Outs: views(f)},
		"no op":              {Ins: views(f), Outs: views(f)},
	}
	for name, k := range bad {
		_, err := r.w.Device(0).Prepare(k)
		r.refused(name, err)
	}
	l, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: views(f), Outs: views(f)})
	r.must(err)
	l.Release()
	r.refused("a launch released", r.mainOf(0).Launch(l))
	r.refused("no launch", r.mainOf(0).Launch(nil))
	r.sync()
}

// testSameBits runs the same contractions and sums many times, concurrently, and compares bits.
func testSameBits(r *rig) {
	r.open(1)
	const m, n, d = 67, 131, 301
	rng := seeded("bits")
	noise := func(shape ...int64) device.View {
		h := random(rng, ir.F32, shape...)
		for i := range h.vals {
			h.vals[i] = tensor.Round(ir.F32, rng.NormFloat64())
		}
		return r.put(0, h)
	}
	x, w := noise(m, d), noise(n, d)
	r.sync()
	var reads []read
	for i := range 20 {
		s := r.stream(0, fmt.Sprint("s", i))
		y, z := r.empty(0, ir.F32, m, n), r.empty(0, ir.F32, m)
		r.launch(s, 0, device.Kernel{Op: device.Linear{}, Ins: []device.View{x, w}, Outs: []device.View{y}})
		r.launch(s, 0, device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{1}}, Ins: []device.View{y}, Outs: []device.View{z}})
		reads = append(reads, r.get(s, y), r.get(s, z))
	}
	r.sync()
	for i := 2; i < len(reads); i++ {
		if string(reads[i].b) != string(reads[i%2].b) {
			r.Fatalf("some bit of run %d differs from the first run", i/2)
		}
	}
}
