package eval

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// arith simulates the arithmetic of a machine's accumulator: f64, or f32 in which every step is rounded.
type arith struct {
	*rand.Rand
	dt   ir.DType
	wide bool
}

func newArith(rng *rand.Rand, dt ir.DType) arith { return arith{rng, dt, dt == ir.F64} }

func (m arith) r(x float64) float64 { return narrow(x, m.wide) }

// sum adds the elements of x in random order.
func (m arith) sum(x []float64) float64 {
	y := 0.0
	for _, i := range m.Perm(len(x)) {
		y = m.r(y + x[i])
	}
	return y
}

// exp computes exp(x - top). Some forms use powers of two instead: both arguments are scaled before, and one or both of
// them are rounded after scaling.
func (m arith) exp(x, top float64, form int) float64 {
	log2e := m.r(math.Log2E)
	switch {
	case form == 0 || m.wide:
		return m.r(math.Exp(m.r(x - top)))
	case form == 1:
		return m.r(math.Exp2(m.r(math.FMA(x, log2e, -m.r(top*log2e)))))
	}
	return m.r(math.Exp2(m.r(m.r(x*log2e) - m.r(top*log2e))))
}

// weights returns the weights of a softmax row before they are divided by their sum.
func (m arith) weights(x []float64) (p []float64, sum float64) {
	form := m.IntN(3)
	top := slices.Max(x)
	for _, v := range x {
		p = append(p, m.exp(v, top, form))
	}
	return p, m.sum(p)
}

func (m arith) softmax(x []float64) []float64 {
	p, sum := m.weights(x)
	inverse := m.IntN(2) == 0
	for j := range p {
		if inverse {
			p[j] = m.r(p[j] * m.r(1/sum))
		} else {
			p[j] = m.r(p[j] / sum)
		}
	}
	return p
}

func (m arith) norm(x, w, b []float64, eps float64) []float64 {
	n := float64(len(x))
	z := slices.Clone(x)
	if b != nil {
		mean := m.r(m.sum(x) / n)
		for j := range z {
			z[j] = m.r(z[j] - mean)
		}
	}
	squares := make([]float64, len(z))
	for j, v := range z {
		squares[j] = m.r(v * v)
	}
	v := m.r(m.r(m.sum(squares)/n) + m.r(eps))
	for j := range z {
		z[j] = m.r(m.r(z[j]*m.r(1/m.r(math.Sqrt(v)))) * w[j])
		if b != nil {
			z[j] = m.r(z[j] + b[j])
		}
	}
	return z
}

// attend computes attention for one query with its keys and values. If cap is 0, the scores are not capped.
func (m arith) attend(q []float64, k, v [][]float64, scale, cap float64, mask []float64) []float64 {
	scores := make([]float64, len(k))
	before, rounds := m.IntN(2) == 0, m.IntN(2) == 0
	for j := range k {
		terms := make([]float64, len(q))
		for d := range q {
			a := q[d]
			if before {
				a = m.r(a * m.r(scale))
			}
			terms[d] = m.r(a * k[j][d])
		}
		if scores[j] = m.sum(terms); !before {
			scores[j] = m.r(scores[j] * m.r(scale))
		}
		if cap != 0 && m.IntN(2) == 0 {
			scores[j] = m.r(m.r(cap) * m.r(math.Tanh(m.r(scores[j]/m.r(cap)))))
		} else if cap != 0 {
			scores[j] = m.r(m.r(cap) * m.r(math.Tanh(m.r(scores[j]*m.r(1/cap)))))
		}
	}
	for j, b := range mask {
		scores[j] = m.r(scores[j] + b)
	}
	p, sum := m.weights(scores)
	out := make([]float64, len(q))
	for d := range q {
		terms := make([]float64, len(k))
		for j := range k {
			w := p[j]
			if rounds {
				w = simRound(m.dt, w)
			}
			terms[j] = m.r(w * v[j][d])
		}
		out[d] = m.r(m.sum(terms) / sum)
	}
	return out
}

// heldRow returns random numbers that a machine may hold for n elements of a, from element i on.
func heldRow(rng *rand.Rand, a *array, i, n int64) []float64 {
	x := make([]float64, n)
	for j := range x {
		if x[j] = a.f[i+int64(j)]; a.e[i+int64(j)] != 0 {
			x[j] = held(rng, x[j], a.e[i+int64(j)])
		}
	}
	return x
}

