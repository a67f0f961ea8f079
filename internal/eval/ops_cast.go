package eval

import (
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// castInt converts to, from or between integer types. Floats round to nearest
// even and saturate; a wider integer saturates in a narrower type.
func castInt(a *array, dt ir.DType) *array {
	out := newArray(dt, a.shape)
	for i := range out.len() {
		switch e := a.e[i]; {
		case a.n == nil:
			out.n[i], out.e[i] = floatToInt(dt, a.f[i], e)
		case dt.IsInt():
			out.n[i], out.e[i] = saturate(dt, a.n[i]), e
		default:
			out.f[i], out.e[i] = intToFloat(dt, a.n[i], e)
		}
	}
	return out
}

func floatToInt(dt ir.DType, v, e float64) (int64, float64) {
	r := math.RoundToEven(v)
	switch {
	case r != r:
		return 0, inf // the result differs between machines
	case r >= 1<<63:
		return saturate(dt, math.MaxInt64), e
	case r < -1<<63:
		return saturate(dt, math.MinInt64), e
	}
	if e != 0 {
		e++ // half a unit in the last place for each of the two roundings
	}
	return saturate(dt, int64(r)), e
}

func saturate(dt ir.DType, v int64) int64 {
	if dt == ir.I32 {
		return min(max(v, math.MinInt32), math.MaxInt32)
	}
	return v
}

// intToFloat converts an integer with one rounding. For narrow types, a machine may convert to f32 first. Integers
// above 1<<53 are handled separately, because float64, in which single computes, does not represent them.
func intToFloat(dt ir.DType, v int64, e float64) (float64, float64) {
	t := tensor.Tensor{DType: dt, Data: make([]byte, dt.Size())}
	t.SetInt64(0, v)
	y := t.Float64(0)
	if e == 0 && v > -1<<53 && v < 1<<53 {
		_, e = single(dt, float64(v))
		return y, e
	}
	_, e = finish(dt, float64(v), e+ulp(ir.F64, float64(v)))
	return y, e
}
