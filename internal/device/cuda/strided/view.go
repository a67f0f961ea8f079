// Package strided describes checked views of device memory: where their elements are, whether they overlap, and which
// part of a copy between two of them a copy engine can do.
package strided

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// View is a tensor in memory of a device or of the host.
type View struct {
	Mem            Memory    // nil for the host's, and for memory that a team reserved
	Addr           nvlib.Ptr // of element 0
	DType          ir.DType
	N              int64 // elements
	Shape, Strides []int64
}

// Detach makes r independent of the caller's slices.
func (r *View) Detach() { r.Shape, r.Strides = slices.Clone(r.Shape), slices.Clone(r.Strides) }

// Bytes is the size of the elements, gaps not counted.
func (r *View) Bytes() int64 { return r.N * r.DType.Size() }

// end is the address behind the last element.
func (r *View) end() nvlib.Ptr {
	if r.N == 0 {
		return r.Addr
	}
	last, _ := device.LastElement(r.Shape, r.Strides)
	return r.Addr + nvlib.Ptr((last+1)*r.DType.Size())
}

// Overlaps reports whether two views may share bytes.
func (r *View) Overlaps(o *View) bool { return r.Addr < o.end() && o.Addr < r.end() }

// Same reports whether two views of one shape name the same elements in the
// same order.
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

// NamesTwice reports whether some element is named twice.
func (r *View) NamesTwice() bool { return r.N > 0 && device.NamesTwice(r.Shape, r.Strides) }

// Dense reports whether elements lie in row-major order without gaps.
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

// In is r's elements at an address in other memory, dense.
func (r *View) In(m Memory, addr nvlib.Ptr) View {
	d := r.At(addr)
	d.Mem = m
	return d
}

// At is r's elements at another address, dense.
func (r *View) At(addr nvlib.Ptr) View {
	d := *r
	d.Mem = nil
	d.Addr, d.Strides = addr, RowMajor(r.Shape)
	return d
}

// RowMajor returns the strides of a tensor without gaps.
func RowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
	return strides
}

// Memory is what a view lies in.
type Memory interface {
	// Rank is that of the device whose memory it is.
	Rank() int
	// Kind says who may use it.
	Kind() device.MemKind
}

// Block returns the i-th of n equal blocks along axis, of a view that is absent none.
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

// rows is n of r's rows from lo on.
func (r *View) rows(lo, n int64) View {
	v := *r
	v.Addr += nvlib.Ptr(lo * r.Strides[0] * r.DType.Size())
	v.N = r.N / r.Shape[0] * n
	v.Shape = slices.Clone(r.Shape)
	v.Shape[0] = n
	return v
}

// Operand is r as kernels take it.
func (r *View) Operand() kernels.Operand {
	return kernels.Operand{Addr: r.Addr, DType: r.DType, Shape: r.Shape, Strides: r.Strides}
}
