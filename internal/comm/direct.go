package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// direct is a schedule that runs collectives in place: it uses no staging and moves data directly between the members'
// operands. All members must begin the collective before any of them ends it (S5). In collectives that only move data,
// except uneven ones, members push: a reader signals that its output may be written, and the source copies into the
// output and signals completion. In reductions and uneven collectives, members pull: a source signals that its input
// may be read, and the reader reads it and signals that it has finished.
//
// A member's output is therefore written, and its input read, only while the member is between the start and the end of
// the collective on its stream, and runs may follow each other without a barrier.
type direct struct{}

func (direct) Info() device.Algorithm {
	return device.Algorithm{Name: "direct", Memory: device.MemoryFlags, OneShot: true,
		Ops: toOrFromAll,
		Takes: "all_reduce, reduce_scatter, all_gather, all_to_all, the uneven collectives, a broadcast whose members may " +
			"wait for each other",
		How: "no staging: members write results directly into their peers' outputs, and read operands of reductions " +
			"and of uneven collectives in place. Output and input must not share memory"}
}

// Usual returns true for uneven collectives whose members have peer access to each other.
func (direct) Usual(in *Instance) bool { return !in.apart && in.Op.Uneven() }

func (direct) Supports(in *Instance, _ device.Caps) error {
	if err := in.Meets(); err != nil { // the root of a broadcast waits for its readers
		return err
	}
	if err := in.shared(); err != nil {
		return err
	}
	return in.aside(len(in.Parts) == 1 || in.Op == ir.OpBroadcast)
}

// shared returns an error if peers cannot access all operands.
func (in *Instance) shared() error {
	if len(in.Parts) > 1 && !in.Shared {
		return fmt.Errorf("%w: peers cannot reach all operands", device.ErrUnsupported)
	}
	return nil
}

func (direct) Staging(*Instance) int64 { return 0 }

func (d direct) Build(b *Build) {
	for me := range b.in.Parts {
		if b.in.Op == ir.OpAllReduce || b.in.Op == ir.OpReduceScatter || b.in.Op.Uneven() {
			d.pull(b, me)
		} else {
			d.push(b, me)
		}
	}
}

func (direct) pull(b *Build, me int) {
	b.meet(me) // the signal and the wait ensure that all inputs are complete
	if b.in.Op.Uneven() {
		b.takeRows(me, b.each(func(from int) device.View { return b.in.Parts[from].In }),
			b.each(func(from int) device.View { return b.in.Parts[from].Counts }))
	} else {
		b.take(me, func(from int) device.View { return b.in.given(from, me) })
	}
	b.meet(me) // waits until all members have read the inputs
}

func (direct) push(b *Build, me int) {
	gets := func(to, from int) bool { return b.in.source(to, from) && b.in.Parts[to].Writes }
	for from := range b.others(me) {
		if gets(me, from) {
			b.Tell(me, from) // signals that the member's output may be written
		}
	}
	if gets(me, me) {
		b.Copy(me, b.in.placed(me, me), b.in.given(me, me))
	}
	for to := range b.others(me) {
		if gets(to, me) {
			b.Await(me, to)
			b.Copy(me, b.in.placed(to, me), b.in.given(me, to))
			b.Tell(me, to) // signals that the output is written
		}
	}
	for from := range b.others(me) {
		if gets(me, from) {
			b.Await(me, from)
		}
	}
}

// placed returns the part of member to's output that receives the data of member from.
func (in *Instance) placed(to, from int) device.View {
	if in.Op == ir.OpBroadcast {
		return in.Parts[to].Out
	}
	return block(in.Parts[to].Out, in.Axis, from, len(in.Parts))
}

// directTwoShot is an all_reduce in two shots that works in place: each member reduces its chunk from all inputs into
// its own output, and copies the result from there into the outputs of all others. No other member reads that chunk of
// the member's input, so the output may share memory with the input.
type directTwoShot struct{}

func (directTwoShot) Info() device.Algorithm {
	return device.Algorithm{Name: "direct-two-shot", Ops: allReduce, Memory: device.MemoryFlags,
		How: "two shots without staging; output and input may share memory"}
}

// Usual returns false: direct-two-shot is meant for programs that are short of memory.
func (directTwoShot) Usual(*Instance) bool { return false }

func (directTwoShot) Supports(in *Instance, _ device.Caps) error {
	if err := in.flat(); err != nil {
		return err
	}
	if err := in.shared(); err != nil {
		return err
	}
	return in.aside(true)
}

func (directTwoShot) Staging(*Instance) int64 { return 0 }

func (directTwoShot) Build(b *Build) {
	for me := range b.in.Parts {
		b.meet(me)
		sum := b.in.chunk(b.in.Parts[me].Out, me)
		b.Reduce(me, sum, b.each(func(i int) device.View { return b.in.chunk(b.in.Parts[i].In, me) }))
		for to := range b.others(me) {
			b.Copy(me, b.in.chunk(b.in.Parts[to].Out, me), sum)
		}
		b.meet(me)
	}
}
