package comm

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// The direct and staged algorithms run uneven collectives: each member reads its own rows from its peers' operands, in
// place or from staging. If the counts are known on the host, the steps are copies or a reduction. If the counts are in
// device memory, a kernel reads them when it runs; peers read counts in place or from staging, like operands. In both
// cases the unused rows of the result are filled with zeros.

// counted reports whether the counts are in device memory.
func (in *Instance) counted() bool { return in.Op.Uneven() && in.Parts[0].Counted }

// countsAt returns the offset of the counts in staging.
func (in *Instance) countsAt() int64 { return alignUp(in.Bytes()) }

// stagedCounts returns the view of the counts that member m copies to its staging.
func stagedCounts(b *Build, m int) device.View {
	v := b.Staging(m, b.in.countsAt(), nil)
	return packed(v.Mem, v.Off, ir.I32, []int64{int64(b.Size())})
}

// takeRows makes member me move its rows from all members' operands into its output. counts holds all members' counts
// if they are in device memory.
func (b *Build) takeRows(me int, whole, counts []device.View) {
	p, axis := &b.in.Parts[me], b.in.Axis
	if p.Counted {
		b.takeCounted(me, whole, counts)
		return
	}
	shares, err := b.in.shares(me)
	if err != nil {
		b.fail(err)
		return
	}
	at := int64(0)
	if b.in.Op == ir.OpReduceScatterV {
		at = shares[me].Count
		b.Reduce(me, rows(p.Out, axis, 0, at), b.each(func(from int) device.View { return rows(whole[from], axis, shares[from].Lo, at) }))
	} else {
		for from, s := range shares {
			b.Copy(me, rows(p.Out, axis, at, s.Count), rows(whole[from], axis, s.Lo, s.Count))
			at += s.Count
		}
	}
	b.run(me, device.Kernel{Op: device.Zeros(), Outs: []device.View{rows(p.Out, axis, at, p.Out.Shape[axis]-at)}})
}

// takeCounted makes a kernel move the rows of member me. The kernel reads the counts in device memory.
func (b *Build) takeCounted(me int, whole, counts []device.View) {
	out := b.in.Parts[me].Out
	for p := range b.others(me) {
		b.log[me].reads[p] = counts[p].Mem == b.ch.staging[p]
	}
	b.log[me].moved += b.in.least(me)
	k := device.Kernel{Ins: append(whole, counts...), Outs: []device.View{out}}
	k.Op = device.UnevenMove{Op: b.in.Op, Axis: b.in.Axis, Member: me}
	if b.in.Op == ir.OpReduceScatterV {
		k.Op = device.UnevenReduce{Red: b.in.Red, Axis: b.in.Axis, Member: me}
	}
	b.run(me, k)
}

// run makes member me launch a kernel, unless its result has no elements.
func (b *Build) run(me int, k device.Kernel) {
	if k.Outs[0].Elements() == 0 || b.err != nil {
		return
	}
	l, err := b.ch.device(me).Prepare(k)
	if err != nil {
		b.fail(fmt.Errorf("preparing a kernel of %s: %w", b.in.Op, err))
		return
	}
	b.add(me, step{kind: stepReduce, launch: l})
}

// rows returns n rows of v along axis, beginning with row lo.
func rows(v device.View, axis int, lo, n int64) device.View {
	v.Shape = slices.Clone(v.Shape)
	v.Shape[axis] = n
	if n > 0 {
		v.Off += lo * v.Strides[axis] * v.DType.Size()
	}
	return v
}

// shares returns the rows that member me reads from each member according to counts that are known on the host.
func (in *Instance) shares(me int) ([]device.Rows, error) {
	counts := make([][]int64, len(in.Parts))
	for i := range counts {
		counts[i] = in.Parts[i].Rows
	}
	p := &in.Parts[me]
	return device.Share(in.Op, counts, me, p.In.Shape[in.Axis], p.Out.Shape[in.Axis])
}

// leastRows is the method least for an uneven collective.
func (in *Instance) leastRows(m int) int64 {
	out, n := in.Parts[m].Out, int64(len(in.Parts))
	if in.counted() && in.Op == ir.OpReduceScatterV {
		return viewBytes(out) * (n - 1)
	}
	if in.counted() {
		return viewBytes(out) * (n - 1) / n
	}
	shares, _ := in.shares(m)
	bytes := int64(0)
	for from, s := range shares {
		if from != m {
			bytes += viewBytes(rows(out, in.Axis, 0, s.Count))
		}
	}
	return bytes
}

func (in *Instance) checkUneven(n int) error {
	first := &in.Parts[0]
	if in.Op == ir.OpReduceScatterV {
		if err := checkRed(in.Red); err != nil {
			return err
		}
	}
	if in.Axis < 0 || in.Axis >= len(first.In.Shape) {
		return fmt.Errorf("there is no dimension %d in shape %v", in.Axis, first.In.Shape)
	}
	for i := range in.Parts {
		p := &in.Parts[i]
		if err := sameShape(p.In.Shape, first.In.Shape, i); err != nil {
			return err
		}
		want := slices.Clone(first.In.Shape)
		if len(p.Out.Shape) == len(want) {
			want[in.Axis] = p.Out.Shape[in.Axis]
		}
		if err := sameShape(p.Out.Shape, want, i); err != nil {
			return err
		}
		if err := in.checkCounts(i, n); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
	}
	if in.counted() {
		return nil
	}
	for i := range in.Parts {
		if _, err := in.shares(i); err != nil {
			return err
		}
	}
	return nil
}

// checkCounts checks that member i has its counts in the same kind of memory as member 0, and in the right shape.
func (in *Instance) checkCounts(i, n int) error {
	p := &in.Parts[i]
	switch {
	case p.Counted != in.Parts[0].Counted:
		return fmt.Errorf("either all members or no members must have their counts in device memory, but member 0 and this " +
			"one differ")
	case p.Counted && (p.Counts.DType != ir.I32 || !wellFormed(p.Counts) || !slices.Equal(p.Counts.Shape, []int64{int64(n)})):
		return fmt.Errorf("its counts have type %s%v, but must have type i32[%d]", p.Counts.DType, p.Counts.Shape, n)
	case !p.Counted && len(p.Rows) != n:
		return fmt.Errorf("it has %d counts for a team of %d members", len(p.Rows), n)
	}
	return nil
}
