package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ref is a checked view.
type ref struct {
	mem            *memory   // nil for the host's, and a team's of its own
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
	if err := device.MayUse(d.rank, m.dev.rank, m.kind, peers); err != nil {
		return ref{}, err
	}
	return m.view(v)
}

// view checks that v lies in m.
func (m *memory) view(v device.View) (ref, error) {
	n, err := v.Within(m.bytes)
	return ref{mem: m, addr: m.addr + nvlib.Ptr(v.Off), dt: v.DType, n: n, shape: v.Shape, strides: v.Strides}, err
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
	last, _ := device.LastElement(r.shape, r.strides)
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

// doubles reports whether some element is named twice.
func (r *ref) doubles() bool { return r.n > 0 && device.NamesTwice(r.shape, r.strides) }

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

// in is r's elements at the start of m, dense.
func (r *ref) in(m *memory) ref {
	d := r.at(m.addr)
	d.mem = m
	return d
}

// at is r's elements at another address, dense.
func (r *ref) at(addr nvlib.Ptr) ref {
	d := *r
	d.mem = nil
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
