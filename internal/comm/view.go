package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// packed returns the dense view of the given shape at byte offset off of a memory.
func packed(mem device.Memory, off int64, dt ir.DType, shape []int64) device.View {
	return device.View{Mem: mem, Off: off, DType: dt, Shape: shape, Strides: tensor.Strides(shape)}
}

// block returns the i-th of n equal blocks of v along axis.
func block(v device.View, axis, i, n int) device.View {
	rows := v.Shape[axis] / int64(n)
	v.Shape = slices.Clone(v.Shape)
	v.Shape[axis] = rows
	v.Off += int64(i) * rows * v.Strides[axis] * v.DType.Size()
	return v
}

// flat returns the elements [lo, hi) in row-major order of a dense view.
func flat(v device.View, lo, hi int64) device.View {
	v.Off += lo * v.DType.Size()
	v.Shape, v.Strides = []int64{hi - lo}, []int64{1}
	return v
}

// dense reports whether the elements lie in row-major order without gaps.
func dense(v device.View) bool {
	want := int64(1)
	for i := len(v.Shape) - 1; i >= 0; i-- {
		if v.Shape[i] == 0 {
			return true
		}
		if v.Shape[i] != 1 && v.Strides[i] != want {
			return false
		}
		want *= v.Shape[i]
	}
	return true
}

// viewBytes returns the number of bytes of the view's elements, without gaps.
func viewBytes(v device.View) int64 { return v.Elements() * v.DType.Size() }

// same reports whether two views have the same elements in the same memory.
func same(a, b device.View) bool {
	return a.Mem == b.Mem && a.Off == b.Off && a.DType == b.DType &&
		slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
}

// meet reports whether the byte ranges of two views overlap, including the gaps between elements.
func meet(a, b device.View) bool {
	aLo, aHi := span(a)
	bLo, bHi := span(b)
	return a.Mem == b.Mem && aLo < bHi && bLo < aHi
}

// span returns the range of bytes from a view's first element to its last.
func span(v device.View) (lo, hi int64) {
	lo, hi = v.Off, v.Off+v.DType.Size()
	for i, e := range v.Shape {
		switch d := (e - 1) * v.Strides[i] * v.DType.Size(); {
		case e == 0:
			return v.Off, v.Off
		case d < 0:
			lo += d
		default:
			hi += d
		}
	}
	return lo, hi
}
