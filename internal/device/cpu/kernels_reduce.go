package cpu

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeReduction reduces all operands elementwise, in the order of the operands.
func makeReduction(k *kernel, op device.ReduceOperands) (loops, error) {
	if op.Red == ir.NoRed || op.Red > ir.Avg {
		return nil, fmt.Errorf("unknown reduction %d", op.Red)
	}
	if err := k.count(1, math.MaxInt); err != nil {
		return nil, err
	}
	if err := k.alike(true); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt,
		reductionLoops[float32](op.Red), reductionLoops[float64](op.Red), reductionLoops[int64](op.Red)), nil
}

func reductionLoops[A accum](red ir.Red) loops {
	return func(k *kernel) {
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			reduceRange[A](k, red, i*grain, min((i+1)*grain, k.out.n))
		})
	}
}

// reduceRange computes the results [lo, hi). It accumulates them in separate memory, because the result may share
// memory with any operand, including the last one.
func reduceRange[A accum](k *kernel, red ir.Red, lo, hi int64) {
	rds := make([]*reader[A], len(k.ins))
	for i, in := range k.ins {
		rds[i] = newReader[A](in, block)
		defer rds[i].close()
	}
	wr := newWriter[A](k.out, block)
	defer wr.close()
	room := borrow(block * sizeOf[A]())
	defer restore(room)
	join := joiner[A](red)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		acc := as[A](*room)[:n]
		copy(acc, rds[0].load(lo, n))
		for _, rd := range rds[1:] {
			join(acc, rd.load(lo, n))
		}
		if red == ir.Avg {
			divide(acc, A(len(rds)))
		}
		out := wr.room(lo, n)
		copy(out, acc)
		wr.flush(lo, out)
	}
}

// joiner returns a loop that computes acc = acc ∘ vals for each element. In max and min, the result is NaN if either
// operand is NaN.
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

// divide divides each element. The division is rounded for floats, and truncated towards zero for integers.
func divide[A accum](acc []A, by A) {
	for i := range acc {
		acc[i] /= by
	}
}

// makeAxes computes sum, max, min or mean over axes. The result does not have these axes.
func makeAxes(k *kernel, op device.ReduceAxes) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if err := k.alike(false); err != nil {
		return nil, err
	}
	f := axesFold{axes: op.Axes, mean: op.Op == ir.OpMean}
	switch op.Op {
	case ir.OpSum, ir.OpMean:
		f.red = ir.Sum
	case ir.OpMax:
		f.red = ir.Max
	case ir.OpMin:
		f.red = ir.Min
	default:
		return nil, errNoKernel
	}
	if f.mean && k.out.dt.IsInt() {
		return nil, fmt.Errorf("mean is not defined for elements of type %s", k.out.dt)
	}
	_, shape, err := k.ins[0].without(op.Axes...)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(shape, k.out.shape) {
		return nil, fmt.Errorf("the result has shape %v, but shape %v without axes %v is %v",
			k.out.shape, k.ins[0].shape, op.Axes, shape)
	}
	f.first = nothing(f.red, k.out.dt)
	return byAccum(k.out.dt, axesLoops[float32](f), axesLoops[float64](f), axesLoops[int64](f)), nil
}

// axesFold is a reduction over axes. The field first is its initial value.
type axesFold struct {
	axes  []int
	red   ir.Red
	mean  bool
	first start
}

// without returns the axes that remain after the given axes are removed, in order, and their extents.
func (r ref) without(axes ...int) (kept []int, shape []int64, err error) {
	rank := len(r.shape)
	gone := make([]bool, rank)
	for _, a := range axes {
		if a < 0 || a >= rank || gone[a] {
			return nil, nil, fmt.Errorf("axes %v are not distinct axes of a tensor of rank %d", axes, rank)
		}
		gone[a] = true
	}
	for a := range rank {
		if !gone[a] {
			kept, shape = append(kept, a), append(shape, r.shape[a])
		}
	}
	return kept, shape, nil
}

// start is the initial value of a reduction. The initial value is also the result of a reduction over no elements.
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

func axesLoops[A accum](f axesFold) loops {
	var zero A
	switch p := any(&zero).(type) {
	case *float32:
		*p = float32(f.first.float)
	case *float64:
		*p = f.first.float
	case *int64:
		*p = f.first.int
	}
	return func(k *kernel) {
		x := k.ins[0]
		kept, _, _ := x.without(f.axes...)
		var gone []int
		count := int64(1)
		for a, e := range x.shape {
			if !slices.Contains(kept, a) {
				gone = append(gone, a)
				count *= e
			}
		}
		// Every loop computes each result as one sequential chain of operations, in row-major order of the reduced
		// axes. Which loop is the fastest depends on the axis that is innermost in memory.
		rows, chains := x.permute(slices.Concat(gone, kept)), x.permute(slices.Concat(kept, gone))
		last := len(x.shape) - 1
		do := func(out []A, lo int64) { joinRows(out, rows, f.red, count, k.out.n, lo) }
		switch {
		case slices.Contains(gone, last) && x.strides[last] == 1:
			do = func(out []A, lo int64) { joinChains(out, chains, f.red, count, lo) }
		case k.out.n < 16:
			do = func(out []A, _ int64) { joinNarrow(out, rows, f.red, count, k.out.n) }
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
			if f.mean {
				divide(out, A(count))
			}
			wr.flush(lo, out)
		})
	}
}

// axesGrain is the number of results that one helper goroutine computes at a time.
const axesGrain = 512

// joinRows reduces count rows of width elements each into out. The elements of out correspond to the elements of a row
// from index lo on.
func joinRows[A accum](out []A, rows ref, red ir.Red, count, width, lo int64) {
	n := int64(len(out))
	rd := newReader[A](rows, n)
	defer rd.close()
	join := joiner[A](red)
	for r := range count {
		join(out, rd.load(r*width+lo, n))
	}
}

// joinNarrow is like joinRows for short rows; out has as many elements as a row. joinNarrow reads many rows at a time.
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

// joinChains reduces chains of count contiguous elements each. The result of the first chain has index lo.
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

// fold reduces the elements of one chain to a number. It applies the same operation as the loop that joiner
// returns.
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