// within checks that elements of y, from element i on, have bounds that include the machine's numbers but are not much
// larger than necessary.
func within(t *testing.T, what string, y *array, i int64, machine []float64) {
	t.Helper()
	for j, m := range machine {
		at := i + int64(j)
		m = simRound(y.dt, m)
		if !(math.Abs(m-y.f[at]) <= y.e[at]) {
			t.Fatalf("%s: a machine holds %v, not %v ±%v", what, m, y.f[at], y.e[at])
		}
		if y.e[at] > 0.25 {
			t.Fatalf("%s: the bound of %v ±%v is too large", what, y.f[at], y.e[at])
		}
	}
}

func pickOf[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// eachCase calls f for combinations of types, row lengths, and operands with and without errors.
func eachCase(f func(rng *rand.Rand, dt ir.DType, k int64, errs bool, what string)) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, dt := range floatTypes {
		for _, k := range []int64{1, 2, 7, 64, 3} {
			for _, errs := range []bool{false, true} {
				for range 3 {
					f(rng, dt, k, errs, fmt.Sprintf("%v, rows of %d, errors %v", dt, k, errs))
				}
			}
		}
	}
}

func TestSoftmaxBound(t *testing.T) {
	eachCase(func(rng *rand.Rand, dt ir.DType, k int64, errs bool, what string) {
		x := randomArray(rng, dt, errs, 3, k)
		shift := float64(pickOf(rng, 0, 500)) // large scores lose more
		for i := range x.f {
			x.f[i] = simRound(dt, x.f[i]*8+shift)
		}
		y, err := softmax(1, x, dt)
		if err != nil {
			t.Fatal(err)
		}
		for i := int64(0); i < y.len(); i += k {
			for range 20 {
				within(t, what, y, i, newArith(rng, dt).softmax(heldRow(rng, x, i, k)))
			}
		}
	})
}

func TestNormBounds(t *testing.T) {
	eachCase(func(rng *rand.Rand, dt ir.DType, k int64, errs bool, what string) {
		x, w, b := randomArray(rng, dt, errs, 3, k), randomArray(rng, dt, errs, k), randomArray(rng, dt, errs, k)
		shift := float64(pickOf(rng, 0, 3000)) // most of it cancels
		for i := range x.f {
			x.f[i] = simRound(dt, x.f[i]*8+shift)
		}
		eps := 0.01
		rms, err := norm(false, eps, []*array{x, w}, dt)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := norm(true, eps, []*array{x, w, b}, dt)
		if err != nil {
			t.Fatal(err)
		}
		for i := int64(0); i < rms.len(); i += k {
			for range 20 {
				m := newArith(rng, dt)
				hw, hb := heldRow(rng, w, 0, k), heldRow(rng, b, 0, k)
				if k > 2 || !errs { // with fewer elements and errors, an error may be as large as the root
					within(t, what, rms, i, m.norm(heldRow(rng, x, i, k), hw, nil, eps))
					if k > 2 {
						within(t, "layer norm, "+what, layer, i, m.norm(heldRow(rng, x, i, k), hw, hb, eps))
					}
				}
			}
		}
	})
}

// normGrads computes the gradients of rms_norm for rows of k elements.
func (m arith) normGrads(x, w, dy []float64, eps float64) (dx, dw []float64) {
	k := len(w)
	dx, dw = make([]float64, len(x)), make([]float64, k)
	for from := 0; from < len(x); from += k {
		row, up := x[from:from+k], dy[from:from+k]
		squares, g, products := make([]float64, k), make([]float64, k), make([]float64, k)
		for j, v := range row {
			squares[j] = m.r(v * v)
		}
		root := m.r(1 / m.r(math.Sqrt(m.r(m.r(m.sum(squares)/float64(k))+m.r(eps)))))
		late := m.IntN(2) == 0
		for j, v := range row {
			g[j] = m.r(up[j] * w[j])
			dw[j] = m.r(dw[j] + m.r(up[j]*m.r(v*root)))
			if !late {
				v = m.r(v * root)
			}
			products[j] = m.r(g[j] * v)
		}
		mean := m.r(m.sum(products) / float64(k))
		if late {
			mean = m.r(mean * root)
		}
		for j, v := range row {
			dx[from+j] = m.r(root * m.r(g[j]-m.r(m.r(v*root)*mean)))
		}
	}
	return dx, dw
}

func TestNormGradBounds(t *testing.T) {
	eachCase(func(rng *rand.Rand, dt ir.DType, k int64, errs bool, what string) {
		x, w, dy := randomArray(rng, dt, errs, 3, k), randomArray(rng, dt, errs, k), randomArray(rng, dt, errs, 3, k)
		for i := range x.f {
			x.f[i] = simRound(dt, x.f[i]*8)
		}
		eps := 0.5
		dx, err := normDX(eps, []*array{x, w, dy}, dt)
		if err != nil {
			t.Fatal(err)
		}
		dw, err := normDW(eps, []*array{x, dy}, dt.Accum(), alone)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			gotX, gotW := newArith(rng, dt).normGrads(heldRow(rng, x, 0, 3*k), heldRow(rng, w, 0, k),
				heldRow(rng, dy, 0, 3*k), eps)
			if k > 2 || !errs { // with fewer elements and errors, an error may be as large as the root
				within(t, what, dx, 0, gotX)
				within(t, what, dw, 0, gotW)
			}
		}
	})
}

