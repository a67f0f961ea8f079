package eval

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/ir"
)

// The tests in this file compare the rules with machines that are simulated independently. The simulations have their
// own rounding code, and use random orders of accumulation and random splits.

// nearest rounds x to a floating-point type with the given number of digits and the given least exponent.
func nearest(digits, least int, x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || x != x {
		return x
	}
	step := math.Ldexp(1, max(math.Ilogb(x), least)-digits+1)
	return math.RoundToEven(x/step) * step
}

var simulated = map[ir.DType]struct{ digits, least int }{
	ir.BF16: {8, -126}, ir.F16: {11, -14}, ir.F32: {24, -126}, ir.F64: {53, -1022}}

func simRound(dt ir.DType, x float64) float64 {
	s := simulated[dt]
	return nearest(s.digits, s.least, x)
}

// simAdd adds in the accumulator type of dt. If truncate is set, simAdd truncates as tensor cores do.
func simAdd(dt ir.DType, a, b float64, truncate bool) float64 {
	s := a + b
	if dt == ir.F64 {
		return s
	}
	r := nearest(24, -126, s)
	if truncate && math.Abs(r) > math.Abs(s) {
		r = float64(math.Nextafter32(float32(r), 0))
	}
	return r
}

// held returns a random number that a machine may hold for an element within e of a.
func held(rng *rand.Rand, a, e float64) float64 { return a + e*(2*rng.Float64()-1) }

// simDot simulates a contraction on a machine with the given number of ranks.
func simDot(rng *rand.Rand, dt ir.DType, x, ex, w, ew []float64, ranks int, rounds bool) float64 {
	parts := make([]float64, ranks)
	truncate := rng.IntN(2) == 0
	for _, k := range rng.Perm(len(x)) {
		r := rng.IntN(ranks)
		p := held(rng, x[k], ex[k]) * held(rng, w[k], ew[k])
		if dt != ir.F64 && rng.IntN(2) == 0 {
			p = nearest(24, -126, p) // multiply, round, then add, instead of a fused multiply-add
		}
		parts[r] = simAdd(dt, parts[r], p, truncate)
	}
	y := 0.0
	for _, p := range parts {
		if rounds {
			p = simRound(dt, p)
		}
		y = simAdd(dt, y, p, false)
	}
	return simRound(dt, y)
}

func randomArray(rng *rand.Rand, dt ir.DType, errs bool, shape ...int64) *array {
	a := newArray(dt, shape)
	for i := range a.f {
		a.f[i] = simRound(dt, 2*rng.Float64()-1)
		if errs {
			a.e[i] = rng.Float64() * math.Ldexp(1, -8)
		}
	}
	return a
}

// TestContractionBound checks the bounds of linear on one rank and as a partial sum over ranks.
func TestContractionBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32, ir.F64} {
		for _, k := range []int64{1, 3, 64, 300} {
			for _, errs := range []bool{false, true} {
				for _, ranks := range []int{1, 4} {
					x, w := randomArray(rng, dt, errs, 4, k), randomArray(rng, dt, errs, 4, k)
					y, err := linear(attrs{}, []*array{x, w}, dt, split{ranks: int64(ranks), partial: ranks > 1})
					if err != nil {
						t.Fatal(err)
					}
					if ranks > 1 {
						y = reducedTotal(y, int64(ranks), false, 1, false)
					}
					ratio := checkDots(t, rng, y, x, w, k, ranks)
					if k == 64 && ratio > 1000 {
						t.Errorf("%v, errors %v, %d ranks: the bound is %.0f times what is seen", dt, errs, ranks,
							ratio)
					}
				}
			}
		}
	}
}

// checkDots simulates each element of y = x·wᵀ many times. checkDots returns the ratio of the largest bound to the
// largest error that occurred.
func checkDots(t *testing.T, rng *rand.Rand, y, x, w *array, k int64, ranks int) float64 {
	t.Helper()
	worst, bound := 0.0, 0.0
	for i := range y.len() {
		p, q := i/w.shape[0]*k, i%w.shape[0]*k
		xs, ws, ex, ew := x.f[p:p+k], w.f[q:q+k], x.e[p:p+k], w.e[q:q+k]
		bound = max(bound, y.e[i])
		if ideal := realDot(xs, ws); math.Abs(ideal-y.f[i]) > y.e[i] {
			t.Fatalf("%v K=%d: real arithmetic gives %v, not %v ±%v", y.dt, k, ideal, y.f[i], y.e[i])
		}
		for range 60 {
			m := simDot(rng, y.dt, xs, ex, ws, ew, ranks, ranks > 1)
			off := math.Abs(m - y.f[i])
			if off > y.e[i] {
				t.Fatalf("%v K=%d over %d ranks: a machine holds %v, not %v ±%v", y.dt, k, ranks, m, y.f[i], y.e[i])
			}
			worst = max(worst, off)
		}
	}
	// If no error occurred, compare the bound with the error of one rounding.
	return bound / max(worst, math.Ldexp(1, -simulated[y.dt].digits))
}

