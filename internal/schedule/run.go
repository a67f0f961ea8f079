package schedule

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Memory holds the contents of the cells of a plan during a run. Each cell holds Width numbers.
type Memory struct {
	Width int
	Data  []float64
	flags []bool
}

// Outcome holds the results of one execution of a plan.
type Outcome struct {
	Memory *Memory
	Steps  int
}

// Of returns the numbers of a rank's buffer.
func (m *Memory) Of(p *Plan, rank int, kind BufferKind) []float64 {
	b := p.buffer(rank, kind)
	if b == nil {
		return nil
	}
	return m.Data[b.Base*m.Width : (b.Base+b.Cells)*m.Width]
}

// Inputs returns random integers for the inputs of a plan, one slice for each rank. Sums of these integers are exact.
func Inputs(p *Plan, width int, seed uint64) [][]float64 {
	rng, out := newRand(seed), make([][]float64, p.Ranks)
	for r := range out {
		if b := p.buffer(r, Input); b != nil {
			out[r] = make([]float64, b.Cells*width)
			for i := range out[r] {
				out[r][i] = float64(rng.IntN(1 << 20))
			}
		}
	}
	return out
}

// reference returns the result of the collective for the given inputs, one slice for each rank. The slice of a rank
// without a defined result is nil. Elements that may have any value are NaN.
func reference(p *Plan, in [][]float64, width int) [][]float64 {
	out := make([][]float64, p.Ranks)
	sum := func(i int) float64 {
		s := 0.0
		for _, v := range in {
			if i >= len(v) {
				return math.NaN()
			}
			s += v[i]
		}
		return s
	}
	for r := range out {
		b := p.buffer(r, Output)
		if b == nil {
			continue
		}
		n := b.Cells * width
		switch p.Collective {
		case AllReduce, AllGather, ReduceScatter, AllToAll, ToNext:
		default:
			continue
		}
		out[r] = make([]float64, n)
		for i := range n {
			v := math.NaN()
			switch size := len(in[r]); p.Collective {
			case AllReduce:
				v = sum(i)
			case ReduceScatter:
				v = sum(r*n + i)
			case AllGather:
				if size > 0 && i/size < p.Ranks {
					v = in[i/size][i%size]
				}
			case AllToAll:
				if k := size / p.Ranks; k > 0 && i/k < p.Ranks {
					v = in[i/k][r*k+i%k]
				}
			case ToNext:
				if q := r + p.Shift; q >= 0 && q < p.Ranks && i < len(in[q]) {
					v = in[q][i]
				}
			}
			out[r][i] = v
		}
	}
	return out
}

// wrongSize returns an error if a rank's output has another number of elements than the collective's result.
func wrongSize(p *Plan, m *Memory, in [][]float64) error {
	for r, list := range in {
		has, want, more := len(m.Of(p, r, Output)), len(list), false
		switch p.Collective {
		case AllReduce:
		case AllToAll:
			more = true
		case ReduceScatter:
			want /= p.Ranks
		case AllGather:
			want, more = want*p.Ranks, true
		default:
			return nil
		}
		if has < want || has > want && !more {
			chunk := m.Width * p.Parts
			return fmt.Errorf("rank %d has %d output %s, but %s of %d input %s for each rank gives it %d", r, has/chunk,
				plural(has/chunk, "chunk"), p.Collective, len(list)/chunk, plural(len(list)/chunk, "chunk"), want/chunk)
		}
	}
	return nil
}

// Differ returns an error that describes how an outcome differs from a direct computation on the inputs, or nil if there
// is no difference.
func Differ(p *Plan, m *Memory, in [][]float64) error {
	if err := wrongSize(p, m, in); err != nil {
		return err
	}
	for r, list := range reference(p, in, m.Width) {
		for i, v := range m.Of(p, r, Output) {
			if i < len(list) && !math.IsNaN(list[i]) && v != list[i] {
				name := p.chunkName(p.buffer(r, Output), i/m.Width)
				if math.IsNaN(v) {
					return fmt.Errorf("%s depends on memory that was read before it was written (NaN), want %.0f", name, list[i])
				}
				return fmt.Errorf("%s contains %.0f, want %.0f", name, v, list[i])
			}
		}
	}
	if p.Collective != Broadcast && p.Collective != SendRecv {
		return nil
	}
	from := map[int]int{} // maps a rank to the number of outputs that equal its input
	for r := range p.Ranks {
		q := slices.IndexFunc(in, func(list []float64) bool { return slices.Equal(list, m.Of(p, r, Output)) })
		if q < 0 {
			return fmt.Errorf("the output of rank %d is no rank's input", r)
		}
		from[q]++
	}
	if p.Collective == Broadcast && len(from) > 1 {
		return errors.New("the outputs are the inputs of several ranks")
	}
	if p.Collective == SendRecv && len(from) < p.Ranks {
		return errors.New("the outputs of two ranks are the same rank's input")
	}
	return nil
}

