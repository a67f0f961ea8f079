package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/ir"
)

const (
	// block is the number of elements that are computed at a time. Blocks of three operands of 8-byte elements fit
	// into a first-level cache of 48 KiB.
	block = 2048
	// grain is the number of elements that one helper goroutine computes at a time.
	grain = 16 * block
)

// mapper computes a block of results from blocks of operands. The memory of out may be that of one of the operands.
type mapper[A accum] func(out []A, ins [][]A)

func makeElementwise(k *kernel, op device.Elementwise) (loops, error) {
	row, ok := pointwise.Of(op.Op)
	if !ok {
		return nil, errNoKernel
	}
	info := op.Op.Info()
	if err := k.count(info.MinArgs, info.MaxArgs); err != nil {
		return nil, err
	}
	if err := k.alike(true); err != nil {
		return nil, err
	}
	dt := k.out.dt
	if info.Floats && dt.IsInt() {
		return nil, fmt.Errorf("%s is not defined for elements of type %s", op.Op, dt)
	}
	var floats []float64
	var ints []int64
	for i, spec := range info.Numbers() {
		if i >= len(op.Numbers) {
			return nil, fmt.Errorf("%s= is missing", spec.Name)
		}
		n, ok := op.Numbers[i].For(dt)
		if !ok {
			return nil, fmt.Errorf("the constant %v is not a value of type %s", n.Float, dt)
		}
		floats, ints = append(floats, n.Float), append(ints, n.Int)
	}
	return byAccum(dt,
		mapLoops(mapperOf(op.Op, row.Float, converted[float32](floats), floats), encode[float32]),
		mapLoops(mapperOf(op.Op, row.Float, floats, floats), encode[float64]),
		mapLoops(mapperOf(op.Op, row.Int, ints, ints), encode[int64])), nil
}

func converted[A accum](xs []float64) []A {
	out := make([]A, len(xs))
	for i, x := range xs {
		out[i] = A(x)
	}
	return out
}

// mapperOf returns a loop that computes op for blocks of elements of type A. If the function arithmetic has no loop
// for op, the returned loop calls f for each element, which computes in type C.
func mapperOf[A accum, C float64 | int64](op ir.Op, f func(x, c []C) C, own []A, numbers []C) mapper[A] {
	if m := arithmetic(op, own); m != nil {
		return m
	}
	return func(out []A, ins [][]A) {
		x := make([]C, len(ins))
		for i := range out {
			for k := range ins {
				x[k] = C(ins[k][i])
			}
			out[i] = A(f(x, numbers))
		}
	}
}

// arithmetic returns the specialised loop for op with the constants c, or nil if there is none. In f32, these loops
// compute the same bits as float64 arithmetic whose results are rounded to f32.
func arithmetic[A accum](op ir.Op, c []A) mapper[A] {
	switch op {
	case ir.OpAdd:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] + b[i]
			}
		}
	case ir.OpSub:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] - b[i]
			}
		}
	case ir.OpMul:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] * b[i]
			}
		}
	case ir.OpScale:
		return func(out []A, ins [][]A) {
			for i, x := range ins[0][:len(out)] {
				out[i] = x * c[0]
			}
		}
	case ir.OpRelu: // max keeps NaN
		return func(out []A, ins [][]A) {
			for i, x := range ins[0][:len(out)] {
				out[i] = max(x, 0)
			}
		}
	case ir.OpFill:
		return func(out []A, _ [][]A) {
			for i := range out {
				out[i] = c[0]
			}
		}
	}
	return nil
}

// makeCast converts between any two element types. Floats are rounded once, to nearest even. Conversions to an
// integer type saturate, and NaN becomes 0.
func makeCast(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if in := k.ins[0]; in.n != k.out.n || len(in.shape) != len(k.out.shape) {
		return nil, fmt.Errorf("the operand has shape %v, but the result has shape %v", in.shape, k.out.shape)
	}
	return byAccum(k.ins[0].dt,
		mapLoops(same[float32], convert[float32]),
		mapLoops(same[float64], convert[float64]),
		mapLoops(same[int64], convert[int64])), nil
}

func same[A accum](out []A, ins [][]A) { copy(out, ins[0]) }

// mapLoops returns loops that run f over all elements.
func mapLoops[A accum](f mapper[A], encode func([]byte, []A, ir.DType)) loops {
	return func(k *kernel) {
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			mapRange(k, f, encode, i*grain, min((i+1)*grain, k.out.n))
		})
	}
}

// mapRange computes elements [lo, hi).
func mapRange[A accum](k *kernel, f mapper[A], encode func([]byte, []A, ir.DType), lo, hi int64) {
	wr := newWriter[A](k.out, block)
	wr.encode = encode
	defer wr.close()
	rds := make([]*reader[A], len(k.ins))
	for i, in := range k.ins {
		rds[i] = newReader[A](in, block)
		defer rds[i].close()
	}
	ins := make([][]A, len(rds))
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		for i, rd := range rds {
			ins[i] = rd.load(lo, n)
		}
		out := wr.room(lo, n)
		f(out, ins)
		wr.flush(lo, out)
	}
}
