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

// floating runs f for every floating-point dtype and layout.
func (r *rig) floating(f func(r *rig, dt ir.DType, l layout)) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		if !dt.IsInt() {
			f(r, dt, l)
		}
	})
}

// alongCases lists shapes, each with an axis to operate along.
var alongCases = []struct {
	shape []int64
	axis  int
}{
	{[]int64{1}, 0}, {[]int64{7}, 0}, {[]int64{3, 5}, 0}, {[]int64{3, 5}, 1}, {[]int64{2, 6, 3}, 1},
	{[]int64{40, 1000}, 1}, {[]int64{2, 0}, 0}, {[]int64{0, 3}, 1},
}

// eachRow calls f with the indices of the elements of each row along axis.
func eachRow(shape []int64, axis int, f func(at []int64)) {
	step := elements(shape[axis+1:])
	for i := range elements(shape) {
		if i/step%shape[axis] > 0 {
			continue
		}
		at := make([]int64, shape[axis])
		for j := range at {
			at[j] = i + int64(j)*step
		}
		f(at)
	}
}

func softmax(x []float64) []float64 {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = math.Exp(v - top)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func testSoftmax(r *rig) {
	r.floating(func(r *rig, dt ir.DType, l layout) {
		for _, c := range alongCases {
			in := random(seeded(dt, c.shape), dt, c.shape...)
			n := elements(c.shape)
			want := answer{vals: make([]float64, n), size: make([]float64, n), terms: c.shape[c.axis] + 16}
			eachRow(c.shape, c.axis, func(at []int64) {
				x := make([]float64, len(at))
				for j, i := range at {
					x[j] = in.vals[i]
				}
				for j, p := range softmax(x) {
					want.vals[at[j]], want.size[at[j]] = p, p
				}
			})
			r.check(fmt.Sprintf("softmax along %d", c.axis), device.Kernel{Op: device.Softmax{Axis: c.axis}}, l, want,
				dt, c.shape, in)
		}
		far := given(dt, []int64{3}, 3e4, 3e4, -3e4)
		want := answer{vals: []float64{0.5, 0.5, 0}, size: []float64{0.5, 0.5, 0}, terms: 3}
		for i, v := range far.vals {
			far.vals[i] = tensor.Round(dt, v)
		}
		r.check("softmax of large numbers", device.Kernel{Op: device.Softmax{Axis: 0}}, l, want, dt, far.shape, far)
	})
}

func testNorms(r *rig) {
	const eps = 0.25
	r.floating(func(r *rig, dt ir.DType, l layout) {
		for _, shape := range [][]int64{{1}, {5}, {3, 7}, {2, 2, 33}, {30, 1200}, {0, 4}} {
			last := len(shape) - 1
			d := shape[last]
			rng := seeded(dt, shape)
			x, w, b := random(rng, dt, shape...), random(rng, dt, d), random(rng, dt, d)
			n := elements(shape)
			for _, op := range []ir.Op{ir.OpRMSNorm, ir.OpLayerNorm} {
				ins := []host{x, w, b}[:op.Info().MinArgs]
				want := answer{vals: make([]float64, n), size: make([]float64, n), terms: d + 16}
				eachRow(shape, last, func(at []int64) {
					mean, square := 0.0, 0.0
					if op == ir.OpLayerNorm {
						for _, i := range at {
							mean += x.vals[i] / float64(d)
						}
					}
					for _, i := range at {
						square += (x.vals[i] - mean) * (x.vals[i] - mean) / float64(d)
					}
					for j, i := range at {
						root := math.Sqrt(square + eps)
						want.vals[i] = (x.vals[i] - mean) / root * w.vals[j]
						want.size[i] = (math.Abs(x.vals[i]) + math.Abs(mean)) / root * math.Abs(w.vals[j])
						if len(ins) == 3 {
							want.vals[i] += b.vals[j]
							want.size[i] += math.Abs(b.vals[j])
						}
					}
				})
				r.check(op.String(), device.Kernel{Op: device.OpOf(op, ir.Attrs{Numbers: ir.Reals(eps)})}, l, want, dt,
					shape, ins...)
			}
		}
	})
}

// testNormGrads compares rms_norm_dx and rms_norm_dw with the formulas of gradients.
func testNormGrads(r *rig) {
	const eps = 0.25
	r.floating(func(r *rig, dt ir.DType, l layout) {
		for _, shape := range [][]int64{{1}, {5}, {3, 7}, {2, 2, 33}, {30, 1200}, {300, 8}, {0, 4}} {
			last := len(shape) - 1
			d := shape[last]
			rng := seeded(dt, shape)
			x, w, dy := random(rng, dt, shape...), random(rng, dt, d), random(rng, dt, shape...)
			n := elements(shape)
			dx := answer{vals: make([]float64, n), size: make([]float64, n), terms: d + 16}
			dw := answer{vals: make([]float64, d), size: make([]float64, d), terms: n/d + d + 16}
			eachRow(shape, last, func(at []int64) {
				square, mean, size := 0.0, 0.0, 0.0
				for _, i := range at {
					square += x.vals[i] * x.vals[i] / float64(d)
				}
				root := 1 / math.Sqrt(square+eps)
				for j, i := range at {
					g := dy.vals[i] * w.vals[j] * x.vals[i] * root / float64(d)
					mean, size = mean+g, size+math.Abs(g)
				}
				for j, i := range at {
					g, z := dy.vals[i]*w.vals[j], x.vals[i]*root
					dx.vals[i], dx.size[i] = root*(g-z*mean), root*(math.Abs(g)+2*math.Abs(z)*size)
					dw.vals[j], dw.size[j] = dw.vals[j]+dy.vals[i]*z, dw.size[j]+math.Abs(dy.vals[i]*z)
				}
			})
			kernel := func(op ir.Op) device.Kernel {
				return device.Kernel{Op: device.OpOf(op, ir.Attrs{Numbers: ir.Reals(eps)})}
			}
			r.check("rms_norm_dx", kernel(ir.OpRMSNormDX), l, dx, dt, shape, x, w, dy)
			r.check("rms_norm_dw", kernel(ir.OpRMSNormDW), l, dw, dt.Accum(), []int64{d}, x, dy)
		}
	})
}

// attended is a shape of an attention test: leading extents; numbers of queries, keys, query heads and key heads;
// elements of a head (Dh).
type attended struct {
	lead                 []int64
	tq, tk, hq, hkv, dim int64
	window               int64   // 0 for all keys
	softcap              float64 // 0 for none
	mask                 []float64
}

func shaped(lead []int64, tq, tk, hq, hkv, dim int64) attended {
	return attended{lead: lead, tq: tq, tk: tk, hq: hq, hkv: hkv, dim: dim}
}

// attentionShapes returns the shapes of attention's tests, and additional shapes for 2-byte types, for which machines
// may use tensor cores. long is omitted in short tests.
func attentionShapes(long attended) (cases, halves []attended) {
	cases = []attended{
		shaped(nil, 1, 1, 1, 1, 1), shaped(nil, 5, 5, 4, 2, 3), shaped([]int64{2}, 3, 7, 3, 3, 8),
		shaped([]int64{1, 2}, 2, 33, 4, 1, 5), shaped(nil, 0, 3, 2, 1, 4), shaped(nil, 1, 300, 8, 1, 128),
	}
	halves = cases
	if !testing.Short() {
		halves = append(cases, shaped(nil, 70, 131, 4, 2, 64), shaped([]int64{2}, 130, 130, 2, 1, 16), long)
	}
	return cases, halves
}

func testAttention(r *rig) {
	cases, halves := attentionShapes(shaped(nil, 3, 1200, 4, 1, 64))
	r.types(1, func(r *rig, dt ir.DType) {
		if dt.IsInt() {
			return
		}
		for _, c := range map[bool][]attended{false: cases, true: halves}[dt.Size() == 2] {
			rng := seeded(dt, c)
			shape := append(append([]int64{}, c.lead...), c.tq, c.hq, c.dim)
			other := append(append([]int64{}, c.lead...), c.tk, c.hkv, c.dim)
			q, k, v := random(rng, dt, shape...), random(rng, dt, other...), random(rng, dt, other...)
			for _, causal := range []bool{false, true} {
				want := c.answer(causal, dt, q.vals, k.vals, v.vals)
				for _, l := range layouts {
					r.check(fmt.Sprintf("attention %v, causal %v", c, causal),
						device.Kernel{Op: device.Attention{Scale: 0.125, Causal: causal}}, l, want, dt, shape, q, k, v)
				}
			}
			c.window, c.softcap = 1+c.tk/2, 1.5
			want := c.answer(true, dt, q.vals, k.vals, v.vals)
			for _, l := range layouts {
				op := device.Attention{Scale: 0.125, Causal: true, Window: c.window, Softcap: c.softcap}
				r.check(fmt.Sprintf("attention %v, the last %d keys", c, c.window), device.Kernel{Op: op}, l, want, dt,
					shape, q, k, v)
			}
			mask := random(rng, dt, append(append([]int64{}, c.lead...), c.tq, c.tk)...)
			for i := range mask.vals {
				if int64(i)%c.tk != int64(i)/c.tk%c.tk && i%3 == 0 { // each query sees some keys
					mask.vals[i] = math.Inf(-1)
				}
			}
			c.window, c.softcap, c.mask = 0, 0, mask.vals
			want = c.answer(false, dt, q.vals, k.vals, v.vals)
			for _, l := range layouts {
				r.check(fmt.Sprintf("attention %v with a mask", c), device.Kernel{Op: device.Attention{Scale: 0.125}},
					l, want, dt, shape, q, k, v, mask)
			}
			mask.shape, mask.vals = []int64{c.tq, c.tk}, mask.vals[:c.tq*c.tk]
			c.mask = mask.vals
			want = c.answer(false, dt, q.vals, k.vals, v.vals)
			r.check(fmt.Sprintf("attention %v with a mask for all", c),
				device.Kernel{Op: device.Attention{Scale: 0.125}}, layouts[0], want, dt, shape, q, k, v, mask)
		}
	})
}

// answer returns the expected result of an attention whose scores are scaled by 1/8.
func (c attended) answer(causal bool, dt ir.DType, q, k, v []float64) answer {
	n := int64(len(q))
	want := answer{vals: make([]float64, n), size: make([]float64, n), terms: c.tk + c.dim + 16}
	for i := range n / c.dim {
		h, t, b := i%c.hq, i/c.hq%c.tq, i/c.hq/c.tq
		key := func(j int) int64 { return ((b*c.tk+int64(j))*c.hkv + h/(c.hq/c.hkv)) * c.dim }
		sees, most := c.tk, 0.0
		if causal {
			sees = t + 1 + c.tk - c.tq
		}
		first := int64(0)
		if c.window > 0 {
			first = max(0, sees-c.window)
		}
		scores := make([]float64, sees-first)
		for j := range scores {
			sum, mag := dot(q[i*c.dim:][:c.dim], k[key(int(first)+j):][:c.dim])
			scores[j], mag = 0.125*sum, 0.125*mag
			most = max(most, mag)
			if c.softcap != 0 {
				scores[j] = c.softcap * math.Tanh(scores[j]/c.softcap)
			}
			if c.mask != nil {
				m := c.mask[(int64(i/c.hq)*c.tk+int64(j))%int64(len(c.mask))]
				scores[j] += m
				if !math.IsInf(m, -1) {
					most = max(most, mag+math.Abs(m))
				}
			}
		}
		vals, size := want.vals[i*c.dim:][:c.dim], want.size[i*c.dim:][:c.dim]
		for j, p := range softmax(scores) {
			for d, x := range v[key(int(first)+j):][:c.dim] {
				vals[d] += p * x
				size[d] += p * math.Abs(x) * (2 + 2*most)
			}
		}
	}
	if dt.Size() == 2 { // weights may be rounded to the operands' type
		for i := range want.size {
			want.size[i] += want.size[i] * epsilon(dt) / epsilon(dt.Accum()) / float64(want.terms)
		}
	}
	return want
}

func testEmbedding(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, idType := range []ir.DType{ir.I32, ir.I64} {
			table := random(seeded(dt), dt, 4, 3)
			ids := given(idType, []int64{2, 3}, 3, 0, 5, 6, 2, 3)
			for _, first := range []int64{0, 2, 3} {
				var want []float64
				for _, id := range ids.vals {
					row := []float64{0, 0, 0}
					if at := int64(id) - first; at >= 0 && at < 4 {
						row = table.vals[at*3 : at*3+3]
					}
					want = append(want, row...)
				}
				k := device.Kernel{Op: device.Embedding{First: first, Rows: 7}}
				r.exactly(fmt.Sprintf("embedding from row %d", first), k, l, dt, []int64{2, 3, 3}, want, ids, table)
			}
		}
	})
}