func realDot(x, w []float64) float64 {
	sum := new(big.Float).SetPrec(4000)
	for i := range x {
		p := new(big.Float).SetPrec(4000).Mul(big.NewFloat(x[i]), big.NewFloat(w[i]))
		sum.Add(sum, p)
	}
	y, _ := sum.Float64()
	return y
}

// TestIntegersCertified checks that sums of {-1, 0, 1} are certified exactly if Σ|a||b| is within the integers that the
// type represents. If a sum is certified, no simulated machine may differ.
func TestIntegersCertified(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		dt    ir.DType
		k     int64
		limit float64
	}{{ir.BF16, 560, 256}, {ir.BF16, 200, 256}, {ir.F16, 560, 2048}, {ir.F32, 560, 1 << 24}, {ir.BF16, 0, 256}} {
		x, w := newArray(c.dt, []int64{8, c.k}), newArray(c.dt, []int64{8, c.k})
		for i := range x.f {
			x.f[i], w.f[i] = float64(rng.IntN(3)-1), float64(rng.IntN(3)-1)
		}
		for _, ranks := range []int{1, 3} {
			y, err := linear(attrs{}, []*array{x, w}, c.dt, split{ranks: int64(ranks), partial: ranks > 1})
			if err != nil {
				t.Fatal(err)
			}
			if ranks > 1 {
				y = reducedTotal(y, int64(ranks), false, 1, false)
			}
			for i := range y.len() {
				p, q := i/8*c.k, i%8*c.k
				abs := 0.0
				for k := range c.k {
					abs += math.Abs(x.f[p+k] * w.f[q+k])
				}
				if certified := y.e[i] == 0; certified != (abs <= c.limit) {
					t.Fatalf("%v: Σ|a||b| = %v, certified %v", c.dt, abs, certified)
				}
				zero := make([]float64, c.k)
				if m := simDot(rng, c.dt, x.f[p:p+c.k], zero, w.f[q:q+c.k], zero, ranks,
					ranks > 1); math.Abs(m-y.f[i]) > y.e[i] {
					t.Fatalf("%v: a machine holds %v, not %v ±%v", c.dt, m, y.f[i], y.e[i])
				}
			}
		}
	}
}

// TestNearlyInteger checks that a sum is not certified if one element is not an integer or is not certified.
func TestNearlyInteger(t *testing.T) {
	for name, spoil := range map[string]func(a *array){
		"a half":      func(a *array) { a.f[3] = 0.5 },
		"uncertified": func(a *array) { a.e[3] = 1e-9 },
	} {
		x, w := newArray(ir.F32, []int64{1, 8}), newArray(ir.F32, []int64{1, 8})
		for i := range x.f {
			x.f[i], w.f[i] = 1, 1
		}
		spoil(x)
		y, err := linear(attrs{}, []*array{x, w}, ir.F32, alone)
		if err != nil || y.e[0] == 0 {
			t.Errorf("%s: certified, or %v", name, err)
		}
	}
}

// TestReductionBound checks the bounds of reductions over the ranks' tensors.
func TestReductionBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32, ir.F64} {
		for _, red := range []ir.Red{ir.Sum, ir.Avg, ir.Max, ir.Min} {
			for _, n := range []int{2, 3, 8} {
				for _, anyOrder := range []bool{false, true} {
					var all []*array
					for range n {
						all = append(all, randomArray(rng, dt, rng.IntN(2) == 0, 16))
					}
					y, err := reduceArrays(red, all, anyOrder)
					if err != nil {
						t.Fatal(err)
					}
					for i := range y.len() {
						for range 20 {
							m := simReduce(rng, dt, red, all, i, anyOrder)
							if math.Abs(m-y.f[i]) > y.e[i] {
								t.Fatalf("%v %v of %d, any order %v: a machine holds %v, not %v ±%v", dt, red, n,
									anyOrder, m, y.f[i], y.e[i])
							}
						}
					}
				}
			}
		}
	}
}

// TestAverageOfIntegers checks that a sum is divided before it is stored, so that the sum may exceed the range of the
// type.
func TestAverageOfIntegers(t *testing.T) {
	for _, c := range []struct{ a, b, sum, avg int64 }{
		{math.MaxInt32, math.MaxInt32, -2, math.MaxInt32},
		{math.MinInt32, math.MinInt32, 0, math.MinInt32},
		{math.MaxInt32, 2, math.MinInt32 + 1, 1 << 30},
		{-3, 0, -3, -1},
	} {
		x, y := newArray(ir.I32, []int64{1}), newArray(ir.I32, []int64{1})
		x.n[0], y.n[0] = c.a, c.b
		for red, want := range map[ir.Red]int64{ir.Sum: c.sum, ir.Avg: c.avg} {
			got, err := reduceArrays(red, []*array{x, y}, false)
			if err != nil || got.n[0] != want || got.e[0] != 0 {
				t.Errorf("%v of %d and %d: %v, %v; want %d", red, c.a, c.b, got.n[0], err, want)
			}
		}
	}
}

