package certify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/schedule"
)

// maxCells bounds the accesses to cells in the statement of a schedule.
const maxCells = 1 << 24

// Schedule makes the statement of one launch of a collective schedule. It fails for schedules that it has no statement
// for: whose signals are taken, or whose proxies are used, by several threads, or that write a packet twice.
//
// Chains are the thread blocks, the single threads of them that wait and signal, and the proxies. Within a block
// nothing orders two operations but a barrier, or that the same thread handles the same element in both. What happens
// at the launch's border is not in the statement.
func Schedule(p *schedule.Plan) (*ScheduleStatement, error) {
	if p.Fault != nil {
		return nil, fmt.Errorf("%s", p.Fault.Message)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	b := &scheduleStatement{p: p, s: &Statement{Plan: hex.EncodeToString(sum[:]), Spots: p.Cells,
		Chains: len(p.Blocks) + len(p.Engines)}, lanes: map[[2]int]int32{}, taken: make([]int32, len(p.Counters)),
		taker: make([][2]int, len(p.Counters)), packets: map[int]int32{},
		users: map[int][]int{}, posters: make([]int, len(p.Engines))}
	b.counter(len(p.Counters))
	b.joins, b.joined, b.acts = b.counter(len(p.Blocks)), make([]int32, len(p.Blocks)), b.counter(len(p.Blocks))
	b.acted, b.reads, b.read = make([]int32, len(p.Blocks)), b.counter(len(p.Blocks)), make([]int32, len(p.Blocks))
	b.posts, b.done = b.counter(len(p.Engines)), b.counter(len(p.Engines))
	b.posted, b.meets = make([]int32, len(p.Engines)), map[[2]int]int32{}
	for b.block = range p.Blocks {
		for i := range p.Blocks[b.block].Ops {
			if err := b.op(&p.Blocks[b.block].Ops[i]); err != nil {
				return nil, fmt.Errorf("rank %d, tb %d, op %d: %w", p.Blocks[b.block].Rank, p.Blocks[b.block].ID,
					p.Blocks[b.block].Ops[i].Index, err)
			}
		}
	}
	return &ScheduleStatement{*b.s, p, b.moves}, nil
}

// ScheduleStatement is a statement with what the events of a schedule move.
type ScheduleStatement struct {
	Statement
	plan  *schedule.Plan
	moves map[int32][]schedule.Move // by event
}

// CheckSchedule returns nil if the certificate proves the statement, and the outputs are those of the collective.
// Since no accesses race, what one order computes all compute.
func CheckSchedule(s *ScheduleStatement, c *Certificate) error {
	if err := Check(&s.Statement, c); err != nil {
		return err
	}
	return s.results(c.Order)
}

type scheduleStatement struct {
	p       *schedule.Plan
	s       *Statement
	moves   map[int32][]schedule.Move
	lanes   map[[2]int]int32 // chains of single threads, by block and thread
	taken   []int32          // of each counter
	taker   [][2]int         // block, from 1, and thread that waits for a counter
	packets map[int]int32    // the counter of each packet, by cell, and of each barrier m, by -1-m
	users   map[int][]int    // blocks that use a barrier
	posters []int            // the block, from 1, that uses an engine
	written map[int]bool
	meets   map[[2]int]int32 // how often a block has used a barrier
	cells   int
	// First counters: a block's barriers, the acts of its single threads, and its reads of packets; an engine's posts, and
	// those done; and how far each is.
	joins, acts, reads, posts, done int32
	joined, acted, read, posted     []int32
	block                           int
}

func (b *scheduleStatement) counter(n int) int32 {
	b.s.Counters += n
	return int32(b.s.Counters - n)
}

// event adds an event of the block, which comes after its last barrier.
func (b *scheduleStatement) event(e Event) {
	if n := b.joined[b.block]; n > 0 && int(e.Chain) != b.block {
		e.Waits = append(e.Waits, Wait{Counter: b.joins + int32(b.block), N: n})
	}
	b.s.Events = append(b.s.Events, e)
}

func (b *scheduleStatement) op(o *schedule.Op) error {
	k := int32(b.block)
	switch o.Kind {
	case schedule.Join:
		b.join()
		return nil
	case schedule.Gather:
		at := [2]int{o.Meet, b.block}
		if b.meets[at]++; b.meets[at] == 1 {
			if b.users[o.Meet] = append(b.users[o.Meet], b.block); len(b.users[o.Meet]) > o.Size {
				return fmt.Errorf("more blocks use a barrier than meet")
			}
		}
		meet, ok := b.packets[-1-o.Meet]
		if !ok {
			meet = b.counter(1)
			b.packets[-1-o.Meet] = meet
		}
		b.join()
		b.event(Event{Chain: k, Adds: []Add{{Counter: meet}}})
		b.event(Event{Chain: k, Waits: []Wait{{Counter: meet, N: b.meets[at] * int32(o.Size)}}})
		b.join()
		return nil
	}
	if err := b.data(o); err != nil {
		return err
	}
	for i := range o.Lanes {
		if err := b.lane(&o.Lanes[i]); err != nil {
			return err
		}
	}
	return nil
}

// join has all threads of the block meet.
func (b *scheduleStatement) join() {
	k := int32(b.block)
	b.joined[k]++
	b.event(Event{Chain: k, Join: true, Waits: []Wait{{Counter: b.acts + k, N: b.acted[k]}},
		Adds: []Add{{Counter: b.joins + k}}})
}

// act adds an event of a single thread of the block. It comes, as time goes, after packets that the block has read.
func (b *scheduleStatement) act(thread int, e Event) {
	k := int32(b.block)
	chain, ok := b.lanes[[2]int{b.block, thread}]
	if !ok {
		chain = int32(b.s.Chains)
		b.s.Chains++
		b.lanes[[2]int{b.block, thread}] = chain
	}
	e.Chain = chain
	e.Waits = append(e.Waits, Wait{Counter: b.reads + k, N: b.read[k], Relaxed: true})
	e.Adds = append(e.Adds, Add{Counter: b.acts + k})
	b.acted[k]++
	b.event(e)
}

func (b *scheduleStatement) lane(l *schedule.Lane) error {
	switch l.Kind {
	case schedule.Add:
		add := Add{Counter: int32(l.Counter), Relaxed: l.Relaxed}
		if l.Engine < 0 {
			b.act(l.Thread, Event{Adds: []Add{add}})
			return nil
		}
		return b.post(l.Engine, l.Thread, Event{Adds: []Add{add}}, nil)
	case schedule.Take:
		by := [2]int{b.block + 1, l.Thread}
		if old := b.taker[l.Counter]; old != by && old != [2]int{} {
			return fmt.Errorf("several threads take the same signals")
		}
		b.taker[l.Counter] = by
		b.taken[l.Counter]++
		b.act(l.Thread, Event{Waits: []Wait{{Counter: int32(l.Counter), N: b.taken[l.Counter] -
			int32(b.p.Counters[l.Counter].Init), Relaxed: l.Relaxed}}})
	case schedule.Await:
		b.act(l.Thread, Event{Waits: []Wait{{Counter: int32(l.Counter), N: int32(l.Value - b.p.Counters[l.Counter].Init),
			Relaxed: l.Relaxed}}})
	case schedule.Flush:
		b.act(l.Thread, Event{Waits: []Wait{{Counter: b.done + int32(l.Engine), N: b.posted[l.Engine]}}})
	}
	return nil
}

// post has a thread give an event to an engine, which does what it is given in order.
func (b *scheduleStatement) post(engine, thread int, e Event, m []schedule.Move) error {
	if by := b.posters[engine]; by != 0 && by != b.block+1 {
		return fmt.Errorf("several blocks use a port channel")
	}
	b.posters[engine] = b.block + 1
	b.act(thread, Event{Adds: []Add{{Counter: b.posts + int32(engine)}}})
	b.posted[engine]++
	e.Chain = int32(len(b.p.Blocks) + engine)
	e.Waits = append(e.Waits, Wait{Counter: b.posts + int32(engine), N: b.posted[engine]})
	e.Adds = append(e.Adds, Add{Counter: b.done + int32(engine)})
	b.move(m)
	b.s.Events = append(b.s.Events, e)
	return nil
}

func (b *scheduleStatement) move(m []schedule.Move) {
	if b.moves == nil {
		b.moves = map[int32][]schedule.Move{}
	}
	if len(m) > 0 {
		b.moves[int32(len(b.s.Events))] = m
	}
}

// packet returns the counter of the packet at a cell.
func (b *scheduleStatement) packet(cell int) int32 {
	if _, ok := b.packets[cell]; !ok {
		b.packets[cell] = b.counter(1)
	}
	return b.packets[cell]
}

func (b *scheduleStatement) data(o *schedule.Op) error {
	e := Event{Chain: int32(b.block), InPlace: true}
	packed := int32(0)
	for i := range o.Moves {
		for _, sp := range append(append([]schedule.Span(nil), o.Moves[i].From...), o.Moves[i].To...) {
			if sp.Mode != schedule.Plain {
				packed = 1
			}
		}
	}
	var own []schedule.Move
	for i := range o.Moves {
		m := &o.Moves[i]
		if m.Engine < 0 {
			own = append(own, *m)
			if err := b.accesses(&e, m, packed); err != nil {
				return err
			}
			continue
		}
		for _, sp := range m.From {
			if sp.Mode == schedule.Packet { // the block's threads look at the flags and meet
				b.wait(&e, sp)
			}
		}
	}
	if len(own) > 0 || len(e.Waits) > 0 {
		if len(e.Waits) > 0 {
			b.read[b.block]++
			e.Adds = append(e.Adds, Add{Counter: b.reads + int32(b.block)})
		}
		b.move(own)
		b.event(e)
	}
	if len(own) < len(o.Moves) && len(e.Waits) > 0 {
		b.join()
	}
	for i := range o.Moves {
		if m := &o.Moves[i]; m.Engine >= 0 {
			put := Event{InPlace: true}
			if err := b.accesses(&put, m, -1); err != nil {
				return err
			}
			put.Waits = nil
			if err := b.post(m.Engine, m.Lane, put, []schedule.Move{*m}); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait has an event wait for packets.
func (b *scheduleStatement) wait(e *Event, sp schedule.Span) {
	for j := range sp.N {
		e.Waits = append(e.Waits, Wait{Counter: b.packet(sp.Cell + 2*j), N: 1, Relaxed: true})
	}
}

// accesses adds what a move reads and writes. Group -1 orders them after all before.
func (b *scheduleStatement) accesses(e *Event, m *schedule.Move, packed int32) error {
	for k, sp := range append(append([]schedule.Span(nil), m.From...), m.To...) {
		width, write := 1, k >= len(m.From)
		if sp.Mode != schedule.Plain {
			width = 2
		}
		if b.cells += sp.N * width; b.cells > maxCells {
			return fmt.Errorf("the schedule moves more than %d cells", maxCells)
		}
		a := Access{Write: write, Owner: -1, Group: int32(4*sp.Cell+2*(width-1)) + packed + 1,
			Packet: sp.Mode == schedule.Packet || write && sp.Mode == schedule.Raw}
		if packed < 0 {
			a.Group = 0
		}
		for c := range sp.N * width {
			a.Spots = append(a.Spots, int32(sp.Cell+c))
		}
		e.Accesses = append(e.Accesses, a)
		switch {
		case sp.Mode == schedule.Packet && !write:
			b.wait(e, sp)
		case sp.Mode != schedule.Plain && write:
			for j := range sp.N {
				c := sp.Cell + 2*j
				if b.written == nil {
					b.written = map[int]bool{}
				}
				if b.written[c] {
					return fmt.Errorf("cell %d is written as a packet twice", c)
				}
				b.written[c] = true
				e.Adds = append(e.Adds, Add{Counter: b.packet(c), Relaxed: true})
			}
		}
	}
	return nil
}

// sum is the hash of a sum of cells before the launch: equal for equal sums, and different for others but for a chance
// of 2^-100.
type sum [2]uint64

func (s *sum) add(t sum) { s[0], s[1] = s[0]+t[0], s[1]+t[1] }

// results computes what the cells hold in the end, in an order that was checked, and compares the outputs.
func (s *ScheduleStatement) results(order [][2]int32) error {
	p := s.plan
	first, chains, done := make([]sum, p.Cells), make([][]int32, s.Chains), make([]int32, s.Chains)
	for c := range first {
		first[c] = sum{rand.Uint64(), rand.Uint64()}
	}
	now, packet := append([]sum(nil), first...), make([]bool, p.Cells)
	for i := range s.Events {
		chains[s.Events[i].Chain] = append(chains[s.Events[i].Chain], int32(i))
	}
	for _, o := range order {
		for range o[1] {
			for _, m := range s.moves[chains[o[0]][done[o[0]]]] {
				if err := move(now, packet, &m); err != nil {
					return err
				}
			}
			done[o[0]]++
		}
	}
	if p.Collective == schedule.SendRecv || p.Collective == schedule.Broadcast {
		return s.copies(first, now)
	}
	for i := range p.Buffers {
		out := &p.Buffers[i]
		if out.Kind != schedule.Output || p.Collective == schedule.Undefined {
			continue
		}
		for c := range out.Cells {
			want, err := s.want(first, out.Rank, out.Cells, c)
			if err != nil {
				return err
			}
			if want != nil && now[out.Base+c] != *want {
				return fmt.Errorf("output cell %d of rank %d is not what %s makes of the inputs", c, out.Rank, p.Collective)
			}
		}
	}
	return nil
}

// copies checks that each output is the input of a rank: of one for all, or of another for each.
func (s *ScheduleStatement) copies(first, now []sum) error {
	var from []int
	for i := range s.plan.Buffers {
		for j := range s.plan.Buffers {
			out, in := &s.plan.Buffers[i], &s.plan.Buffers[j]
			if out.Kind == schedule.Output && in.Kind == schedule.Input && out.Cells == in.Cells && out.Cells > 0 &&
				slices.Equal(now[out.Base:out.Base+out.Cells], first[in.Base:in.Base+in.Cells]) {
				from = append(from, in.Rank)
			}
		}
	}
	slices.Sort(from)
	n, different := len(from), len(slices.Compact(from))
	if n != s.plan.Ranks || s.plan.Collective == schedule.Broadcast && different != 1 ||
		s.plan.Collective == schedule.SendRecv && different != n {
		return fmt.Errorf("the outputs are not the inputs that %s gives", s.plan.Collective)
	}
	return nil
}

func move(now []sum, packet []bool, m *schedule.Move) error {
	for j := range m.To[0].N {
		var total sum
		for _, sp := range m.From {
			c := sp.Cell + j
			if sp.Mode != schedule.Plain {
				c += j
				if !packet[c] {
					return fmt.Errorf("cell %d is no packet", c)
				}
			} else if packet[c] || c > 0 && packet[c-1] {
				return fmt.Errorf("cell %d is of a packet, and is read as data", c)
			}
			total.add(now[c])
		}
		for _, sp := range m.To {
			c := sp.Cell + j
			if sp.Mode != schedule.Plain {
				c += j
				now[c+1] = sum{}
			}
			now[c], packet[c] = total, sp.Mode != schedule.Plain
			if c > 0 && sp.Mode == schedule.Plain { // a packet's flags lie in its second cell
				packet[c-1] = false
			}
		}
	}
	return nil
}

// want returns what a cell of an output has to hold, nil for anything.
func (s *ScheduleStatement) want(first []sum, rank, cells, c int) (*sum, error) {
	p, total := s.plan, sum{}
	var missing error
	from := func(q, i int) {
		for k := range p.Buffers {
			if in := &p.Buffers[k]; in.Rank == q && in.Kind == schedule.Input && i < in.Cells {
				total.add(first[in.Base+i])
				return
			}
		}
		missing = fmt.Errorf("rank %d has no input cell %d", q, i)
	}
	size := 0
	for k := range p.Buffers {
		if in := &p.Buffers[k]; in.Rank == rank && in.Kind == schedule.Input {
			size = in.Cells
		}
	}
	switch each := max(size/p.Ranks, 1); p.Collective {
	case schedule.AllReduce:
		for q := range p.Ranks {
			from(q, c)
		}
	case schedule.ReduceScatter:
		for q := range p.Ranks {
			from(q, rank*cells+c)
		}
	case schedule.AllGather:
		from(c/max(size, 1), c%max(size, 1))
	case schedule.AllToAll:
		from(c/each, rank*each+c%each)
	case schedule.ToNext:
		if q := rank + p.Shift; q >= 0 && q < p.Ranks {
			from(q, c)
			break
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("there are no certificates of %s", p.Collective)
	}
	return &total, missing
}
