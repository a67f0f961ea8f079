package cuda

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ref is a checked view.
type ref struct {
	mem            *memory
	addr           nvlib.Ptr // of element 0
	dt             ir.DType
	n              int64 // elements
	shape, strides []int64
}

// resolve checks a view. Peers' memory must be shared, and is allowed only
// where peers is set.
func (d *dev) resolve(v device.View, peers bool) (ref, error) {
	m, ok := v.Mem.(*memory)
	if !ok || m == nil || m.dev.w != d.w {
		return ref{}, fmt.Errorf("a view of memory that is not this world's")
	}
	if m.freed {
		return ref{}, fmt.Errorf("a view of memory that was freed")
	}
	if m.dev != d && !peers {
		return ref{}, fmt.Errorf("a view of rank %d's memory", m.dev.rank)
	}
	if m.dev != d && m.kind == device.Private {
		return ref{}, fmt.Errorf("a view of private memory of rank %d; allocate it as shared", m.dev.rank)
	}
	return m.view(v)
}

// view checks that v lies in m.
func (m *memory) view(v device.View) (ref, error) {
	bytes, err := tensor.Bytes(v.DType, v.Shape)
	if err != nil {
		return ref{}, err
	}
	if len(v.Strides) != len(v.Shape) {
		return ref{}, fmt.Errorf("a view of %d extents with %d strides", len(v.Shape), len(v.Strides))
	}
	size := v.DType.Size()
	if v.Off < 0 || v.Off > m.bytes || v.Off%size != 0 {
		return ref{}, fmt.Errorf("a view of %s at byte %d of %d: the offset must lie inside and be a multiple of %d", v.DType, v.Off, m.bytes, size)
	}
	r := ref{mem: m, addr: m.addr + nvlib.Ptr(v.Off), dt: v.DType, n: bytes / size, shape: v.Shape, strides: v.Strides}
	if r.n == 0 {
		return r, nil
	}
	last, ok := lastElement(v.Shape, v.Strides)
	if !ok || last >= (m.bytes-v.Off)/size {
		return ref{}, fmt.Errorf("a view of %s%v with strides %v at byte %d leaves its memory of %d bytes", v.DType, v.Shape, v.Strides, v.Off, m.bytes)
	}
	return r, nil
}

// lastElement returns the distance, in elements, from the first to the last
// element of a view that is not empty; false for negative strides and overflow.
func lastElement(shape, strides []int64) (int64, bool) {
	var last uint64
	for i, e := range shape {
		if strides[i] < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(uint64(e-1), uint64(strides[i]))
		sum, carry := bits.Add64(last, lo, 0)
		if hi != 0 || carry != 0 || int64(sum) < 0 {
			return 0, false
		}
		last = sum
	}
	return int64(last), true
}

// own makes r independent of the caller's slices.
func (r *ref) own() { r.shape, r.strides = slices.Clone(r.shape), slices.Clone(r.strides) }

// bytes is the size of the elements, gaps not counted.
func (r *ref) bytes() int64 { return r.n * r.dt.Size() }

// end is the address behind the last element.
func (r *ref) end() nvlib.Ptr {
	if r.n == 0 {
		return r.addr
	}
	last, _ := lastElement(r.shape, r.strides)
	return r.addr + nvlib.Ptr((last+1)*r.dt.Size())
}

// overlaps reports whether two views may share bytes.
func (r *ref) overlaps(o *ref) bool { return r.addr < o.end() && o.addr < r.end() }

// same reports whether two views of one shape name the same elements in the
// same order.
func (r *ref) same(o *ref) bool {
	if r.addr != o.addr || r.dt != o.dt || !slices.Equal(r.shape, o.shape) {
		return false
	}
	for i, e := range r.shape {
		if e > 1 && r.strides[i] != o.strides[i] {
			return false
		}
	}
	return true
}

// doubles reports whether some element is named twice: a stride of 0, or axes
// that reach into each other.
func (r *ref) doubles() bool {
	if r.n == 0 {
		return false
	}
	type dim struct{ n, stride int64 }
	var dims []dim
	for i, e := range r.shape {
		if e > 1 {
			dims = append(dims, dim{e, r.strides[i]})
		}
	}
	slices.SortFunc(dims, func(a, b dim) int { return cmp.Compare(a.stride, b.stride) })
	reach := int64(0)
	for _, d := range dims {
		if d.stride <= reach {
			return true
		}
		reach += (d.n - 1) * d.stride
	}
	return false
}

// dense reports whether elements lie in row-major order without gaps.
func (r *ref) dense() bool {
	step := int64(1)
	for i := len(r.shape) - 1; i >= 0; i-- {
		if r.shape[i] > 1 && r.strides[i] != step {
			return false
		}
		step *= r.shape[i]
	}
	return true
}

// at is r's elements at another address, dense.
func (r *ref) at(addr nvlib.Ptr) ref {
	d := *r
	d.addr, d.strides = addr, rowMajor(r.shape)
	return d
}

func rowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
	return strides
}
