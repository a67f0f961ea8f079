package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"hocket.example/hocket/internal/schedule/clock"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// access describes one operation's access to the cells of an operand.
type access struct {
	comp, tick int32
	block      int // number of the block; -1 for the rank's stream
	op         *Op
	start      int // origin of the operand (Span.origin)
	class      byte
	mode       Mode
	x          clock.Clock // for a write of a packet: the steps that have been executed when the packet is read
	facts      []fact
}

// edge reports whether a is an access of a rank's stream, before or after a launch.
func (a *access) edge() bool { return a.block < 0 }

type cell struct {
	w     *access
	reads []*access
	v     *value
	flag  int32 // the launch, counted from 1, in which the cell was written as a packet; 0 if the cell is plain
	again bool  // set if several packets were written to the cell in that launch; a reader may read any of them
}

type laneClock struct {
	thread int
	v, x   clock.Clock
}

type blockState struct {
	pc, launch int
	tick, join int32       // join is the tick at which all threads last met
	v, x       clock.Clock // knowledge of all threads of the block: in the order of memory (v) and in the order of execution (x)
	lanes      []laneClock
	movers     map[mover]known // additional knowledge of threads that have read packets since the last meeting
	widest     [2]int          // for each class: the largest number of elements of an operation since the last meeting
	wait       waitFor
}

// mover identifies the thread of a block that processes the j-th element of operands of the given class.
type mover struct {
	block, j int
	class    byte
}

// fact states that a thread has executed the operation that its block has at a given tick. The field all is the number
// of threads that take part in the operation, if no other threads of the block can have executed an operation since the
// last meeting; otherwise it is 0.
type fact struct {
	by   mover
	tick int32
	all  int
}

// maxFacts limits the total number of facts that packets carry. A fact takes 40 bytes. After the limit is reached, the
// simulation ignores further order that packets establish.
const maxFacts = 1 << 24

// known holds, for a thread, the operations that are certain to have been executed.
type known struct {
	x     clock.Clock
	facts []fact
}

// packetOrder selects an analysis of the order that packets establish between threads.
type packetOrder byte

const (
	byThreads packetOrder = iota // exact: a reader of a packet is ordered after the earlier operations of the thread that wrote the packet
	byJoins                      // orders less than is guaranteed: a reader is ordered only after the operations before the last meeting of the writer's block
	byBlocks                     // orders more than is guaranteed: the order of one thread is assumed for all threads of its block
)

// memo caches the last join of two clocks, because the next thread often needs the same join.
type memo struct{ a, b, sum clock.Clock }

func (m *memo) of(a, b clock.Clock) clock.Clock {
	same := func(a, b clock.Clock) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
	if m.sum == nil || !same(a, m.a) || !same(b, m.b) {
		*m = memo{a, b, clock.Join(a, b)}
	}
	return m.sum
}

// and returns the list of facts with f added. For each thread it retains only the latest fact.
func and(facts []fact, f fact) []fact {
	for i := range facts {
		if facts[i].by == f.by {
			if facts[i].tick >= f.tick {
				return facts
			}
			facts = slices.Clone(facts)
			facts[i] = f
			return facts
		}
	}
	return append(facts[:len(facts):len(facts)], f)
}

// waitFor describes the condition that ends the wait of a block.
type waitFor struct {
	counter, cell, meet int // exactly one is not -1
	value               int // the counter value that ends the wait
}

var running = waitFor{counter: -1, cell: -1, meet: -1}

type engineState struct {
	v, x   clock.Clock
	tick   int32
	posted stamp // the last time that a thread posted a task
}

type counterState struct {
	init    int
	v, x    []clock.Clock // element n: the joined clocks of adds 0 to n
	taken   int
	kept    bool
	waiters []int
	// These fields record the last add and the last take. The next add is checked to be ordered after the last add, and
	// the next take after the last take.
	add, take stamp
}

type stamp struct {
	comp, tick int32
	thread     int
}

func (c *counterState) count() int { return c.init + len(c.v) }

