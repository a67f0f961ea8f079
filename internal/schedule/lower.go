package schedule

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// order records properties that are the same in all interleavings of a plan: the sequence number of each signal and
// wait within its counter, and the blocks that meet at each barrier.
type order struct {
	lanes map[*Op][]int
	meets map[*Op][]int
}

// lane records the sequence number of lane i of o.
func (r *order) lane(o *Op, i, n int) {
	if r == nil {
		return
	}
	if r.lanes[o] == nil {
		r.lanes[o] = make([]int, len(o.Lanes))
	}
	r.lanes[o][i] = n
}

// meet records that the given blocks meet at their current operations.
func (r *order) meet(s *sim, blocks []int) {
	if r == nil {
		return
	}
	for _, b := range blocks {
		r.meets[&s.p.Blocks[b].Ops[s.blocks[b].pc]] = blocks
	}
}

var loweredOps = map[Collective]ir.Op{AllReduce: ir.OpAllReduce, AllGather: ir.OpAllGather,
	ReduceScatter: ir.OpReduceScatter, AllToAll: ir.OpAllToAll}

// Lower returns the schedule with which the kernels of a team execute a plan. It returns an error unless Check accepts
// the plan. If Check accepts the plan, the sequence number of each signal and wait within its counter is the same in
// all interleavings. A signal can then be lowered to a store of this number.
//
// The puts of port channels are performed by the threads of the block itself, immediately and between two barriers. A
// proxy may perform the puts in this order, among others. Packets have a separate memory area, even if plain data use
// the same cells of scratch at other times. The separation is correct because Check refutes a plan that writes a cell
// as a packet and reads it as plain data, or conversely.
func Lower(p *Plan) (*device.Schedule, error) {
	op, ok := loweredOps[p.Collective]
	switch {
	case !ok:
		return nil, fmt.Errorf("it is a schedule of %q: those of all_reduce, all_gather, reduce_scatter and all_to_all run "+
			"on GPUs", p.Collective)
	case p.Ranks < 2:
		return nil, fmt.Errorf("it is a schedule of one rank")
	}
	r := Check(p, Options{})
	if r.Verdict != OK {
		return nil, fmt.Errorf("it is not proved: %s", r.Findings[0].Message)
	}
	l := &lowering{p: p, out: &device.Schedule{Name: p.Name, Op: op, Members: p.Ranks, Closes: len(r.Warnings) > 0}}
	if !l.out.Closes {
		many := Check(p, Options{Launches: 2})
		l.out.Closes = many.Verdict != OK || len(many.Warnings) > 0
	}
	s := newSim(p, 1, nil)
	s.follow = byBlocks
	l.order = &order{lanes: map[*Op][]int{}, meets: map[*Op][]int{}}
	s.order = l.order
	s.run()
	if err := l.memory(); err != nil {
		return nil, err
	}
	l.out.Counters = len(p.Counters) + len(p.Blocks)
	l.peers()
	l.out.Steps = make([][][]device.ScheduleStep, p.Ranks)
	for b := range p.Blocks {
		blk := &p.Blocks[b]
		l.block, l.steps, l.met = b, nil, 0
		for i := range blk.Ops {
			l.op(&blk.Ops[i])
		}
		l.out.Steps[blk.Rank] = append(l.out.Steps[blk.Rank], l.steps)
		l.out.Blocks = max(l.out.Blocks, len(l.out.Steps[blk.Rank]))
	}
	if l.err == nil {
		l.err = l.out.Check()
	}
	return l.out, l.err
}

type lowering struct {
	p        *Plan
	out      *device.Schedule
	order    *order
	takers   []int // for each counter: the rank that waits for the counter, 0 if none does
	adders   []int
	receives map[int]int // for the first cell of each message: the rank that reads the message
	err      error

	block, met int
	steps      []device.ScheduleStep
}

