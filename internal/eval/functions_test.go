package eval

import (
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

var floatTypes = []ir.DType{ir.BF16, ir.F16, ir.F32, ir.F64}

// simFunctions simulates div and the functions of one operand as kernels compute them, in f32 or, if wide is set, in
// f64. simFunctions has several implementations of each function.
var simFunctions = map[ir.Op][]func(a, b float64, wide bool) float64{
	ir.OpDiv: {
		func(a, b float64, _ bool) float64 { return a / b },
	},
	ir.OpExp: {
		func(a, _ float64, _ bool) float64 { return math.Exp(a) },
		func(a, _ float64, wide bool) float64 { return 1 / narrow(math.Exp(-a), wide) },
	},
	ir.OpSilu: {
		func(a, _ float64, wide bool) float64 { return a / narrow(1+narrow(math.Exp(-a), wide), wide) },
		func(a, _ float64, wide bool) float64 {
			return a * narrow(1/narrow(1+narrow(math.Exp(-a), wide), wide), wide)
		},
	},
	ir.OpSoftplus: {
		func(a, _ float64, wide bool) float64 {
			return max(a, 0) + narrow(math.Log1p(narrow(math.Exp(-math.Abs(a)), wide)), wide)
		},
		func(a, _ float64, wide bool) float64 { // as a product of logarithms to base 2
			return narrow(math.Ln2, wide)*narrow(math.Log1p(narrow(math.Exp(-math.Abs(a)), wide))/math.Ln2, wide) + max(a, 0)
		},
	},
	ir.OpRsqrt: {
		func(a, _ float64, wide bool) float64 { return 1 / narrow(math.Sqrt(a), wide) },
	},
	ir.OpTanh: {
		func(a, _ float64, _ bool) float64 { return math.Tanh(a) },
		func(a, _ float64, wide bool) float64 { // by an exponential that keeps the digits of small numbers
			e := narrow(math.Expm1(-2*math.Abs(a)), wide)
			return math.Copysign(e/narrow(e+2, wide), a)
		},
	},
	ir.OpGeluTanh: {
		func(a, _ float64, wide bool) float64 {
			u := narrow(narrow(math.Sqrt(2/math.Pi), wide)*narrow(a+narrow(narrow(0.044715, wide)*a*a*a, wide), wide), wide)
			return a / 2 * narrow(1+narrow(math.Tanh(u), wide), wide)
		},
		func(a, _ float64, wide bool) float64 {
			return a / narrow(1+narrow(math.Exp(-narrow(a*narrow(1.5957691216057308+0.071354816272600248*a*a, wide), wide)), wide), wide)
		},
	},
	ir.OpSigmoid: {
		func(a, _ float64, wide bool) float64 { return 1 / narrow(1+narrow(math.Exp(-a), wide), wide) },
		func(a, _ float64, wide bool) float64 {
			e := narrow(math.Exp(-math.Abs(a)), wide)
			if a < 0 {
				return e / narrow(1+e, wide)
			}
			return 1 / narrow(1+e, wide)
		},
	},
	ir.OpSqrt: {
		func(a, _ float64, _ bool) float64 { return math.Sqrt(a) },
		func(a, _ float64, wide bool) float64 { return a * narrow(1/narrow(math.Sqrt(a), wide), wide) },
	},
	ir.OpSin: {
		func(a, _ float64, _ bool) float64 { return math.Sin(a) },
		func(a, _ float64, wide bool) float64 { // of twice an angle
			return 2 * narrow(math.Sin(a/2), wide) * narrow(math.Cos(a/2), wide)
		},
	},
	ir.OpCos: {
		func(a, _ float64, _ bool) float64 { return math.Cos(a) },
	},
	ir.OpErf: {
		func(a, _ float64, _ bool) float64 { return math.Erf(a) },
		func(a, _ float64, wide bool) float64 {
			if math.Abs(a) < 0.5 {
				return math.Erf(a)
			}
			return math.Copysign(1-narrow(math.Erfc(math.Abs(a)), wide), a)
		},
	},
	ir.OpLog: {
		func(a, _ float64, _ bool) float64 { return math.Log(a) },
		func(a, _ float64, wide bool) float64 { // by the logarithm to base 2
			return narrow(math.Ln2, wide) * narrow(math.Log(a)/math.Ln2, wide)
		},
	},
	ir.OpReciprocal: {
		func(a, _ float64, _ bool) float64 { return 1 / a },
	},
	ir.OpPow: {
		func(a, _ float64, _ bool) float64 { return math.Pow(a, 2.5) },
		func(a, _ float64, wide bool) float64 { return narrow(a*a, wide) * narrow(math.Sqrt(a), wide) },
	},
}

// simNumbers holds the numeric attributes with which simFunctions compute.
var simNumbers = map[ir.Op][]scalar{ir.OpPow: {{f: 2.5}}}

// positive lists the functions that are tested only with positive numbers.
var positive = map[ir.Op]bool{ir.OpPow: true, ir.OpReciprocal: true, ir.OpLog: true, ir.OpSqrt: true, ir.OpRsqrt: true}

func narrow(x float64, wide bool) float64 {
	if wide {
		return x
	}
	return float64(float32(x))
}

// TestFunctionBound checks the bounds of functions against simulated machines that compute in the accumulator type and
// round the result.
func TestFunctionBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, dt := range floatTypes {
		for op, forms := range simFunctions {
			for _, errs := range []bool{false, true} {
				a, b := randomArray(rng, dt, errs, 300), randomArray(rng, dt, errs, 300)
				for i := range a.f {
					a.f[i] *= math.Ldexp(1, rng.IntN(9)-2)
					if positive[op] {
						a.f[i] = math.Abs(a.f[i])
					}
				}
				ins := []*array{a, b}[:1]
				if op == ir.OpDiv {
					ins = []*array{a, b}
				}
				y, err := compute(op, attrs{numbers: simNumbers[op]}, ins, dt, nil, alone)
				if err != nil {
					t.Fatal(err)
				}
				bounded := 0
				for i := range y.len() {
					if !math.IsInf(y.e[i], 0) {
						bounded++
					}
					for range 10 {
						p, q := held(rng, a.f[i], a.e[i]), held(rng, b.f[i], b.e[i])
						if dt != ir.F64 && !errs {
							p, q = a.f[i], b.f[i]
						}
						for form, f := range forms {
							m := simRound(dt, narrow(f(p, q, dt == ir.F64), dt == ir.F64))
							if math.Abs(m-y.f[i]) > y.e[i] {
								t.Fatalf("%v %v of %v %v, form %d: a machine holds %v, not %v ±%v", dt, op, p, q, form,
									m, y.f[i], y.e[i])
							}
						}
					}
				}
				if bounded < 200 {
					t.Errorf("%v %v, errors %v: only %d of 300 are bounded", dt, op, errs, bounded)
				}
			}
		}
	}
}

