package kernels

import (
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// f8Types lists the 8-bit types.
var f8Types = []ir.DType{ir.F8E4M3, ir.F8E5M2}

// TestFloat8Moves compares all operations on 8-bit types, except products, with the CPU machine, for every number.
func TestFloat8Moves(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range f8Types {
		all := values{dt, []int64{16, 16}, make([]float64, 256)}
		raw := make([]byte, 256)
		for i := range raw {
			raw[i] = byte(i)
		}
		tensor.ToFloat64(all.vals, raw, dt)
		for j, l := range layouts {
			for _, to := range ir.DTypes() {
				if to.IsInt() && (i+j)%2 > 0 {
					continue
				}
				r.compare(device.Kernel{Op: device.Cast{}}, l, 0, to, all.shape, all)
			}
			r.compare(device.Kernel{Op: device.Copy{Op: ir.OpCopy}}, l, 0, dt, all.shape, all)
			r.compare(device.Kernel{Op: device.Copy{Op: ir.OpReshape}}, l, 0, dt, []int64{32, 8}, all)
			r.compare(device.Kernel{Op: device.Concat{Axis: j % 2}}, l, 0, dt, [][]int64{{32, 16}, {16, 32}}[j%2], all, all)
			r.compare(device.Kernel{Op: device.TakeAlong{}}, l, 0, dt, []int64{16, 2}, all,
				values{ir.I32, []int64{16, 2}, slices.Repeat([]float64{3, 15}, 16)})
			r.compare(device.Kernel{Op: device.Zeros()}, l, 0, dt, all.shape)
		}
	}
	// The inputs are every bf16 value, and numbers near those at which rounding changes direction.
	halves := values{ir.BF16, []int64{1 << 16}, make([]float64, 1<<16)}
	around := values{ir.F32, []int64{1 << 16}, make([]float64, 1<<16)}
	for i := range halves.vals {
		v := math.Float32frombits(uint32(i) << 16)
		halves.vals[i] = float64(v)
		around.vals[i] = float64(math.Float32frombits(math.Float32bits(v) + uint32(i%3) - 1))
	}
	for _, dt := range f8Types {
		r.compare(device.Kernel{Op: device.Cast{}}, layouts[0], 0, dt, halves.shape, halves)
		r.compare(device.Kernel{Op: device.Cast{}}, layouts[0], 0, dt, around.shape, around)
	}
	r.run()
}

// grains returns the shapes that scales of a matrix can have.
func grains(m, n int64, square bool) [][]int64 {
	blocks := []int64{m, ceil(n, 128)}
	if square {
		blocks[0] = ceil(m, 128)
	}
	return [][]int64{{}, {m}, blocks}
}

// positive converts values to valid scales.
func positive(v values) values {
	for i, x := range v.vals {
		v.vals[i] = float64(float32(math.Abs(x)/16 + 0x1p-8))
	}
	return v
}

// TestScaled compares scales, quantize and linears with scales with the CPU machine, for one scale per tensor, row and
// block.
func TestScaled(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, c := range [][3]int64{{3, 5, 7}, {1, 2, 128}, {70, 130, 300}, {2, 129, 257}, {5, 4, 0}, {0, 3, 4}} {
		m, n, k := c[0], c[1], c[2]
		for j, dt := range []ir.DType{ir.BF16, ir.F32, ir.F64, ir.F16} {
			l := layouts[(i+j)%len(layouts)]
			x := noise(dt, m, k)
			for s, shape := range append(grains(m, k, false), grains(m, k, true)[2]) {
				op := device.Kernel{Op: device.Scales{Max: []float64{448, 57344}[s%2]}}
				r.compare(op, l, 0, ir.F32, shape, x)
				r.compare(device.Kernel{Op: device.Quantize{}}, l, 0, f8Types[j%2], x.shape, x, positive(noise(ir.F32, shape...)))
			}
		}
		for a, sx := range grains(m, k, false) {
			for b, sw := range grains(n, k, true) {
				l, dt := layouts[(i+a+b)%len(layouts)], []ir.DType{ir.BF16, ir.F16, ir.F32}[(a+2*b)%3]
				r.compare(device.Kernel{Op: device.Linear{}}, l, float64(k+2), dt, []int64{m, n}, noise(f8Types[a%2], m, k),
					noise(f8Types[(a+b)/2%2], n, k), positive(noise(ir.F32, sx...)), positive(noise(ir.F32, sw...)))
			}
		}
	}
	for _, l := range layouts { // layouts in which rows of scales have gaps, so that they are no matrix
		for _, shape := range [][]int64{{2, 3}, {2, 3, 2}} {
			r.compare(device.Kernel{Op: device.Scales{Max: 448}}, l, 0, ir.F32, shape, noise(ir.F32, 2, 3, 256))
		}
	}
	r.compare(device.Kernel{Op: device.Linear{}}, layouts[1], 200, ir.F32, []int64{2, 3, 4}, noise(ir.F8E4M3, 2, 3, 130),
		noise(ir.F8E4M3, 4, 130), positive(noise(ir.F32, 2, 3, 2)), positive(noise(ir.F32, 1, 2)))
	r.run()
}

// TestScaleAndQuantize checks that one launch that computes scales and values has the bits of two launches, also if
// scales are stored by columns, for rows that end within a block, and for numbers that are not finite.
func TestScaleAndQuantize(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, c := range [][2]int64{{1, 8}, {3, 128}, {70, 264}, {2, 1024}} {
		m, k := c[0], c[1]
		blocks := ceil(k, 128)
		for j, dt := range []ir.DType{ir.BF16, ir.F16} {
			v := noise(dt, m, k)
			v.vals[0], v.vals[len(v.vals)/2] = 0, []float64{-3, math.NaN(), math.Inf(1), 1e-3}[(i+2*j)%4]
			x, to := b.put(dt, layouts[0], v.vals, m, k), f8Types[(i+j)%2]
			top := []float64{448, 57344}[(i+j)%2]
			s, q := b.room(ir.F32, layouts[0], m, blocks), b.room(to, layouts[0], m, k)
			columns, values := b.room(ir.F32, layouts[0], m, blocks), b.room(to, layouts[0], m, k)
			columns.Strides = []int64{1, m}
			b.add("scales", Computation{Op: device.Scales{Max: top}, Ins: []Operand{x}, Out: s}, func() {})
			b.add("quantize", Computation{Op: device.Quantize{}, Ins: []Operand{x, s}, Out: q}, func() {})
			b.add("both", Computation{Op: device.Quantize{Max: top}, Ins: []Operand{x, columns}, Out: values}, func() {
				same(t, "scales", b.vals(columns), b.vals(s), 0)
				same(t, "values", b.vals(values), b.vals(q), 0)
			})
		}
	}
	b.run()
}
