package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeUneven gives a member of an uneven collective its result, from the
// operands and the counts of all members.
func makeUneven(k *kernel) (loops, error) {
	n := len(k.ins) / 2
	if n == 0 || len(k.ins) != 2*n || k.Member < 0 || k.Member >= n {
		return nil, fmt.Errorf("%d operands for member %d: those of all, and their counts, are needed", len(k.ins), k.Member)
	}
	if len(k.Axes) != 1 || k.Axes[0] < 0 || k.Axes[0] >= len(k.out.shape) {
		return nil, fmt.Errorf("axes %v of a tensor of rank %d", k.Axes, len(k.out.shape))
	}
	if sums := k.Op == ir.OpReduceScatterV; sums != (k.Red != ir.NoRed) || k.Red > ir.Avg {
		return nil, fmt.Errorf("the reduction %s", k.Red)
	}
	for i, in := range k.ins[:n] {
		want := slices.Clone(k.out.shape)
		if len(in.shape) == len(want) {
			want[k.Axes[0]] = k.ins[0].shape[k.Axes[0]]
		}
		if in.dt != k.out.dt || !slices.Equal(in.shape, want) {
			return nil, fmt.Errorf("operand %d is %s%v, the result %s%v", i, in.dt, in.shape, k.out.dt, k.out.shape)
		}
	}
	for i, c := range k.ins[n:] {
		if c.dt != ir.I32 || !slices.Equal(c.shape, []int64{int64(n)}) {
			return nil, fmt.Errorf("the counts of member %d are %s%v, not i32[%d]", i, c.dt, c.shape, n)
		}
	}
	k.verify = func(k *kernel) error {
		_, err := k.shares()
		return err
	}
	zeros, err := makeElementwise(&kernel{Kernel: device.Kernel{Op: ir.OpFill, Attrs: ir.Attrs{Numbers: []ir.Number{ir.Whole(0)}}}, out: k.out})
	if err != nil {
		return nil, err
	}
	return func(k *kernel) {
		rows, axis := k.takeShares(), k.Axes[0]
		zeros(&kernel{w: k.w, out: k.out.rows(axis, rows, k.out.shape[axis]-rows)})
	}, nil
}

// shares reads the counts.
func (k *kernel) shares() ([]device.Rows, error) {
	n := len(k.ins) / 2
	counts := make([][]int64, n)
	for i, c := range k.ins[n:] {
		rd := newReader[int64](c, int64(n))
		counts[i] = slices.Clone(rd.load(0, int64(n)))
		rd.close()
	}
	axis := k.Axes[0]
	return device.Share(k.Op, counts, k.Member, k.ins[0].shape[axis], k.out.shape[axis])
}

// takeShares copies or reduces what the counts say, and returns how many rows.
func (k *kernel) takeShares() int64 {
	shares, err := k.shares()
	if err != nil {
		return 0 // verify has said so
	}
	axis := k.Axes[0]
	if k.Op == ir.OpReduceScatterV {
		sum := &kernel{Kernel: device.Kernel{Red: k.Red}, w: k.w, out: k.out.rows(axis, 0, shares[0].Count)}
		for i, s := range shares {
			sum.ins = append(sum.ins, k.ins[i].rows(axis, s.Lo, s.Count))
		}
		byAccum(k.out.dt, reductionLoops[float32], reductionLoops[float64], reductionLoops[int64])(sum)
		return shares[0].Count
	}
	at := int64(0)
	for i, s := range shares {
		from := k.ins[i].rows(axis, s.Lo, s.Count)
		c := copier{k.out.rows(axis, at, s.Count), from, k.w}
		c.parallel(from)
		at += s.Count
	}
	return at
}