// TestFunctionBoundIsTight checks that finite bounds are at most a few units in the last place.
func TestFunctionBoundIsTight(t *testing.T) {
	for op := range simFunctions {
		for _, dt := range floatTypes {
			a := newArray(dt, []int64{2})
			a.f[0], a.f[1] = 0.75, 2.5
			ins := []*array{a, a}[:1]
			if op == ir.OpDiv {
				ins = []*array{a, {dt: dt, shape: a.shape, f: []float64{3, 7}, e: make([]float64, 2)}}
			}
			y, err := compute(op, attrs{numbers: simNumbers[op]}, ins, dt, nil, alone)
			if err != nil {
				t.Fatal(err)
			}
			for i := range y.len() {
				if most := 64*ulp(dt.Accum(), y.f[i]) + 2*ulp(dt, y.f[i]); y.e[i] > most {
					t.Errorf("%v %v of %v: ±%v, want at most %v", dt, op, a.f[i], y.e[i], most)
				}
			}
		}
	}
}

func TestCertifiedFunctions(t *testing.T) {
	for _, c := range []struct {
		op    ir.Op
		a, b  float64
		y     float64
		exact bool
	}{
		{ir.OpDiv, 6, 3, 2, true},
		{ir.OpDiv, 1, 3, float64(float32(1) / 3), false},
		{ir.OpDiv, 1, 0, math.Inf(1), false}, // a machine may hold -0 instead of +0, or the reverse
		{ir.OpDiv, 0, 5, 0, true},
		{ir.OpExp, 0, 0, 1, true},
		{ir.OpExp, math.Inf(-1), 0, 0, true},
		{ir.OpExp, 1000, 0, math.Inf(1), false},
		{ir.OpSilu, 0, 0, 0, true},
		{ir.OpSqrt, 9, 0, 3, true},
		{ir.OpSqrt, 2, 0, math.Sqrt2, false},
		{ir.OpSqrt, 0, 0, 0, true},
		{ir.OpSin, 0, 0, 0, true},
		{ir.OpCos, 0, 0, 1, true},
		{ir.OpLog, 1, 0, 0, true},
		{ir.OpLog, 0, 0, math.Inf(-1), false},
		{ir.OpFloor, -2.5, 0, -3, true},
		{ir.OpReciprocal, -4, 0, -0.25, true},
		{ir.OpReciprocal, 0, 0, math.Inf(1), false},
		{ir.OpRsqrt, 0, 0, math.Inf(1), false},
	} {
		a, b := newArray(ir.F32, []int64{1}), newArray(ir.F32, []int64{1})
		a.f[0], b.f[0] = c.a, c.b
		ins := []*array{a, b}[:1]
		if c.op == ir.OpDiv {
			ins = []*array{a, b}
		}
		y, err := compute(c.op, attrs{}, ins, ir.F32, nil, alone)
		if err != nil {
			t.Fatal(err)
		}
		if y.f[0] != tensor.Round(ir.F32, c.y) || (y.e[0] == 0) != c.exact {
			t.Errorf("%v of %v, %v: %v ±%v, want %v, exact %v", c.op, c.a, c.b, y.f[0], y.e[0], c.y, c.exact)
		}
	}
}

