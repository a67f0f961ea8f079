package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// array holds a dense row-major tensor of numbers, and an error bound for each number. Arrays are immutable once an
// operation has returned them.
type array struct {
	dt    ir.DType
	shape []int64
	f     []float64 // the elements of a float type, else nil
	n     []int64   // the elements of an integer type, else nil
	// e[i] bounds the error of element i: the difference between f[i] or n[i] and the number that a correct machine
	// may hold. A bound of 0 certifies the element as exact.
	e []float64
	// mag is set only if the array is the total of a partial sum of a float type. mag[i] is at least the sum over
	// ranks of |contribution to element i|. No rank stores such a total, so the elements f are not rounded to dt.
	// For a total, e[i] = 0 also certifies that all contributions are integers, however the sum is split over
	// ranks.
	mag []float64
	// infinite[i] reports that element i, whose bound is +Inf, is an infinity on every correct machine, although
	// its sign may differ. Only a division by a certified zero produces such elements, and only operations that
	// move or negate elements preserve them. The slice is nil if the array has no such element.
	infinite []bool
}

// setInfinite records that element i is an infinity of either sign.
func (a *array) setInfinite(i int64) {
	if a.infinite == nil {
		a.infinite = make([]bool, a.len())
	}
	a.infinite[i] = true
}

func newArray(dt ir.DType, shape []int64) *array {
	n := elements(shape)
	a := &array{dt: dt, shape: slices.Clone(shape), e: make([]float64, n)}
	if dt.IsInt() {
		a.n = make([]int64, n)
	} else {
		a.f = make([]float64, n)
	}
	return a
}

// elements returns the product of the extents, which is known not to overflow.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return n
}

func (a *array) len() int64 { return int64(len(a.e)) }

// float returns element i as a float64, which is used for magnitudes and messages.
func (a *array) float(i int64) float64 {
	if a.n != nil {
		return float64(a.n[i])
	}
	return a.f[i]
}

// same reports whether element i of a and element i of b are the same number. All NaNs count as the same number,
// and so do +0 and -0.
func (a *array) same(b *array, i int64) bool {
	if a.n != nil {
		return a.n[i] == b.n[i]
	}
	x, y := a.f[i], b.f[i]
	return x == y || x != x && y != y
}

// view returns a copy of the elements of r, a region of a.
func (a *array) view(r region) *array {
	out := newArray(a.dt, r.shape)
	if a.mag != nil {
		out.mag = make([]float64, out.len())
	}
	r.runs(func(src, dst, n int64) {
		out.copyRun(dst, a, src, n)
	})
	return out
}

// copyRun copies n elements of src, from element i on, to the elements of a from element at on.
func (a *array) copyRun(at int64, src *array, i, n int64) {
	if a.n != nil {
		copy(a.n[at:at+n], src.n[i:i+n])
	} else {
		copy(a.f[at:at+n], src.f[i:i+n])
	}
	copy(a.e[at:at+n], src.e[i:i+n])
	if a.mag != nil && src.mag != nil {
		copy(a.mag[at:at+n], src.mag[i:i+n])
	}
	if src.infinite != nil {
		if a.infinite == nil {
			a.infinite = make([]bool, a.len())
		}
		copy(a.infinite[at:at+n], src.infinite[i:i+n])
	} else if a.infinite != nil {
		clear(a.infinite[at : at+n])
	}
}

// put copies b to region r of a. Both have the same shape.
func (a *array) put(r region, b *array) {
	r.runs(func(at, i, n int64) { a.copyRun(at, b, i, n) })
}

// box returns the part of a that starts at the index lo and has the given shape.
func (a *array) box(lo, shape []int64) *array {
	return a.view(dense(a.shape).box(lo, shape))
}

// concat joins arrays of one element type along axis.
func concat(parts []*array, axis int) (*array, error) {
	shape := slices.Clone(parts[0].shape)
	shape[axis] = 0
	for _, p := range parts {
		shape[axis] += p.shape[axis]
	}
	out := newArray(parts[0].dt, shape)
	if parts[0].mag != nil {
		out.mag = make([]float64, out.len())
	}
	lo := make([]int64, len(shape))
	for _, p := range parts {
		for d := range shape {
			if d != axis && p.shape[d] != shape[d] {
				return nil, fmt.Errorf("parts of shapes %v and %v cannot be joined along axis %d", parts[0].shape,
					p.shape, axis)
			}
		}
		out.put(dense(shape).box(lo, p.shape), p)
		lo[axis] += p.shape[axis]
	}
	return out, nil
}

// split cuts a into n equal blocks along axis.
func (a *array) split(axis int, n int64) ([]*array, error) {
	if a.shape[axis]%n != 0 {
		return nil, fmt.Errorf("extent %d of axis %d is not a multiple of the team's %d ranks", a.shape[axis], axis, n)
	}
	shape := slices.Clone(a.shape)
	shape[axis] /= n
	lo := make([]int64, len(shape))
	out := make([]*array, n)
	for i := range out {
		out[i] = a.box(lo, shape)
		lo[axis] += shape[axis]
	}
	return out, nil
}

// fromTensor returns an array with the elements of a host tensor. All its elements are exact.
func fromTensor(t *tensor.Tensor) *array {
	a := newArray(t.DType, t.Shape)
	if a.n != nil {
		tensor.ToInt64(a.n, t.Data, t.DType)
	} else {
		tensor.ToFloat64(a.f, t.Data, t.DType)
	}
	return a
}

// toTensor returns a host tensor with the elements of a, which are already rounded to its type.
func (a *array) toTensor() (*tensor.Tensor, error) {
	t, err := tensor.New(a.dt, a.shape)
	if err != nil {
		return nil, err
	}
	if a.n != nil {
		tensor.FromInt64(t.Data, a.n, a.dt)
	} else {
		tensor.FromFloat64(t.Data, a.f, a.dt)
	}
	return t, nil
}

// exactInteger reports whether element i is certified and an integer.
func (a *array) exactInteger(i int64) bool {
	return a.e[i] == 0 && (a.n != nil || a.f[i] == math.Trunc(a.f[i]) && !math.IsInf(a.f[i], 0))
}
