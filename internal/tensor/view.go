package tensor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"hocket.example/hocket/ir"
)

// The typed views share storage with Data, so a write to one is visible in the other. Elements are
// little-endian, as on amd64 and arm64, so no copy is needed. A view is nil if the tensor has
// another element type, if Data is not aligned for the type (Data of New, Clone and the readers
// always is), or if the host is big-endian. A view of an empty tensor is empty but not nil.

// Float32s returns the elements of an f32 tensor, sharing storage.
func (t *Tensor) Float32s() []float32 { return view[float32](t, t.DType == ir.F32) }

// Float64s returns the elements of an f64 tensor, sharing storage.
func (t *Tensor) Float64s() []float64 { return view[float64](t, t.DType == ir.F64) }

// Int32s returns the elements of an i32 tensor, sharing storage.
func (t *Tensor) Int32s() []int32 { return view[int32](t, t.DType == ir.I32) }

// Int64s returns the elements of an i64 tensor, sharing storage.
func (t *Tensor) Int64s() []int64 { return view[int64](t, t.DType == ir.I64) }

// Uint16s returns the bit patterns of an f16 or bf16 tensor, sharing storage.
func (t *Tensor) Uint16s() []uint16 {
	return view[uint16](t, t.DType == ir.F16 || t.DType == ir.BF16)
}

func view[T any](t *Tensor, typed bool) []T {
	var e T
	if !typed || !littleEndian {
		return nil
	}
	n := len(t.Data) / int(unsafe.Sizeof(e))
	if n == 0 {
		return []T{}
	}
	p := unsafe.Pointer(&t.Data[0])
	if uintptr(p)%unsafe.Alignof(e) != 0 {
		return nil
	}
	return unsafe.Slice((*T)(p), n)
}

// Overlaps returns, for each tensor of a list, whether it shares bytes with another entry.
func Overlaps(list []*Tensor) []bool {
	type stretch struct {
		i      int
		lo, hi uintptr
	}
	var sorted []stretch // by address, without empty tensors
	for i, t := range list {
		if len(t.Data) > 0 {
			lo := uintptr(unsafe.Pointer(&t.Data[0]))
			sorted = append(sorted, stretch{i, lo, lo + uintptr(len(t.Data))})
		}
	}
	slices.SortFunc(sorted, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	overlap := make([]bool, len(list))
	end := uintptr(0) // largest end address of the preceding tensors
	for k, s := range sorted {
		overlap[s.i] = s.lo < end || k+1 < len(sorted) && sorted[k+1].lo < s.hi
		end = max(end, s.hi)
	}
	return overlap
}

// ShareBytes reports whether two slices have a byte of memory in common.
func ShareBytes(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	x, y := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

// SharesMemory returns an error message about an argument or result that a run writes and that shares memory with
// another one.
func SharesMemory(written, other string) string {
	return fmt.Sprintf("%s and %s share memory, and the run writes %s: pass a separate tensor for each", written, other,
		written)
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
