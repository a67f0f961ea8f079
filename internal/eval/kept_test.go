package eval

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestRopeBound checks the bound of rope against a simulated machine that computes the frequency, the angle and the
// functions in the accumulator type.
func TestRopeBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	rope := ir.Rope{Theta: 10000, Factor: 8, Low: 1, High: 4, Original: 8192}
	const dh = 16
	for _, dt := range floatTypes {
		for _, errs := range []bool{false, true} {
			wide := dt == ir.F64
			x, at := randomArray(rng, dt, errs, 4, 3, dh), newArray(ir.I32, []int64{4})
			for i := range at.n {
				at.n[i] = rng.Int64N(5000)
			}
			for _, half := range []int64{dh / 2, 5} { // frequencies from the attributes, or from an operand
				rope.Scale = map[int64]float64{5: 1.3}[half]
				ins, scale := []*array{x, at}, cmp.Or(rope.Scale, 1)
				freqs, off := rope.Frequencies(dh), make([]float64, dh/2)
				if half == 5 {
					given := newArray(ir.F32, []int64{half})
					for i := range given.f {
						given.f[i] = simRound(ir.F32, freqs[i])
						if errs && i > 3 {
							given.e[i] = 1e-7
						}
					}
					ins, freqs, off = append(ins, given), given.f, given.e
				}
				y, err := compute(ir.OpRope, attrs{rope: rope}, ins, dt, nil, alone)
				if err != nil {
					t.Fatal(err)
				}
				for from := int64(0); from < x.len(); from += dh {
					out := heldRow(rng, x, from, dh)
					for k, f := range freqs[:half] {
						angle := narrow(float64(at.n[from/(3*dh)])*narrow(f+off[k]*(2*rng.Float64()-1), wide), wide)
						sin, cos := narrow(math.Sin(angle)*scale, wide), narrow(math.Cos(angle)*scale, wide)
						a, b := out[k], out[k+int(half)]
						out[k] = narrow(narrow(a*cos, wide)-narrow(b*sin, wide), wide)
						out[k+int(half)] = narrow(narrow(b*cos, wide)+narrow(a*sin, wide), wide)
					}
					within(t, dt.String(), y, from, out[:2*half])
					rest := from + 2*half
					if !slices.Equal(y.f[rest:from+dh], x.f[rest:from+dh]) ||
						!slices.Equal(y.e[rest:from+dh], x.e[rest:from+dh]) {
						t.Fatalf("%v: elements that are no pairs have changed", dt)
					}
				}
			}
		}
	}
}

// TestArgmax checks that argmax returns the first of equal elements, and that nothing is known about the index if
// bounds overlap.
func TestArgmax(t *testing.T) {
	a := newArray(ir.F32, []int64{4, 3})
	copy(a.f, []float64{1, 3, 3, 2, 1, 0, 5, 4, 1, 1, math.NaN(), 0})
	a.e[4], a.e[6] = 0.5, 1 // 2 is greater than 1 ± 0.5, and 5 ± 1 may equal 4
	y, err := argmax(1, a)
	if err != nil {
		t.Fatal(err)
	}
	if y.n[0] != 1 || y.e[0] != 0 || y.n[1] != 0 || y.e[1] != 0 || !math.IsInf(y.e[2], 1) || !math.IsInf(y.e[3], 1) {
		t.Errorf("%v ± %v", y.n, y.e)
	}
}

// TestKeptRange checks that positions and lengths that are out of range or occur twice are reported, and that skipped
// rows are not.
func TestKeptRange(t *testing.T) {
	at := func(vals ...int64) *array {
		a := newArray(ir.I64, []int64{int64(len(vals))})
		copy(a.n, vals)
		return a
	}
	rows, cache := newArray(ir.F32, []int64{2, 1}), newArray(ir.F32, []int64{3, 1})
	copy(rows.f, []float64{7, 8})
	for _, c := range []struct {
		at   *array
		want string
	}{{at(0, 3), "position 3 (element 1"}, {at(-2, 0), "position -2 (element 0"}, {at(1, 1), "given twice"}} {
		if _, err := indexCopy(0, []*array{rows, c.at, cache}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.at.n, err, c.want)
		}
	}
	y, err := indexCopy(0, []*array{rows, at(-1, 2), cache})
	if err != nil || y.f[0] != 0 || y.f[1] != 0 || y.f[2] != 8 {
		t.Errorf("%v, %v", y, err)
	}
	q := newArray(ir.F32, []int64{1, 1, 2})
	for _, n := range []int64{-1, 2} {
		if _, err := attention(attrs{}, []*array{q, q, q, at(n)}, ir.F32); err == nil ||
			!strings.Contains(err.Error(), "outside 0 to 1") {
			t.Errorf("length %d: %v", n, err)
		}
	}
	if y, err := attention(attrs{}, []*array{q, q, q, at(0)}, ir.F32); err != nil || y.e[0] != 0 {
		t.Errorf("no key: %v, %v", y, err)
	}
}
