package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// oneShotPush runs collectives in two steps that each member takes on its own
// stream:
//
//  1. push: copy what each peer reads of my input into my slot there, and tell
//     it;
//  2. take: await those that I read; copy, or reduce in team order with one
//     launch, from their slots and my own input into my output.
//
// Data crosses once and nobody copies its own part, which staged does. Slots are
// written again only after their member has said that it has read them (Build
// sees to that), so runs may follow each other.
type oneShotPush struct{}

func (oneShotPush) Info() device.Algorithm {
	return device.Algorithm{Name: "one-shot-push", Ops: sumsAndMoves,
		Takes: "all but barrier and uneven ones", OneShot: true,
		How: "each member writes what a reader wants into its slot there; nobody copies its own part"}
}

// Usual is for members that do not reach each other's memory: others reduce from there, and every launch would need
// room on its own device for what it reads.
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

// given returns what member to reads of member from's input: all of it, or the
// block that is for it.
func (in *Instance) given(from, to int) device.View {
	v := in.Parts[from].In
	if axis, cut := in.cutAxis(); cut {
		return block(v, axis, to, len(in.Parts))
	}
	return v
}

// take makes member me put what it gets of each member, by from, into its output.
func (b *Build) take(me int, from func(int) device.View) {
	p := &b.in.Parts[me]
	gets := b.in.source(me, me) // for the ops whose result only the root has
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

// aside returns an error where a member's output lies over its input otherwise
// than by being it, or by being the block of it, or having it as the block, that
// stays with the member. Without inPlace being it is no excuse either.
func (in *Instance) aside(inPlace bool) error {
	for m := range in.Parts {
		p := &in.Parts[m]
		if p.Counted && meet(p.Counts, p.Out) {
			return fmt.Errorf("%w: the result of member %d lies over its counts", device.ErrUnsupported, m)
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
		return fmt.Errorf("%w: the result of member %d lies over its operand", device.ErrUnsupported, m)
	}
	return nil
}

// twoShotPush is an all_reduce in two shots: each member
//
//  1. pushes to each peer the chunk of its input that the peer reduces;
//  2. reduces its own chunk, in team order, into its place in the output;
//  3. pushes that to all peers, which copy it into theirs.
//
// It moves what twoShot moves, and copies less locally.
type twoShotPush struct{}

func (twoShotPush) Info() device.Algorithm {
	return device.Algorithm{Name: "two-shot-push", Ops: allReduce, How: "two shots by slots"}
}

// Usual is as of oneShotPush, for large sums.
func (twoShotPush) Usual(in *Instance) bool { return in.apart && in.large() }

func (twoShotPush) Supports(in *Instance, _ device.Caps) error {
	if err := in.flat(); err != nil {
		return err
	}
	return in.aside(true)
}

// flat refuses operands that are not dense.
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

// chunk returns the i-th of n chunks of a dense view, all but the last of one
// size.
func (in *Instance) chunk(v device.View, i int) device.View {
	whole, c := v.Elements(), (twoShot{}).chunk(in)
	return flat(v, min(int64(i)*c, whole), min(int64(i+1)*c, whole))
}