// rest returns the change of a counter that keeps its value, per launch: the number of signals without a wait or, if
// negative, of waits without a signal.
func (c *counterState) rest(launches int) int {
	if !c.kept {
		return 0
	}
	return (len(c.v) - c.taken) / launches
}

// sim simulates a plan in one interleaving. For each step, it computes the steps that precede it in every interleaving.
type sim struct {
	p        *Plan
	launches int
	follow   packetOrder
	facts    int        // number of facts that packets carry
	rng      *rand.Rand // selects the next block; if nil, blocks run in the order in which they became ready
	cells    []cell
	movers   map[mover]int32   // maps a thread that has written packets to its clock component
	extra    map[int][]*access // further writes of the same packet, which are harmless races
	blocks   []blockState
	engines  []engineState
	counters []counterState
	adds     []int // for each counter: number of adds in one launch
	streams  []int32
	meets    map[int][]int
	onCell   map[int][]int
	queue    []int
	left     []int // for each rank: number of blocks that have not finished their launch
	values   *values
	messages int // number of cells of messages

	findings  []*Finding
	awaited   []int // the counters for which the blocks of a deadlock wait
	edges     map[string]bool
	races     int
	wrong     int
	from      map[int]int    // for each rank: the rank whose input its output copies
	totals    map[int]*value // the sums over all ranks, by cell and launch
	ambiguous string
	steps     int
	order     *order // records the order of the interleaving, unless it is nil
}

func newSim(p *Plan, launches int, rng *rand.Rand) *sim {
	s := &sim{p: p, launches: launches, rng: rng, values: newValues(), meets: map[int][]int{}, onCell: map[int][]int{},
		extra: map[int][]*access{}, movers: map[mover]int32{}, edges: map[string]bool{},
		messages: p.Cells - p.MessageBase}
	s.cells = make([]cell, p.Cells+(launches-1)*s.messages)
	s.blocks = make([]blockState, len(p.Blocks))
	s.engines = make([]engineState, len(p.Engines))
	s.counters = make([]counterState, len(p.Counters))
	s.adds = make([]int, len(p.Counters))
	s.streams = make([]int32, p.Ranks)
	s.left = make([]int, p.Ranks)
	for i := range s.counters {
		s.counters[i] = counterState{init: p.Counters[i].Init, kept: p.Counters[i].Kept}
	}
	users := map[int]map[int]int{}
	for b := range p.Blocks {
		for i := range p.Blocks[b].Ops {
			o := &p.Blocks[b].Ops[i]
			for _, l := range o.Lanes {
				if l.Kind == Add {
					s.adds[l.Counter]++
				}
			}
			if o.Kind == Gather {
				if users[o.Meet] == nil {
					users[o.Meet] = map[int]int{}
				}
				users[o.Meet][b] = o.Size
				if len(users[o.Meet]) > o.Size {
					s.ambiguous = fmt.Sprintf("%d blocks of rank %d use a barrier of %d: which of them meet depends on timing",
						len(users[o.Meet]), p.Blocks[b].Rank, o.Size)
				}
			}
		}
	}
	for b := range s.blocks {
		s.left[p.Blocks[b].Rank]++
		s.queue = append(s.queue, b)
		s.blocks[b].wait = running
	}
	for r := range s.streams {
		s.streams[r] = 1
		begin := &access{comp: s.stream(r), tick: 1, block: -1}
		for _, k := range []BufferKind{Input, Output, Scratch} {
			buf := p.buffer(r, k)
			if buf == nil {
				continue
			}
			for c := buf.Base; c < buf.Base+buf.Cells; c++ {
				switch {
				case k == Input:
					s.cells[c].w = begin
				case k == Output:
					s.cells[c].reads = []*access{begin}
				}
			}
		}
		v := clock.Clock(nil).With(s.stream(r), 1)
		for b := range s.blocks {
			if p.Blocks[b].Rank == r {
				s.blocks[b].v, s.blocks[b].x = v, v
			}
		}
	}
	return s
}

func (s *sim) engine(e int) int32 { return int32(len(s.blocks) + e) }
func (s *sim) stream(r int) int32 { return int32(len(s.blocks) + len(s.engines) + r) }