// thread holds the state of one thread of a block. The field block is -1 for an engine's thread.
type thread struct {
	block, index int
	pc           int
	phase        int // phase of the current operation
	at           int // the current element
	loaded       float64
	flag         bool
	wait         bool // set if the thread waits at a barrier of its block
	priority     float64
}

type task struct {
	move    *Move
	counter int // counter to which the engine adds one; -1 for none
}

// machine executes a plan thread by thread. Element e of an operand is processed by the thread whose number is e modulo
// the number of threads of the block. Each thread runs independently until all threads meet. The machine shares no code
// with Check.
type machine struct {
	p       *Plan
	m       *Memory
	rng     *rand.Rand
	threads []thread
	perTB   int
	here    []int // number of threads of each block that have reached the barrier
	met     map[int][]int
	counts  []int
	taken   []int
	queues  [][]task
	live    []int // threads that are not known to wait
	asleep  []int // threads that could not continue
	woken   bool  // set if a step was executed that may end the wait of a sleeping thread
	steps   int
}

// Run executes one launch of a plan on inputs, in a random interleaving of all threads and proxies. It returns an error
// if the plan deadlocks or ctx ends. Memory that was not written contains NaN.
func Run(ctx context.Context, p *Plan, in [][]float64, width int, seed uint64) (*Outcome, error) {
	if p.Fault != nil {
		return nil, fmt.Errorf("it cannot run: %s", p.Fault.Message)
	}
	r := &machine{p: p, rng: newRand(seed), met: map[int][]int{}}
	r.m = &Memory{Width: width, Data: make([]float64, p.Cells*width), flags: make([]bool, p.Cells*width)}
	for i := range r.m.Data {
		r.m.Data[i] = math.NaN()
	}
	for rank, list := range in {
		copy(r.m.Of(p, rank, Input), list)
	}
	r.perTB = 3
	for b := range p.Blocks {
		for i := range p.Blocks[b].Ops {
			o := &p.Blocks[b].Ops[i]
			for _, l := range o.Lanes {
				r.perTB = max(r.perTB, min(l.Thread+1, 64))
			}
			for _, m := range o.Moves {
				r.perTB = max(r.perTB, min(m.Lane+1, 64))
			}
		}
	}
	for b := range p.Blocks {
		for t := range r.perTB {
			r.threads = append(r.threads, thread{block: b, index: t})
		}
	}
	for e := range p.Engines {
		r.threads = append(r.threads, thread{block: -1, index: e})
	}
	r.here = make([]int, len(p.Blocks))
	r.counts, r.taken = make([]int, len(p.Counters)), make([]int, len(p.Counters))
	for i := range p.Counters {
		r.counts[i] = p.Counters[i].Init
	}
	r.queues = make([][]task, len(p.Engines))
	return r.run(ctx)
}

