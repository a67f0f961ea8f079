package cpu

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeIota fills the result with consecutive numbers along an axis.
func makeIota(k *kernel, op device.Iota) (loops, error) {
	if err := k.count(0, 0); err != nil {
		return nil, err
	}
	if err := device.AxisIn(op.Axis, len(k.out.shape)); err != nil {
		return nil, err
	}
	dt := k.out.dt
	if _, ok := op.Start.For(dt); !ok {
		return nil, fmt.Errorf("the start value %v is not a value of type %s", op.Start.Float, dt)
	}
	if dt.IsInt() {
		start, _ := op.Start.For(dt)
		return iotaLoops(op, func(at int64) int64 { return start.Int + at }, encode[int64]), nil
	}
	// float64 represents each of the numbers exactly, so only the conversion to the result's type rounds.
	return iotaLoops(op, func(at int64) float64 { return op.Start.Float + float64(at) }, convert[float64]), nil
}

func iotaLoops[A accum](op device.Iota, of func(at int64) A, encode func([]byte, []A, ir.DType)) loops {
	return func(k *kernel) {
		along, inner := k.out.shape[op.Axis], int64(1)
		for _, e := range k.out.shape[op.Axis+1:] {
			inner *= e
		}
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			wr := newWriter[A](k.out, block)
			wr.encode = encode
			defer wr.close()
			for lo := i * grain; lo < min((i+1)*grain, k.out.n); lo += block {
				out := wr.room(lo, min(block, k.out.n-lo))
				for x := range out {
					out[x] = of(op.First + (lo+int64(x))/inner%along)
				}
				wr.flush(lo, out)
			}
		})
	}
}

// makeSorted sorts rows along the last axis.
func makeSorted(k *kernel, op device.Sorted) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	x := k.ins[0]
	if err := device.CheckSorted(op, x.dt, k.out.dt, x.shape, k.out.shape); err != nil {
		return nil, err
	}
	if op.Op == ir.OpTopK {
		return byAccum(x.dt, topLoops[float32], topLoops[float64], topLoops[int64]), nil
	}
	sign := 1
	if op.Op == ir.OpArgTopK {
		sign = -1
	}
	return byAccum(x.dt, argsortLoops[float32](sign), argsortLoops[float64](sign), argsortLoops[int64](sign)), nil
}

// order returns the indices of a row's elements in the order of their values: ascending or, if sign is -1,
// descending. NaN counts as the largest value.
func order[A accum](row []A, sign int) []int {
	at := make([]int, len(row))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		a, b := row[i], row[j]
		if a != a || b != b {
			a, b = 0, 0
			if row[i] != row[i] {
				a = 1
			}
			if row[j] != row[j] {
				b = 1
			}
		}
		return sign * cmp.Compare(a, b)
	})
	return at
}

func topLoops[A accum](k *kernel) {
	sortedRows(k, func(out, row []A) {
		for i, at := range order(row, -1)[:len(out)] {
			out[i] = row[at]
		}
	})
}

func argsortLoops[A accum](sign int) loops {
	return func(k *kernel) {
		sortedRows(k, func(out []int64, row []A) {
			for i, at := range order(row, sign)[:len(out)] {
				out[i] = int64(at)
			}
		})
	}
}

// sortedRows calls f for each row of the operand, with the row of the result at the same index.
func sortedRows[O, A accum](k *kernel, f func(out []O, row []A)) {
	if k.out.n == 0 {
		return
	}
	x := k.ins[0]
	last := len(x.shape) - 1
	n, m := x.shape[last], k.out.shape[last]
	per := max(1, grain/n)
	k.w.m.workers.each((k.out.n/m+per-1)/per, &k.w.ended, func(i int64) {
		rd, wr := newReader[A](x, n), newWriter[O](k.out, m)
		defer rd.close()
		defer wr.close()
		for r := i * per; r < min((i+1)*per, k.out.n/m); r++ {
			row := wr.room(r*m, m)
			f(row, rd.load(r*n, n))
			wr.flush(r*m, row)
		}
	})
}

