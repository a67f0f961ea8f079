package tensor

import (
	"encoding/binary"
	"math"

	"hocket.example/hocket/ir"
)

// The following methods access one element, by its row-major index 0 ≤ i < Len(). An index out of range panics, as for
// a slice. Loops over many elements are faster with the typed views or the bulk conversions.

// Float64 returns element i. The conversion is exact, except that i64 values beyond 1<<53 are rounded to nearest.
func (t *Tensor) Float64(i int64) float64 {
	switch b := t.at(i); t.DType {
	case ir.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case ir.F16:
		return float64(f16ToFloat32(binary.LittleEndian.Uint16(b)))
	case ir.BF16:
		return float64(bf16ToFloat32(binary.LittleEndian.Uint16(b)))
	case ir.F8E4M3, ir.F8E5M2:
		return float64(float8Of(t.DType).values[b[0]])
	case ir.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	default:
		return float64(t.Int64(i))
	}
}

// SetFloat64 stores Round(t.DType, v) in element i.
func (t *Tensor) SetFloat64(i int64, v float64) {
	switch b := t.at(i); t.DType {
	case ir.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case ir.F16:
		binary.LittleEndian.PutUint16(b, f16FromFloat64(v))
	case ir.BF16:
		binary.LittleEndian.PutUint16(b, bf16FromFloat64(v))
	case ir.F8E4M3, ir.F8E5M2:
		b[0] = float8Of(t.DType).fromFloat32(oddFloat32(v))
	case ir.F64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(v))
	default:
		t.SetInt64(i, saturate64(v))
	}
}

// Int64 returns element i; floats are rounded as Round(ir.I64, v) does.
func (t *Tensor) Int64(i int64) int64 {
	switch b := t.at(i); t.DType {
	case ir.I32:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	case ir.I64:
		return int64(binary.LittleEndian.Uint64(b))
	default:
		return saturate64(t.Float64(i))
	}
}

// SetInt64 stores v in element i. i32 saturates; floats are rounded once to nearest, ties to even, without a conversion
// to float64 first.
func (t *Tensor) SetInt64(i, v int64) {
	switch b := t.at(i); t.DType {
	case ir.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case ir.F16:
		binary.LittleEndian.PutUint16(b, f16FromFloat64(oddFloat64(v)))
	case ir.BF16:
		binary.LittleEndian.PutUint16(b, bf16FromFloat64(oddFloat64(v)))
	case ir.F8E4M3, ir.F8E5M2:
		b[0] = float8Of(t.DType).fromFloat32(oddFloat32(oddFloat64(v)))
	case ir.F64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(float64(v)))
	case ir.I32:
		binary.LittleEndian.PutUint32(b, uint32(saturate32(v)))
	default:
		binary.LittleEndian.PutUint64(b, uint64(v))
	}
}

func (t *Tensor) at(i int64) []byte {
	size := t.DType.Size()
	return t.Data[i*size : (i+1)*size]
}
