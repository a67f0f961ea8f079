package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Members on different nodes can access each other only through the world's transport. The transport moves data, but
// does not add contributions in a defined order. The algorithms in this file use the transport to fill each member's
// staging memory, and reduce the data there.

// crosses returns an error if all members are on one node.
func (in *Instance) crosses() error {
	if in.nodes == nil {
		return fmt.Errorf("%w: its members are on one node", device.ErrUnsupported)
	}
	return nil
}

// across runs collectives between nodes. Sums are computed in the order of the members, as rule S11 requires, so
// results have the same bits as those of the algorithms inside a node. Each member receives the other members' operands
// and reduces them with one launch. In a large all_reduce, each member receives and reduces only one chunk of the
// operands, and then sends its chunk of the sum to the other members.
type across struct{}

func (across) Info() device.Algorithm {
	return device.Algorithm{Name: "across", Formerly: []string{"hierarchical"}, Ops: sumsAndUneven,
		How: "the transport sends each member the others' operands (for a large all_reduce, only its chunk of them); " +
			"the member adds them in the order of ranks"}
}

func (across) Supports(in *Instance, _ device.Caps) error {
	if err := in.crosses(); err != nil {
		return err
	}
	return in.Meets()
}

// Usual returns false: a collective that the transport can run by itself is faster than the algorithm across.
func (across) Usual(*Instance) bool { return false }

// acrossTwoShotFrom is the message size in bytes from which the algorithm across runs an all_reduce in two shots. Tests
// lower it.
var acrossTwoShotFrom int64 = twoShotFrom

// acrossPlan holds offsets in a member's staging memory, in bytes. The member's operand is at offset 0, and the data
// that it receives follows.
type acrossPlan struct {
	chunk  int64 // number of elements of a chunk of an all_reduce in two shots; 0 for an all_reduce in one shot
	came   int64 // offset of the data that the member receives
	counts int64 // offset of the member's own counts; the counts of all members follow them
	bytes  int64
}

func (across) plan(in *Instance) acrossPlan {
	n, size := int64(len(in.Parts)), in.dtype().Size()
	elements := in.Parts[0].In.Elements()
	var p acrossPlan
	switch {
	case in.Op == ir.OpReduceScatter:
		p.bytes = elements * size
	case in.Op == ir.OpAllReduce && n > 2 && elements*size >= acrossTwoShotFrom:
		p.chunk = (elements + n - 1) / n
		p.came = alignUp(n * p.chunk * size)
		p.bytes = p.came + alignUp(n*p.chunk*size) + p.chunk*size
	default:
		p.came = alignUp(elements * size)
		p.counts = p.came + alignUp(n*elements*size)
		p.bytes = p.counts
		if in.counted() {
			p.bytes += alignUp(n*ir.I32.Size()) + n*n*ir.I32.Size()
		}
	}
	return p
}

func (a across) Staging(in *Instance) int64 { return a.plan(in).bytes }

