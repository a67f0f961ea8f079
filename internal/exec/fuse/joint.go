package fuse

import (
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// jointMost is the largest number of linears of a Joint: three, for queries, keys and values.
const jointMost = 3

// Joint is a group of linears that share their input but have different weights. The linears are consecutive on a
// stream. No linear of the group reads or writes memory that another linear of the group writes.
type Joint struct {
	Linears []int // command indices, in order
	// Gate describes a group of two linears after which silu is applied to the first result and multiplied by the
	// second result. Gate holds the commands silu and mul if no other command reads the three intermediate results. The
	// launch then stores only the result of the mul. Gate is nil if these conditions do not hold.
	Gate []int
}

// Members returns all commands, in order.
func (j *Joint) Members() []int { return append(j.Linears[:len(j.Linears):len(j.Linears)], j.Gate...) }

// Joints calls accept for groups of linears that belong to no accepted group, in the order of each stream. It first
// tries all consecutive linears, with their gate if they have one, and then fewer linears.
func (f *Finder) Joints(accept func(*Joint) (bool, error)) error {
	for _, cmds := range f.streams() {
		for at := 0; at < len(cmds); {
			n, err := f.jointAt(cmds[at:], accept)
			if err != nil {
				return err
			}
			at += max(n, 1)
		}
	}
	return nil
}

// streams returns the commands of each stream.
func (f *Finder) streams() [][]int {
	all := make([][]int, len(f.p.Streams))
	for i := range f.p.Cmds {
		s := f.p.Cmds[i].Stream
		all[s] = append(all[s], i)
	}
	return all
}

// jointAt calls accept for the groups that begin with the first of a stream's commands, and returns the number of
// commands of the accepted group; 0 if none was accepted.
func (f *Finder) jointAt(cmds []int, accept func(*Joint) (bool, error)) (int, error) {
	n := f.alike(cmds)
	if gate := f.gate(cmds); gate != nil {
		j := &Joint{cmds[:2], gate}
		if ok, err := accept(j); ok || err != nil {
			f.take(j.Members())
			return 4, err
		}
	}
	for ; n > 1; n-- {
		j := &Joint{Linears: cmds[:n]}
		if ok, err := accept(j); ok || err != nil {
			f.take(j.Members())
			return n, err
		}
	}
	return 0, nil
}

// alike returns the length of the longest prefix of cmds that consists of linears that one launch may execute.
func (f *Finder) alike(cmds []int) int {
	n := 0
	for n < min(len(cmds), jointMost) && f.joins(cmds[:n], cmds[n]) {
		n++
	}
	return n
}

// joins reports whether a command may be executed by one launch together with other linears: it is a linear without
// bias and without a number of SMs, and belongs to no group.
func (f *Finder) joins(others []int, cmd int) bool {
	c := &f.p.Cmds[cmd]
	if c.Kind != plan.Compute || c.Op != ir.OpLinear || len(c.Ins) == 3 || c.Attr.SMs != 0 || f.taken[cmd] {
		return false
	}
	scaled := len(c.Ins) == 4
	if scaled && c.Ins[0].DType.IsFloat8() { // the kernel for few rows multiplies by 8-bit weights, but not 8-bit inputs
		return false
	}
	for _, o := range others {
		first := &f.p.Cmds[o]
		if len(first.Ins) != len(c.Ins) || scaled && !first.Ins[2].Same(c.Ins[2]) {
			return false
		}
		if !first.Ins[0].Same(c.Ins[0]) || f.meets(first.Outs[0], c.Ins...) || f.meets(c.Outs[0], first.Ins...) ||
			f.meets(first.Outs[0], c.Outs...) {
			return false
		}
	}
	return !f.meets(c.Outs[0], c.Ins...)
}

// gate returns the silu and the mul that follow the first two commands, if the first two are linears whose results the
// silu and the mul combine.
func (f *Finder) gate(cmds []int) []int {
	if len(cmds) < 4 || f.alike(cmds[:2]) != 2 || f.taken[cmds[2]] || f.taken[cmds[3]] {
		return nil
	}
	one, two, silu, mul := &f.p.Cmds[cmds[0]], &f.p.Cmds[cmds[1]], &f.p.Cmds[cmds[2]], &f.p.Cmds[cmds[3]]
	for i, c := range []*plan.Cmd{silu, mul} {
		if c.Kind != plan.Compute || c.Op != []ir.Op{ir.OpSilu, ir.OpMul}[i] {
			return nil
		}
	}
	gated, up := one.Outs[0], two.Outs[0]
	act, out := silu.Outs[0], mul.Outs[0]
	silent := func(r plan.Ref) bool { return private(f.p, placeOf(r)) && f.uses[placeOf(r)] == 2 }
	if !silu.Ins[0].Same(gated) || !mul.Ins[0].Same(act) || !mul.Ins[1].Same(up) || !silent(gated) || !silent(act) ||
		!silent(up) {
		return nil
	}
	if f.meets(out, one.Ins...) || f.meets(out, two.Ins...) {
		return nil
	}
	return cmds[2:4]
}

// meets reports whether a tensor may share bytes with one of the others. Two tensors may be in one buffer, or in two
// buffers that occupy the same bytes at different times.
func (f *Finder) meets(r plan.Ref, others ...plan.Ref) bool {
	lo, hi := f.span(r)
	for _, o := range others {
		olo, ohi := f.span(o)
		a, b := &f.p.Buffers[r.Buf], &f.p.Buffers[o.Buf]
		if r.Rank == o.Rank && a.Space == b.Space && lo < ohi && olo < hi {
			return true
		}
	}
	return false
}

// span returns the interval of bytes from the first element of a tensor to the last, in the tensor's memory space.
func (f *Finder) span(r plan.Ref) (lo, hi int64) {
	lo, hi = r.Span()
	at := f.p.Buffers[r.Buf].Offset
	return at + lo, at + hi
}
