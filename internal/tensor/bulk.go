package tensor

import (
	"encoding/binary"
	"math"

	"hocket.example/hocket/ir"
)

// The bulk conversions work like the builtin function copy: they convert as many elements as fit in both slices, return
// that number, and leave the rest of dst unchanged. Elements are rounded as by the function Round. For an invalid
// element type, no element is converted. src and dst must not overlap.

// ToFloat32 converts elements of type dt in src to float32.
func ToFloat32(dst []float32, src []byte, dt ir.DType) int { return decode(dst, src, dt) }

// ToFloat64 converts elements of type dt in src to float64.
func ToFloat64(dst []float64, src []byte, dt ir.DType) int { return decode(dst, src, dt) }

// ToInt64 converts elements of type dt in src to int64; floats are rounded as by Round(ir.I64, v). ToInt64 is meant for
// i32 and i64.
func ToInt64(dst []int64, src []byte, dt ir.DType) int {
	n := count(len(dst), len(src), dt)
	le := binary.LittleEndian
	switch dt {
	case ir.I32:
		for i := range n {
			dst[i] = int64(int32(le.Uint32(src[4*i:])))
		}
	case ir.I64:
		for i := range n {
			dst[i] = int64(le.Uint64(src[8*i:]))
		}
	default:
		t := Tensor{DType: dt, Data: src}
		for i := range n {
			dst[i] = t.Int64(int64(i))
		}
	}
	return n
}

// FromFloat32 converts float32 values to elements of type dt in dst.
func FromFloat32(dst []byte, src []float32, dt ir.DType) int {
	n := count(len(src), len(dst), dt)
	le := binary.LittleEndian
	switch dt {
	case ir.F16:
		for i, v := range src[:n] {
			le.PutUint16(dst[2*i:], f16FromFloat32(v))
		}
	case ir.BF16:
		for i, v := range src[:n] {
			le.PutUint16(dst[2*i:], bf16FromFloat32(v))
		}
	case ir.F8E4M3, ir.F8E5M2:
		f := float8Of(dt)
		for i, v := range src[:n] {
			dst[i] = f.fromFloat32(v)
		}
	default:
		encode(dst, src[:n], dt)
	}
	return n
}

// FromFloat64 converts float64 values to elements of type dt in dst.
func FromFloat64(dst []byte, src []float64, dt ir.DType) int {
	n := count(len(src), len(dst), dt)
	le := binary.LittleEndian
	switch dt {
	case ir.F16:
		for i, v := range src[:n] {
			le.PutUint16(dst[2*i:], f16FromFloat64(v))
		}
	case ir.BF16:
		for i, v := range src[:n] {
			le.PutUint16(dst[2*i:], bf16FromFloat64(v))
		}
	case ir.F8E4M3, ir.F8E5M2:
		f := float8Of(dt)
		for i, v := range src[:n] {
			dst[i] = f.fromFloat32(oddFloat32(v))
		}
	default:
		encode(dst, src[:n], dt)
	}
	return n
}

// FromInt64 converts int64 values to elements of type dt in dst, rounding as SetInt64 does. FromInt64 is meant for i32
// and i64.
func FromInt64(dst []byte, src []int64, dt ir.DType) int {
	n := count(len(src), len(dst), dt)
	t := Tensor{DType: dt, Data: dst}
	for i, v := range src[:n] {
		t.SetInt64(int64(i), v)
	}
	return n
}

// count returns the smaller of n and the number of elements in a buffer of the given number of bytes.
func count(n, bytes int, dt ir.DType) int {
	if !valid(dt) {
		return 0
	}
	return min(n, bytes/int(dt.Size()))
}

func decode[F float32 | float64](dst []F, src []byte, dt ir.DType) int {
	n := count(len(dst), len(src), dt)
	dst = dst[:n]
	le := binary.LittleEndian
	switch dt {
	case ir.F32:
		for i := range dst {
			dst[i] = F(math.Float32frombits(le.Uint32(src[4*i:])))
		}
	case ir.F16:
		for i := range dst {
			dst[i] = F(f16ToFloat32(le.Uint16(src[2*i:])))
		}
	case ir.BF16:
		for i := range dst {
			dst[i] = F(bf16ToFloat32(le.Uint16(src[2*i:])))
		}
	case ir.F8E4M3, ir.F8E5M2:
		values := &float8Of(dt).values
		for i := range dst {
			dst[i] = F(values[src[i]])
		}
	case ir.F64:
		for i := range dst {
			dst[i] = F(math.Float64frombits(le.Uint64(src[8*i:])))
		}
	case ir.I32:
		for i := range dst {
			dst[i] = F(int32(le.Uint32(src[4*i:])))
		}
	case ir.I64:
		for i := range dst {
			dst[i] = F(int64(le.Uint64(src[8*i:])))
		}
	}
	return n
}

// encode converts to element types for which rounding from float32 and from float64 is the same code.
func encode[F float32 | float64](dst []byte, src []F, dt ir.DType) {
	le := binary.LittleEndian
	switch dt {
	case ir.F32:
		for i, v := range src {
			le.PutUint32(dst[4*i:], math.Float32bits(float32(v)))
		}
	case ir.F64:
		for i, v := range src {
			le.PutUint64(dst[8*i:], math.Float64bits(float64(v)))
		}
	case ir.I32:
		for i, v := range src {
			le.PutUint32(dst[4*i:], uint32(saturate32(saturate64(float64(v)))))
		}
	case ir.I64:
		for i, v := range src {
			le.PutUint64(dst[8*i:], uint64(saturate64(float64(v))))
		}
	}
}