// TestMeanBound checks the bounds of means that one rank computes, and of means over equal shares of several ranks.
func TestMeanBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, dt := range floatTypes {
		for _, k := range []int64{1, 3, 16, 300} {
			for _, errs := range []bool{false, true} {
				for _, ranks := range []int{1, 4} {
					x := randomArray(rng, dt, errs, 4, k*int64(ranks))
					y, err := mean([]int{1}, x, dt, split{ranks: int64(ranks), partial: ranks > 1})
					if err != nil {
						t.Fatal(err)
					}
					if ranks > 1 {
						y = reducedTotal(y, int64(ranks), false, 1, false)
					}
					for i := range y.len() {
						for range 20 {
							if m := simMean(rng, dt, x, i, k, ranks); math.Abs(m-y.f[i]) > y.e[i] {
								t.Fatalf("%v, %d of %d ranks: a machine holds %v, not %v ±%v", dt, k, ranks, m, y.f[i],
									y.e[i])
							}
						}
					}
				}
			}
		}
	}
}

// simMean simulates the mean of row i, of which each rank has k elements.
func simMean(rng *rand.Rand, dt ir.DType, x *array, i, k int64, ranks int) float64 {
	total, truncate := 0.0, rng.IntN(2) == 0
	for r := range int64(ranks) {
		sum := 0.0
		for j := range k {
			at := (i*int64(ranks)+r)*k + j
			sum = simAdd(dt, sum, held(rng, x.f[at], x.e[at]), truncate)
		}
		m := narrow(sum/float64(k), dt == ir.F64)
		if rng.IntN(2) == 0 {
			m = narrow(sum*narrow(1/float64(k), dt == ir.F64), dt == ir.F64)
		}
		if ranks > 1 {
			m = simRound(dt, m)
		}
		total = simAdd(dt, total, m, false)
	}
	return simRound(dt, narrow(total/float64(ranks), dt == ir.F64))
}