func TestAttentionBound(t *testing.T) {
	eachCase(func(rng *rand.Rand, dt ir.DType, k int64, errs bool, what string) {
		const dh, hq, hkv = 4, 4, 2
		tq := max(1, k-3)
		q, key, v := randomArray(rng, dt, errs, tq, hq, dh), randomArray(rng, dt, errs, k, hkv, dh),
			randomArray(rng, dt, errs, k, hkv, dh)
		for _, window := range []int64{0, -1,
			2} { // 0: no mask; -1: causal; with a window causal, and scores have a cap
			causal, cap := window != 0, 0.0
			if window > 0 {
				cap = 1.1
			}
			ins, mask := []*array{q, key, v}, (*array)(nil)
			if window != 0 && k != 64 {
				mask = randomArray(rng, dt, errs, tq, k)
				ins = append(ins, mask)
			}
			numbers := []scalar{{f: 0.7}, {f: float64(max(window, 0))}, {f: cap}}
			y, err := attention(attrs{causal: causal, scaled: true, numbers: numbers}, ins, dt)
			if err != nil {
				t.Fatal(err)
			}
			for range 30 {
				i, h := rng.Int64N(tq), rng.Int64N(hq)
				var ks, vs [][]float64
				var ms []float64
				for j := range k {
					if causal && j > i+k-tq {
						break
					}
					if window > 0 && j <= i+k-tq-window {
						continue
					}
					at := (j*hkv + h/2) * dh
					ks, vs = append(ks, heldRow(rng, key, at, dh)), append(vs, heldRow(rng, v, at, dh))
					if mask != nil {
						ms = append(ms, heldRow(rng, mask, i*k+j, 1)...)
					}
				}
				from := (i*hq + h) * dh
				within(t, what, y, from, newArith(rng, dt).attend(heldRow(rng, q, from, dh), ks, vs, 0.7, cap, ms))
			}
		}
	})
}

// TestMaskHides checks that elements to which the mask adds -∞, or a number of similar effect, do not affect the
// result.
func TestMaskHides(t *testing.T) {
	q, kv := newArray(ir.F32, []int64{1, 1, 1}), newArray(ir.F32, []int64{4, 1, 1})
	copy(q.f, []float64{2})
	copy(kv.f, []float64{1, 1, 3, 9})
	mask := newArray(ir.F32, []int64{1, 4})
	copy(mask.f, []float64{0, 0, math.Inf(-1), -0x1.fffffep127})
	y, err := attention(attrs{}, []*array{q, kv, kv, mask}, ir.F32)
	if err != nil || y.f[0] != 1 || !(y.e[0] < 1e-5) {
		t.Errorf("%v ±%v, %v", y.f, y.e, err)
	}
}

// TestRowsKnownBadly checks results for inputs with large errors: weights are between 0 and 1, a weighted mean is
// between the smallest and the largest value, and elements of a normalised row are within √n.
func TestRowsKnownBadly(t *testing.T) {
	const n = 16
	x, w := newArray(ir.BF16, []int64{1, 1, n}), newArray(ir.BF16, []int64{n})
	for i := range x.f {
		x.f[i], x.e[i], w.f[i] = float64(i-8), 50, 1
	}
	p, err := softmax(2, x, ir.BF16)
	if err != nil {
		t.Fatal(err)
	}
	z, err := norm(false, 1e-6, []*array{x, w}, ir.BF16)
	if err != nil {
		t.Fatal(err)
	}
	v := newArray(ir.BF16, []int64{4, 1, n})
	for i := range v.f {
		v.f[i] = float64(i%n) - 8 + float64(i/n)/4
	}
	k := newArray(ir.BF16, []int64{4, 1, n})
	y, err := attention(attrs{}, []*array{x, k, v}, ir.BF16)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.len() {
		if p.e[i] > 1.05 || z.e[i] > 10 || y.e[i] > 0.5 {
			t.Errorf("element %d: softmax ±%v, norm ±%v, attention ±%v", i, p.e[i], z.e[i], y.e[i])
		}
	}
}