// makeTakeAlong selects elements of each row, along the last axis. Each row of the operand has its own row of indices.
func makeTakeAlong(k *kernel) (loops, error) {
	if err := k.count(2, 2); err != nil {
		return nil, err
	}
	x, at := k.ins[0], k.ins[1]
	if x.dt != k.out.dt || !at.dt.IsInt() {
		return nil, fmt.Errorf("cannot select elements of type %s by indices of type %s into type %s", x.dt, at.dt, k.out.dt)
	}
	if err := device.CheckTakeAlong(x.shape, at.shape, k.out.shape); err != nil {
		return nil, err
	}
	n := x.shape[len(x.shape)-1]
	k.verify = func(k *kernel) error {
		for i, v := range numbers(k.ins[1]) {
			if v < 0 || v >= n {
				return content(ir.OpTakeAlong, int64(i), v, "index %d (element %d of the indices) is outside 0 to %d", v,
					i, n-1)
			}
		}
		return nil
	}
	return func(k *kernel) {
		at, m := numbers(k.ins[1]), k.out.shape[len(k.out.shape)-1]
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			one := borrow(k.out.dt.Size())
			defer restore(one)
			for j := i * grain; j < min((i+1)*grain, k.out.n); j++ {
				gatherBytes(*one, k.ins[0], j/m*n+at[j])
				scatterBytes(k.out, j, *one)
			}
		})
	}, nil
}

// makeBincount counts the occurrences of each id.
func makeBincount(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if ids := k.ins[0]; !ids.dt.IsInt() || k.out.dt != ir.I32 || len(k.out.shape) != 1 {
		return nil, fmt.Errorf("cannot count values of %s%v into %s%v", ids.dt, ids.shape, k.out.dt, k.out.shape)
	}
	return func(k *kernel) {
		wr := newWriter[int64](k.out, k.out.n)
		defer wr.close()
		out := wr.room(0, k.out.n)
		clear(out)
		for _, id := range numbers(k.ins[0]) {
			if id >= 0 && id < k.out.n {
				out[id]++
			}
		}
		wr.flush(0, out)
	}, nil
}

// makeIndexAdd adds the rows that have the same id, in the order of the rows.
func makeIndexAdd(k *kernel, op device.IndexAdd) (loops, error) {
	if err := k.count(2, 2); err != nil {
		return nil, err
	}
	x, ids := k.ins[0], k.ins[1]
	if err := device.CheckIndexAdd(op, k.out.dt, x.dt, ids.dt, k.out.shape, x.shape, ids.shape); err != nil {
		return nil, err
	}
	k.verify = func(k *kernel) error {
		for i, id := range numbers(k.ins[1]) {
			if id < -1 || id >= op.Rows {
				return content(ir.OpIndexAdd, int64(i), id, "id %d (number %d) is outside 0 to %d, the rows of the result", id,
					i, op.Rows-1)
			}
		}
		return nil
	}
	switch {
	case k.out.dt.IsInt():
		return indexAddLoops[int64](op.First), nil
	case k.out.dt == ir.F64:
		return indexAddLoops[float64](op.First), nil
	}
	return indexAddLoops[float32](op.First), nil
}

func indexAddLoops[A accum](first int64) loops {
	return func(k *kernel) {
		if k.out.n == 0 {
			return
		}
		n, d := k.out.shape[0], k.out.shape[1]
		of := make([][]int64, n) // by row of the result: the rows of the operand that are added to that row
		for i, id := range numbers(k.ins[1]) {
			if row := id - first; id >= 0 && row >= 0 && row < n {
				of[row] = append(of[row], int64(i))
			}
		}
		per := max(1, grain/d)
		k.w.m.workers.each((n+per-1)/per, &k.w.ended, func(i int64) {
			rd, wr := newReader[A](k.ins[0], d), newWriter[A](k.out, d)
			defer rd.close()
			defer wr.close()
			for row := i * per; row < min((i+1)*per, n); row++ {
				sum := wr.room(row*d, d)
				clear(sum)
				for _, from := range of[row] {
					for j, v := range rd.load(from*d, d) {
						sum[j] += v
					}
				}
				wr.flush(row*d, sum)
			}
		})
	}
}