func (r *machine) run(ctx context.Context) (*Outcome, error) {
	byPriority := r.rng.IntN(2) == 0
	for i := range r.threads {
		r.live = append(r.live, i)
		r.threads[i].priority = r.rng.Float64()
	}
	for {
		if len(r.live) == 0 {
			if !r.woken {
				break
			}
			r.live, r.asleep, r.woken = append(r.live, r.asleep...), r.asleep[:0], false
			continue
		}
		i := r.rng.IntN(len(r.live))
		if byPriority {
			for range 4 {
				if j := r.rng.IntN(len(r.live)); r.threads[r.live[j]].priority > r.threads[r.live[i]].priority {
					i = j
				}
			}
		}
		id := r.live[i]
		t := &r.threads[id]
		if r.rng.IntN(64) == 0 {
			t.priority = r.rng.Float64()
		}
		moved, done := true, false
		for n := 1 + r.rng.IntN(6); n > 0 && moved && !done; n-- {
			moved, done = r.step(t)
			r.steps++
		}
		if r.steps&0xfff < 6 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !moved || done {
			r.live[i] = r.live[len(r.live)-1]
			r.live = r.live[:len(r.live)-1]
			if !done {
				r.asleep = append(r.asleep, id)
			}
		}
		if r.woken && r.rng.IntN(4) == 0 {
			r.live, r.asleep, r.woken = append(r.live, r.asleep...), r.asleep[:0], false
		}
	}
	for i := range r.threads {
		t := &r.threads[i]
		if t.block >= 0 && t.pc < len(r.p.Blocks[t.block].Ops) {
			return nil, fmt.Errorf("deadlock: %s waits for ever", r.p.place(t.block, &r.p.Blocks[t.block].Ops[t.pc]))
		}
	}
	return &Outcome{Memory: r.m, Steps: r.steps}, nil
}

// step executes the next access of a thread. It reports whether the thread moved and whether it has ended.
func (r *machine) step(t *thread) (moved, done bool) {
	if t.block < 0 {
		return r.proxy(t), false
	}
	ops := r.p.Blocks[t.block].Ops
	if t.pc >= len(ops) {
		return false, true
	}
	o := &ops[t.pc]
	switch o.Kind {
	case Join:
		return r.meet(t, nil), false
	case Gather:
		return r.meet(t, o), false
	case Sync:
		return r.lanes(t, o), false
	}
	return r.data(t, o), false
}

func (t *thread) next() bool {
	t.pc++
	t.phase, t.at = 0, 0
	return true
}

// meet makes a thread wait until all threads of its block have reached the operation. For a Gather, it also waits for
// the other blocks of the operation.
func (r *machine) meet(t *thread, o *Op) bool {
	if t.wait {
		return false
	}
	r.here[t.block]++
	t.wait = true
	if r.here[t.block] < r.perTB {
		return false
	}
	blocks := []int{t.block}
	if o != nil {
		blocks = append(r.met[o.Meet], t.block)
		if len(blocks) < o.Size {
			r.met[o.Meet] = blocks
			return false
		}
		delete(r.met, o.Meet)
	}
	for _, b := range blocks {
		r.here[b] = 0
		for i := range r.perTB {
			u := &r.threads[b*r.perTB+i]
			u.wait = false
			u.next()
		}
	}
	r.woken = true
	return true
}

// lanes executes the next lane of an operation that belongs to the thread. It ends the operation after the last lane.
func (r *machine) lanes(t *thread, o *Op) bool {
	for t.at < len(o.Lanes) && o.Lanes[t.at].Thread%r.perTB != t.index {
		t.at++
	}
	if t.at == len(o.Lanes) {
		return t.next()
	}
	l := &o.Lanes[t.at]
	switch l.Kind {
	case Add:
		if l.Engine >= 0 {
			r.queues[l.Engine] = append(r.queues[l.Engine], task{counter: l.Counter})
		} else {
			r.counts[l.Counter]++
		}
		r.woken = true
	case Take:
		if r.counts[l.Counter] <= r.taken[l.Counter] {
			return false
		}
		r.taken[l.Counter]++
		r.woken = true
	case Await:
		if r.counts[l.Counter] < l.Value {
			return false
		}
	case Flush:
		if len(r.queues[l.Engine]) > 0 {
			return false
		}
	}
	t.at++
	return true
}

// The phases of a data operation: the threads read the flags of the packets that an engine will send, meet, move the
// data, and then signal.
const (
	phaseFlags = iota
	phaseMeet
	phaseMove
	phaseStore
	phaseLanes
)

func (r *machine) data(t *thread, o *Op) bool {
	switch t.phase {
	case phaseFlags:
		if !r.flagsAreThere(t, o) {
			return false
		}
		t.phase, t.at = phaseMove, 0
		for i := range o.Moves {
			if o.Moves[i].Engine >= 0 && o.Moves[i].From[0].Mode == Packet {
				t.phase = phaseMeet
			}
		}
	case phaseMeet:
		if t.wait {
			return false
		}
		r.here[t.block]++
		t.wait = true
		if r.here[t.block] < r.perTB {
			return false
		}
		r.here[t.block] = 0
		for i := range r.perTB {
			u := &r.threads[t.block*r.perTB+i]
			u.wait, u.phase, u.at = false, phaseMove, 0
		}
		r.woken = true
	case phaseMove, phaseStore:
		return r.moves(t, o)
	case phaseLanes:
		return r.lanes(t, o)
	}
	return true
}

