package tensor

import (
	"fmt"
	"slices"
)

// Slice returns a copy of the box of t that starts at index lo and has extents n. lo and n have one
// entry for each axis of t.
func Slice(t *Tensor, lo, n []int64) (*Tensor, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if err := inside(t, lo, n); err != nil {
		return nil, err
	}
	out, err := New(t.DType, n)
	if err != nil {
		return nil, err
	}
	return out, CopyBox(out, make([]int64, len(n)), t, lo, n)
}

// Paste copies all of src to the box of dst that starts at index lo. The element types must be
// equal; src and dst must not share storage.
func Paste(dst, src *Tensor, lo []int64) error {
	if err := src.Check(); err != nil {
		return err
	}
	return CopyBox(dst, lo, src, make([]int64, len(src.Shape)), src.Shape)
}

// CopyBox copies a box of extents n from index srcLo of src to index dstLo of dst. All indices and
// extents have one entry for each axis. The element types must be equal; dst and src must not share
// storage.
func CopyBox(dst *Tensor, dstLo []int64, src *Tensor, srcLo, n []int64) error {
	if err := dst.Check(); err != nil {
		return err
	}
	if err := src.Check(); err != nil {
		return err
	}
	if dst.DType != src.DType {
		return fmt.Errorf("cannot copy elements of %s into %s", src, dst)
	}
	if err := inside(src, srcLo, n); err != nil {
		return err
	}
	if err := inside(dst, dstLo, n); err != nil {
		return err
	}
	if slices.Contains(n, 0) {
		return nil
	}
	axis := slices.IndexFunc(n, func(e int64) bool { return e > 1 })
	if axis < 0 {
		copyRuns(dst, dstLo, src, srcLo, n)
		return nil
	}
	bytes := src.DType.Size()
	for _, e := range n {
		bytes *= e
	}
	Share(bytes, n[axis], func(lo, hi int64) {
		part := func(at []int64, by int64) []int64 {
			at = slices.Clone(at)
			at[axis] += by
			return at
		}
		copyRuns(dst, part(dstLo, lo), src, part(srcLo, lo), part(n, hi-lo-n[axis]))
	})
	return nil
}

// Window returns the bytes of the box of t that starts at lo and has extents n, without a copy, if
// they are contiguous. Otherwise, or if the box is not inside t, it returns nil.
func Window(t *Tensor, lo, n []int64) []byte {
	if t.Check() != nil || inside(t, lo, n) != nil {
		return nil
	}
	if slices.Contains(n, 0) {
		return t.Data[:0:0]
	}
	last := len(n) - 1 // last axis along which the box is smaller than the tensor
	for last >= 0 && n[last] == t.Shape[last] {
		last--
	}
	if slices.ContainsFunc(n[:max(last, 0)], func(e int64) bool { return e != 1 }) {
		return nil
	}
	size := t.DType.Size()
	at, bytes := size*dot(Strides(t.Shape), lo), size
	for _, e := range n {
		bytes *= e
	}
	return t.Data[at : at+bytes : at+bytes]
}

// inside returns an error unless the box lies inside t.
func inside(t *Tensor, lo, n []int64) error {
	if len(lo) != len(t.Shape) || len(n) != len(t.Shape) {
		return fmt.Errorf("box at %s of extents %s does not have the rank of %s", shapeText(lo), shapeText(n), t)
	}
	for i, d := range t.Shape {
		// These comparisons cannot overflow.
		if lo[i] < 0 || n[i] < 0 || n[i] > d || lo[i] > d-n[i] {
			return fmt.Errorf("box at %s of extents %s leaves %s on axis %d", shapeText(lo), shapeText(n), t, i)
		}
	}
	return nil
}

// copyRuns copies the box in pieces that are contiguous in both tensors. There is one piece for each index of the axes
// before the contiguous ones. The box is not empty.
func copyRuns(dst *Tensor, dstLo []int64, src *Tensor, srcLo, n []int64) {
	size := src.DType.Size()
	ds, ss := Strides(dst.Shape), Strides(src.Shape)
	to, from := size*dot(ds, dstLo), size*dot(ss, srcLo)
	outer := len(n)
	run := size
	for outer > 0 {
		outer--
		run *= n[outer]
		if n[outer] != dst.Shape[outer] || n[outer] != src.Shape[outer] {
			break
		}
	}
	at := make([]int64, outer)
	for {
		copy(dst.Data[to:to+run], src.Data[from:from+run])
		axis := outer - 1
		for ; axis >= 0; axis-- {
			at[axis]++
			to, from = to+size*ds[axis], from+size*ss[axis]
			if at[axis] < n[axis] {
				break
			}
			to, from = to-size*ds[axis]*n[axis], from-size*ss[axis]*n[axis]
			at[axis] = 0
		}
		if axis < 0 {
			return
		}
	}
}

func dot(a, b []int64) int64 {
	var s int64
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// CopyStrided fills dst with elements of size bytes of a tensor in row-major order, from element first on. In src, the
// first element of the tensor is at the beginning, and neighbors along dimension d are strides[d] elements apart.
func CopyStrided(dst, src []byte, shape, strides []int64, size, first int64) {
	if len(dst) == 0 {
		return
	}
	idx := make([]int64, len(shape))
	for d := len(idx) - 1; d >= 0; d-- {
		idx[d], first = first%shape[d], first/shape[d]
	}
	for i := range int64(len(dst)) / size {
		at := int64(0)
		for d, x := range idx {
			at += x * strides[d]
		}
		copy(dst[i*size:][:size], src[at*size:])
		for d := len(idx) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < shape[d] {
				break
			}
			idx[d] = 0
		}
	}
}
