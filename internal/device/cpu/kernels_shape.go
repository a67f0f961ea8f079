package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeConcat concatenates the operands along an axis.
func makeConcat(k *kernel, op device.Concat) (loops, error) {
	if err := k.alike(false); err != nil {
		return nil, err
	}
	if err := device.AxisIn(op.Axis, len(k.out.shape)); err != nil {
		return nil, err
	}
	axis, joined := op.Axis, int64(0)
	for i, in := range k.ins {
		want := slices.Clone(k.out.shape)
		if len(in.shape) == len(want) {
			want[axis] = in.shape[axis]
		}
		if !slices.Equal(in.shape, want) {
			return nil, fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.shape, k.out.shape)
		}
		joined += in.shape[axis]
	}
	if joined != k.out.shape[axis] {
		return nil, fmt.Errorf("the operands have %d rows along axis %d, but the result has shape %v", joined, axis,
			k.out.shape)
	}
	return func(k *kernel) {
		at := int64(0)
		for _, in := range k.ins {
			c := copier{k.out.rows(axis, at, in.shape[axis]), in, k.w}
			c.parallel(in)
			at += in.shape[axis]
		}
	}, nil
}

// rows returns n rows of r along axis, beginning with row lo.
func (r ref) rows(axis int, lo, n int64) ref {
	shape := slices.Clone(r.shape)
	shape[axis] = n
	s := r.reshaped(shape, r.strides)
	if s.n > 0 {
		s.off += lo * r.strides[axis] * r.dt.Size()
	}
	return s
}

// makeEmbedding copies the rows of a table that ids select.
func makeEmbedding(k *kernel, op device.Embedding) (loops, error) {
	if err := k.count(2, 2); err != nil {
		return nil, err
	}
	ids, table := k.ins[0], k.ins[1]
	if !ids.dt.IsInt() || table.dt != k.out.dt || len(table.shape) != 2 {
		return nil, fmt.Errorf("cannot select rows by ids %s%v of a table %s%v into type %s", ids.dt, ids.shape, table.dt,
			table.shape, k.out.dt)
	}
	if want := append(slices.Clone(ids.shape), table.shape[1]); !slices.Equal(want, k.out.shape) {
		return nil, fmt.Errorf("the result has shape %v, but %v is required", k.out.shape, want)
	}
	if op.First < 0 || op.First > op.Rows-table.shape[0] {
		return nil, fmt.Errorf("the operand has the rows %d to %d of a table that has only %d", op.First,
			op.First+table.shape[0], op.Rows)
	}
	k.verify = func(k *kernel) error { return checkIDs(k, op.Rows) }
	return func(k *kernel) { lookUp(k, op.First) }, nil
}

// checkIDs reports ids outside the given number of rows.
func checkIDs(k *kernel, rows int64) error {
	rd := newReader[int64](k.ins[0], block)
	defer rd.close()
	for at := int64(0); at < k.ins[0].n; at += block {
		for i, id := range rd.load(at, min(block, k.ins[0].n-at)) {
			if id < 0 || id >= rows {
				return content(ir.OpEmbedding, at+int64(i), id, "id %d is outside 0 to %d, the rows of the table", id,
					rows-1)
			}
		}
	}
	return nil
}

func lookUp(k *kernel, first int64) {
	ids, table := k.ins[0], k.ins[1]
	d := table.shape[1]
	if k.out.n == 0 {
		return
	}
	per := max(1, grain/d)
	k.w.m.workers.each((ids.n+per-1)/per, &k.w.ended, func(i int64) {
		n := min(per, ids.n-i*per)
		rd, row := newReader[int64](ids, n), borrow(d*table.dt.Size())
		defer rd.close()
		defer restore(row)
		for j, id := range rd.load(i*per, n) {
			if at := id - first; at >= 0 && at < table.shape[0] {
				gatherBytes(*row, table, at*d)
			} else {
				clear(*row)
			}
			scatterBytes(k.out, (i*per+int64(j))*d, *row)
		}
	})
}

// makeSlots computes the sum along an axis. If there is a second operand, the sum starts with it. The result has
// the element type of the operands, or the type in which sums of such elements are accumulated.
func makeSlots(k *kernel, op device.ReduceSlots) (loops, error) {
	if err := k.count(1, 2); err != nil {
		return nil, err
	}
	x := k.ins[0]
	if k.out.dt != x.dt && k.out.dt != x.dt.Accum() {
		return nil, fmt.Errorf("cannot add slots of type %s into type %s", x.dt, k.out.dt)
	}
	_, shape, err := x.without(op.Axis)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(shape, k.out.shape) {
		return nil, fmt.Errorf("cannot add slots of shape %v along axis %d into shape %v", x.shape, op.Axis, k.out.shape)
	}
	if len(k.ins) == 2 && (k.ins[1].dt != k.out.dt || !slices.Equal(k.ins[1].shape, k.out.shape)) {
		return nil, fmt.Errorf("the sum continues from %s%v, but the result is %s%v", k.ins[1].dt, k.ins[1].shape, k.out.dt,
			k.out.shape)
	}
	return byAccum(x.dt, slotLoops[float32](op.Axis), slotLoops[float64](op.Axis), slotLoops[int64](op.Axis)), nil
}

func slotLoops[A accum](axis int) loops {
	return func(k *kernel) {
		x := k.ins[0]
		kept, _, _ := x.without(axis)
		slots := x.permute(append([]int{axis}, kept...))
		k.w.m.workers.each((k.out.n+block-1)/block, &k.w.ended, func(i int64) {
			lo := i * block
			n := min(block, k.out.n-lo)
			wr := newWriter[A](k.out, n)
			defer wr.close()
			out := wr.room(lo, n)
			if len(k.ins) == 2 {
				rd := newReader[A](k.ins[1], n)
				copy(out, rd.load(lo, n))
				rd.close()
			} else {
				clear(out)
			}
			joinRows(out, slots, ir.Sum, x.shape[axis], k.out.n, lo)
			wr.flush(lo, out)
		})
	}
}
