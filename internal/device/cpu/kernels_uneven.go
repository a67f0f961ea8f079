package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// uneven computes the result of one member of an uneven collective, from the operands and the counts of all
// members.
type uneven struct {
	op           ir.Op
	red          ir.Red // reduction of reduce_scatterv
	axis, member int
}

func (u uneven) loops(k *kernel) (loops, error) {
	n := len(k.ins) / 2
	if n == 0 || len(k.ins) != 2*n || u.member < 0 || u.member >= n {
		return nil, fmt.Errorf("it has %d operands for member %d, but needs the operands and the counts of all members",
			len(k.ins), u.member)
	}
	if err := device.AxisIn(u.axis, len(k.out.shape)); err != nil {
		return nil, err
	}
	if u.op == ir.OpReduceScatterV && (u.red == ir.NoRed || u.red > ir.Avg) {
		return nil, fmt.Errorf("unknown reduction %d", u.red)
	}
	for i, in := range k.ins[:n] {
		want := slices.Clone(k.out.shape)
		if len(in.shape) == len(want) {
			want[u.axis] = k.ins[0].shape[u.axis]
		}
		if in.dt != k.out.dt || !slices.Equal(in.shape, want) {
			return nil, fmt.Errorf("operand %d is %s%v, but the result is %s%v", i, in.dt, in.shape, k.out.dt, k.out.shape)
		}
	}
	for i, c := range k.ins[n:] {
		if c.dt != ir.I32 || !slices.Equal(c.shape, []int64{int64(n)}) {
			return nil, fmt.Errorf("the counts of member %d have type %s%v, but must have type i32[%d]", i, c.dt, c.shape, n)
		}
	}
	k.verify = func(k *kernel) error {
		_, err := u.shares(k)
		return err
	}
	zeros, err := makeElementwise(&kernel{operands: operands{out: k.out}}, device.Zeros())
	if err != nil {
		return nil, err
	}
	return func(k *kernel) {
		rows := u.takeShares(k)
		zeros(&kernel{w: k.w, operands: operands{out: k.out.rows(u.axis, rows, k.out.shape[u.axis]-rows)}})
	}, nil
}

// shares reads the counts, and returns which rows of each member's operand this member receives.
func (u uneven) shares(k *kernel) ([]device.Rows, error) {
	n := len(k.ins) / 2
	counts := make([][]int64, n)
	for i, c := range k.ins[n:] {
		rd := newReader[int64](c, int64(n))
		counts[i] = slices.Clone(rd.load(0, int64(n)))
		rd.close()
	}
	return device.Share(u.op, counts, u.member, k.ins[0].shape[u.axis], k.out.shape[u.axis])
}

// takeShares copies or reduces the rows that the method shares returns. It returns the number of rows of the result
// that it has written.
func (u uneven) takeShares(k *kernel) int64 {
	shares, err := u.shares(k)
	if err != nil {
		return 0 // unreachable: the method verify has already returned this error
	}
	if u.op == ir.OpReduceScatterV {
		sum := &kernel{w: k.w, operands: operands{out: k.out.rows(u.axis, 0, shares[0].Count)}}
		for i, s := range shares {
			sum.ins = append(sum.ins, k.ins[i].rows(u.axis, s.Lo, s.Count))
		}
		byAccum(k.out.dt, reductionLoops[float32](u.red), reductionLoops[float64](u.red), reductionLoops[int64](u.red))(sum)
		return shares[0].Count
	}
	at := int64(0)
	for i, s := range shares {
		from := k.ins[i].rows(u.axis, s.Lo, s.Count)
		c := copier{k.out.rows(u.axis, at, s.Count), from, k.w}
		c.parallel(from)
		at += s.Count
	}
	return at
}
