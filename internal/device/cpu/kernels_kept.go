package cpu

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// numbers returns all elements of an integer operand.
func numbers(r ref) []int64 {
	out := make([]int64, r.n)
	rd := newReader[int64](r, block)
	defer rd.close()
	for at := int64(0); at < r.n; at += block {
		n := min(block, r.n-at)
		copy(out[at:], rd.load(at, n))
	}
	return out
}

// leads returns an error unless the shape of operand i is the given shape or only its last dimension.
func (k *operands) leads(i int, shape []int64) error {
	t := k.ins[i]
	if n := len(shape); !t.dt.IsInt() || !slices.Equal(t.shape, shape) &&
		!(n > 0 && slices.Equal(t.shape, shape[n-1:])) {
		return fmt.Errorf("operand %d is %s%v, which does not fit rows of shape %v", i, t.dt, t.shape, shape)
	}
	return nil
}

// makeIndexCopy writes rows to given positions of the result. The last operand is the same tensor as the result.
func makeIndexCopy(k *kernel, op device.IndexCopy) (loops, error) {
	if err := k.count(3, 3); err != nil {
		return nil, err
	}
	rows, cache := k.ins[0], k.ins[2]
	n, axis := len(k.out.shape), op.Axis
	if axis < 0 || axis >= n || len(rows.shape) != n {
		return nil, fmt.Errorf("axis %d does not fit rows of shape %v and a result of shape %v", axis, rows.shape,
			k.out.shape)
	}
	want := slices.Clone(k.out.shape)
	want[axis] = rows.shape[axis]
	if rows.dt != k.out.dt || !slices.Equal(rows.shape, want) || !cache.same(k.out) {
		return nil, fmt.Errorf("rows %s%v do not fit the result %s%v, which must also be the last operand",
			rows.dt, rows.shape, k.out.dt, k.out.shape)
	}
	if err := k.leads(1, rows.shape[:axis+1]); err != nil {
		return nil, err
	}
	k.verify = func(k *kernel) error { return checkPositions(k, axis) }
	return func(k *kernel) { copyRows(k, axis) }, nil
}

// checkPositions returns an error for positions outside the result, and for positions that occur twice.
func checkPositions(k *kernel, axis int) error {
	count, room := k.ins[0].shape[axis], k.out.shape[axis]
	taken := map[int64]bool{}
	for i, p := range numbers(k.ins[1]) {
		if int64(i)%count == 0 {
			clear(taken)
		}
		switch {
		case p == -1:
		case p < -1 || p >= room:
			return content(ir.OpIndexCopy, int64(i), p, "position %d (element %d of the positions) is outside 0 to %d", p,
				i, room-1)
		case taken[p]:
			return content(ir.OpIndexCopy, int64(i), p, "position %d (element %d of the positions) is given twice", p,
				i)
		default:
			taken[p] = true
		}
	}
	return nil
}

func copyRows(k *kernel, axis int) {
	at := numbers(k.ins[1])
	count, room, inner := k.ins[0].shape[axis], k.out.shape[axis], int64(1)
	for _, e := range k.out.shape[axis+1:] {
		inner *= e
	}
	if k.ins[0].n == 0 {
		return
	}
	per := max(1, grain/inner)
	all := k.ins[0].n / inner
	k.w.m.workers.each((all+per-1)/per, &k.w.ended, func(i int64) {
		row := borrow(inner * k.out.dt.Size())
		defer restore(row)
		for r := i * per; r < min(all, (i+1)*per); r++ {
			if p := at[r%int64(len(at))]; p >= 0 {
				gatherBytes(*row, k.ins[0], r*inner)
				scatterBytes(k.out, (r/count*room+p)*inner, *row)
			}
		}
	})
}

