package comm

import (
	"fmt"
	"iter"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// stepKind is the operation that a step performs on its member's stream.
type stepKind uint8

const (
	stepCopy   stepKind = iota // performs copied
	stepReduce                 // issues launch
	stepTell                   // the step adds to element elem of counters, which belong to a peer
	stepAwait                  // the step waits for element elem of counters, which belong to the member itself
)

// step is one stream operation of a member. A collective of a large team can need thousands of steps. Nearly all of
// them signal or wait, so the fields of copy steps are stored separately.
type step struct {
	kind     stepKind
	elem     int32
	copied   *copied
	launch   device.Launch
	counters device.Counters
	// least is the counter value to wait for in run 0; each later run adds perRun. least may be negative if the signal
	// belongs to the previous run.
	least, perRun int64
}

// copied holds the views of a copy step.
type copied struct{ dst, src device.View }

// Build collects the steps of one instance for all members. Each member executes its own steps in the order in which
// they were added, on its own stream.
//
// Build ensures that staging memory and slots are reused safely. From the copies and reductions it derives which member
// reads which memory. Build makes each reader of a half acknowledge its reads at the end, and makes a writer await the
// readers' acknowledgements before it writes that half again. Algorithms only add data movements and the signals for
// them.
type Build struct {
	ch   *Channel
	in   *Instance
	dt   ir.DType
	half int
	log  []memberLog
	err  error
}

// memberLog records what a Build has added for one member.
type memberLog struct {
	steps              []step
	reads              []bool // by peer: whether the member reads the peer's staging
	takes              []bool // by peer: whether the member reads the slot that the peer pushes to
	signalled, awaited []int  // by peer: number of signals sent to it, and number of signals awaited from it
	wrote              bool   // whether the member has written its own staging
	pushed             []bool // by peer: whether the member has pushed to it
	moved              int64  // number of bytes received from peers
}

func newBuild(ch *Channel, in *Instance, half int) *Build {
	b := &Build{ch: ch, in: in, dt: in.dtype(), half: half, log: make([]memberLog, len(in.Parts))}
	for i := range b.log {
		n := len(in.Parts)
		b.log[i] = memberLog{steps: ch.scratch[i][:0], reads: make([]bool, n), takes: make([]bool, n), pushed: make([]bool, n), signalled: make([]int, n), awaited: make([]int, n)}
	}
	return b
}

// Size returns the number of members.
func (b *Build) Size() int { return len(b.in.Parts) }

// Staging returns a dense view of member m's staging memory, with the given shape and the instance's element type, that
// begins off bytes after the start of the current half.
func (b *Build) Staging(m int, off int64, shape []int64) device.View {
	half := int64(b.half) * b.ch.halfBytes
	return packed(b.ch.staging[m], half+off, b.dt, shape)
}

// Slot returns a dense view of the slot in the memory of member at into which member from writes. The view has the
// given shape and the instance's element type, and begins off bytes after the start of the slot.
func (b *Build) Slot(at, from int, off int64, shape []int64) device.View {
	n := int64(b.half)*int64(b.Size()) + int64(from)
	return packed(b.ch.slots[at], n*b.ch.slotBytes+off, b.dt, shape)
}

// Copy makes member me copy src to dst. Both src and dst may be the member's own operands or its staging. src may also
// be a peer's staging, and dst the member's slot at a peer. If operands are shared, src or dst may also be a peer's
// operand. No step is added if src and dst are the same view, or if they have no elements.
func (b *Build) Copy(me int, dst, src device.View) {
	if src.Elements() == 0 || same(dst, src) {
		return
	}
	b.claim(me, dst)
	b.reads(me, src)
	if p, ok := b.memberOf(dst); ok && p != me {
		b.log[p].moved += viewBytes(src)
	}
	if err := b.ch.device(me).PrepareCopy(dst, src); err != nil {
		b.fail(fmt.Errorf("preparing a copy of %s: %w", b.in.Op, err))
	}
	b.add(me, step{kind: stepCopy, copied: &copied{dst, src}})
}

// Reduce makes member me reduce srcs, in their order, into dst.
func (b *Build) Reduce(me int, dst device.View, srcs []device.View) {
	if dst.Elements() == 0 || b.err != nil {
		return
	}
	b.claim(me, dst)
	for _, s := range srcs {
		b.reads(me, s)
	}
	k := device.Kernel{Op: device.ReduceOperands{Red: b.in.Red}, Ins: srcs, Outs: []device.View{dst}}
	l, err := b.ch.device(me).Prepare(k)
	if err != nil {
		b.fail(fmt.Errorf("preparing the reduction of %s: %w", b.in.Op, err))
		return
	}
	b.add(me, step{kind: stepReduce, launch: l})
}

// Tell makes member me raise its counter in the memory of another member, to. After the matching Await has returned,
// the other member sees all earlier writes of me.
func (b *Build) Tell(me, to int) {
	b.log[me].signalled[to]++
	b.add(me, step{kind: stepTell, counters: b.ch.counters[to], elem: int32(me)})
}

// Await makes member me wait for the next signal (see Tell) of member from.
func (b *Build) Await(me, from int) {
	b.log[me].awaited[from]++
	least := b.ch.signalled[from][me] + int64(b.log[me].awaited[from])
	b.add(me, step{kind: stepAwait, counters: b.ch.counters[me], elem: int32(from), least: least})
}

// meet makes member me signal all other members and wait for the signals of all of them.
func (b *Build) meet(me int) {
	for to := range b.others(me) {
		b.Tell(me, to)
	}
	for from := range b.others(me) {
		b.Await(me, from)
	}
}

// join makes member me copy the blocks that it receives from all members into its output, in team order along the
// instance's axis. It skips the member's own block if the input already is that block of the output.
func (b *Build) join(me int, from func(int) device.View) {
	p, n := &b.in.Parts[me], b.Size()
	for d := range n {
		i := (me + d) % n // each member begins with a different peer
		dst := block(p.Out, b.in.Axis, i, n)
		if i != me || !same(dst, p.In) {
			b.Copy(me, dst, from(i))
		}
	}
}

// each returns one view for each member, in team order.
func (b *Build) each(view func(int) device.View) []device.View {
	vs := make([]device.View, b.Size())
	for i := range vs {
		vs[i] = view(i)
	}
	return vs
}

// others yields the indices of all members except me, beginning with the member that follows me.
func (b *Build) others(me int) iter.Seq[int] {
	return func(yield func(int) bool) {
		n := b.Size()
		for d := 1; d < n; d++ {
			if !yield((me + d) % n) {
				return
			}
		}
	}
}

func (b *Build) add(me int, s step) { b.log[me].steps = append(b.log[me].steps, s) }

func (b *Build) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// claim precedes a member's first write to its staging or to its slot at a peer. It makes member me wait until all
// readers have acknowledged their reads of the old contents.
func (b *Build) claim(me int, dst device.View) {
	p, ok := b.ch.owner[dst.Mem]
	switch log := &b.log[me]; {
	case !ok:
	case p != me && !log.pushed[p]:
		log.pushed[p] = true
		b.reclaim(b.ch.pushed, me, p)
	case p == me && !log.wrote:
		log.wrote = true
		for r := range b.others(me) {
			b.reclaim(b.ch.staged, me, r)
		}
	}
}

func (b *Build) reclaim(l *ledger, me, reader int) {
	if least, must := l.least(me, b.half, reader); must {
		b.add(me, step{kind: stepAwait, counters: b.ch.counters[me], elem: int32(l.base + reader), least: least})
	}
}

// reads records that member me reads src, if src is a peer's memory or a slot that a peer has pushed to.
func (b *Build) reads(me int, src device.View) {
	p, ok := b.memberOf(src)
	switch {
	case ok && p != me:
		b.log[me].reads[p] = b.log[me].reads[p] || src.Mem == b.ch.staging[p]
		b.log[me].moved += viewBytes(src)
	case ok && b.ch.slots != nil && src.Mem == b.ch.slots[me]:
		b.log[me].takes[src.Off/b.ch.slotBytes%int64(b.Size())] = true
	}
}

// memberOf returns the member that owns the memory of a view.
func (b *Build) memberOf(v device.View) (int, bool) {
	if p, ok := b.ch.owner[v.Mem]; ok {
		return p, true
	}
	for m := range b.in.Parts {
		if p := &b.in.Parts[m]; p.Reads && p.In.Mem == v.Mem || p.Writes && p.Out.Mem == v.Mem {
			return m, true
		}
	}
	return 0, false
}

// finish adds the acknowledgements of all reads to the steps, and stores the steps in the channel.
func (b *Build) finish() error {
	if b.err != nil {
		return b.err
	}
	for me := range b.Size() {
		log := &b.log[me]
		for p := range b.others(me) {
			if log.signalled[p] != b.log[p].awaited[me] {
				return fmt.Errorf("%s: member %d signals member %d %d times, which awaits %d signals", b.in.Op, me, p, log.signalled[p],
					b.log[p].awaited[me])
			}
			b.ch.signalled[me][p] += int64(log.signalled[p])
			b.acknowledge(b.ch.staged, me, p, log.reads[p])
			b.acknowledge(b.ch.pushed, me, p, log.takes[p])
		}
	}
	for me := range b.Size() {
		for r := range b.others(me) {
			if b.log[me].wrote {
				b.ch.staged.use(me, b.half, r)
			}
			if b.log[me].pushed[r] {
				b.ch.pushed.use(me, b.half, r)
			}
		}
	}
	return nil
}

func (b *Build) acknowledge(l *ledger, me, writer int, read bool) {
	if read {
		l.acked[me][writer]++
		b.add(me, step{kind: stepTell, counters: b.ch.counters[writer], elem: int32(l.base + me)})
	}
}
