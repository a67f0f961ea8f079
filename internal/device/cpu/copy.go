package cpu

import (
	"errors"
	"fmt"
	"slices"
)

// copyGrain is the number of bytes that one helper goroutine copies at a time.
const copyGrain = 1 << 20

// copier copies between two views of equal shape and dtype.
type copier struct {
	dst, src ref
	w        *world
}

func newCopier(dst, src ref, w *world) (*copier, error) {
	if !slices.Equal(dst.shape, src.shape) {
		return nil, fmt.Errorf("cannot copy to %s%v from %s%v: the shapes differ", dst.dt, dst.shape, src.dt, src.shape)
	}
	if dst.dt != src.dt {
		return nil, fmt.Errorf("cannot copy to %s from %s: the element types differ", dst.dt, src.dt)
	}
	if dst.doubles() {
		return nil, errDoubles
	}
	return &copier{dst, src, w}, nil
}

var errDoubles = errors.New("the destination contains some element twice")

func (c *copier) run() error {
	switch {
	case c.dst.n == 0 || c.dst.same(c.src):
	case !c.dst.overlaps(c.src):
		c.parallel(c.src)
	case c.dst.dense() && c.src.dense():
		copy(c.dst.bytes(0, c.dst.n), c.src.bytes(0, c.src.n))
	default:
		tmp, done := stage(c.src)
		defer done()
		c.parallel(tmp)
	}
	return nil
}

func (c *copier) parallel(src ref) {
	grain := copyGrain / c.dst.dt.Size()
	c.w.m.workers.each((c.dst.n+grain-1)/grain, &c.w.ended, func(i int64) {
		copyRange(c.dst, src, i*grain, min(grain, c.dst.n-i*grain))
	})
}

// copyRange copies the elements [start, start+n) in row-major order.
func copyRange(dst, src ref, start, n int64) {
	switch {
	case dst.dense():
		gatherBytes(dst.bytes(start, n), src, start)
	case src.dense():
		scatterBytes(dst, start, src.bytes(start, n))
	default:
		tmp := borrow(n * dst.dt.Size())
		gatherBytes(*tmp, src, start)
		scatterBytes(dst, start, *tmp)
		restore(tmp)
	}
}

// stage returns a dense copy of a view's elements. The caller calls the function done to free the copy.
func stage(r ref) (tmp ref, done func()) {
	b := borrow(r.n * r.dt.Size())
	gatherBytes(*b, r, 0)
	tmp = ref{mem: &memory{bytes: int64(len(*b)), data: *b}, dt: r.dt, n: r.n, dims: []dim{{r.n, 1}}, shape: r.shape}
	tmp.strides = make([]int64, len(r.shape))
	step := int64(1)
	for i := len(r.shape) - 1; i >= 0; i-- {
		tmp.strides[i] = step
		step *= r.shape[i]
	}
	return tmp, func() { restore(b) }
}

// gatherBytes fills dst with elements of r in row-major order, beginning with element start.
func gatherBytes(dst []byte, r ref, start int64) {
	size := r.dt.Size()
	n := int64(len(dst)) / size
	switch {
	case n == 0:
	case r.dense():
		copy(dst, r.bytes(start, n))
	case !alignedFor(dst, size):
		tmp := borrow(int64(len(dst)))
		gatherBytes(*tmp, r, start)
		copy(dst, *tmp)
		restore(tmp)
	case size == 1:
		gather(dst, r.mem.data[r.off:], r, start)
	case size == 2:
		gather(as[uint16](dst), as[uint16](r.mem.data[r.off:]), r, start)
	case size == 4:
		gather(as[uint32](dst), as[uint32](r.mem.data[r.off:]), r, start)
	default:
		gather(as[uint64](dst), as[uint64](r.mem.data[r.off:]), r, start)
	}
}

// scatterBytes is the reverse of gatherBytes: it copies src to elements of r.
func scatterBytes(r ref, start int64, src []byte) {
	size := r.dt.Size()
	n := int64(len(src)) / size
	switch {
	case n == 0:
	case r.dense():
		copy(r.bytes(start, n), src)
	case !alignedFor(src, size):
		tmp := borrow(int64(len(src)))
		copy(*tmp, src)
		scatterBytes(r, start, *tmp)
		restore(tmp)
	case size == 1:
		scatter(r.mem.data[r.off:], src, r, start)
	case size == 2:
		scatter(as[uint16](r.mem.data[r.off:]), as[uint16](src), r, start)
	case size == 4:
		scatter(as[uint32](r.mem.data[r.off:]), as[uint32](src), r, start)
	default:
		scatter(as[uint64](r.mem.data[r.off:]), as[uint64](src), r, start)
	}
}

func gather[T any](dst, src []T, r ref, start int64) {
	r.runs(start, int64(len(dst)), func(k, at, n, stride int64) {
		to := dst[k : k+n]
		if stride == 1 {
			copy(to, src[at:at+n])
			return
		}
		for i := range to {
			to[i] = src[at]
			at += stride
		}
	})
}

func scatter[T any](dst, src []T, r ref, start int64) {
	r.runs(start, int64(len(src)), func(k, at, n, stride int64) {
		from := src[k : k+n]
		if stride == 1 {
			copy(dst[at:at+n], from)
			return
		}
		for _, v := range from {
			dst[at] = v
			at += stride
		}
	})
}

// runs splits the elements [start, start+n) of a view, in row-major order, into pieces, and calls f for each piece. A
// piece contains only elements that differ in the innermost index. Element i of a piece is element k+i of the range,
// and its offset from the start of the view is at+i·stride elements.
func (r ref) runs(start, n int64, f func(k, at, n, stride int64)) {
	if n <= 0 {
		return
	}
	last := len(r.dims) - 1
	var few [8]int64
	idx := append(few[:0], make([]int64, len(r.dims))...)
	at, rest := int64(0), start
	for i := last; i >= 0; i-- {
		d := r.dims[i]
		idx[i] = rest % d.n
		rest /= d.n
		at += idx[i] * d.stride
	}
	inner := r.dims[last]
	for k := int64(0); ; {
		count := min(n-k, inner.n-idx[last])
		f(k, at, count, inner.stride)
		if k += count; k == n {
			return
		}
		at -= idx[last] * inner.stride
		idx[last] = 0
		for i := last - 1; i >= 0; i-- {
			d := r.dims[i]
			idx[i]++
			at += d.stride
			if idx[i] < d.n {
				break
			}
			idx[i], at = 0, at-d.n*d.stride
		}
	}
}
