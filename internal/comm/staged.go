package comm

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// staged runs every collective in four steps, which each member executes on its own stream:
//
//  1. post: copy my input into my staging memory;
//  2. signal the members that read it, and await the members that I read from;
//  3. take: copy from the staging of my sources into my output, or reduce in team order with one launch;
//  4. acknowledge to my sources that I have read their staging.
//
// Peers read only staging, so my input may be written after step 1, and my output may overlap my input. If every member
// reads from every other member, step 2 makes every member start before any member ends (rule S5). Otherwise a member
// waits only for its sources. Consecutive runs are safe (rule S13): before a member writes a half of its staging again,
// all readers of that half have acknowledged their reads of earlier runs in step 4. The type Build adds step 4 and the
// waits for acknowledgements.
type staged struct{}

func (staged) Info() device.Algorithm {
	return device.Algorithm{Name: "staged", Ops: everything, Takes: "all", OneShot: true,
		How: "each member copies its input to its staging; readers copy or reduce from there"}
}

// Usual returns true: staged is the default for every collective that has no other default schedule.
func (staged) Usual(*Instance) bool { return true }

func (staged) Supports(*Instance, device.Caps) error { return nil }

func (staged) Staging(in *Instance) int64 {
	if in.Op == ir.OpBarrier {
		return 0
	}
	if in.counted() {
		return in.countsAt() + int64(len(in.Parts))*ir.I32.Size()
	}
	return in.Bytes()
}

func (s staged) Build(b *Build) {
	for me := range b.in.Parts {
		s.post(b, me)
		for to := range b.others(me) {
			if b.in.source(to, me) {
				b.Tell(me, to)
			}
		}
		for from := range b.others(me) {
			if b.in.source(me, from) {
				b.Await(me, from)
			}
		}
		if b.in.Op.Uneven() {
			b.takeRows(me, b.each(func(from int) device.View { return b.Staging(from, 0, b.in.Parts[from].In.Shape) }),
				b.each(func(from int) device.View { return stagedCounts(b, from) }))
			continue
		}
		b.take(me, func(from int) device.View {
			if _, cut := b.in.cutAxis(); cut {
				return stagedBlock(b, from, me)
			}
			return b.Staging(from, 0, b.in.Parts[from].In.Shape)
		})
	}
}

// post copies member me's input into its staging. The input is copied as a whole, or as one block for each reader.
func (staged) post(b *Build, me int) {
	if !b.in.gives(me) {
		return
	}
	in := b.in.Parts[me].In
	axis, cut := b.in.cutAxis()
	if !cut {
		b.Copy(me, b.Staging(me, 0, in.Shape), in)
		if b.in.counted() {
			b.Copy(me, stagedCounts(b, me), b.in.Parts[me].Counts)
		}
		return
	}
	n := b.Size()
	for i := range n {
		src := block(in, axis, i, n)
		b.Copy(me, stagedBlock(b, me, i), src)
	}
}

// cutAxis returns the axis along which inputs are split into one block for each reader. The second result is false if
// inputs are not split.
func (in *Instance) cutAxis() (int, bool) {
	switch in.Op {
	case ir.OpReduceScatter, ir.OpScatter:
		return in.Axis, true
	case ir.OpAllToAll:
		return in.Split, true
	}
	return 0, false
}

// stagedBlock returns block i of the input that member from has copied to its staging.
func stagedBlock(b *Build, from, i int) device.View {
	axis, _ := b.in.cutAxis()
	v := block(b.in.Parts[from].In, axis, i, b.Size())
	return b.Staging(from, int64(i)*viewBytes(v), v.Shape)
}
