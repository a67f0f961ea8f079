package devicetest

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// testAttentionGrad compares attention_lse, attention_dq and attention_dkv with the formulas of gradients.
func testAttentionGrad(r *rig) {
	cases, halves := attentionShapes(shaped(nil, 140, 140, 4, 1, 128))
	r.types(1, func(r *rig, dt ir.DType) {
		if dt.IsInt() {
			return
		}
		for _, c := range map[bool][]attended{false: cases, true: halves}[dt.Size() == 2] {
			for _, causal := range []bool{false, true} {
				c.testGrads(r, dt, causal)
			}
		}
	})
}

func (c attended) testGrads(r *rig, dt ir.DType, causal bool) {
	rng := seeded(dt, c)
	rows := append(append([]int64{}, c.lead...), c.tq, c.hq)
	shape := append(append([]int64{}, rows...), c.dim)
	other := append(append([]int64{}, c.lead...), c.tk, c.hkv, c.dim)
	q, k, v, dy := random(rng, dt, shape...), random(rng, dt, other...), random(rng, dt, other...),
		random(rng, dt, shape...)
	lse, delta := c.statistics(causal, dt, q.vals, k.vals, v.vals, dy.vals)
	for _, l := range layouts {
		check := func(op ir.Op, want answer, out ir.DType, shape []int64, ins ...host) {
			r.check(fmt.Sprintf("%s %v, causal %v", op, c, causal),
				device.Kernel{Op: device.AttentionGrad{Op: op, Scale: 0.125, Causal: causal}}, l, want, out, shape,
				ins...)
		}
		check(ir.OpAttentionLSE, lse, dt.Accum(), rows, q, k)
		given := func(a answer) host {
			h := host{dt: dt.Accum(), shape: rows}
			for _, x := range a.vals {
				h.vals = append(h.vals, tensor.Round(dt.Accum(), x))
			}
			return h
		}
		dq, dkv := c.gradients(causal, dt, q.vals, k.vals, v.vals, dy.vals, given(lse).vals, given(delta).vals)
		check(ir.OpAttentionDQ, dq, dt, shape, q, k, v, dy, given(lse), given(delta))
		check(ir.OpAttentionDKV, dkv, dt, append([]int64{2}, other...), q, k, v, dy, given(lse), given(delta))
	}
}

// testAttentionWithLSE compares both results of kernels that compute attention and attention_lse with formulas. A
// machine may decline each.
func testAttentionWithLSE(r *rig) {
	if !r.m.Caps().Chains {
		r.Skip("the machine has no kernels with two results")
	}
	r.types(1, func(r *rig, dt ir.DType) {
		if dt.IsInt() {
			return
		}
		// The kernels for GPUs split the keys of small attentions over thread blocks.
		cases := []attended{shaped([]int64{2}, 3, 7, 3, 3, 8), shaped([]int64{2}, 130, 130, 2, 1, 16)}
		if dt.Size() == 2 && !testing.Short() {
			cases = append(cases, shaped([]int64{2, 2}, 33, 70, 32, 16, 64), shaped([]int64{2}, 40, 130, 32, 32, 128),
				shaped(nil, 33, 200, 64, 64, 64))
		}
		for i, c := range cases {
			for j, l := range layouts {
				if i > 1 && j > 0 {
					break
				}
				if !c.testLSE(r, dt, (i+j)%2 == 0, l) {
					r.Logf("%v, %s: declined", c, l.name)
				}
			}
		}
	})
}

// testLSE returns false if the machine declines the kernel.
func (c attended) testLSE(r *rig, dt ir.DType, causal bool, l layout) bool {
	rng := seeded(dt, c)
	rows := append(append([]int64{}, c.lead...), c.tq, c.hq)
	shape, other := append(append([]int64{}, rows...), c.dim), append(append([]int64{}, c.lead...), c.tk, c.hkv, c.dim)
	q, k, v := random(rng, dt, shape...), random(rng, dt, other...), random(rng, dt, other...)
	lse := r.room(0, device.Private, l, dt.Accum(), rows)
	kernel := device.Kernel{Op: device.Attention{Scale: 0.125, Causal: causal, LSE: true},
		Ins:  []device.View{r.put(0, q, l), r.put(0, k, l), r.put(0, v, l)},
		Outs: []device.View{lse, r.room(0, device.Private, l, dt, shape)}}
	defer func() {
		for _, x := range append(kernel.Ins, kernel.Outs...) {
			r.must(x.Mem.Free())
		}
	}()
	both, err := r.w.Device(0).Prepare(kernel)
	if errors.Is(err, device.ErrUnsupported) {
		return false
	}
	r.must(err)
	r.must(r.mainOf(0).Launch(both))
	y, got := r.contents(0, kernel.Outs[1]), r.contents(0, lse)
	what := fmt.Sprintf("attention %v with lse, causal %v, %s", c, causal, l.name)
	want := c.answer(causal, dt, q.vals, k.vals, v.vals)
	r.near(what, y, want.vals, want.bound(dt))
	sums, _ := c.statistics(causal, dt, q.vals, k.vals, v.vals, q.vals)
	bound := sums.bound(dt.Accum())
	r.near(what+": lse", got, sums.vals, bound)
	alone, err := r.w.Device(0).Prepare(device.Kernel{
		Op:  device.AttentionGrad{Op: ir.OpAttentionLSE, Scale: 0.125, Causal: causal},
		Ins: kernel.Ins[:2], Outs: kernel.Outs[:1]})
	if errors.Is(err, device.ErrUnsupported) {
		return true
	}
	r.must(err)
	r.must(r.mainOf(0).Launch(alone))
	for i := range bound {
		bound[i] *= 2
	}
	r.near(what+", compared with attention_lse", got, r.contents(0, lse), bound)
	return true
}