// memory assigns memory to the cells of operands. The assignment is the same for all ranks.
func (l *lowering) memory() error {
	p, s := l.p, l.out
	packets := false
	for b := range p.Blocks {
		for i := range p.Blocks[b].Ops {
			packets = packets || classOf(&p.Blocks[b].Ops[i]) == 1
		}
	}
	for r := range p.Ranks {
		in, out := p.buffer(r, Input), p.buffer(r, Output)
		if in == nil || out == nil || in.Cells == 0 || out.Cells == 0 {
			return fmt.Errorf("rank %d has no input or no output", r)
		}
		if r > 0 && (in.Cells != s.In || out.Cells != s.Out) {
			return fmt.Errorf("rank %d has %d parts of input and %d of output, and rank 0 has %d and %d", r, in.Cells,
				out.Cells, s.In, s.Out)
		}
		s.In, s.Out = in.Cells, out.Cells
		lo, hi := min(in.Base, out.Base), max(in.Base+in.Cells, out.Base+out.Cells)
		if joint := hi-lo < in.Cells+out.Cells; r > 0 && joint != s.Joint {
			return fmt.Errorf("some ranks have the input and the output in the same memory, and others do not")
		} else if joint {
			s.Joint, s.Size = true, max(s.Size, hi-lo)
			s.InAt, s.OutAt = append(s.InAt, in.Base-lo), append(s.OutAt, out.Base-lo)
		}
		if b := p.buffer(r, Scratch); b != nil {
			s.Areas[device.ScheduleScratch] = max(s.Areas[device.ScheduleScratch], b.Cells)
			if packets {
				s.Areas[device.SchedulePackets] = max(s.Areas[device.SchedulePackets], (b.Cells+1)/2)
			}
		}
	}
	want := map[ir.Op]bool{ir.OpAllReduce: s.In == s.Out, ir.OpAllToAll: s.In == s.Out,
		ir.OpAllGather: s.Out == s.In*p.Ranks, ir.OpReduceScatter: s.In == s.Out*p.Ranks}
	if !want[s.Op] {
		return fmt.Errorf("an input of %d parts and an output of %d are no operands of %s", s.In, s.Out, s.Op)
	}
	s.Areas[device.ScheduleMessages] = p.Cells - p.MessageBase
	return nil
}

// peers determines the rank that waits for each counter, the rank that raises it, and the rank that reads each message.
func (l *lowering) peers() {
	p := l.p
	l.takers, l.adders, l.receives = make([]int, len(p.Counters)), make([]int, len(p.Counters)), map[int]int{}
	for b := range p.Blocks {
		rank := p.Blocks[b].Rank
		for i := range p.Blocks[b].Ops {
			o := &p.Blocks[b].Ops[i]
			for _, lane := range o.Lanes {
				switch lane.Kind {
				case Take, Await:
					l.takers[lane.Counter] = rank
				case Add:
					l.adders[lane.Counter] = rank
				}
			}
			for _, m := range o.Moves {
				for _, sp := range m.From {
					if sp.Cell >= p.MessageBase {
						l.receives[sp.Cell] = rank
					}
				}
			}
		}
	}
}

func (l *lowering) add(s device.ScheduleStep) { l.steps = append(l.steps, s) }

func (l *lowering) sync() {
	if n := len(l.steps); n == 0 || l.steps[n-1].Kind != device.ScheduleSync {
		l.add(device.ScheduleStep{Kind: device.ScheduleSync})
	}
}

func (l *lowering) op(o *Op) {
	switch o.Kind {
	case Join:
		l.sync()
	case Gather:
		l.gather(o)
	case Sync:
		l.lanes(o)
	case Data:
		for i := range o.Moves {
			l.move(&o.Moves[i])
		}
		l.lanes(o)
	}
}

// gather lowers a barrier of several blocks of one rank: the block raises its barrier counter and waits for the barrier
// counters of the other blocks.
func (l *lowering) gather(o *Op) {
	l.met++
	l.sync()
	rank := l.p.Blocks[l.block].Rank
	counter := func(b int) int { return len(l.p.Counters) + b }
	l.add(device.ScheduleStep{Kind: device.ScheduleRaise, Member: rank, Counter: counter(l.block), Value: l.met})
	for i, b := range l.order.meets[o] {
		if b != l.block {
			l.add(device.ScheduleStep{Kind: device.ScheduleAwait, Thread: i % device.ScheduleThreads, Member: rank,
				Counter: counter(b), Value: l.meeting(b, o)})
		}
	}
	l.sync()
}

