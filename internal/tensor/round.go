package tensor

import (
	"math"

	"github.com/x448/float16"

	"hocket.example/hocket/ir"
)

// Round returns the element of type dt nearest to v, ties to even, as a float64. Floats that are too large become
// infinity, or NaN in f8e4m3, which has no infinity. NaN stays NaN. Integers saturate, and NaN becomes 0, as in
// NVIDIA's conversions. The largest i64 is returned as 1<<63, the nearest float64.
func Round(dt ir.DType, v float64) float64 {
	switch dt {
	case ir.F32:
		return float64(float32(v))
	case ir.F16:
		return float64(f16ToFloat32(f16FromFloat64(v)))
	case ir.BF16:
		return float64(bf16ToFloat32(bf16FromFloat64(v)))
	case ir.F8E4M3, ir.F8E5M2:
		f := float8Of(dt)
		return float64(f.values[f.fromFloat32(oddFloat32(v))])
	case ir.I32:
		return float64(saturate32(saturate64(v)))
	case ir.I64:
		return float64(saturate64(v))
	}
	return v
}

// bf16ToFloat32 is exact, because a bf16 is the upper half of a float32.
func bf16ToFloat32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func bf16FromFloat32(v float32) uint16 {
	u := math.Float32bits(v)
	if v != v {
		return uint16(u>>16) | 0x0040 // a quiet NaN; the payload bits may all be in the discarded half
	}
	// Add half a unit of the last remaining place, minus one if the bit in that place is even. A carry into the
	// exponent is correct, up to infinity.
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func bf16FromFloat64(v float64) uint16 { return bf16FromFloat32(oddFloat32(v)) }

func f16ToFloat32(b uint16) float32   { return float16.Frombits(b).Float32() }
func f16FromFloat32(v float32) uint16 { return float16.Fromfloat32(v).Bits() }
func f16FromFloat64(v float64) uint16 { return f16FromFloat32(oddFloat32(v)) }

// oddFloat32 rounds to odd: if v is not exactly representable, the result is the neighbour whose last bit is set. That
// bit records that v was not exact. A second rounding, to at least two bits fewer, therefore gives the same result as
// rounding once.
func oddFloat32(v float64) float32 {
	f := float32(v)
	if float64(f) == v || v != v {
		return f
	}
	u := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		u-- // round towards zero; infinity becomes the largest finite number, which is odd
	}
	return math.Float32frombits(u | 1)
}

// oddFloat64 rounds an int64 to odd, like oddFloat32; a float64 has up to 10 bits too few for an int64.
func oddFloat64(v int64) float64 {
	const lost = 1<<10 - 1
	if exact := int64(1) << 53; (-exact <= v && v <= exact) || v&lost == 0 {
		return float64(v)
	}
	return float64(v&^lost | (lost + 1))
}

// saturate64 rounds to the nearest integer, ties to even; NaN gives 0.
func saturate64(v float64) int64 {
	r := math.RoundToEven(v)
	switch {
	case r != r:
		return 0
	case r >= 1<<63:
		return math.MaxInt64
	case r < -1<<63:
		return math.MinInt64
	}
	return int64(r)
}

func saturate32(v int64) int32 {
	return int32(min(max(v, math.MinInt32), math.MaxInt32))
}