func (a across) Build(b *Build) {
	in, p := b.in, a.plan(b.in)
	n := int64(b.Size())
	elements, size := in.Parts[0].In.Elements(), b.dt.Size()
	at := func(me int, off int64, shape ...int64) device.View { return b.Staging(me, off, shape) }
	switch {
	case in.Op == ir.OpReduceScatter:
		b.transport(device.Collective{Op: ir.OpAllToAll, Axis: in.Axis, Split: in.Axis}, b.all(), func(me int) Part {
			return Part{In: in.Parts[me].In, Out: at(me, 0, in.Parts[me].In.Shape...)}
		})
		for me := range in.Parts {
			came := at(me, 0, in.Parts[me].In.Shape...)
			b.Reduce(me, in.Parts[me].Out, b.each(func(i int) device.View { return block(came, in.Axis, i, int(n)) }))
		}
	case p.chunk > 0:
		came, sum := p.came, p.came+alignUp(n*p.chunk*size)
		for me := range in.Parts {
			b.Copy(me, at(me, 0, in.Parts[me].In.Shape...), in.Parts[me].In)
			rest := at(me, elements*size, n*p.chunk-elements)
			b.run(me, device.Kernel{Op: device.Zeros(), Outs: []device.View{rest}})
		}
		b.transport(device.Collective{Op: ir.OpAllToAll}, b.all(), func(me int) Part {
			return Part{In: at(me, 0, n*p.chunk), Out: at(me, came, n*p.chunk)}
		})
		for me := range in.Parts {
			b.Reduce(me, at(me, sum, p.chunk), b.each(func(i int) device.View {
				return at(me, came+int64(i)*p.chunk*size, p.chunk)
			}))
		}
		b.transport(device.Collective{Op: ir.OpAllGather}, b.all(), func(me int) Part {
			return Part{In: at(me, sum, p.chunk), Out: at(me, 0, n*p.chunk)}
		})
		for me := range in.Parts {
			b.Copy(me, in.Parts[me].Out, at(me, 0, in.Parts[me].Out.Shape...))
		}
	default:
		for me := range in.Parts {
			b.Copy(me, at(me, 0, in.Parts[me].In.Shape...), in.Parts[me].In)
		}
		c := device.Collective{Op: ir.OpAllGather}
		if in.Op == ir.OpReduce {
			c = device.Collective{Op: ir.OpGather, Root: in.Root, Together: in.Together}
		}
		b.transport(c, b.all(), func(me int) Part {
			part := Part{In: at(me, 0, elements)}
			if in.Op != ir.OpReduce || me == in.Root {
				part.Out = at(me, p.came, n*elements)
			}
			return part
		})
		counts := func(me int, off int64, n int64) device.View {
			return packed(at(me, p.counts+off).Mem, at(me, p.counts+off).Off, ir.I32, []int64{n})
		}
		all := alignUp(n * ir.I32.Size())
		if in.counted() {
			for me := range in.Parts {
				b.Copy(me, counts(me, 0, n), in.Parts[me].Counts)
			}
			b.transport(device.Collective{Op: ir.OpAllGather}, b.all(), func(me int) Part {
				return Part{In: counts(me, 0, n), Out: counts(me, all, n*n)}
			})
		}
		for me := range in.Parts {
			if in.Op == ir.OpReduce && me != in.Root {
				continue
			}
			whole := b.each(func(i int) device.View { return at(me, p.came+int64(i)*elements*size, in.Parts[me].In.Shape...) })
			if in.Op.Uneven() {
				b.takeRows(me, whole, b.each(func(i int) device.View { return counts(me, all+int64(i)*n*ir.I32.Size(), n) }))
			} else {
				b.Reduce(me, in.Parts[me].Out, whole)
			}
		}
	}
}

// all returns the indices of all members.
func (b *Build) all() []int {
	list := make([]int, b.Size())
	for i := range list {
		list[i] = i
	}
	return list
}

// transport makes members run a collective through the world's transport, each on its own stream. part returns a
// member's operands. If In or Out has no memory, the member has no such operand.
func (b *Build) transport(c device.Collective, members []int, part func(me int) Part) {
	if b.err != nil {
		return
	}
	team, err := b.ch.openTeam()
	if err != nil {
		b.fail(err)
		return
	}
	elements := int64(0)
	for _, me := range members {
		p := part(me)
		p.Reads, p.Writes, p.To, p.From = p.In.Mem != nil, p.Out.Mem != nil, -1, -1
		if p.Writes {
			b.claim(me, p.Out)
			n := int64(len(members))
			b.log[me].moved += viewBytes(p.Out) * (n - 1) / n
			elements += p.Out.Elements()
		}
		c.Parts = append(c.Parts, p)
	}
	if elements == 0 { // no data moves, but no member may end before all members have begun (S5)
		c = device.Collective{Op: ir.OpBarrier, Parts: make([]Part, len(members))}
		for i := range c.Parts {
			c.Parts[i] = Part{To: -1, From: -1}
		}
	}
	launches, err := team.Prepare(device.Tuning{Algo: b.ch.world.Transport()}, &c)
	if err != nil {
		b.fail(fmt.Errorf("%s for %s: %w", c.Op, b.in.Op, err))
		return
	}
	for i, l := range launches {
		if l != nil {
			b.add(members[i], step{kind: stepReduce, launch: l})
		}
	}
}