// testBadIDs selects rows that the table does not have.
func testBadIDs(r *rig) {
	for _, id := range []float64{-1, 4, 1 << 30} {
		r.open(1)
		table, ids := r.put(0, random(seeded(id), ir.F32, 4, 3)), r.put(0, given(ir.I32, []int64{2}, 0, id))
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Embedding{Rows: 4}, Ins: []device.View{ids, table},
			Outs: []device.View{r.empty(0, ir.F32, 2, 3)}})
		var fault *device.Fault
		if err := r.syncs(); !errors.As(err, &fault) || fault.Rank != 0 {
			r.Errorf("id %v: %v", id, err)
		}
		_ = r.w.Close()
	}
}

func testConcat(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range alongCases {
			rng := seeded(dt, c)
			var ins []host
			joined := append([]int64{}, c.shape...)
			joined[c.axis] = 0
			for _, n := range []int64{c.shape[c.axis], 0, 2} {
				shape := append([]int64{}, c.shape...)
				shape[c.axis] = n
				joined[c.axis] += n
				ins = append(ins, random(rng, dt, shape...))
			}
			var want []float64
			for i := range elements(joined[:c.axis]) {
				for _, in := range ins {
					n := elements(in.shape[c.axis:])
					want = append(want, in.vals[i*n:(i+1)*n]...)
				}
			}
			r.exactly(fmt.Sprintf("concat along %d", c.axis), device.Kernel{Op: device.Concat{Axis: c.axis}}, l, dt,
				joined, want, ins...)
		}
	})
}

// testSlots checks sums along an axis, with a result in the operand's type and in the accumulator's type, and with and
// without an earlier sum to which they are added.
func testSlots(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range alongCases {
			x := signs(seeded(dt, c), dt, c.shape...)
			want, shape := overAxes(ir.OpSum, x, []int{c.axis})
			for _, to := range []ir.DType{dt, dt.Accum()} {
				k := device.Kernel{Op: device.ReduceSlots{Axis: c.axis}, Ins: []device.View{r.put(0, x, l)}}
				out := r.room(0, device.Private, l, to, shape)
				k.Outs = []device.View{out}
				s := r.mainOf(0)
				r.launch(s, 0, k)
				k.Ins = append(k.Ins, out)
				r.launch(s, 0, k)
				twice := make([]float64, len(want.vals))
				for i, v := range want.vals {
					twice[i] = 2 * v
				}
				r.equal(fmt.Sprintf("slots of %s%v along %d into %s", dt, c.shape, c.axis, to), r.contents(0, out),
					twice)
			}
		}
	})
}
