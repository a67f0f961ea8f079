package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// twoShot is an all_reduce in two shots, a reduce-scatter and an all-gather through staging. Each of n members
//
//  1. copies its input into its staging, signals all others and awaits their signals;
//  2. reduces its own chunk, the elements [me·c, (me+1)·c) with c = ceildiv(elements, n), from all members' staging
//     in team order into a second part of its staging; signals all others and awaits their signals;
//  3. copies every chunk from its owner's staging into its output.
//
// A member thus receives 2·(n-1)/n of the tensor's bytes, compared with n-1 times the tensor's bytes in the schedule
// staged. Each element is summed in the same order by the same kernel as in staged, so both schedules compute the same
// bits. As in staged, peers read only staging, so output and input may be the same memory, and consecutive runs are
// safe.
type twoShot struct{}

func (twoShot) Info() device.Algorithm {
	return device.Algorithm{Name: "two-shot", Ops: allReduce,
		How: "each member reduces one chunk through staging, then all members copy the results from there: " +
			"2(n−1)/n of the tensor moves to each member instead of n−1 times the tensor"}
}

// Usual returns true for large all_reduces of members with peer access to each other.
func (twoShot) Usual(in *Instance) bool { return !in.apart && in.large() }

func (twoShot) Supports(in *Instance, _ device.Caps) error {
	for i := range in.Parts {
		if !dense(in.Parts[i].Out) {
			return fmt.Errorf("%w: it needs dense outputs", device.ErrUnsupported)
		}
	}
	return nil
}

func (t twoShot) Staging(in *Instance) int64 {
	c := t.chunk(in) * in.dtype().Size()
	return alignUp(in.Bytes()) + c
}

// chunk returns the number of elements of a full chunk.
func (twoShot) chunk(in *Instance) int64 {
	n := int64(len(in.Parts))
	return (in.Parts[0].In.Elements() + n - 1) / n
}

func (t twoShot) Build(b *Build) {
	whole, c := b.in.Parts[0].In.Elements(), t.chunk(b.in)
	bounds := func(i int) (lo, hi int64) { return min(int64(i)*c, whole), min(int64(i+1)*c, whole) }
	sum := func(i int) device.View {
		lo, hi := bounds(i)
		return b.Staging(i, alignUp(b.in.Bytes()), []int64{hi - lo})
	}
	for me := range b.in.Parts {
		p := &b.in.Parts[me]
		lo, hi := bounds(me)
		b.Copy(me, b.Staging(me, 0, p.In.Shape), p.In)
		b.meet(me)
		b.Reduce(me, sum(me), b.each(func(i int) device.View {
			return flat(b.Staging(i, 0, []int64{whole}), lo, hi)
		}))
		b.meet(me)
		for i := range b.in.Parts {
			lo, hi := bounds(i)
			b.Copy(me, flat(p.Out, lo, hi), sum(i))
		}
	}
}
