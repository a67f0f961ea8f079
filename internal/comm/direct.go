package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// direct runs collectives whose starts all precede their ends (S5) between
// operands where they lie, without staging. What only
// moves is pushed: a reader says that its output may be written, the source
// copies into it and says that it has. What is reduced, or uneven, is pulled: a source
// says that its input may be read, the reader reduces from there and says that it has.
//
// So a member's output is written from its start on, and its input read until its
// end: neither before it has come to this point of its stream, nor after it has
// left it, and runs may follow each other.
type direct struct{}

func (direct) Info() device.Algorithm {
	return device.Algorithm{Name: "direct", Memory: device.MemoryFlags, OneShot: true,
		Ops:   toOrFromAll,
		Takes: "all_reduce, reduce_scatter, all_gather, all_to_all, uneven ones, a broadcast whose members meet",
		How: "no staging: data is written where it belongs, inputs are reduced, and uneven rows read, where they lie. " +
			"Not in place"}
}

// Usual is for uneven collectives of members that reach each other's memory.
func (direct) Usual(in *Instance) bool { return !in.apart && in.Op.Uneven() }

func (direct) Supports(in *Instance, _ device.Caps) error {
	if err := in.Meets(); err != nil { // a broadcast's root waits for its readers
		return err
	}
	if err := in.shared(); err != nil {
		return err
	}
	return in.aside(len(in.Parts) == 1 || in.Op == ir.OpBroadcast)
}

// shared refuses operands that peers cannot reach.
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
	b.meet(me) // all inputs are there
	if b.in.Op.Uneven() {
		b.takeRows(me, b.each(func(from int) device.View { return b.in.Parts[from].In }),
			b.each(func(from int) device.View { return b.in.Parts[from].Counts }))
	} else {
		b.take(me, func(from int) device.View { return b.in.given(from, me) })
	}
	b.meet(me) // all have read them
}

func (direct) push(b *Build, me int) {
	gets := func(to, from int) bool { return b.in.source(to, from) && b.in.Parts[to].Writes }
	for from := range b.others(me) {
		if gets(me, from) {
			b.Tell(me, from) // my output is free
		}
	}
	if gets(me, me) {
		b.Copy(me, b.in.placed(me, me), b.in.given(me, me))
	}
	for to := range b.others(me) {
		if gets(to, me) {
			b.Await(me, to)
			b.Copy(me, b.in.placed(to, me), b.in.given(me, to))
			b.Tell(me, to) // it is written
		}
	}
	for from := range b.others(me) {
		if gets(me, from) {
			b.Await(me, from)
		}
	}
}

// placed returns where in member to's output lies what it gets of member from.
func (in *Instance) placed(to, from int) device.View {
	if in.Op == ir.OpBroadcast {
		return in.Parts[to].Out
	}
	return block(in.Parts[to].Out, in.Axis, from, len(in.Parts))
}

// directTwoShot is an all_reduce in two shots between operands where they lie:
// each member reduces its chunk from everybody's input into its own output and
// copies it from there into everybody else's. Nobody else reads that chunk, so it
// may lie where the input lay.
type directTwoShot struct{}

func (directTwoShot) Info() device.Algorithm {
	return device.Algorithm{Name: "direct-two-shot", Ops: allReduce, Memory: device.MemoryFlags,
		How: "two shots without staging, in place too"}
}

// Usual is false: it is for those who are short of memory.
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