// value returns the contents of a cell. A cell initially holds its own symbol.
func (s *sim) value(c int) *value {
	if s.cells[c].v == nil {
		s.cells[c].v = s.values.symbol(c)
	}
	return s.cells[c].v
}

func (s *sim) run() {
	for len(s.queue) > 0 {
		i := 0
		if s.rng != nil {
			i = s.rng.IntN(len(s.queue))
		}
		b := s.queue[i]
		if i == 0 {
			s.queue = s.queue[1:]
		} else {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
		}
		burst := -1
		if s.rng != nil {
			burst = 1 + s.rng.IntN(8)
		}
		s.advance(b, burst)
	}
	if s.deadlocked() {
		return
	}
	for r := range s.streams {
		s.border(r, true)
	}
}

// advance executes operations of block b until it has to wait or ends.
func (s *sim) advance(b, burst int) {
	st, blk := &s.blocks[b], &s.p.Blocks[b]
	st.wait = running
	for st.pc < len(blk.Ops) {
		if burst == 0 {
			s.queue = append(s.queue, b)
			return
		}
		burst--
		if !s.step(b, &blk.Ops[st.pc]) {
			return
		}
		s.steps++
		st.pc++
	}
	s.left[blk.Rank]--
	if s.left[blk.Rank] > 0 || st.launch+1 >= s.launches {
		return
	}
	s.border(blk.Rank, false)
	for i := range s.blocks {
		if s.p.Blocks[i].Rank == blk.Rank {
			s.blocks[i].pc = 0
			s.blocks[i].launch++
			s.left[blk.Rank]++
			s.queue = append(s.queue, i)
		}
	}
}

// at returns the operand's cells in the given launch.
func (s *sim) at(sp Span, launch int) Span {
	switch {
	case sp.Cell >= s.p.MessageBase:
		sp.Cell += launch * s.messages
	case s.p.Double && launch%2 == 1 && sp.Cell >= s.p.ScratchBase:
		sp.Cell += s.p.Half
	}
	return sp
}

// step executes operation o of block b. If the operation cannot be executed yet, step records for what b waits and
// returns false.
func (s *sim) step(b int, o *Op) bool {
	st := &s.blocks[b]
	switch o.Kind {
	case Join:
		st.tick++
		s.joinThreads(b)
	case Gather:
		return s.gather(b, o)
	case Sync:
		if !s.ready(b, o) {
			return false
		}
		st.tick++
		s.lanes(b, o)
	case Data:
		if !s.packets(b, o) {
			return false
		}
		st.tick++
		s.move(b, o)
		s.lanes(b, o)
	}
	return true
}

// joinThreads simulates the meeting of all threads of a block.
func (s *sim) joinThreads(b int) {
	st := &s.blocks[b]
	for i := range st.lanes {
		st.v = clock.Join(st.v, st.lanes[i].v)
		st.x = clock.Join(st.x, st.lanes[i].x)
	}
	st.learn(s)
	st.lanes, st.movers, st.widest = st.lanes[:0], nil, [2]int{}
	st.join = st.tick
	st.v = st.v.With(int32(b), st.tick)
	st.x = st.x.With(int32(b), st.tick)
}

// learn adds the knowledge of the threads that have read packets to the knowledge of all threads of the block. If these
// packets include all packets that an operation wrote, then all threads of the sending block have executed this
// operation.
func (st *blockState) learn(s *sim) {
	type op struct {
		block int
		tick  int32
	}
	facts, threads := map[fact]bool{}, map[op]int{}
	for _, k := range st.movers {
		st.x = clock.Join(st.x, k.x)
		for _, f := range k.facts {
			if !facts[f] && f.all > 0 {
				threads[op{f.by.block, f.tick}]++
			}
			facts[f] = true
		}
	}
	for f := range facts {
		id := int32(f.by.block)
		if f.all == 0 || threads[op{f.by.block, f.tick}] != f.all {
			if _, ok := s.movers[f.by]; !ok {
				s.movers[f.by] = s.stream(s.p.Ranks + len(s.movers))
			}
			id = s.movers[f.by]
		}
		st.x = st.x.With(id, max(f.tick, st.x.At(id)))
	}
}

