package cpu

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// makeReduction is the reduction of all operands elementwise, in their order.
func makeReduction(k *kernel) (loops, error) {
	if k.Red > ir.Avg {
		return nil, fmt.Errorf("unknown reduction %d", k.Red)
	}
	if err := k.count(1, math.MaxInt); err != nil {
		return nil, err
	}
	if err := k.alike(true); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt, reductionLoops[float32], reductionLoops[float64], reductionLoops[int64]), nil
}

func reductionLoops[A accum](k *kernel) {
	k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
		reduceRange[A](k, i*grain, min((i+1)*grain, k.out.n))
	})
}

// reduceRange accumulates apart from the result's memory: the result may be any
// of the operands, the last one too.
func reduceRange[A accum](k *kernel, lo, hi int64) {
	rds := make([]*reader[A], len(k.ins))
	for i, in := range k.ins {
		rds[i] = newReader[A](in, block)
		defer rds[i].close()
	}
	wr := newWriter[A](k.out, block)
	defer wr.close()
	room := borrow(block * sizeOf[A]())
	defer restore(room)
	join := joiner[A](k.Red)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		acc := as[A](*room)[:n]
		copy(acc, rds[0].load(lo, n))
		for _, rd := range rds[1:] {
			join(acc, rd.load(lo, n))
		}
		if k.Red == ir.Avg {
			divide(acc, A(len(rds)))
		}
		out := wr.room(lo, n)
		copy(out, acc)
		wr.flush(lo, out)
	}
}

// joiner returns the loop acc = acc ∘ vals. NaN wins in max and min.
func joiner[A accum](red ir.Red) func(acc, vals []A) {
	switch red {
	case ir.Max:
		return func(acc, vals []A) {
			for i, v := range vals[:len(acc)] {
				acc[i] = max(acc[i], v)
			}
		}
	case ir.Min:
		return func(acc, vals []A) {
			for i, v := range vals[:len(acc)] {
				acc[i] = min(acc[i], v)
			}
		}
	}
	return func(acc, vals []A) {
		for i, v := range vals[:len(acc)] {
			acc[i] += v
		}
	}
}

// divide is exact division for floats; integers truncate towards zero.
func divide[A accum](acc []A, by A) {
	for i := range acc {
		acc[i] /= by
	}
}

// makeAxes is sum or max over axes, which disappear.
func makeAxes(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if err := k.alike(false); err != nil {
		return nil, err
	}
	kept, err := k.keptAxes()
	if err != nil {
		return nil, err
	}
	var shape []int64
	for _, a := range kept {
		shape = append(shape, k.ins[0].shape[a])
	}
	if !slices.Equal(shape, k.out.shape) {
		return nil, fmt.Errorf("the result has shape %v; %v without axes %v is %v", k.out.shape, k.ins[0].shape, k.Axes, shape)
	}
	first := lowest(k.Op, k.out.dt)
	return byAccum(k.out.dt, axesLoops[float32](first), axesLoops[float64](first), axesLoops[int64](first)), nil
}

// keptAxes returns the axes that stay, in order.
func (k *kernel) keptAxes() ([]int, error) {
	rank := len(k.ins[0].shape)
	gone := make([]bool, rank)
	for _, a := range k.Axes {
		if a < 0 || a >= rank || gone[a] {
			return nil, fmt.Errorf("axes %v of a tensor of rank %d", k.Axes, rank)
		}
		gone[a] = true
	}
	var kept []int
	for a := range rank {
		if !gone[a] {
			kept = append(kept, a)
		}
	}
	return kept, nil
}

// start is the reduction of nothing.
type start struct {
	float float64
	int   int64
}

func lowest(op ir.Op, dt ir.DType) start {
	if op == ir.OpSum {
		return start{}
	}
	if dt == ir.I32 {
		return start{int: math.MinInt32}
	}
	return start{float: math.Inf(-1), int: math.MinInt64}
}

func axesLoops[A accum](first start) loops {
	var zero A
	switch p := any(&zero).(type) {
	case *float32:
		*p = float32(first.float)
	case *float64:
		*p = first.float
	case *int64:
		*p = first.int
	}
	return func(k *kernel) {
		x := k.ins[0]
		kept, _ := k.keptAxes()
		var gone []int
		for a := range x.shape {
			if !slices.Contains(kept, a) {
				gone = append(gone, a)
			}
		}
		// Rows of kept elements are joined one after another, in row-major
		// order of the reduced axes: each result is one sequential chain.
		rows := x.permute(append(gone, kept...))
		count := int64(1)
		for _, a := range gone {
			count *= x.shape[a]
		}
		k.w.m.workers.each((k.out.n+block-1)/block, &k.w.ended, func(i int64) {
			joinRows(k, rows, zero, count, i*block, min((i+1)*block, k.out.n))
		})
	}
}

// joinRows computes results [lo, hi), at most a block of them.
func joinRows[A accum](k *kernel, rows ref, zero A, count, lo, hi int64) {
	red := ir.Sum
	if k.Op == ir.OpMax {
		red = ir.Max
	}
	n := hi - lo
	wr := newWriter[A](k.out, n)
	defer wr.close()
	out := wr.room(lo, n)
	for i := range out {
		out[i] = zero
	}
	if narrow := k.out.n < 16; narrow {
		joinNarrow(out, rows, red, count, k.out.n)
	} else {
		rd := newReader[A](rows, n)
		defer rd.close()
		join := joiner[A](red)
		for r := range count {
			join(out, rd.load(r*k.out.n+lo, n))
		}
	}
	wr.flush(lo, out)
}

// joinNarrow is for few results of long chains: a block of many rows is read at
// once. All results are in out.
func joinNarrow[A accum](out []A, rows ref, red ir.Red, count, width int64) {
	per := max(1, block/max(width, 1))
	rd := newReader[A](rows, per*width)
	defer rd.close()
	join := joiner[A](red)
	for r := int64(0); r < count; r += per {
		vals := rd.load(r*width, min(per, count-r)*width)
		for ; len(vals) > 0; vals = vals[width:] {
			join(out, vals[:width])
		}
	}
}
