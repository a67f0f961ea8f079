package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/tensor"
)

// region selects elements of a dense array: the elements at positions off + Σ index·stride. Views (S16) map regions to
// regions, both for buffers and for values.
type region struct {
	off            int64
	shape, strides []int64
}

// dense returns the region of a whole row-major array.
func dense(shape []int64) region {
	return region{shape: slices.Clone(shape), strides: tensor.Strides(shape)}
}

// box returns the region of the given shape that starts at lo, both in the index space of r.
func (r region) box(lo, shape []int64) region {
	out := region{off: r.off, shape: slices.Clone(shape), strides: r.strides}
	for i, l := range lo {
		out.off += l * r.strides[i]
	}
	return out
}

// rows returns the part of r from lo up to hi, exclusive, along axis.
func (r region) rows(axis int, lo, hi int64) region {
	from, shape := make([]int64, len(r.shape)), slices.Clone(r.shape)
	from[axis], shape[axis] = lo, hi-lo
	return r.box(from, shape)
}

// index fixes the index of one dimension, and removes the dimension.
func (r region) index(axis int, i int64) region {
	return region{
		off:     r.off + i*r.strides[axis],
		shape:   slices.Delete(slices.Clone(r.shape), axis, axis+1),
		strides: slices.Delete(slices.Clone(r.strides), axis, axis+1),
	}
}

// permuted returns the region whose dimension i is dimension perm[i] of r.
func (r region) permuted(perm []int) region {
	out := region{off: r.off, shape: make([]int64, len(perm)), strides: make([]int64, len(perm))}
	for i, p := range perm {
		out.shape[i], out.strides[i] = r.shape[p], r.strides[p]
	}
	return out
}

// reshaped returns the region that has the same elements in row-major order under another shape. The region r must be
// dense.
func (r region) reshaped(shape []int64) (region, error) {
	n, err := tensor.NumElements(shape)
	if err != nil {
		return region{}, err
	}
	if n != elements(r.shape) {
		return region{}, fmt.Errorf("shape %v has %d elements, but the shape %v of the operand has %d", shape, n,
			r.shape, elements(r.shape))
	}
	if !r.isDense() {
		return region{}, fmt.Errorf("a view that is not dense cannot be reshaped: copy it first")
	}
	return region{off: r.off, shape: slices.Clone(shape), strides: tensor.Strides(shape)}, nil
}

// isDense reports whether the elements lie in row-major order without gaps.
func (r region) isDense() bool {
	want := int64(1)
	for i := len(r.shape) - 1; i >= 0; i-- {
		if r.shape[i] == 0 {
			return true
		}
		if r.shape[i] != 1 && r.strides[i] != want {
			return false
		}
		want *= r.shape[i]
	}
	return true
}

// runs is an iterator: it calls visit for each contiguous interval of elements of the region, in row-major order. An
// interval of n elements begins at position at in the array; its first element is element i of the region.
func (r region) runs(visit func(at, i, n int64)) {
	if slices.Contains(r.shape, 0) {
		return
	}
	outer, run := len(r.shape), int64(1)
	for outer > 0 && (r.strides[outer-1] == run || r.shape[outer-1] == 1) {
		outer--
		run *= r.shape[outer]
	}
	at, i := r.off, int64(0)
	idx := make([]int64, outer)
	for {
		visit(at, i, run)
		i += run
		d := outer - 1
		for ; d >= 0; d-- {
			idx[d]++
			at += r.strides[d]
			if idx[d] < r.shape[d] {
				break
			}
			at -= r.strides[d] * r.shape[d]
			idx[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// unflatten returns the index of the i-th element of a row-major array.
func unflatten(shape []int64, i int64) []int64 {
	idx := make([]int64, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		idx[d] = i % shape[d]
		i /= shape[d]
	}
	return idx
}