func (s *sim) gather(b int, o *Op) bool {
	st := &s.blocks[b]
	st.tick++
	s.joinThreads(b)
	here := append(s.meets[o.Meet], b)
	if len(here) < o.Size {
		s.meets[o.Meet] = here
		st.wait = running
		st.wait.meet = o.Meet
		return false
	}
	delete(s.meets, o.Meet)
	s.order.meet(s, here)
	var v, x clock.Clock
	for _, i := range here {
		v, x = clock.Join(v, s.blocks[i].v), clock.Join(x, s.blocks[i].x)
	}
	for _, i := range here {
		s.blocks[i].v, s.blocks[i].x = v, x
		if i != b {
			s.blocks[i].pc++
			s.queue = append(s.queue, i)
		}
	}
	return true
}

// lane returns the clocks of one thread of a block.
func (s *sim) lane(b, thread int) *laneClock {
	st := &s.blocks[b]
	for i := range st.lanes {
		if st.lanes[i].thread == thread {
			return &st.lanes[i]
		}
	}
	st.lanes = append(st.lanes, laneClock{thread: thread, v: st.v, x: st.x})
	return &st.lanes[len(st.lanes)-1]
}

// needs returns the counter value that ends the wait of the i-th lane of o, or 0 if the lane does not wait.
func (s *sim) needs(b int, o *Op, i int) int {
	l := &o.Lanes[i]
	switch l.Kind {
	case Await:
		if l.Value == Never {
			return Never
		}
		return l.Value + s.blocks[b].launch*s.adds[l.Counter]
	case Take:
		n := s.counters[l.Counter].taken + 1
		for j := range i {
			if o.Lanes[j].Kind == Take && o.Lanes[j].Counter == l.Counter {
				n++
			}
		}
		return n
	}
	return 0
}

// ready reports whether all lanes of o can continue.
func (s *sim) ready(b int, o *Op) bool {
	for i := range o.Lanes {
		if n := s.needs(b, o, i); n > 0 {
			c := &s.counters[o.Lanes[i].Counter]
			if c.count() < n {
				c.waiters = append(c.waiters, b)
				s.blocks[b].wait = waitFor{counter: o.Lanes[i].Counter, value: n, cell: -1, meet: -1}
				return false
			}
		}
	}
	return true
}

func (s *sim) lanes(b int, o *Op) {
	st := &s.blocks[b]
	for i := range o.Lanes {
		l := &o.Lanes[i]
		me := s.lane(b, l.Thread)
		x := clock.Join(st.x, me.x)
		switch l.Kind {
		case Add:
			now := stamp{int32(b), st.tick, l.Thread}
			if l.Engine >= 0 {
				s.post(l.Engine, now, me.v, x)
				e := &s.engines[l.Engine]
				e.tick++
				now = stamp{s.engine(l.Engine), e.tick, 0}
				e.v, e.x = e.v.With(now.comp, now.tick), e.x.With(now.comp, now.tick)
				s.add(l, now, e.v, e.x, e.x)
			} else {
				s.add(l, now, me.v, x, x)
			}
			s.order.lane(o, i, len(s.counters[l.Counter].v))
		case Take, Await:
			s.take(b, l, s.needs(b, o, i), me, x)
			s.order.lane(o, i, s.counters[l.Counter].taken)
		case Flush:
			e := &s.engines[l.Engine]
			s.shared(l.Engine, stamp{int32(b), st.tick, l.Thread}, x)
			me.v, me.x = clock.Join(me.v, e.v), clock.Join(x, e.x)
		}
	}
}

// post adds a task to an engine. The task is ordered after everything that precedes it in the posting thread, and after
// earlier posts to the engine.
func (s *sim) post(e int, now stamp, v, x clock.Clock) {
	s.shared(e, now, x)
	s.engines[e].posted = now
	s.engines[e].v, s.engines[e].x = clock.Join(s.engines[e].v, v), clock.Join(s.engines[e].x, x)
}

