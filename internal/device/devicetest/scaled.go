package devicetest

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// scalesOf returns the shapes that the scales of a matrix can have: a single scale, or a scale for each row, block or
// square.
func scalesOf(m, k int64) [][]int64 {
	blocks := func(n int64) int64 { return (n + 127) / 128 }
	return [][]int64{{}, {m}, {m, blocks(k)}, {blocks(m), blocks(k)}}
}

// scaleAt returns the index of the scale of element (i, j), for scales with one of the shapes that scalesOf returns.
func scaleAt(form int, k, i, j int64) int64 {
	return [4]int64{0, i, i*((k+127)/128) + j/128, i/128*((k+127)/128) + j/128}[form]
}

// testScaled checks scales and quantize of known numbers, and linears with scales whose sums every machine can
// represent exactly: small integers multiplied by powers of two.
func testScaled(r *rig) {
	if !slices.Contains(r.m.Caps().DTypes, ir.F8E4M3) {
		r.Skip("the machine has no 8-bit types")
	}
	r.open(1)
	for _, c := range [][2]int64{{1, 1}, {3, 130}, {64, 256}, {130, 300}, {2, 1024}} {
		m, k := c[0], c[1]
		for d, dt := range []ir.DType{ir.BF16, ir.F32, ir.F16, ir.F64} {
			x := random(seeded("scales", dt, m, k), dt, m, k)
			for form, shape := range scalesOf(m, k) {
				to, top := []ir.DType{ir.F8E4M3, ir.F8E5M2}[(d+form)%2], []float64{448, 57344}[(d+form)%2]
				scales := make([]float64, elements(shape))
				for i := range m {
					for j := range k {
						at := scaleAt(form, k, i, j)
						scales[at] = max(scales[at], math.Abs(x.vals[i*k+j]))
					}
				}
				for i, v := range scales {
					scales[i] = max(float64(float32(v/top)), float64(float32(1e-12)))
				}
				l := layouts[(d+form)%len(layouts)]
				what := fmt.Sprintf("scales %v of %s[%d %d]", shape, dt, m, k)
				r.exactly(what, device.Kernel{Op: device.Scales{Max: top}}, l, ir.F32, shape, slices.Clone(scales), x)
				r.quantized(l, x, given(ir.F32, shape, scales...), to, form, top)
			}
		}
	}
	for _, c := range [][3]int64{{1, 1, 1}, {3, 5, 130}, {16, 128, 256}, {128, 144, 128}, {1, 256, 512}} {
		r.scaledLinears(c[0], c[1], c[2])
	}
}

// quantized permits both of two adjacent results if the quotient is at most two units in the last place of f32 from the
// midpoint between them.
func (r *rig) quantized(l layout, x, scales host, to ir.DType, form int, top float64) {
	r.Helper()
	in, s, out := r.put(0, x, l), r.put(0, scales), r.room(0, device.Private, l, to, x.shape)
	r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Quantize{}, Ins: []device.View{in, s}, Outs: []device.View{out}})
	k := x.shape[1]
	for i, got := range r.contents(0, out) {
		y := x.vals[i] / scales.vals[scaleAt(form, k, int64(i)/k, int64(i)%k)]
		lo := tensor.Round(to, max(min(y-math.Abs(y)*0x1p-22, top), -top))
		hi := tensor.Round(to, max(min(y+math.Abs(y)*0x1p-22, top), -top))
		if !(lo <= got && got <= hi) {
			r.Fatalf("quantize of %s: element %d of %v: %v / scale is %v, which rounds to %v in %s, not %v", x.dt, i, x.shape, x.vals[i], y, hi, to, got)
		}
	}
	for _, v := range []device.View{in, s, out} {
		r.must(v.Mem.Free())
	}
}

// scaledLinears checks x[m, k]·w[n, k]ᵀ with all shapes of scales.
func (r *rig) scaledLinears(m, n, k int64) {
	r.Helper()
	rng := seeded("linear", m, n, k)
	whole := func(dt ir.DType, shape ...int64) host {
		h := host{dt, shape, make([]float64, elements(shape))}
		for i := range h.vals {
			h.vals[i] = float64(rng.IntN(5) - 2)
		}
		return h
	}
	powers := func(shape []int64) host {
		h := host{ir.F32, shape, make([]float64, elements(shape))}
		for i := range h.vals {
			h.vals[i] = math.Ldexp(1, rng.IntN(4)-2)
		}
		return h
	}
	for fx, sx := range scalesOf(m, k)[:3] {
		for fw, sw := range scalesOf(n, k) {
			if fw == 2 {
				continue
			}
			to := []ir.DType{ir.BF16, ir.F16, ir.F32}[(fx+fw)%3]
			x, w := whole([]ir.DType{ir.F8E4M3, ir.F8E4M3, ir.F8E5M2}[rng.IntN(3)], m, k), whole(ir.F8E4M3, n, k)
			x.dt = []ir.DType{x.dt, ir.F8E4M3}[min(1, fx+fw)]
			if rng.IntN(3) == 0 {
				x.dt = []ir.DType{ir.BF16, ir.F16}[rng.IntN(2)]
			}
			scalesX, scalesW := powers(sx), powers(sw)
			want := make([]float64, m*n)
			for i := range m {
				for j := range n {
					for c := range k {
						want[i*n+j] += x.vals[i*k+c] * scalesX.vals[scaleAt(fx, k, i, c)] *
							w.vals[j*k+c] * scalesW.vals[scaleAt(fw, k, j, c)]
					}
				}
			}
			for _, l := range []layout{layouts[0], layouts[rng.IntN(len(layouts))]} {
				r.exactly(fmt.Sprintf("linear with scales %v and %v", sx, sw), device.Kernel{Op: device.Linear{}}, l, to,
					[]int64{m, n}, slices.Clone(want), x, w, scalesX, scalesW)
			}
		}
	}
}
