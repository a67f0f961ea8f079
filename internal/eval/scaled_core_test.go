package eval

import (
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// truncated removes the digits of v below the last of the retained digits of a number with exponent exp.
func truncated(v float64, exp int) float64 {
	return math.Ldexp(math.Trunc(math.Ldexp(v, coreDigits-exp)), exp-coreDigits)
}

// onTensorCore adds products as DeepSeek's report describes Hopper's tensor cores: it aligns the sum and 32 products to
// the largest exponent, truncates each, adds them, and truncates the sum. The exponent of a product is the sum of the
// exponents of its factors.
func onTensorCore(sum float64, x, w []float64) float64 {
	exp := math.MinInt32
	if sum != 0 {
		exp = math.Ilogb(sum)
	}
	for i := range x {
		if x[i] != 0 && w[i] != 0 {
			exp = max(exp, math.Ilogb(x[i])+math.Ilogb(w[i]))
		}
	}
	if exp == math.MinInt32 {
		return 0
	}
	total := truncated(sum, exp)
	for i := range x {
		total += truncated(x[i]*w[i], exp)
	}
	if total != 0 {
		total = truncated(total, math.Ilogb(total))
	}
	return total
}

// TestFastAccumBound checks that sums of emulated tensor cores are within the evaluator's bounds: sums that are
// promoted to f32 after 128 products, and sums of whole rows, also rows that are split into two parts. The bound of
// promoted sums must not permit what tensor cores lose from a long sum.
func TestFastAccumBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	refuted := 0
	for c := range 400 {
		k := int64(1 + rng.IntN(3000))
		shift := float64(rng.IntN(3)) // a mean other than 0 makes partial sums grow
		draw := func() *array {
			a := newArray(ir.F8E4M3, []int64{1, k})
			for i := range a.f {
				a.f[i] = tensor.Round(ir.F8E4M3, (rng.NormFloat64()+shift)*math.Ldexp(1, rng.IntN(4)))
			}
			return a
		}
		x, w := draw(), draw()
		if c%4 == 0 { // small terms after a large one
			x.f[0], w.f[0] = 448, 448
		}
		one := newArray(ir.F32, nil)
		one.f[0] = 1
		sx, err := scalingOf(x.shape, one)
		if err != nil {
			t.Fatal(err)
		}
		a, b := asRows(x, 1, k), asRows(w, 1, k)
		want := scaledDot(a, b, 0, 0, sx, sx, false)
		fast := scaledDot(a, b, 0, 0, sx, sx, true)
		sums := func(every int64) float64 {
			total, sum := 0.0, 0.0
			for lo := int64(0); lo < k; lo += tensorCore {
				if lo%every == 0 {
					total, sum = total+sum, 0
				}
				hi := min(lo+tensorCore, k)
				sum = onTensorCore(sum, x.f[lo:hi], w.f[lo:hi])
			}
			return float64(float32(total + sum))
		}
		whole := (k + 2*tensorCore - 1) / (2 * tensorCore) * tensorCore
		if got := sums(promoted); math.Abs(got-want.y) > want.inRank() {
			t.Fatalf("case %d: promoted sum %g of %g exceeds the bound %g", c, got, want.y, want.inRank())
		}
		for _, every := range []int64{1 << 40, whole} {
			got := sums(every)
			if math.Abs(got-fast.y) > fast.inRank() {
				t.Fatalf("case %d: fast sum %g of %g exceeds the bound %g", c, got, fast.y, fast.inRank())
			}
			if math.Abs(got-want.y) > want.inRank() {
				refuted++
			}
		}
		if fast.y != want.y || fast.inRank() < want.inRank() {
			t.Fatalf("case %d: bounds %g of %g, promoted %g of %g", c, fast.inRank(), fast.y, want.inRank(), want.y)
		}
	}
	if refuted == 0 {
		t.Error("the bound of promoted sums permits all fast sums")
	}
}