// shared records a note if unordered threads use the same engine. The set of puts that the engine has completed at a
// signal or a flush then depends on timing. Threads of one operation are assumed to post in the order of their numbers,
// since they belong to one warp.
func (s *sim) shared(e int, now stamp, x clock.Clock) {
	t := s.engines[e].posted
	if t.comp == now.comp && t.tick == now.tick {
		return
	}
	if !s.after(t, now, x) && s.ambiguous == "" {
		s.ambiguous = s.p.Engines[e].Name +
			" is used by threads that nothing orders: the puts that precede its signal depend on timing"
	}
}

// after reports whether the current action of a thread, which has execution clock x, is ordered after the action with
// stamp t.
func (s *sim) after(t, now stamp, x clock.Clock) bool {
	if t.tick == 0 || x.At(t.comp) >= t.tick {
		return true
	}
	return t.comp == now.comp && (t.thread == now.thread || int(t.comp) < len(s.blocks) &&
		s.blocks[t.comp].join > t.tick)
}

func (s *sim) add(l *Lane, now stamp, v, x, seen clock.Clock) {
	c := &s.counters[l.Counter]
	if !s.after(c.add, now, seen) && s.ambiguous == "" {
		s.ambiguous = s.p.Counters[l.Counter].Name +
			" is signalled by threads that nothing orders: which signal a wait gets depends on timing"
	}
	c.add = now
	var v0, x0 clock.Clock
	if n := len(c.v); n > 0 {
		v0, x0 = c.v[n-1], c.x[n-1]
	}
	if !l.Relaxed {
		v0 = clock.Join(v0, v)
	}
	c.v, c.x = append(c.v, v0), append(c.x, clock.Join(x0, x))
	if len(c.waiters) > 0 {
		s.queue = append(s.queue, c.waiters...)
		c.waiters = nil
	}
}

func (s *sim) take(b int, l *Lane, n int, me *laneClock, x clock.Clock) {
	c := &s.counters[l.Counter]
	if l.Kind == Take {
		now := stamp{int32(b), s.blocks[b].tick, l.Thread}
		if !s.after(c.take, now, x) && s.ambiguous == "" {
			s.ambiguous = s.p.Counters[l.Counter].Name +
				" is waited for by threads that nothing orders: which wait gets a signal depends on timing"
		}
		c.take = now
		c.taken++
		n = c.taken
	}
	if k := n - c.init - 1; k >= 0 {
		if !l.Relaxed {
			me.v = clock.Join(me.v, c.v[k])
		}
		me.x = clock.Join(me.x, c.x[k])
	}
}

// packets reports whether all packets that o reads have been written. If they have, it adds the knowledge of the
// threads that wrote the packets to the clocks of the threads that read them.
func (s *sim) packets(b int, o *Op) bool {
	st := &s.blocks[b]
	var read []Span
	for i := range o.Moves {
		for _, sp := range o.Moves[i].From {
			if sp.Mode == Packet {
				read = append(read, s.at(sp, st.launch))
			}
		}
	}
	for _, sp := range read {
		for c := sp.Cell; c < sp.Cell+2*sp.N; c++ {
			if s.cells[c].flag != int32(st.launch)+1 {
				s.onCell[c] = append(s.onCell[c], b)
				st.wait = running
				st.wait.cell = c
				return false
			}
		}
	}
	var joins memo
	for _, sp := range read {
		var last *access
		for c := sp.Cell; c < sp.Cell+2*sp.N; c++ {
			if w := s.cells[c].w; !s.cells[c].again && w != last {
				st.hear(mover{b, (c - sp.Cell) / 2, packed}, w, s.extra[c], s.follow, &joins)
				last = w
			}
		}
	}
	return true
}

