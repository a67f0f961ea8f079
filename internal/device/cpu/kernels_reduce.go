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

// makeAxes is sum, max, min or mean over axes, which disappear.
func makeAxes(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if err := k.alike(false); err != nil {
		return nil, err
	}
	if k.Op == ir.OpMean && k.out.dt.IsInt() {
		return nil, fmt.Errorf("mean has no meaning for %s", k.out.dt)
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
	first := nothing(k.red(), k.out.dt)
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

func nothing(red ir.Red, dt ir.DType) start {
	switch {
	case red == ir.Sum:
		return start{}
	case red == ir.Max && dt == ir.I32:
		return start{int: math.MinInt32}
	case red == ir.Max:
		return start{float: math.Inf(-1), int: math.MinInt64}
	case dt == ir.I32:
		return start{int: math.MaxInt32}
	}
	return start{float: math.Inf(1), int: math.MaxInt64}
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
		count := int64(1)
		for a, e := range x.shape {
			if !slices.Contains(kept, a) {
				gone = append(gone, a)
				count *= e
			}
		}
		// Every result is one sequential chain in row-major order of the reduced
		// axes, whichever loops run: which is faster depends on the axis that is
		// innermost in memory.
		rows, chains := x.permute(slices.Concat(gone, kept)), x.permute(slices.Concat(kept, gone))
		last := len(x.shape) - 1
		do := func(out []A, lo int64) { joinRows(out, rows, k.red(), count, k.out.n, lo) }
		switch {
		case slices.Contains(gone, last) && x.strides[last] == 1:
			do = func(out []A, lo int64) { joinChains(out, chains, k.red(), count, lo) }
		case k.out.n < 16:
			do = func(out []A, _ int64) { joinNarrow(out, rows, k.red(), count, k.out.n) }
		}
		k.w.m.workers.each((k.out.n+axesGrain-1)/axesGrain, &k.w.ended, func(i int64) {
			lo := i * axesGrain
			n := min(axesGrain, k.out.n-lo)
			wr := newWriter[A](k.out, n)
			defer wr.close()
			out := wr.room(lo, n)
			for i := range out {
				out[i] = zero
			}
			do(out, lo)
			if k.Op == ir.OpMean {
				divide(out, A(count))
			}
			wr.flush(lo, out)
		})
	}
}

// axesGrain is the results that one helper computes at a time.
const axesGrain = 512

func (k *kernel) red() ir.Red {
	switch k.Op {
	case ir.OpMax:
		return ir.Max
	case ir.OpMin:
		return ir.Min
	}
	return ir.Sum
}

// joinRows adds count rows of width elements, of which out covers those from lo.
func joinRows[A accum](out []A, rows ref, red ir.Red, count, width, lo int64) {
	n := int64(len(out))
	rd := newReader[A](rows, n)
	defer rd.close()
	join := joiner[A](red)
	for r := range count {
		join(out, rd.load(r*width+lo, n))
	}
}

// joinNarrow is joinRows for short rows, all of which out covers: many are read
// at once.
func joinNarrow[A accum](out []A, rows ref, red ir.Red, count, width int64) {
	per := block / width
	rd := newReader[A](rows, block)
	defer rd.close()
	join := joiner[A](red)
	for r := int64(0); r < count; r += per {
		vals := rd.load(r*width, min(per, count-r)*width)
		for ; len(vals) > 0; vals = vals[width:] {
			join(out, vals[:width])
		}
	}
}

// joinChains is for chains of count elements that lie one after another, the
// first of them that of result lo.
func joinChains[A accum](out []A, chains ref, red ir.Red, count, lo int64) {
	rd := newReader[A](chains, block)
	defer rd.close()
	for i := range out {
		first := (lo + int64(i)) * count
		for at := int64(0); at < count; at += block {
			out[i] = fold(red, out[i], rd.load(first+at, min(block, count-at)))
		}
	}
}

// fold is joiner along one chain.
func fold[A accum](red ir.Red, acc A, vals []A) A {
	switch red {
	case ir.Max:
		for _, v := range vals {
			acc = max(acc, v)
		}
		return acc
	case ir.Min:
		for _, v := range vals {
			acc = min(acc, v)
		}
		return acc
	}
	for _, v := range vals {
		acc += v
	}
	return acc
}