// flagsAreThere reports whether the packets of an engine's source have been written. Only the packets that the thread
// must check are examined.
func (r *machine) flagsAreThere(t *thread, o *Op) bool {
	for i := range o.Moves {
		m := &o.Moves[i]
		if m.Engine < 0 {
			continue
		}
		for _, sp := range m.From {
			if sp.Mode != Packet {
				continue
			}
			for e := t.index; e < sp.N*r.m.Width; e += r.perTB {
				if !r.m.flags[r.element(sp, e)] {
					return false
				}
			}
		}
	}
	return true
}

// element returns the cell of element e of an operand. The second cell of a packet holds no data.
func (r *machine) element(sp Span, e int) int {
	return (sp.Cell+e/r.m.Width*sp.width())*r.m.Width + e%r.m.Width
}

// moves performs one half of the move of one element: either its loads or its stores.
func (r *machine) moves(t *thread, o *Op) bool {
	// t.at counts the thread's elements in all moves of the operation.
	at, left := 0, t.at
	for at < len(o.Moves) {
		m := &o.Moves[at]
		if m.Engine >= 0 {
			if left == 0 && m.Lane%r.perTB == t.index {
				r.queues[m.Engine] = append(r.queues[m.Engine], task{move: m, counter: -1})
				r.woken = true
				t.at++
				return true
			}
			if m.Lane%r.perTB == t.index {
				left--
			}
			at++
			continue
		}
		mine := 0
		if n := m.To[0].N * r.m.Width; n > t.index {
			mine = (n-t.index-1)/r.perTB + 1
		}
		if left < mine {
			e := t.index + left*r.perTB
			if t.phase == phaseMove {
				if !r.load(t, m, e) {
					return false
				}
				t.phase = phaseStore
				return true
			}
			r.store(t, m, e)
			t.phase = phaseMove
			t.at++
			return true
		}
		left -= mine
		at++
	}
	t.phase, t.at = phaseLanes, 0
	return true
}

func (r *machine) load(t *thread, m *Move, e int) bool {
	sum, flag := 0.0, true
	for _, sp := range m.From {
		i := r.element(sp, e)
		if sp.Mode == Packet && !r.m.flags[i] {
			return false
		}
		switch {
		case sp.Mode == Raw:
			flag = r.m.flags[i]
		case sp.Mode == Plain && r.m.flags[i]: // a plain read of a packet also reads its flags
			sum = math.NaN()
		}
		sum += r.m.Data[i]
	}
	t.loaded, t.flag = sum, flag
	return true
}

func (r *machine) store(t *thread, m *Move, e int) {
	for _, sp := range m.To {
		i := r.element(sp, e)
		r.m.Data[i] = t.loaded
		if sp.Mode == Plain {
			// The flag words of a packet are in its second cell, and a store to either cell destroys them.
			r.m.flags[i] = false
			if c := i / r.m.Width; c%2 == 1 {
				r.m.flags[i-r.m.Width] = false
			}
			continue
		}
		r.m.flags[i] = t.flag
		r.m.Data[i+r.m.Width] = math.NaN()
		r.woken = true
	}
}

// proxy executes one step of an engine's first task: the loads or the stores of one element, or a signal.
func (r *machine) proxy(t *thread) bool {
	q := r.queues[t.index]
	if len(q) == 0 {
		return false
	}
	end := func() bool {
		r.queues[t.index] = q[1:]
		t.at, t.phase = 0, phaseMove
		r.woken = true
		return true
	}
	m := q[0].move
	if m == nil {
		r.counts[q[0].counter]++
		return end()
	}
	if t.at >= m.To[0].N*r.m.Width {
		return end()
	}
	if t.phase != phaseStore {
		if !r.load(t, m, t.at) {
			return false
		}
		t.phase = phaseStore
		return true
	}
	r.store(t, m, t.at)
	t.phase = phaseMove
	t.at++
	return true
}