// hear adds the knowledge of the threads that wrote a packet to the knowledge of the block's thread by, which reads the
// packet. The access w wrote the packet last, and others wrote the same contents before.
func (st *blockState) hear(by mover, w *access, others []*access, follow packetOrder, joins *memo) {
	switch follow {
	case byBlocks:
		st.x = joins.of(st.x, w.x)
		return
	case byJoins:
		by.j = -1 // all threads get this knowledge when they meet
	}
	k := st.movers[by]
	if len(others) > 0 {
		x := w.x
		for _, other := range others {
			x = clock.Meet(x, other.x)
		}
		k.x = clock.Join(k.x, x)
	} else {
		k.x = joins.of(k.x, w.x)
		if k.facts == nil {
			k.facts = w.facts
		} else {
			for _, f := range w.facts {
				k.facts = and(k.facts, f)
			}
		}
	}
	if st.movers == nil {
		st.movers = map[mover]known{}
	}
	st.movers[by] = k
}

// agent identifies the thread, engine or stream that accesses cells.
type agent struct {
	comp, tick, join int32
	v, x             clock.Clock
	facts            []fact
	later            func() map[mover]int32 // returns the facts by thread, computed when needed; may be nil
	block            int
	op               *Op
	class            byte
}

// packed is the class of operations on packets. Operations on packets assign elements to threads in a different way
// than operations on plain data.
const packed = 1

func classOf(o *Op) byte {
	for i := range o.Moves {
		m := &o.Moves[i]
		for _, sp := range m.From {
			if sp.Mode != Plain {
				return packed
			}
		}
		for _, sp := range m.To {
			if sp.Mode != Plain {
				return packed
			}
		}
	}
	return 0
}

func (s *sim) move(b int, o *Op) {
	st := &s.blocks[b]
	class := classOf(o)
	for i := range o.Moves {
		if m := &o.Moves[i]; m.Engine < 0 && len(m.To) > 0 {
			st.widest[class] = max(st.widest[class], m.To[0].N)
		}
	}
	me := agent{comp: int32(b), tick: st.tick, join: st.join, v: st.v, x: st.x, block: b, op: o, class: class}
	joined := false
	for i := range o.Moves {
		m := &o.Moves[i]
		if m.Engine < 0 {
			s.transfer(&me, m, st.launch)
			continue
		}
		for _, sp := range m.From {
			if sp.Mode == Packet { // the block's threads read the flags, meet, and post
				s.readAll(&me, s.at(sp, st.launch))
				if !joined {
					joined = true
					s.joinThreads(b)
				}
			}
		}
		l := s.lane(b, m.Lane)
		s.post(m.Engine, stamp{int32(b), st.tick, m.Lane}, l.v, clock.Join(st.x, l.x))
		e := &s.engines[m.Engine]
		e.tick++
		comp := s.engine(m.Engine)
		e.v, e.x = e.v.With(comp, e.tick), e.x.With(comp, e.tick)
		a := agent{comp: comp, tick: e.tick, join: e.tick, v: e.v, x: e.x, block: b, op: o, class: class}
		s.transfer(&a, m, st.launch)
	}
}

func (s *sim) readAll(a *agent, sp Span) {
	acc := &access{comp: a.comp, tick: a.tick, block: a.block, op: a.op, start: sp.origin(), class: a.class,
		mode: sp.Mode,
		x:    a.x}
	for c := sp.Cell; c < sp.Cell+sp.N*sp.width(); c++ {
		s.read(a, acc, c)
	}
}

