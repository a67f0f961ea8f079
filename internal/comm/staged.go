package comm

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// staged runs every collective in four steps that each member takes on its
// own stream:
//
//  1. post: copy my input into my staging memory;
//  2. tell the members that read it; await those that I read;
//  3. take: copy, or reduce in team order with one launch, from the staging of
//     my sources into my output;
//  4. tell my sources that I have read theirs.
//
// Peers read staging only, so my input is mine again after step 1 and my
// output may overlap it. Where everybody reads everybody, step 2 makes every
// start precede every end (S5); elsewhere only the data's own way is waited
// for. Back to back (S13) is safe because a member writes a half of its
// staging again only after all who read that half have said so in step 4, in
// whichever run that was; Build adds steps 4 and those waits by itself.
type staged struct{}

func (staged) Info() device.Algorithm {
	return device.Algorithm{Name: "staged", Ops: everything, Takes: "all", OneShot: true,
		How: "each member copies its input to staging; readers copy or reduce from there"}
}

// Usual is true: whatever nothing else suits is staged.
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

// post copies member me's input into its staging: whole, or cut into the
// blocks that its readers take, one behind the other.
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

// cutAxis returns the axis along which posted tensors are cut into one block
// for each reader.
func (in *Instance) cutAxis() (int, bool) {
	switch in.Op {
	case ir.OpReduceScatter, ir.OpScatter:
		return in.Axis, true
	case ir.OpAllToAll:
		return in.Split, true
	}
	return 0, false
}

// stagedBlock returns block i of what member from posted.
func stagedBlock(b *Build, from, i int) device.View {
	axis, _ := b.in.cutAxis()
	v := block(b.in.Parts[from].In, axis, i, b.Size())
	return b.Staging(from, int64(i)*viewBytes(v), v.Shape)
}
