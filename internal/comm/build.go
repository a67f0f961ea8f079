package comm

import (
	"fmt"
	"iter"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// stepKind is what a step does on its member's stream.
type stepKind uint8

const (
	stepCopy   stepKind = iota // copied
	stepReduce                 // launch
	stepTell                   // raises elem of counters, a peer's
	stepAwait                  // waits for elem of counters, one's own
)

// step is one stream operation of a member. A large team has thousands of them for one collective, nearly all of which
// signal or wait, so the fields of other kinds are stored separately.
type step struct {
	kind     stepKind
	elem     int32
	copied   *copied
	launch   device.Launch
	counters device.Counters
	// least is awaited in run 0, perRun more in each later one. It may be
	// negative: what it waits for happened in the run before.
	least, perRun int64
}

// copied is what a step copies.
type copied struct{ dst, src device.View }

// Build collects the steps of one instance for all members. Members run
// their own steps in the order they are added, each on its own stream.
//
// Build itself sees to the reuse of staging and slots: it finds out from the
// copies and reduces who reads what of whom, lets each reader acknowledge at its
// end, and lets a member await the acknowledgements before it writes that half
// again. Algorithms only move data and tell of it.
type Build struct {
	ch   *Channel
	in   *Instance
	dt   ir.DType
	half int
	log  []memberLog
	err  error
}

// memberLog is one member's share of a Build.
type memberLog struct {
	steps         []step
	reads         []bool // staging of these peers
	takes         []bool // slots of these peers
	told, awaited []int  // to, from each peer
	wrote         bool   // own staging
	pushed        []bool // to these peers
	moved         int64  // bytes that came from peers
}

func newBuild(ch *Channel, in *Instance, half int) *Build {
	b := &Build{ch: ch, in: in, dt: in.dtype(), half: half, log: make([]memberLog, len(in.Parts))}
	for i := range b.log {
		n := len(in.Parts)
		b.log[i] = memberLog{steps: ch.scratch[i][:0], reads: make([]bool, n), takes: make([]bool, n), pushed: make([]bool, n), told: make([]int, n), awaited: make([]int, n)}
	}
	return b
}

// Size returns the number of members.
func (b *Build) Size() int { return len(b.in.Parts) }

// Staging returns a dense view of member m's staging memory: shape elements of
// the instance's type, off bytes from its start.
func (b *Build) Staging(m int, off int64, shape []int64) device.View {
	half := int64(b.half) * b.ch.halfBytes
	return packed(b.ch.staging[m], half+off, b.dt, shape)
}

// Slot returns a dense view of what member from pushes to member at: shape
// elements of the instance's type, off bytes from the start of the slot.
func (b *Build) Slot(at, from int, off int64, shape []int64) device.View {
	n := int64(b.half)*int64(b.Size()) + int64(from)
	return packed(b.ch.slots[at], n*b.ch.slotBytes+off, b.dt, shape)
}

// Copy makes member me copy src to dst: its own operands and staging, a peer's
// staging as src, its slot at a peer as dst, and where operands are shared a
// peer's operand as either. A copy of a view onto itself, or of nothing, is left
// out.
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

// Reduce makes member me reduce srcs in their order into dst.
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

// Tell makes member me raise member to's counter for it: all that me did so
// far is visible to whom the matching Await lets pass.
func (b *Build) Tell(me, to int) {
	b.log[me].told[to]++
	b.add(me, step{kind: stepTell, counters: b.ch.counters[to], elem: int32(me)})
}

// Await makes member me wait for the next Tell of member from that it has not
// yet awaited.
func (b *Build) Await(me, from int) {
	b.log[me].awaited[from]++
	least := b.ch.told[from][me] + int64(b.log[me].awaited[from])
	b.add(me, step{kind: stepAwait, counters: b.ch.counters[me], elem: int32(from), least: least})
}

// meet makes member me tell and await everybody else.
func (b *Build) meet(me int) {
	for to := range b.others(me) {
		b.Tell(me, to)
	}
	for from := range b.others(me) {
		b.Await(me, from)
	}
}

// join makes member me put what it gets from each member, in team order, along
// the instance's axis into its output. Its own block is left where it is when
// the input already lies there.
func (b *Build) join(me int, from func(int) device.View) {
	p, n := &b.in.Parts[me], b.Size()
	for d := range n {
		i := (me + d) % n // not everybody at the same peer first
		dst := block(p.Out, b.in.Axis, i, n)
		if i != me || !same(dst, p.In) {
			b.Copy(me, dst, from(i))
		}
	}
}

// each returns one view per member, in team order.
func (b *Build) each(view func(int) device.View) []device.View {
	vs := make([]device.View, b.Size())
	for i := range vs {
		vs[i] = view(i)
	}
	return vs
}

// others yields the members but me, beginning behind me.
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

// claim lets member me await, before its first write to its staging or to its
// slot at a peer, all who read what is there.
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

// reads notes that member me reads src, if that is a peer's, or what a peer
// pushed to it.
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

// memberOf returns whose memory a view is in.
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

// finish acknowledges what was read and hands the steps to the channel.
func (b *Build) finish() error {
	if b.err != nil {
		return b.err
	}
	for me := range b.Size() {
		log := &b.log[me]
		for p := range b.others(me) {
			if log.told[p] != b.log[p].awaited[me] {
				return fmt.Errorf("%s: member %d tells %d %d times, which awaits it %d times", b.in.Op, me, p, log.told[p], b.log[p].awaited[me])
			}
			b.ch.told[me][p] += int64(log.told[p])
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