// transfer performs a move: every cell of each destination is set to the sum of the corresponding cells of the sources.
func (s *sim) transfer(a *agent, m *Move, launch int) {
	from, to := make([]Span, len(m.From)), make([]Span, len(m.To))
	reads, writes := make([]access, len(m.From)), make([]access, len(m.To))
	for k, sp := range m.From {
		from[k] = s.at(sp, launch)
		reads[k] = access{comp: a.comp, tick: a.tick, block: a.block, op: a.op, start: from[k].origin(), class: a.class,
			mode: sp.Mode, x: a.x}
	}
	var done clock.Clock // clock of the steps that have been executed when a packet that this move writes is read
	for k, sp := range m.To {
		to[k] = s.at(sp, launch)
		writes[k] = access{comp: a.comp, tick: a.tick, block: a.block, op: a.op, start: to[k].origin(), class: a.class,
			mode: sp.Mode, x: a.x}
		if sp.Mode == Plain {
			continue
		}
		if done == nil {
			if done = a.x; s.follow == byBlocks || int(a.comp) >= len(s.blocks) {
				done = a.x.With(a.comp, a.tick)
			}
		}
		writes[k].x = done
	}
	if len(to) == 0 {
		return
	}
	terms, block := make([]*value, len(from)), *a
	st, all, ofBlock := &s.blocks[a.block], 0, int(a.comp) < len(s.blocks)
	if ofBlock && len(st.lanes) == 0 && st.widest[1-a.class] == 0 && to[0].N == st.widest[a.class] {
		all = to[0].N
	}
	var joins memo
	for j := range to[0].N {
		flag, me := int32(launch+1), mover{block.block, j, block.class}
		var facts []fact
		one := block
		if a = &one; ofBlock && len(st.movers) > 0 {
			k := st.movers[me]
			a.x, a.facts = joins.of(block.x, k.x), k.facts
		}
		for k := range from {
			w := from[k].width()
			c := from[k].Cell + j*w
			for i := range w {
				s.read(a, &reads[k], c+i)
			}
			if cell := &s.cells[c]; from[k].Mode == Plain && cell.w != nil && cell.w.mode != Plain {
				s.unpacked(&reads[k], cell.w, c)
			}
			if from[k].Mode == Raw {
				flag = s.cells[c].flag
			}
			terms[k] = s.value(c)
		}
		v := s.values.sum(terms)
		for k := range to {
			w := to[k].width()
			c := to[k].Cell + j*w
			acc, f := &writes[k], int32(0)
			if to[k].Mode != Plain {
				f = flag
			}
			if f != 0 && ofBlock && s.follow == byThreads {
				if facts == nil {
					facts = and(a.facts, fact{me, a.tick, all})
					s.facts += len(facts)
				}
				if s.facts > maxFacts {
					s.follow = byJoins
				}
				acc = &access{}
				*acc = writes[k]
				acc.x, acc.facts = a.x, facts
			}
			for i := range w {
				s.write(a, acc, c+i, v, f)
			}
		}
	}
}

// before reports whether access b to cell c is ordered before the current access of agent a, whose operand begins at
// start. The argument inTime selects the order in time instead of the order of memory. Two accesses are ordered if the
// agent's clock includes b, or if the same thread performs both.
func (s *sim) before(b *access, a *agent, inTime bool, start, c int) bool {
	view := a.v
	if inTime {
		view = a.x
	}
	if view.At(b.comp) >= b.tick {
		return true
	}
	if int(b.comp) < len(s.blocks) && inTime && (len(s.movers)+len(a.facts) > 0 || a.later != nil) {
		by := mover{b.block, (c - b.start/2) / (1 + b.start%2), b.class}
		id, ok := s.movers[by]
		if ok && view.At(id) >= b.tick || a.later != nil && a.later()[by] >= b.tick ||
			slices.ContainsFunc(a.facts, func(f fact) bool { return f.by == by && f.tick >= b.tick }) {
			return true
		}
	}
	if b.comp != a.comp {
		return false
	}
	return int(a.comp) >= len(s.blocks) || b.tick <= a.join || b.class == a.class && b.start == start
}

func (s *sim) read(a *agent, acc *access, c int) {
	cl := &s.cells[c]
	if c >= s.p.MessageBase {
		return
	}
	s.readAfter(a, acc, c, cl.w)
	if len(s.extra) > 0 {
		for _, w := range s.extra[c] {
			s.readAfter(a, acc, c, w)
		}
	}
	n := 0
	for _, r := range cl.reads {
		switch {
		case r == acc:
			return
		case r.comp == a.comp && (r.tick <= a.join || int(a.comp) >= len(s.blocks)):
			continue // the new access is ordered after this access and replaces it
		case r.comp == a.comp && r.start == acc.start && r.class == acc.class && r.mode == acc.mode:
			continue
		}
		cl.reads[n] = r
		n++
	}
	if n < len(cl.reads) {
		cl.reads[n] = acc
		cl.reads = cl.reads[:n+1]
		return
	}
	cl.reads = append(cl.reads, acc)
}