func simReduce(rng *rand.Rand, dt ir.DType, red ir.Red, all []*array, i int64, anyOrder bool) float64 {
	order := rng.Perm(len(all))
	y := 0.0
	for j := range all {
		a := all[j]
		if anyOrder {
			a = all[order[j]]
		}
		v := held(rng, a.f[i], a.e[i])
		switch {
		case j == 0:
			y = v
		case red == ir.Max:
			y = max(y, v)
		case red == ir.Min:
			y = min(y, v)
		default:
			y = simAdd(dt, y, v, false)
			if anyOrder {
				y = simRound(dt, y)
			}
		}
	}
	switch {
	case red == ir.Max || red == ir.Min:
		return y // the operands are numbers of the type, so the result needs no rounding
	case red == ir.Avg && dt == ir.F64:
		y /= float64(len(all))
	case red == ir.Avg:
		y = nearest(24, -126, y/float64(len(all)))
	}
	return simRound(dt, y)
}

// TestElementwiseBound checks arithmetic and selections that are computed in the type itself, or in f32 with a rounded
// result.
func TestElementwiseBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	apply := map[ir.Op]func(a, b, c float64) float64{
		ir.OpAdd:          func(a, b, _ float64) float64 { return a + b },
		ir.OpSub:          func(a, b, _ float64) float64 { return a - b },
		ir.OpMul:          func(a, b, _ float64) float64 { return a * b },
		ir.OpScale:        func(a, _, c float64) float64 { return a * c },
		ir.OpNeg:          func(a, _, _ float64) float64 { return -a },
		ir.OpRelu:         func(a, _, _ float64) float64 { return max(a, 0) },
		ir.OpClamp:        func(a, _, c float64) float64 { return min(max(a, c), 8*c) },
		ir.OpFloor:        func(a, _, _ float64) float64 { return math.Floor(a) },
		ir.OpAbs:          func(a, _, _ float64) float64 { return math.Abs(a) },
		ir.OpMaximum:      func(a, b, _ float64) float64 { return max(a, b) },
		ir.OpMinimum:      func(a, b, _ float64) float64 { return min(a, b) },
		ir.OpLess:         func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a < b] },
		ir.OpLessEqual:    func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a <= b] },
		ir.OpGreater:      func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a > b] },
		ir.OpGreaterEqual: func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a >= b] },
		ir.OpEqual:        func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a == b] },
		ir.OpNotEqual:     func(a, b, _ float64) float64 { return map[bool]float64{true: 1}[a != b] },
		ir.OpGelu:         func(a, _, _ float64) float64 { return a / 2 * math.Erfc(-a/math.Sqrt2) },
	}
	exact := map[ir.Op]bool{ir.OpNotEqual: true, ir.OpEqual: true, ir.OpGreaterEqual: true, ir.OpGreater: true, ir.OpLessEqual: true, ir.OpLess: true, ir.OpMinimum: true, ir.OpMaximum: true, ir.OpAbs: true, ir.OpFloor: true, ir.OpRelu: true, ir.OpNeg: true} // exact functions of the machine's operands, so their results need no rounding
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32, ir.F64} {
		for op, f := range apply {
			for _, errs := range []bool{false, true} {
				scale := math.Ldexp(1, rng.IntN(6))
				at := attrs{numbers: []scalar{{f: 0.1 * scale}, {f: 0.8 * scale}}}
				a, b := randomArray(rng, dt, errs, 200), randomArray(rng, dt, errs, 200)
				for i := range a.f {
					a.f[i] *= scale // scale is a power of two, so the product is a number of the type
				}
				ins := []*array{a}
				if op.Info().MinArgs == 2 {
					ins = append(ins, b)
				}
				y, err := compute(op, at, ins, dt, nil, alone)
				if err != nil {
					t.Fatal(err)
				}
				for i := range y.len() {
					for range 10 {
						c := at.numbers[0].f
						if dt != ir.F64 && rng.IntN(2) == 0 {
							c = float64(float32(c))
						}
						p, q := held(rng, a.f[i], a.e[i]), held(rng, b.f[i], b.e[i])
						m := f(p, q, c)
						if dt != ir.F64 && op == ir.OpGelu {
							m = geluF32(p)
						} else if dt != ir.F64 && !exact[op] && op != ir.OpClamp && rng.IntN(2) == 0 {
							m = nearest(24, -126, m)
						}
						if kept := op == ir.OpClamp && m == p; !exact[op] && !kept {
							m = simRound(dt, m)
						}
						if math.Abs(m-y.f[i]) > y.e[i] {
							t.Fatalf("%v %v of %v %v: a machine holds %v, not %v ±%v", dt, op, p, q, m, y.f[i], y.e[i])
						}
					}
				}
			}
		}
	}
}

