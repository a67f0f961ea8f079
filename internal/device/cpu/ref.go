package cpu

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// dim is one dimension of a view: n indices; successive indices are stride elements apart in memory.
type dim struct{ n, stride int64 }

// ref is a checked view. The field dims is the view's shape without extents of 1 and with neighbouring dimensions
// merged where possible. dims is never empty, and its last dimension is the innermost one.
type ref struct {
	mem            *memory
	off            int64 // offset in bytes
	dt             ir.DType
	n              int64 // number of elements
	dims           []dim
	shape, strides []int64
}

func collapse(shape, strides []int64) []dim {
	var dims []dim
	for i, e := range shape {
		if e == 1 {
			continue
		}
		if k := len(dims) - 1; k >= 0 && dims[k].stride == e*strides[i] {
			dims[k] = dim{dims[k].n * e, strides[i]}
			continue
		}
		dims = append(dims, dim{e, strides[i]})
	}
	if len(dims) == 0 {
		dims = []dim{{1, 1}}
	}
	return dims
}

// permute returns the view in which axis i is axis perm[i] of r.
func (r ref) permute(perm []int) ref {
	shape, strides := make([]int64, len(perm)), make([]int64, len(perm))
	for i, p := range perm {
		shape[i], strides[i] = r.shape[p], r.strides[p]
	}
	return r.reshaped(shape, strides)
}

// at returns the part of the view with index i of axis 0, without that axis.
func (r ref) at(i int64) ref {
	s := r.reshaped(r.shape[1:], r.strides[1:])
	if s.n > 0 { // the memory of a view without elements may have size 0
		s.off += i * r.strides[0] * r.dt.Size()
	}
	return s
}

// reshaped returns r with another shape, whose elements must be inside r.
func (r ref) reshaped(shape, strides []int64) ref {
	r.shape, r.strides, r.n = shape, strides, 1
	for _, e := range shape {
		r.n *= e
	}
	r.dims = []dim{{0, 1}}
	if r.n > 0 {
		r.dims = collapse(shape, strides)
	}
	return r
}

// dense reports whether elements are in row-major order without gaps.
func (r ref) dense() bool { return len(r.dims) == 1 && (r.dims[0].stride == 1 || r.dims[0].n == 1) }

// bytes returns the elements [i, i+n) of a dense view.
func (r ref) bytes(i, n int64) []byte {
	size := r.dt.Size()
	lo := r.off + i*size
	return r.mem.data[lo : lo+n*size]
}

// span returns the range of bytes that contains the elements.
func (r ref) span() (lo, hi int64) {
	if r.n == 0 {
		return r.off, r.off
	}
	last := int64(0)
	for _, d := range r.dims {
		last += (d.n - 1) * d.stride
	}
	return r.off, r.off + (last+1)*r.dt.Size()
}

// overlaps reports whether two views may share bytes.
func (r ref) overlaps(o ref) bool {
	if r.mem != o.mem {
		return false
	}
	rl, rh := r.span()
	ol, oh := o.span()
	return rl < oh && ol < rh
}

// same reports whether two views have the same elements in the same order.
func (r ref) same(o ref) bool {
	return r.mem == o.mem && r.off == o.off && r.dt == o.dt && slices.Equal(r.dims, o.dims)
}

// doubles reports whether the view contains some element twice.
func (r ref) doubles() bool { return r.n > 0 && device.NamesTwice(r.shape, r.strides) }