// TestRowsOfNothingKnown checks that results are unknown if the inputs are unknown.
func TestRowsOfNothingKnown(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		x := newArray(ir.F32, []int64{2})
		x.f[0] = v
		if y, err := softmax(0, x, ir.F32); err != nil || !math.IsInf(y.e[1], 1) {
			t.Errorf("softmax of %v: ±%v, %v", v, y.e, err)
		}
		if y, err := norm(false, 1e-6, []*array{x, x}, ir.F32); err != nil || !math.IsInf(y.e[0], 1) {
			t.Errorf("norm of %v: ±%v, %v", v, y.e, err)
		}
	}
	hidden := newArray(ir.F32, []int64{3})
	hidden.f = []float64{1, math.Inf(-1), 1}
	if y, err := softmax(0, hidden, ir.F32); err != nil || y.f[1] != 0 || y.f[0] != 0.5 || y.e[0] > 1e-5 ||
		y.e[1] > 1e-5 {
		t.Errorf("softmax with a hidden element: %v ±%v, %v", y.f, y.e, err)
	}
}

// TestLookups checks that ids outside of the table are reported, even if no rank has the row, and that splitting the
// table does not change results for other ids.
func TestLookups(t *testing.T) {
	const src = `mesh tp[2]
func f(%ids: i32[3], %table: f32[4/tp, 2]) -> f32[3, 2] {
  %y = embedding %ids, %table
  return %y
}
func g(%ids: i32[3], %table: f32[4/tp, 2]) -> f32[6/tp, 2] {
  %y = alloc f32[3, 2]
  embedding %ids, %table into %y, first=2 * rank(tp), of=4
  return %y
}`
	table := tensorOf(t, ir.F32, []int64{4, 2}, 1, 10, 2, 20, 3, 30, 4, 40)
	run := func(fn string, ids ...float64) (*Result, error) {
		in := map[string]*tensor.Tensor{"ids": tensorOf(t, ir.I32, []int64{3}, ids...), "table": table}
		return Run(t.Context(), bind(t, src, ir.Binding{Func: fn}), in, Options{})
	}
	res, err := run("f", 3, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	demand(t, res, 4, 40, 1, 10, 4, 40)
	if !res.Outputs[0].Exact {
		t.Error("rows of integers are not certified")
	}
	if res, err = run("g", 3, 0, 3); err != nil {
		t.Fatal(err)
	}
	demand(t, res, 0, 0, 1, 10, 0, 0, 4, 40, 0, 0, 4, 40)
	for _, id := range []float64{-1, 4} {
		for _, fn := range []string{"f", "g"} {
			if _, err := run(fn, 0, id, 0); err == nil || !strings.Contains(err.Error(), "outside 0 to 3") {
				t.Errorf("id %v in %s: %v", id, fn, err)
			}
		}
	}
}

// TestSlots checks reduce_slots: it adds slots in several ranges, each to the previous sum. If the accumulator has a
// wider type, the intermediate sums must not be rounded.
func TestSlots(t *testing.T) {
	const src = `func f(%x: bf16[3, 2]) -> (f32[2], bf16[2], f32[3]) {
  %acc = alloc f32[2]
  reduce_slots %x, axis=0, 0..1 into %acc
  reduce_slots %x, axis=0, 1..3 into %acc, resume=true
  %y = alloc bf16[2]
  reduce_slots %x, 0..3 into %y
  %z = alloc f32[3]
  reduce_slots %x, axis=1, 0..2 into %z
  return %acc, %y, %z
}`
	x := tensorOf(t, ir.BF16, []int64{3, 2}, 256, 1, 1, 2, 1, 3)
	res, err := Run(t.Context(), bind(t, src, ir.Binding{}), map[string]*tensor.Tensor{"x": x}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]float64{{258, 6}, {258, 6}, {257, 3, 4}} {
		if got := floats(res.Outputs[i].Tensor); !slices.Equal(got, want) {
			t.Errorf("result %d is %v, want %v", i, got, want)
		}
	}
	if !res.Outputs[0].Exact || res.Outputs[1].Exact || !res.Outputs[2].Exact {
		t.Error("sums above 256 must be certified in f32 and not in bf16")
	}
}

func TestIotaOfIntegersBeginsAtZero(t *testing.T) {
	res := evaluate(t, "func f(%x: i32[2, 3]) -> i32[2, 3] {\n  %y: i32[2, 3] = iota axis=0\n  return %y\n}",
		ir.Binding{}, "zeros")
	for i, want := range []int64{0, 0, 0, 1, 1, 1} {
		if got := res.Outputs[0].Tensor.Int64(int64(i)); got != want {
			t.Errorf("element %d is %d, not %d", i, got, want)
		}
	}
}