// makeRope rotates pairs of elements of each head by the angles of its position.
func makeRope(k *kernel, op device.Rope) (loops, error) {
	if err := k.count(2, 3); err != nil {
		return nil, err
	}
	n := len(k.out.shape)
	if k.out.dt.IsInt() || k.ins[0].dt != k.out.dt || n < 3 ||
		!slices.Equal(k.ins[0].shape, k.out.shape) || len(k.ins) == 2 && k.out.shape[n-1]%2 != 0 {
		return nil, fmt.Errorf("cannot rotate %s%v into %s%v", k.ins[0].dt, k.ins[0].shape, k.out.dt, k.out.shape)
	}
	if len(k.ins) == 3 {
		f := k.ins[2]
		if f.dt != ir.F32 || len(f.shape) != 1 || f.n == 0 || 2*f.n > k.out.shape[n-1] {
			return nil, fmt.Errorf("frequencies %s%v do not fit heads of %d elements", f.dt, f.shape, k.out.shape[n-1])
		}
	} else if !(op.Theta > 0) {
		return nil, fmt.Errorf("the base of the frequencies, %v, is not valid", op.Theta)
	}
	if err := k.leads(1, k.out.shape[:n-2]); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt, ropeLoops[float32](op), ropeLoops[float64](op), nil), nil
}

func ropeLoops[A float32 | float64](op device.Rope) loops {
	return func(k *kernel) {
		n := len(k.out.shape)
		dh := k.out.shape[n-1]
		row := k.out.shape[n-2] * dh
		if k.out.n == 0 {
			return
		}
		at, freqs, scale := numbers(k.ins[1]), op.Frequencies(dh), cmp.Or(op.Scale, 1)
		if len(k.ins) == 3 {
			freqs = nil
			for _, f := range vector[float32](k.ins[2]) {
				freqs = append(freqs, float64(f))
			}
		}
		per := max(1, grain/row)
		all := k.out.n / row
		k.w.m.workers.each((all+per-1)/per, &k.w.ended, func(i int64) {
			rd, wr := newReader[A](k.ins[0], row), newWriter[A](k.out, row)
			defer rd.close()
			defer wr.close()
			for r := i * per; r < min(all, (i+1)*per); r++ {
				in, out := rd.load(r*row, row), wr.room(r*row, row)
				turnRow(out, in, int(dh), freqs, float64(at[r%int64(len(at))]), scale)
				wr.flush(r*row, out)
			}
		})
	}
}

// turnRow rotates all heads of the token at one position.
func turnRow[A float32 | float64](out, in []A, dh int, freqs []float64, at, scale float64) {
	half := len(freqs)
	for k, f := range freqs {
		s, c := math.Sincos(at * f)
		sin, cos := A(s*scale), A(c*scale)
		for i := k; i < len(in); i += dh {
			a, b := in[i], in[i+half]
			out[i], out[i+half] = a*cos-b*sin, b*cos+a*sin
		}
	}
	for i := 0; i < len(in); i += dh {
		copy(out[i+2*half:i+dh], in[i+2*half:])
	}
}

// makeArgmax finds the first of the largest elements along an axis.
func makeArgmax(k *kernel, op device.Argmax) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	x := k.ins[0]
	_, shape, err := x.without(op.Axis)
	if err != nil {
		return nil, err
	}
	if k.out.dt != ir.I32 || !slices.Equal(shape, k.out.shape) || x.shape[op.Axis] == 0 {
		return nil, fmt.Errorf("the indices of the largest elements of %v along axis %d do not fit the result %s%v",
			x.shape, op.Axis, k.out.dt, k.out.shape)
	}
	return byAccum(x.dt, argmaxLoops[float32](op.Axis), argmaxLoops[float64](op.Axis), argmaxLoops[int64](op.Axis)), nil
}

func argmaxLoops[A accum](axis int) loops {
	return func(k *kernel) {
		kept, _, _ := k.ins[0].without(axis)
		rows := k.ins[0].permute(append(kept, axis))
		width := k.ins[0].shape[axis]
		k.w.m.workers.each(k.out.n, &k.w.ended, func(i int64) {
			rd, wr := newReader[A](rows, width), newWriter[int64](k.out, 1)
			defer rd.close()
			defer wr.close()
			best, row := 0, rd.load(i*width, width)
			for j, v := range row {
				if v > row[best] {
					best = j
				}
			}
			out := wr.room(i, 1)
			out[0] = int64(best)
			wr.flush(i, out)
		})
	}
}