// seen returns the number of keys that row i of q sees. key returns the index of the first element of key j, of the key
// head that row i uses.
func (c attended) seen(causal bool, i int64) int64 {
	if causal {
		return i/c.hq%c.tq + 1 + c.tk - c.tq
	}
	return c.tk
}

func (c attended) key(i, j int64) int64 {
	return ((i/c.hq/c.tq*c.tk+j)*c.hkv + i%c.hq/(c.hq/c.hkv)) * c.dim
}

// dot returns the product of two rows, and the product of their magnitudes.
func dot(x, y []float64) (sum, size float64) {
	y = y[:len(x)]
	for d, v := range x {
		v *= y[d]
		sum, size = sum+v, size+math.Abs(v)
	}
	return sum, size
}

// statistics returns log Σ exp of a row's scores, which are scaled by 1/8, and the mean of dy·v weighted by their
// softmax.
func (c attended) statistics(causal bool, dt ir.DType, q, k, v, dy []float64) (lse, delta answer) {
	lse.terms = c.tk + c.dim + 16
	for i := range int64(len(q)) / c.dim {
		sum, mean, most := 0.0, 0.0, 0.0
		for j := range c.seen(causal, i) {
			at := c.key(i, j)
			s, size := dot(q[i*c.dim:][:c.dim], k[at:at+c.dim])
			g, _ := dot(dy[i*c.dim:][:c.dim], v[at:at+c.dim])
			p := math.Exp(0.125 * s)
			sum, mean, most = sum+p, mean+p*g, max(most, 0.125*size)
		}
		lse.vals, lse.size = append(lse.vals, math.Log(sum)), append(lse.size, 2+2*most+math.Abs(math.Log(sum)))
		delta.vals = append(delta.vals, mean/sum)
	}
	return lse, delta
}

func (c attended) gradients(causal bool, dt ir.DType, q, k, v, dy, lse, delta []float64) (dq, dkv answer) {
	dq = answer{vals: make([]float64, len(q)), size: make([]float64, len(q)), terms: c.tk + c.dim + 16}
	n := int64(len(k))
	dkv = answer{vals: make([]float64, 2*n), size: make([]float64, 2*n), terms: c.tq*c.hq/c.hkv + c.dim + 16}
	add := func(a *answer, at int64, x, size, by float64) {
		a.vals[at] += x * by
		a.size[at] += size * math.Abs(by)
	}
	for i := range int64(len(q)) / c.dim {
		for j := range c.seen(causal, i) {
			from, at := i*c.dim, c.key(i, j)
			s, most := dot(q[from:][:c.dim], k[at:at+c.dim])
			g, large := dot(dy[from:][:c.dim], v[at:at+c.dim])
			p := math.Exp(0.125*s - lse[i])
			psize := p * (2 + 0.25*most + 2*math.Abs(lse[i]))
			ds, size := 0.125*p*(g-delta[i]), 0.125*psize*(large+math.Abs(delta[i]))
			if dt.Size() == 2 { // factors below the smallest normal number have fewer significant bits
				psize, size = max(psize, normal(dt)), max(size, normal(dt))
			}
			for d := range c.dim {
				add(&dq, from+d, ds, size, k[at+d])
				add(&dkv, at+d, ds, size, q[from+d])
				add(&dkv, n+at+d, p, psize, dy[from+d])
			}
		}
	}
	if dt.Size() == 2 { // weights may be rounded to the operands' type
		for _, a := range []answer{dq, dkv} {
			for i := range a.size {
				a.size[i] += a.size[i] * epsilon(dt) / epsilon(dt.Accum()) / float64(a.terms)
			}
		}
	}
	return dq, dkv
}

// normal returns the smallest normal number of a 2-byte type.
func normal(dt ir.DType) float64 {
	if dt == ir.F16 {
		return 0x1p-14
	}
	return 0x1p-126
}
