package fakedriver

import (
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// goScale returns a function that returns the scale of element (i, j) of an operand. There is one scale for the whole
// operand, or one for each row, block or square.
func goScale(shape []int64, scales Array) func(i, j int64) *float64 {
	last := len(shape) - 1
	return func(i, j int64) *float64 {
		switch {
		case len(scales.shape) == 0:
			return &scales.X[0]
		case len(scales.shape) == last:
			return &scales.X[i]
		case scales.shape[last-1] != shape[last-1]:
			i /= 128
		}
		return &scales.X[i*scales.shape[last]+j/128]
	}
}

// goScales computes scales from the largest magnitudes of blocks.
func goScales(p kernels.Computation, op device.Scales) func() {
	return func() {
		x, out := Read(p.Ins[0]), NewArray(p.Out.Shape)
		scale, k := goScale(x.shape, out), x.shape[len(x.shape)-1]
		for i, v := range x.X {
			s := scale(int64(i)/k, int64(i)%k)
			*s = max(*s, float64(float32(math.Abs(v)/op.Max)), float64(float32(1e-12)))
		}
		out.Write(p.Out)
	}
}

// goQuantize divides by scales.
func goQuantize(p kernels.Computation, op device.Quantize) func() {
	scales := func() {}
	if op.Max != 0 {
		scales = goScales(kernels.Computation{Ins: p.Ins[:1], Out: p.Ins[1]}, device.Scales(op))
	}
	top := map[string]float64{"f8e4m3": 448, "f8e5m2": 57344}[p.Out.DType.String()]
	return func() {
		scales()
		x := Read(p.Ins[0])
		scale, k := goScale(x.shape, Read(p.Ins[1])), x.shape[len(x.shape)-1]
		for i, v := range x.X {
			x.X[i] = max(min(float64(float32(v / *scale(int64(i)/k, int64(i)%k))), top), -top)
		}
		x.Write(p.Out)
	}
}

// goScaledLinear multiplies each term by the scales of its factors.
func goScaledLinear(ins []kernels.Operand, to kernels.Operand) func() {
	return func() {
		x, w, out := Read(ins[0]), Read(ins[1]), NewArray(to.Shape)
		sx, sw := goScale(x.shape, Read(ins[2])), goScale(w.shape, Read(ins[3]))
		n, k := w.shape[0], w.shape[1]
		for i := range out.X {
			row, col := int64(i)/n, int64(i)%n
			for d := range k {
				out.X[i] += x.X[row*k+d] * *sx(row, d) * w.X[col*k+d] * *sw(col, d)
			}
		}
		out.Write(to)
	}
}
