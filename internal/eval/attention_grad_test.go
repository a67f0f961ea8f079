package eval

import (
	"math"
	"math/rand/v2"
	"testing"

	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/ir"
)

// scores holds the sizes of an attention with one batch.
type scores struct {
	tq, tk, hq, hkv, dh int
	causal              bool
}

// gradients computes the gradients of attention for q, k and v by the formulas, in arithmetic of type T.
func gradients[T float32 | float64](s scores, q, k, v, dy, lse, delta []float64) (dq, dk, dv []float64) {
	qg, kg, vg := make([]T, len(q)), make([]T, len(k)), make([]T, len(k))
	scale := T(1 / math.Sqrt(float64(s.dh)))
	for i := range s.tq {
		for h := range s.hq {
			row := i*s.hq + h
			for j := range s.tk {
				if s.causal && j > i+s.tk-s.tq {
					continue
				}
				at := (j*s.hkv + h/(s.hq/s.hkv)) * s.dh
				var qk, dp T
				for d := range s.dh {
					qk += T(q[row*s.dh+d]) * T(k[at+d])
					dp += T(dy[row*s.dh+d]) * T(v[at+d])
				}
				p := T(math.Exp(float64(scale*qk - T(lse[row]))))
				ds := p * (dp - T(delta[row])) * scale
				for d := range s.dh {
					qg[row*s.dh+d] += ds * T(k[at+d])
					kg[at+d] += ds * T(q[row*s.dh+d])
					vg[at+d] += p * T(dy[row*s.dh+d])
				}
			}
		}
	}
	wide := func(x []T) []float64 {
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = float64(v)
		}
		return out
	}
	return wide(qg), wide(kg), wide(vg)
}

// TestAttentionGradBound checks that results of the formulas are within the evaluator's bounds. The test computes the
// results in f64 for operands that differ from the given ones by up to their errors, and in f32 for the given operands.
// The test also checks that the bounds are small if the operands have no errors.
func TestAttentionGradBound(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 7))
	for n := range 300 {
		s := scores{tq: 1 + r.IntN(5), dh: 1 + r.IntN(6), hkv: 1 + r.IntN(2), causal: r.IntN(2) == 0}
		s.tk, s.hq = s.tq+r.IntN(4), s.hkv*(1+r.IntN(2))
		size, eps := math.Ldexp(1, r.IntN(8)-4), []float64{0, 1e-4}[r.IntN(2)]
		made := func(shape ...int64) *array {
			a := newArray(ir.F32, shape)
			for i := range a.f {
				a.f[i], a.e[i] = float64(float32(r.NormFloat64()*size)), eps*r.Float64()
			}
			return a
		}
		tq, tk, hq, hkv, dh := int64(s.tq), int64(s.tk), int64(s.hq), int64(s.hkv), int64(s.dh)
		q, k, v, dy := made(tq, hq, dh), made(tk, hkv, dh), made(tk, hkv, dh), made(tq, hq, dh)
		delta := made(tq, hq)
		lse, err := compute(ir.OpAttentionLSE, attrs{causal: s.causal}, []*array{q, k}, ir.F32, nil, alone)
		if err != nil {
			t.Fatal(err)
		}
		ins := []*array{q, k, v, dy, lse, delta}
		at := attrs{causal: s.causal}
		gotQ, err := compute(ir.OpAttentionDQ, at, ins, ir.F32, nil, alone)
		if err != nil {
			t.Fatal(err)
		}
		gotKV, err := compute(ir.OpAttentionDKV, at, ins, ir.F32, nil, alone)
		if err != nil {
			t.Fatal(err)
		}
		check := func(how string, dq, dk, dv []float64) {
			for i, want := range append(append([]float64(nil), dq...), append(dk, dv...)...) {
				y, e := 0.0, 0.0
				if i < len(dq) {
					y, e = gotQ.f[i], gotQ.e[i]
				} else {
					y, e = gotKV.f[i-len(dq)], gotKV.e[i-len(dq)]
				}
				if !(math.Abs(y-want) <= e) {
					t.Fatalf("%d, %+v, %s: element %d is %v, the evaluator returns %v ± %v", n, s, how, i, want, y, e)
				}
				if eps == 0 && size <= 1 && e > 1e-3*(1+math.Abs(y)) {
					t.Fatalf("%d, %+v: element %d, %v, has a bound that is too large: %v", n, s, i, y, e)
				}
			}
		}
		check64 := func(how string, x [6][]float64) {
			dq, dk, dv := gradients[float64](s, x[0], x[1], x[2], x[3], x[4], x[5])
			check(how, dq, dk, dv)
		}
		var exact, moved [6][]float64
		for i, a := range ins {
			exact[i] = a.f
			for j := range a.f {
				moved[i] = append(moved[i], a.f[j]+a.e[j]*(2*r.Float64()-1))
			}
		}
		check64("f64", exact)
		check64("f64 of other operands", moved)
		dq, dk, dv := gradients[float32](s, exact[0], exact[1], exact[2], exact[3], exact[4], exact[5])
		check("f32", dq, dk, dv)
	}
}
