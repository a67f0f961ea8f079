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

// ScheduleStatement is the statement of a schedule, together with the moves that its events perform.
type ScheduleStatement struct {
	Statement
	plan   *schedule.Plan
	counts map[key]int32
	cells  []int32 // the list of all cell numbers: 0, 1, 2, …
	moved  int
}

// elements is a range of elements of a move, from the index from to the index to, exclusive.
type elements struct {
	of       *schedule.Move
	from, to int
}

// The following constants are the kinds of counters in the statement of a schedule, and of other objects that are
// counted or numbered.
const (
	signals int32 = iota // number of signals of a counter
	joined               // number of times that the threads of a block have met
	acts                 // number of events of a block's threads since the threads last met
	posts                // number of posts to an engine
	done                 // number of posts that an engine has executed
	packets              // number of writes of a packet
	met                  // number of blocks that have reached a barrier, for each time that blocks meet there
	turns                // number of times that a block has reached a barrier
	taken                // number of signals of a counter for which threads have waited
	takers               // number of threads that wait for a counter's signals
	posters              // number of blocks that post to an engine
	lanes                // threads that wait and signal
	// numbers of the threads that move an element of plain data; the next constant is for elements of packets
	movers
	packetMovers
)

// Schedule makes the statement of one launch of a collective schedule. It returns an error for schedules in which
// several threads wait for the signals of one counter, several blocks use one proxy, or a packet is written twice.
// Certificates do not support such schedules.
//
// The blocks and the proxies (engines) of the schedule are the chains. A block has several threads: one for each of its
// lanes, which wait and signal, and one for each element, that is, for each index of a cell in operands. In all
// operations on plain data, the same thread moves the i-th cells. In operations on packets, another thread moves the
// i-th cells. Threads are ordered with each other only at the points where all threads of the block meet. One more
// thread represents the points where the block's threads meet. The statement does not include the accesses before and
// after the launch.
func Schedule(p *schedule.Plan) (*ScheduleStatement, error) {
	if p.Fault != nil {
		return nil, fmt.Errorf("%s", p.Fault.Message)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	digest, n := sha256.Sum256(text), len(p.Blocks)+len(p.Engines)
	s := &ScheduleStatement{plan: p, counts: map[key]int32{}, Statement: Statement{
		Plan: hex.EncodeToString(digest[:]), Chains: n, Threads: n, Spots: p.Cells, numbers: map[key]int32{}}}
	for c := range p.Cells {
		s.cells = append(s.cells, int32(c))
	}
	for k, b := range p.Blocks {
		for i := range b.Ops {
			if err := s.op(int32(k), &b.Ops[i]); err != nil {
				return nil, fmt.Errorf("rank %d, tb %d, op %d: %w", b.Rank, b.ID, b.Ops[i].Index, err)
			}
		}
	}
	return s, nil
}

// next increments a count and returns it.
func (s *ScheduleStatement) next(of key) int32 {
	s.counts[of]++
	return s.counts[of]
}

// users records that a thread of block k uses an object, and returns the object's number of users so far.
func (s *ScheduleStatement) users(kind, of, k, thread int32) int32 {
	if s.next(key{kind, of, 1 + k, thread}) == 1 {
		s.next(key{kind, of})
	}
	return s.counts[key{kind, of}]
}

// add returns an Add to a counter, and all returns a Wait for all adds to that counter so far.
func (s *ScheduleStatement) add(of key) Add {
	s.next(of)
	return Add{Counter: s.counter(of)}
}

func (s *ScheduleStatement) all(of key) Wait { return Wait{Counter: s.counter(of), N: s.counts[of]} }

// join adds the events by which all threads of a block meet.
func (s *ScheduleStatement) join(k int32) {
	acted := s.all(key{acts, k, s.counts[key{joined, k}]})
	s.Events = append(s.Events, Event{Chain: k, Thread: k, Waits: []Wait{acted}, Adds: []Add{s.add(key{joined, k})}})
}

// act adds an event of a thread of block k. The event follows the last meeting of the block's threads and precedes the
// next.
func (s *ScheduleStatement) act(k int32, thread key, e Event) {
	e.Chain, e.Thread = k, s.number(thread, &s.Threads)
	e.Waits = append(e.Waits, s.all(key{joined, k}))
	e.Adds = append(e.Adds, s.add(key{acts, k, s.counts[key{joined, k}]}))
	s.Events = append(s.Events, e)
}

// post adds an event that a thread posts to an engine. The engine executes the events that are posted to it in
// order.
func (s *ScheduleStatement) post(k int32, thread, engine int, e Event) error {
	i := int32(engine)
	if s.users(posters, i, k, 0) > 1 {
		return fmt.Errorf("certificates do not support a port channel that several blocks use")
	}
	s.act(k, key{lanes, k, int32(thread)}, Event{Adds: []Add{s.add(key{posts, i})}})
	e.Chain = int32(len(s.plan.Blocks)) + i
	e.Thread, e.Waits, e.Adds = e.Chain, append(e.Waits, s.all(key{posts, i})), append(e.Adds, s.add(key{done, i}))
	s.Events = append(s.Events, e)
	return nil
}

func (s *ScheduleStatement) op(k int32, o *schedule.Op) error {
	switch meet := int32(o.Meet); o.Kind {
	case schedule.Join:
		s.join(k)
		return nil
	case schedule.Gather:
		if int(s.users(met, meet, k, 0)) > o.Size {
			return fmt.Errorf("more blocks use a barrier than the number for which it waits")
		}
		at := s.counter(key{met, meet, s.next(key{turns, meet, k})})
		s.join(k)
		s.Events = append(s.Events, Event{Chain: k, Thread: k, Adds: []Add{{Counter: at}}},
			Event{Chain: k, Thread: k, Waits: []Wait{{Counter: at, N: int32(o.Size)}}})
		s.join(k)
		return nil
	}
	if err := s.data(k, o); err != nil {
		return err
	}
	for i := range o.Lanes {
		if err := s.lane(k, &o.Lanes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *ScheduleStatement) lane(k int32, l *schedule.Lane) error {
	c, n, thread := int32(l.Counter), l.Value, key{lanes, k, int32(l.Thread)}
	switch l.Kind {
	case schedule.Add:
		e := Event{Adds: []Add{{Counter: s.counter(key{signals, c}), Relaxed: l.Relaxed}}}
		if l.Engine >= 0 {
			return s.post(k, l.Thread, l.Engine, e)
		}
		s.act(k, thread, e)
	case schedule.Flush:
		s.act(k, thread, Event{Waits: []Wait{s.all(key{done, int32(l.Engine)})}})
	case schedule.Take:
		if s.users(takers, c, k, int32(l.Thread)) > 1 {
			return fmt.Errorf("certificates do not support a counter for whose signals several threads wait")
		}
		n = int(s.next(key{taken, c}))
		fallthrough
	case schedule.Await:
		n -= s.plan.Counters[c].Init
		s.act(k, thread, Event{Waits: []Wait{{Counter: s.counter(key{signals, c}), N: int32(n), Relaxed: l.Relaxed}}})
	}
	return nil
}

// data adds the events with which the threads of a block move elements. Before an engine sends packets, the threads
// check that the packets have been written, and then meet.
func (s *ScheduleStatement) data(k int32, o *schedule.Op) error {
	kind, looks, meet := movers, []Wait(nil), false
	for _, m := range o.Moves {
		for j, sp := range operands(&m) {
			if sp.Mode != schedule.Plain {
				kind = packetMovers
			}
			for i := 0; i < sp.N && sp.Mode == schedule.Packet && j < len(m.From); i++ {
				at := s.counter(key{packets, int32(sp.Cell + 2*i)})
				looks, meet = append(looks, Wait{at, 1, m.Engine < 0, true}), meet || m.Engine >= 0
			}
		}
	}
	if meet {
		s.Events = append(s.Events, Event{Chain: k, Thread: k, Waits: looks})
		s.join(k)
		looks = nil
	}
	for i := range o.Moves {
		m := &o.Moves[i]
		for j := 0; j < m.To[0].N; j++ {
			e, to := Event{Waits: looks}, j+1 // all packets are checked before any element is moved
			if looks = nil; m.Engine >= 0 {
				to = m.To[0].N
			}
			if err := s.access(&e, m, j, to); err != nil {
				return err
			}
			if m.Engine < 0 {
				s.act(k, key{kind, k, int32(j)}, e)
				continue
			}
			if err := s.post(k, m.Lane, m.Engine, e); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

func operands(m *schedule.Move) []schedule.Span { return slices.Concat(m.From, m.To) }

// width returns the number of cells of one element of a span.
func width(sp schedule.Span) int {
	if sp.Mode == schedule.Plain {
		return 1
	}
	return 2
}

// maxMoved limits the number of accesses to cells in the statement of a schedule.
const maxMoved = 1 << 22

// access adds to an event the memory accesses of the elements from..to of a move.
func (s *ScheduleStatement) access(e *Event, m *schedule.Move, from, to int) error {
	e.moves = elements{m, from, to}
	for j, sp := range operands(m) {
		w := width(sp)
		c, n := sp.Cell+from*w, (to-from)*w
		if s.moved += n; s.moved > maxMoved || sp.N != m.To[0].N || c < 0 || c+n > len(s.cells) || w == 2 && c%2 > 0 {
			return fmt.Errorf("more than %d cells are moved, a cell does not exist, or only half of a packet is moved",
				maxMoved)
		}
		a := Access{Base: int32(c), Spots: s.cells[:n], Write: j >= len(m.From), Owner: -1}
		a.Packet = sp.Mode == schedule.Packet || a.Write && sp.Mode == schedule.Raw
		e.Accesses = append(e.Accesses, a)
		for end := c + n; c < end && a.Packet; c += 2 {
			packet := key{packets, int32(c)}
			if a.Write {
				e.Adds = append(e.Adds, Add{Counter: s.counter(packet), Relaxed: true})
				if s.next(packet) > 1 {
					return fmt.Errorf("cell %d is written as a packet twice", c)
				}
			} else if m.Engine < 0 {
				e.Waits = append(e.Waits, Wait{Counter: s.counter(packet), N: 1, Relaxed: true})
			}
		}
	}
	return nil
}

// sum is a hash of the contents of a cell, which are a sum of the contents of some cells before the launch. Equal sums
// have equal hashes. Different sums have equal hashes only with a probability of 2^-100.
type sum [2]uint64

func (s *sum) add(t sum) { s[0], s[1] = s[0]+t[0], s[1]+t[1] }

// CheckSchedule returns nil if the certificate proves the statement, and if the schedule's outputs are those of its
// collective. Since no accesses race, all orders compute the same outputs as the order of the certificate.
func CheckSchedule(s *ScheduleStatement, c *Certificate) error {
	first, packet := make([]sum, s.Spots), make([]bool, s.Spots)
	for c := range first {
		first[c] = sum{rand.Uint64(), rand.Uint64()}
	}
	now, t := slices.Clone(first), s.Statement
	t.after = func(event int32) error { return move(now, packet, s.Events[event].moves) }
	if err := Check(&t, c); err != nil {
		return err
	}
	return results(s.plan, first, now)
}

// move performs the moves of an event on the hashes of cells. It marks the first cell of each packet.
func move(now []sum, packet []bool, e elements) error {
	for j := e.from; j < e.to; j++ {
		var total sum
		for _, sp := range e.of.From {
			c := sp.Cell + j*width(sp)
			switch {
			case sp.Mode != schedule.Plain && !packet[c]:
				return fmt.Errorf("cell %d is read as a packet but was not written as one", c)
			case sp.Mode == schedule.Plain && (packet[c] || c > 0 && packet[c-1]):
				return fmt.Errorf("cell %d belongs to a packet, and is read as data", c)
			}
			total.add(now[c])
		}
		for _, sp := range e.of.To {
			c := sp.Cell + j*width(sp)
			if now[c], packet[c] = total, sp.Mode != schedule.Plain; packet[c] {
				now[c+1] = sum{}
			} else if c > 0 { // the second cell of a packet holds its flags and no data
				packet[c-1] = false
			}
		}
	}
	return nil
}

// results compares the schedule's outputs with those that the collective has for the inputs.
func results(p *schedule.Plan, first, now []sum) error {
	inputs, sources, all, outputs := make([]schedule.Buffer, p.Ranks), map[int]bool{}, 0, 0
	for _, b := range p.Buffers {
		if b.Kind == schedule.Input {
			inputs[b.Rank] = b
		}
	}
	for _, out := range p.Buffers {
		if out.Kind != schedule.Output || p.Collective == schedule.Undefined {
			continue
		}
		size := max(inputs[out.Rank].Cells, 1)
		each := max(size/p.Ranks, 1)
		source := slices.IndexFunc(inputs, func(in schedule.Buffer) bool {
			return in.Cells > 0 && out.Cells > 0 && now[out.Base] == first[in.Base]
		})
		sources[source] = true
		if source < 0 && (p.Collective == schedule.Broadcast || p.Collective == schedule.SendRecv) {
			return fmt.Errorf("the output of rank %d does not equal the input of any rank", out.Rank)
		}
		due := inputs[max(source, 0)].Cells
		switch q := out.Rank + p.Shift; p.Collective {
		case schedule.AllReduce, schedule.AllToAll:
			due = inputs[out.Rank].Cells
		case schedule.ReduceScatter:
			due = inputs[out.Rank].Cells / p.Ranks
		case schedule.AllGather:
			due = inputs[out.Rank].Cells * p.Ranks
		case schedule.ToNext:
			if due = 0; q >= 0 && q < p.Ranks {
				due = inputs[q].Cells
			}
		}
		if all += inputs[out.Rank].Cells; out.Cells < due {
			return fmt.Errorf("rank %d has %d output cells, but %s requires %d", out.Rank, out.Cells, p.Collective, due)
		}
		outputs++
		for c := range out.Cells {
			q, n, i := source, 1, c // the sum of cell i of the inputs of n ranks, beginning with rank q
			switch p.Collective {
			case schedule.Broadcast, schedule.SendRecv:
			case schedule.AllReduce:
				q, n = 0, p.Ranks
			case schedule.ReduceScatter:
				q, n, i = 0, p.Ranks, out.Rank*out.Cells+c
			case schedule.AllGather:
				q, i = c/size, c%size
			case schedule.AllToAll:
				q, i = c/each, out.Rank*each+c%each
			case schedule.ToNext:
				if q = out.Rank + p.Shift; q < 0 || q >= p.Ranks {
					continue
				}
			default:
				return fmt.Errorf("certificates of %s are not supported", p.Collective)
			}
			var want sum
			for ; n > 0; n, q = n-1, q+1 {
				if q < 0 || q >= p.Ranks || i >= inputs[q].Cells {
					return fmt.Errorf("there is no input cell %d of rank %d for output cell %d of rank %d", i, q, c, out.Rank)
				}
				want.add(first[inputs[q].Base+i])
			}
			if now[out.Base+c] != want {
				return fmt.Errorf("output cell %d of rank %d has other contents than the result of %s", c, out.Rank,
					p.Collective)
			}
		}
	}
	if p.Collective != schedule.Undefined && (outputs != p.Ranks || all == 0) {
		return fmt.Errorf("%d of %d ranks have outputs, and all inputs together have %d cells, which is not "+
			"possible for this collective", outputs, p.Ranks, all)
	}
	if p.Collective == schedule.Broadcast && len(sources) != 1 || p.Collective == schedule.SendRecv && len(sources) != p.Ranks {
		return fmt.Errorf("the outputs are copies of %d inputs", len(sources))
	}
	return nil
}
