package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// oneShotPush runs collectives in two steps, which each member executes on its own stream:
//
//  1. push: copy the data that each peer reads from my input into my slot at that peer, and signal the peer;
//  2. take: await the members that I read from; copy from their slots and from my own input into my output, or
//     reduce them in team order with one launch.
//
// Data moves between members once, and, unlike in the schedule staged, no member copies its own part. A slot is written
// again only after its reader has acknowledged the last data in it, which Build ensures, so runs may follow each other.
type oneShotPush struct{}

func (oneShotPush) Info() device.Algorithm {
	return device.Algorithm{Name: "one-shot-push", Ops: sumsAndMoves,
		Takes: "all collectives except barrier and the uneven ones", OneShot: true,
		How: "each member writes the data for a reader into its slot at that reader; no member copies its own part"}
}

// Usual returns true for members without peer access to each other. Other schedules reduce from peers' memory; without
// peer access, each launch would need memory on its own device for the operands that it reads.
func (oneShotPush) Usual(in *Instance) bool { return in.apart }

func (oneShotPush) Supports(in *Instance, _ device.Caps) error {
	return in.aside(true)
}

func (oneShotPush) Staging(*Instance) int64 { return 0 }

func (oneShotPush) Slot(in *Instance) int64 {
	n := in.Bytes()
	if _, cut := in.cutAxis(); cut {
		n /= int64(len(in.Parts))
	}
	return n
}

func (s oneShotPush) Build(b *Build) {
	for me := range b.in.Parts {
		for to := range b.others(me) {
			if b.in.source(to, me) {
				src := b.in.given(me, to)
				b.Copy(me, b.Slot(to, me, 0, src.Shape), src)
				b.Tell(me, to)
			}
		}
		for from := range b.others(me) {
			if b.in.source(me, from) {
				b.Await(me, from)
			}
		}
		b.take(me, func(from int) device.View {
			v := b.in.given(from, me)
			if from == me {
				return v
			}
			return b.Slot(me, from, 0, v.Shape)
		})
	}
}

// given returns the part of member from's input that member to reads: the whole input, or the block for member to.
func (in *Instance) given(from, to int) device.View {
	v := in.Parts[from].In
	if axis, cut := in.cutAxis(); cut {
		return block(v, axis, to, len(in.Parts))
	}
	return v
}

// take makes member me copy or reduce the data of all members into its output. The function from returns the data of
// one member.
func (b *Build) take(me int, from func(int) device.View) {
	p := &b.in.Parts[me]
	gets := b.in.source(me, me) // only the root receives the result of some ops
	switch op := b.in.Op; {
	case op == ir.OpAllReduce, op == ir.OpReduceScatter, op == ir.OpReduce && gets:
		b.Reduce(me, p.Out, b.each(from))
	case op == ir.OpAllGather, op == ir.OpAllToAll, op == ir.OpGather && gets:
		b.join(me, from)
	case op == ir.OpBroadcast && p.Writes, op == ir.OpScatter:
		b.Copy(me, p.Out, from(b.in.Root))
	case op == ir.OpPermute && p.From >= 0:
		b.Copy(me, p.Out, from(p.From))
	}
}

// aside returns an error if a member's output overlaps its input. One of the two may be a block of the other if it is
// the block that stays with the member. Output and input may be the same memory only if inPlace is set.
func (in *Instance) aside(inPlace bool) error {
	for m := range in.Parts {
		p := &in.Parts[m]
		if p.Counted && meet(p.Counts, p.Out) {
			return fmt.Errorf("%w: the result of member %d overlaps its counts in memory", device.ErrUnsupported, m)
		}
		if !p.Reads || !p.Writes || !meet(p.In, p.Out) || inPlace && same(p.In, p.Out) {
			continue
		}
		n := len(in.Parts)
		switch in.Op {
		case ir.OpAllGather, ir.OpGather:
			if same(p.In, block(p.Out, in.Axis, m, n)) {
				continue
			}
		case ir.OpReduceScatter, ir.OpScatter:
			if same(p.Out, block(p.In, in.Axis, m, n)) {
				continue
			}
		}
		return fmt.Errorf("%w: the result of member %d overlaps its operand in memory", device.ErrUnsupported, m)
	}
	return nil
}

// twoShotPush is an all_reduce in two shots. Each member
//
//  1. pushes to each peer the chunk of its input that the peer reduces;
//  2. reduces its own chunk, in team order, into its position in the output;
//  3. pushes the result to all peers, which copy it into their outputs.
//
// twoShotPush moves as many bytes as twoShot and makes fewer local copies.
type twoShotPush struct{}

func (twoShotPush) Info() device.Algorithm {
	return device.Algorithm{Name: "two-shot-push", Ops: allReduce, How: "two shots, in which members write into their " +
		"slots at their peers"}
}

// Usual returns true for large all_reduces of members without peer access to each other.
func (twoShotPush) Usual(in *Instance) bool { return in.apart && in.large() }

func (twoShotPush) Supports(in *Instance, _ device.Caps) error {
	if err := in.flat(); err != nil {
		return err
	}
	return in.aside(true)
}

// flat returns an error if an operand is not dense.
func (in *Instance) flat() error {
	for i := range in.Parts {
		if p := &in.Parts[i]; !dense(p.In) || !dense(p.Out) {
			return fmt.Errorf("%w: it needs dense operands", device.ErrUnsupported)
		}
	}
	return nil
}

func (twoShotPush) Staging(*Instance) int64 { return 0 }

func (twoShotPush) Slot(in *Instance) int64 {
	return 2 * alignUp((twoShot{}).chunk(in)*in.dtype().Size())
}

func (twoShotPush) Build(b *Build) {
	second := alignUp((twoShot{}).chunk(b.in) * b.dt.Size())
	for me := range b.in.Parts {
		p := &b.in.Parts[me]
		for to := range b.others(me) {
			src := b.in.chunk(p.In, to)
			b.Copy(me, b.Slot(to, me, 0, src.Shape), src)
			b.Tell(me, to)
		}
		for from := range b.others(me) {
			b.Await(me, from)
		}
		sum := b.in.chunk(p.Out, me)
		b.Reduce(me, sum, b.each(func(i int) device.View {
			if i == me {
				return b.in.chunk(p.In, me)
			}
			return b.Slot(me, i, 0, sum.Shape)
		}))
		for to := range b.others(me) {
			b.Copy(me, b.Slot(to, me, second, sum.Shape), sum)
			b.Tell(me, to)
		}
		for from := range b.others(me) {
			b.Await(me, from)
			dst := b.in.chunk(p.Out, from)
			b.Copy(me, dst, b.Slot(me, from, second, dst.Shape))
		}
	}
}

// chunk returns the i-th chunk of a dense view that is split into one chunk for each member. All chunks have the same
// size, except that the last ones may be smaller.
func (in *Instance) chunk(v device.View, i int) device.View {
	whole, c := v.Elements(), (twoShot{}).chunk(in)
	return flat(v, min(int64(i)*c, whole), min(int64(i+1)*c, whole))
}