// geluF32 computes gelu as f32 kernels do.
func geluF32(x float64) float64 {
	r := float64(float32(x) * float32(math.Sqrt2/2))
	return float64(0.5 * float32(x) * (1 + float32(math.Erf(r))))
}

// TestCertifiedElementwise checks that results that the type represents exactly are certified. Rounded results are not
// certified, since a different order of operations may round differently.
func TestCertifiedElementwise(t *testing.T) {
	for _, c := range []struct {
		dt    ir.DType
		op    ir.Op
		a, b  float64
		y     float64
		exact bool
	}{
		{ir.BF16, ir.OpAdd, 1, 2, 3, true},
		{ir.BF16, ir.OpAdd, 256, 1, 256, false},
		{ir.F32, ir.OpAdd, 1 << 24, 1, 1 << 24, false},
		{ir.F32, ir.OpAdd, 1 << 23, 1, 1<<23 + 1, true},
		{ir.F64, ir.OpAdd, 1 << 53, 1, 1 << 53, false},
		{ir.F64, ir.OpAdd, 0.1, 0.2, 0.30000000000000004, false},
		{ir.F32, ir.OpMul, 0.5, 3, 1.5, true},
		{ir.F64, ir.OpMul, 1e200, 1e200, math.Inf(1), false},
		{ir.F32, ir.OpAdd, math.Inf(-1), 3, math.Inf(-1), true},
		{ir.F16, ir.OpAdd, 65504, 65504, math.Inf(1), false},
	} {
		a, b := newArray(c.dt, []int64{1}), newArray(c.dt, []int64{1})
		a.f[0], b.f[0] = c.a, c.b
		y, err := compute(c.op, attrs{}, []*array{a, b}, c.dt, nil, alone)
		if err != nil {
			t.Fatal(err)
		}
		if y.f[0] != c.y || (y.e[0] == 0) != c.exact {
			t.Errorf("%v %v of %v, %v: %v ±%v, want %v, exact %v", c.dt, c.op, c.a, c.b, y.f[0], y.e[0], c.y, c.exact)
		}
	}
}

func TestIntegers(t *testing.T) {
	a, b := newArray(ir.I32, []int64{2}), newArray(ir.I32, []int64{2})
	a.n = []int64{math.MaxInt32, 1 << 20}
	b.n = []int64{1, 1 << 20}
	for op, want := range map[ir.Op]string{ir.OpAdd: "[-2147483648 2097152]", ir.OpMul: "[2147483647 0]",
		ir.OpSub: "[2147483646 0]"} {
		y, err := compute(op, attrs{}, []*array{a, b}, ir.I32, nil, alone)
		if err != nil || fmt.Sprint(y.n) != want || y.e[0] != 0 {
			t.Errorf("%v: %v ±%v, want %s; %v", op, y.n, y.e, want, err)
		}
	}
	f := newArray(ir.F32, []int64{4})
	f.f = []float64{2.5, 3.5, -1e20, math.Inf(1)}
	y, err := compute(ir.OpCast, attrs{}, []*array{f}, ir.I32, nil, alone)
	if want := "[2 4 -2147483648 2147483647]"; err != nil || fmt.Sprint(y.n) != want {
		t.Errorf("cast to i32: %v, want %s; %v", y.n, want, err)
	}
	wide := newArray(ir.I64, []int64{1})
	wide.n[0] = math.MaxInt64
	y, err = compute(ir.OpCast, attrs{}, []*array{wide}, ir.F32, nil, alone)
	if err != nil || y.f[0] != 1<<63 {
		t.Errorf("cast of the largest i64: %v, %v", y.f, err)
	}
}

// TestGeluFar checks gelu for large magnitudes, where the result is x or almost 0. For -∞ the result is undefined,
// since machines multiply it by 0.
func TestGeluFar(t *testing.T) {
	for _, dt := range []ir.DType{ir.F16, ir.BF16, ir.F32, ir.F64} {
		if y, e := gelu(dt, math.Inf(-1), 0); y == y || !math.IsInf(e, 1) {
			t.Errorf("%s: of -∞: %v ± %v", dt, y, e)
		}
		if y, _ := gelu(dt, math.Inf(1), 0); !math.IsInf(y, 1) {
			t.Errorf("%s: of ∞: %v", dt, y)
		}
	}
	if y, e := gelu(ir.F32, -100, 0); y != 0 || e != 0 {
		t.Errorf("of -100: %v ± %v", y, e)
	}
}
