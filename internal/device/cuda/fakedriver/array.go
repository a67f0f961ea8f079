package fakedriver

import (
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/tensor"
)

// Array is a tensor in Go's memory, in row-major order. Kernels of the fake driver read whole operands and write whole
// results, because tests under the race detector take minutes if elements are accessed one by one.
type Array struct {
	shape []int64
	X     []float64
}

func NewArray(shape []int64) Array {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return Array{shape, make([]float64, n)}
}

func (a Array) at(index ...int64) *float64 {
	i := int64(0)
	for d, e := range a.shape {
		i = i*e + index[d]
	}
	return &a.X[i]
}

func Read(o kernels.Operand) Array {
	a := NewArray(o.Shape)
	i := 0
	eachRun(o, func(b []byte) { i += tensor.ToFloat64(a.X[i:], b, o.DType) })
	return a
}

func readAll(ins []kernels.Operand) []Array {
	list := make([]Array, len(ins))
	for i := range ins {
		list[i] = Read(ins[i])
	}
	return list
}

func (a Array) Write(o kernels.Operand) {
	i := 0
	eachRun(o, func(b []byte) { i += tensor.FromFloat64(b, a.X[i:], o.DType) })
}

// eachRun calls f with the bytes of each contiguous run of elements, in row-major order.
func eachRun(o kernels.Operand, f func(b []byte)) {
	d, n := len(o.Shape), int64(1)
	for d > 0 && (o.Strides[d-1] == n || o.Shape[d-1] == 1) {
		d--
		n *= o.Shape[d]
	}
	eachIndex(o.Shape[:d], func(i []int64) {
		off := int64(0)
		for k, x := range i {
			off += x * o.Strides[k]
		}
		f(cabi.Bytes(uintptr(o.Addr)+uintptr(off*o.DType.Size()), int(n*o.DType.Size())))
	})
}

func eachIndex(shape []int64, f func(i []int64)) {
	total := int64(1)
	for _, e := range shape {
		total *= e
	}
	i := make([]int64, len(shape))
	for at := range total {
		for d := len(shape) - 1; d >= 0; d-- {
			i[d] = at % shape[d]
			at /= shape[d]
		}
		f(i)
	}
}