func (s *sim) readAfter(a *agent, acc *access, c int, w *access) {
	packet := w != nil && acc.mode == Packet && w.mode != Plain && s.cells[c].flag > 0
	if w == nil || packet && !s.cells[c].again {
		return
	}
	if !s.before(w, a, packet || w.edge(), acc.start, c) {
		s.raced(a, acc, w, c, "reads", "writes")
	}
}

func (s *sim) write(a *agent, acc *access, c int, v *value, flag int32) {
	cl := &s.cells[c]
	if c < s.p.MessageBase {
		// A second write of the same packet is harmless if both write equal values.
		same := flag > 0 && cl.flag == flag && cl.v == v && cl.w != nil
		s.writeAfter(a, acc, c, same)
		for _, r := range cl.reads {
			if !s.before(r, a, true, acc.start, c) && !(same && r.mode == Packet) {
				s.raced(a, acc, r, c, "writes", "reads")
			}
		}
		if !same {
			cl.reads = nil
		}
		cl.w = acc
	}
	cl.again = flag > 0 && cl.flag == flag && (cl.again || cl.v != v)
	cl.v, cl.flag = v, flag
	if flag > 0 && len(s.onCell) > 0 {
		if list := s.onCell[c]; list != nil {
			s.queue = append(s.queue, list...)
			delete(s.onCell, c)
		}
	}
}

func (s *sim) writeAfter(a *agent, acc *access, c int, same bool) {
	check := func(w *access) {
		if s.before(w, a, w.edge(), acc.start, c) {
			return
		}
		if same && w.mode == Packet && acc.mode == Packet {
			if w.comp != a.comp && s.ambiguous == "" {
				s.ambiguous = "the same packet is written to " + s.p.cellName(s.home(c),
					acc.mode) + " by blocks that nothing orders"
			}
			s.extra[c] = append(s.extra[c], w)
			return
		}
		s.raced(a, acc, w, c, "writes", "writes")
	}
	if w := s.cells[c].w; w != nil {
		old := s.extra[c]
		if len(old) > 0 && !same {
			delete(s.extra, c)
		}
		check(w)
		for _, w := range old {
			check(w)
		}
	}
}

// border simulates the end of a launch of rank r: the rank's stream reads the output and, unless last is set, writes
// the input of the next launch.
func (s *sim) border(r int, last bool) {
	var v, x clock.Clock
	var movers []map[mover]known
	launch := 0
	for b := range s.blocks {
		if s.p.Blocks[b].Rank == r {
			st := &s.blocks[b]
			st.tick++
			if last { // after the last launch, no further access has to be ordered
				movers = append(movers, st.movers)
				for _, k := range st.movers {
					x = clock.Join(x, k.x)
				}
				st.movers = nil
			}
			s.joinThreads(b)
			v, x = clock.Join(v, st.v), clock.Join(x, st.x)
			launch = st.launch
		}
	}
	s.results(r, launch)
	s.streams[r]++
	comp, tick := s.stream(r), s.streams[r]
	v, x = v.With(comp, tick), x.With(comp, tick)
	a := agent{comp: comp, tick: tick, join: tick, v: v, x: x, block: -1}
	if last {
		a.later = sync.OnceValue(func() map[mover]int32 {
			facts := map[mover]int32{}
			for _, m := range movers {
				for _, k := range m {
					for _, f := range k.facts {
						facts[f.by] = max(facts[f.by], f.tick)
					}
				}
			}
			return facts
		})
	}
	for _, k := range []BufferKind{Output, Input} {
		buf := s.p.buffer(r, k)
		if buf == nil {
			continue
		}
		acc := &access{comp: comp, tick: tick, block: -1, start: 2 * buf.Base, x: x}
		for c := buf.Base; c < buf.Base+buf.Cells; c++ {
			if k == Output {
				s.read(&a, acc, c)
			} else {
				s.write(&a, acc, c, s.values.symbol(c+(launch+1)*s.p.Cells), 0)
			}
		}
	}
	if last {
		return
	}
	for b := range s.blocks {
		if s.p.Blocks[b].Rank == r {
			s.blocks[b].v, s.blocks[b].x = v, x
		}
	}
}