// meeting returns the number of barriers that block b has passed, including the barrier of o.
func (l *lowering) meeting(b int, o *Op) int {
	n := 0
	for i := range l.p.Blocks[b].Ops {
		other := &l.p.Blocks[b].Ops[i]
		if other.Kind != Gather {
			continue
		}
		n++
		if met := l.order.meets[other]; len(met) > 0 && &met[0] == &l.order.meets[o][0] {
			return n
		}
	}
	return n
}

func (l *lowering) lanes(o *Op) {
	for i, lane := range o.Lanes {
		st := device.ScheduleStep{Thread: lane.Thread % device.ScheduleThreads, Counter: lane.Counter}
		switch lane.Kind {
		case Add:
			st.Kind, st.Member, st.Value = device.ScheduleRaise, l.takers[lane.Counter], l.order.lanes[o][i]
		case Take:
			st.Kind, st.Member = device.ScheduleAwait, l.adders[lane.Counter]
			st.Value = l.order.lanes[o][i] - l.p.Counters[lane.Counter].Init
		case Await:
			st.Kind, st.Member = device.ScheduleAwait, l.adders[lane.Counter]
			st.Value = lane.Value - l.p.Counters[lane.Counter].Init
		case Flush: // no wait is needed: the block's threads have performed the posted puts
			continue
		}
		if st.Kind == device.ScheduleRaise || st.Value > 0 {
			l.add(st)
		}
	}
}

func (l *lowering) move(m *Move) {
	if len(m.To) == 0 {
		return
	}
	st := device.ScheduleStep{Kind: device.ScheduleMove, Cells: m.To[0].N}
	for _, sp := range m.From {
		st.From = append(st.From, l.span(sp))
		st.Packed = st.Packed || sp.Mode != Plain
	}
	for _, sp := range m.To {
		to := l.span(sp)
		st.To = append(st.To, to)
		st.Packed = st.Packed || sp.Mode != Plain
		l.out.Writes = l.out.Writes || to.Area == device.ScheduleIn && !l.out.Joint
	}
	if m.Engine >= 0 {
		l.sync()
	}
	l.add(st)
	if m.Engine >= 0 {
		l.sync()
	}
}

// span returns the memory of an operand.
func (l *lowering) span(sp Span) device.ScheduleSpan {
	p := l.p
	if sp.Cell >= p.MessageBase {
		return device.ScheduleSpan{Area: device.ScheduleMessages, Member: l.receives[sp.Cell], Cell: sp.Cell - p.MessageBase}
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if sp.Cell < b.Base || sp.Cell >= b.Base+b.Cells {
			continue
		}
		at := sp.Cell - b.Base
		switch {
		case sp.Mode != Plain:
			return device.ScheduleSpan{Area: device.SchedulePackets, Raw: sp.Mode == Raw, Member: b.Rank, Cell: at / 2}
		case b.Kind == Scratch:
			return device.ScheduleSpan{Area: device.ScheduleScratch, Member: b.Rank, Cell: at}
		case l.out.Joint:
			offset := l.out.InAt[b.Rank]
			if b.Kind == Output {
				offset = l.out.OutAt[b.Rank]
			}
			return device.ScheduleSpan{Area: device.ScheduleIn, Member: b.Rank, Cell: at + offset}
		case b.Kind == Output:
			return device.ScheduleSpan{Area: device.ScheduleOut, Member: b.Rank, Cell: at}
		}
		return device.ScheduleSpan{Area: device.ScheduleIn, Member: b.Rank, Cell: at}
	}
	if l.err == nil {
		l.err = fmt.Errorf("cell %d is in no buffer", sp.Cell)
	}
	return device.ScheduleSpan{}
}
