package cpu

import (
	"unsafe"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// accum is a type in which kernels compute (section S11 of the language): float32 for f32, f16 and bf16, float64
// for f64, and int64 for i32 and i64.
type accum interface{ float32 | float64 | int64 }

func native[A accum](dt ir.DType) bool {
	switch any(A(0)).(type) {
	case float32:
		return dt == ir.F32
	case float64:
		return dt == ir.F64
	}
	return dt == ir.I64
}

func sizeOf[A accum]() int64 { return int64(unsafe.Sizeof(A(0))) }

// reader returns the elements of a view as type A, one block at a time. If the view is dense and has element type
// A, a block is the view's own memory. Otherwise it is a converted copy.
type reader[A accum] struct {
	r         ref
	raw, vals *[]byte
}

// newReader returns a reader of blocks of up to n elements.
func newReader[A accum](r ref, n int64) *reader[A] {
	rd := &reader[A]{r: r}
	if !native[A](r.dt) || !r.dense() {
		rd.vals = borrow(n * sizeOf[A]())
	}
	if !native[A](r.dt) && !r.dense() {
		rd.raw = borrow(n * r.dt.Size())
	}
	return rd
}

// load returns elements [start, start+n), which are valid until the next call.
func (rd *reader[A]) load(start, n int64) []A {
	if rd.vals == nil {
		return as[A](rd.r.bytes(start, n))
	}
	vals := (*rd.vals)[:n*sizeOf[A]()]
	if native[A](rd.r.dt) {
		gatherBytes(vals, rd.r, start)
		return as[A](vals)
	}
	var raw []byte
	if rd.raw == nil {
		raw = rd.r.bytes(start, n)
	} else {
		raw = (*rd.raw)[:n*rd.r.dt.Size()]
		gatherBytes(raw, rd.r, start)
	}
	decode(as[A](vals), raw, rd.r.dt)
	return as[A](vals)
}

func (rd *reader[A]) close() { restoreAll(rd.raw, rd.vals) }

func restoreAll(bs ...*[]byte) {
	for _, b := range bs {
		if b != nil {
			restore(b)
		}
	}
}

// writer stores elements of type A in a view, one block at a time.
type writer[A accum] struct {
	r         ref
	raw, vals *[]byte
	encode    func(dst []byte, src []A, dt ir.DType)
}

// newWriter returns a writer of blocks of up to n elements.
func newWriter[A accum](r ref, n int64) *writer[A] {
	wr := &writer[A]{r: r, encode: encode[A]}
	if !native[A](r.dt) || !r.dense() {
		wr.vals = borrow(n * sizeOf[A]())
	}
	if !native[A](r.dt) && !r.dense() {
		wr.raw = borrow(n * r.dt.Size())
	}
	return wr
}

// room returns memory for the elements [start, start+n) of the view. This may be the view's own memory. The method
// flush stores the elements in the view.
func (wr *writer[A]) room(start, n int64) []A {
	if wr.vals == nil {
		return as[A](wr.r.bytes(start, n))
	}
	return as[A]((*wr.vals)[:n*sizeOf[A]()])
}

func (wr *writer[A]) flush(start int64, vals []A) {
	n := int64(len(vals))
	switch {
	case n == 0 || wr.vals == nil:
	case native[A](wr.r.dt):
		scatterBytes(wr.r, start, (*wr.vals)[:n*sizeOf[A]()])
	case wr.raw == nil:
		wr.encode(wr.r.bytes(start, n), vals, wr.r.dt)
	default:
		raw := (*wr.raw)[:n*wr.r.dt.Size()]
		wr.encode(raw, vals, wr.r.dt)
		scatterBytes(wr.r, start, raw)
	}
}

func (wr *writer[A]) close() { restoreAll(wr.raw, wr.vals) }

// decode converts elements of type dt to type A.
func decode[A accum](dst []A, src []byte, dt ir.DType) {
	switch d := any(dst).(type) {
	case []float32:
		tensor.ToFloat32(d, src, dt)
	case []float64:
		tensor.ToFloat64(d, src, dt)
	case []int64:
		tensor.ToInt64(d, src, dt)
	}
}

// encode rounds results to elements of type dt. Integers that exceed the type wrap around.
func encode[A accum](dst []byte, src []A, dt ir.DType) {
	if s, ok := any(src).([]int64); ok && dt == ir.I32 {
		for i, d := 0, as[int32](dst); i < len(d); i++ {
			d[i] = int32(s[i])
		}
		return
	}
	convert(dst, src, dt)
}

// convert rounds results to elements of type dt as a cast does: integers that exceed the type saturate.
func convert[A accum](dst []byte, src []A, dt ir.DType) {
	switch s := any(src).(type) {
	case []float32:
		tensor.FromFloat32(dst, s, dt)
	case []float64:
		tensor.FromFloat64(dst, s, dt)
	case []int64:
		tensor.FromInt64(dst, s, dt)
	}
}