// TestMeanCertified checks that the mean of certified integers is certified if the number of terms is a power of two
// and the quotient is exact, and not for other numbers of terms.
func TestMeanCertified(t *testing.T) {
	for _, c := range []struct {
		vals  []float64
		y     float64
		exact bool
	}{
		{[]float64{1, 2}, 1.5, true}, {[]float64{1, 2, 3}, 2, false}, {[]float64{0.5, 0.5}, 0.5, false},
		{[]float64{1, 2, 3, 5}, 2.75, true},
	} {
		x := newArray(ir.BF16, []int64{int64(len(c.vals))})
		x.f = c.vals
		y, err := mean([]int{0}, x, ir.BF16, alone)
		if err != nil || y.f[0] != c.y || (y.e[0] == 0) != c.exact {
			t.Errorf("mean of %v: %v ±%v, want %v, exact %v; %v", c.vals, y.f, y.e, c.y, c.exact, err)
		}
	}
}

// TestPowerBound checks powers of positive and negative numbers with errors, for exponents that f32 represents exactly
// and for others.
func TestPowerBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, dt := range floatTypes {
		for _, by := range []float64{-2, -0.5, 0, 0.1, 1, 2, 3, 7.3} {
			bounded := 0
			for range 2000 {
				x, ex := simRound(dt, 4*rng.Float64()-2), []float64{0, 0x1p-8, 0.5}[rng.IntN(3)]*rng.Float64()
				y, e := power(dt, x, ex, by)
				if math.IsInf(e, 0) {
					continue
				}
				bounded++
				for range 5 {
					c := by
					if dt != ir.F64 {
						c = narrow(by, false)
					}
					p := held(rng, x, ex)
					m := simRound(dt, narrow(math.Pow(p, c), dt == ir.F64))
					if nan := math.IsNaN(y); nan != math.IsNaN(m) || !nan && math.Abs(m-y) > e {
						t.Fatalf("%v: %v to the power of %v: a machine holds %v, not %v ±%v", dt, p, by, m, y, e)
					}
				}
			}
			if bounded < 1200 {
				t.Errorf("%v, to the power of %v: only %d of 2000 are bounded", dt, by, bounded)
			}
		}
	}
	for _, c := range []struct{ x, by, y float64 }{{-5, 0, 1}, {0, 3, 0}, {1, -0.3, 1}} {
		if y, e := power(ir.BF16, c.x, 0, c.by); y != c.y || e != 0 {
			t.Errorf("%v to the power of %v: %v ±%v", c.x, c.by, y, e)
		}
	}
}

// TestWhereBound checks that the bound covers both operands if the mask is not certain.
func TestWhereBound(t *testing.T) {
	for _, c := range []struct {
		mask, emask, y, e float64
	}{{1, 0, 5, 0.5}, {-3, 1, 5, 0.5}, {0, 0, -2, 0.25}, {0, 0.1, -2, 7.5}, {1, 1, 5, 7.25}, {math.NaN(), 0, 5, 7.25}} {
		if y, e := chosen(c.mask, c.emask, 5, 0.5, -2, 0.25); y != c.y || e != c.e {
			t.Errorf("a mask of %v ±%v chooses %v ±%v, not %v ±%v", c.mask, c.emask, y, e, c.y, c.e)
		}
	}
	if y, e := chosen(0, 1, math.Inf(-1), 0, math.Inf(-1), 0); !math.IsInf(y, -1) || !math.IsInf(e, 1) {
		t.Errorf("where of two infinities: %v ±%v", y, e)
	}
	mask, a, b := newArray(ir.I32, []int64{2}), newArray(ir.I32, []int64{2}), newArray(ir.I32, nil)
	mask.n, a.n, b.n = []int64{0, 2}, []int64{7, 8}, []int64{9}
	y, err := compute(ir.OpWhere, attrs{}, []*array{mask, a, b}, ir.I32, nil, alone)
	if err != nil || y.n[0] != 9 || y.n[1] != 8 || y.e[0] != 0 {
		t.Errorf("where of integers: %v, %v", y, err)
	}
}
