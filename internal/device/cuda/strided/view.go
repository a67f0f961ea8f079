// Package strided describes checked views of device memory: the positions of their elements and whether views overlap.
// It also decides which part of a copy a copy engine can do.
package strided

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// View is a tensor in device or host memory.
type View struct {
	Mem            Memory    // the memory that contains the view; nil for host memory, and for memory that a team reserved
	Addr           nvlib.Ptr // address of element 0
	DType          ir.DType
	N              int64 // elements
	Shape, Strides []int64
}

// Detach replaces the shape and strides, which the caller may change, by copies.
func (r *View) Detach() { r.Shape, r.Strides = slices.Clone(r.Shape), slices.Clone(r.Strides) }

// Bytes returns the size in bytes of the elements, without gaps between them.
func (r *View) Bytes() int64 { return r.N * r.DType.Size() }

// end returns the address after the view's last element.
func (r *View) end() nvlib.Ptr {
	if r.N == 0 {
		return r.Addr
	}
	last, _ := device.LastElement(r.Shape, r.Strides)
	return r.Addr + nvlib.Ptr((last+1)*r.DType.Size())
}

// Overlaps reports whether two views may share bytes.
func (r *View) Overlaps(o *View) bool { return r.Addr < o.end() && o.Addr < r.end() }

// Same reports whether two views have the same shape and the same elements in the same order.
func (r *View) Same(o *View) bool {
	if r.Addr != o.Addr || r.DType != o.DType || !slices.Equal(r.Shape, o.Shape) {
		return false
	}
	for i, e := range r.Shape {
		if e > 1 && r.Strides[i] != o.Strides[i] {
			return false
		}
	}
	return true
}

// NamesTwice reports whether two indices of the view refer to the same element.
func (r *View) NamesTwice() bool { return r.N > 0 && device.NamesTwice(r.Shape, r.Strides) }

// Dense reports whether the elements are in row-major order without gaps.
func (r *View) Dense() bool {
	step := int64(1)
	for i := len(r.Shape) - 1; i >= 0; i-- {
		if r.Shape[i] > 1 && r.Strides[i] != step {
			return false
		}
		step *= r.Shape[i]
	}
	return true
}

// In returns a dense view with r's shape at an address in other memory.
func (r *View) In(m Memory, addr nvlib.Ptr) View {
	d := r.At(addr)
	d.Mem = m
	return d
}

// At returns a dense view with r's shape at another address, without Mem.
func (r *View) At(addr nvlib.Ptr) View {
	d := *r
	d.Mem = nil
	d.Addr, d.Strides = addr, RowMajor(r.Shape)
	return d
}

// RowMajor returns the row-major strides of a tensor without gaps.
func RowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
	return strides
}

// Memory is the memory that contains a view.
type Memory interface {
	// Rank returns the rank whose device owns the memory.
	Rank() int
	// Kind returns the kind of the memory: which devices may access it.
	Kind() device.MemKind
}

// Block returns the i-th of n equal blocks along axis. It returns r unchanged if r has no such axis or if n is 0.
func (r View) Block(axis, i, n int) View {
	if n == 0 || axis >= len(r.Shape) {
		return r
	}
	each := r.Shape[axis] / int64(n)
	r.Shape = slices.Clone(r.Shape)
	r.Shape[axis] = each
	r.Addr += nvlib.Ptr(int64(i) * each * r.Strides[axis] * r.DType.Size())
	r.N /= int64(n)
	return r
}

// rows returns the n rows of r that begin with row lo.
func (r *View) rows(lo, n int64) View {
	v := *r
	v.Addr += nvlib.Ptr(lo * r.Strides[0] * r.DType.Size())
	v.N = r.N / r.Shape[0] * n
	v.Shape = slices.Clone(r.Shape)
	v.Shape[0] = n
	return v
}

// Operand returns r as an operand of package kernels.
func (r *View) Operand() kernels.Operand {
	return kernels.Operand{Addr: r.Addr, DType: r.DType, Shape: r.Shape, Strides: r.Strides}
}
