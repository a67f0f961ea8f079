// Package issue makes certificates. Its main function is Certificate. The proof does not depend on this package: if
// this package makes a wrong certificate, package certify rejects it.
package issue

import (
	"encoding/json"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/clock"
)

// maxClocks is the largest number of pages of vector clocks, which limits their memory.
const maxClocks = 1 << 26

// Certificate searches for a certificate of a statement. It returns an error if the statement is wrong. Certificate
// also returns an error if the statement is correct for a reason that certificates cannot express.
func Certificate(s *certify.Statement) (*certify.Certificate, error) {
	is := &issuer{s: s, clocks: make([]past, len(s.Events)), pos: make([]int32, len(s.Events)),
		learned: make([][]int32, s.Threads), counters: make([]counter, s.Counters), entries: map[int32]map[int32]int32{}}
	if err := is.execute(); err != nil {
		return nil, err
	}
	c, err := certify.Needs(s, is.order, is.knows)
	if err != nil {
		return nil, err
	}
	for _, id := range is.ran {
		if e := is.entries[id]; e != nil {
			c.Clocks = append(c.Clocks, certify.Past{Event: id, Of: e})
		}
	}
	return c, nil
}

// Schedule returns the text of a certificate for a schedule. It returns an error unless package certify accepts the
// certificate.
func Schedule(p *schedule.Plan) ([]byte, error) {
	s, err := certify.Schedule(p)
	if err != nil {
		return nil, err
	}
	c, err := Certificate(&s.Statement)
	if err != nil {
		return nil, err
	}
	if err := certify.CheckSchedule(s, c); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// past records the events that precede a point of the execution, in the order of memory and in the order of time.
type past struct{ memory, time clock.Clock }

func (p past) join(q past, relaxed bool) past {
	if !relaxed {
		p.memory = clock.Join(p.memory, q.memory)
	}
	p.time = clock.Join(p.time, q.time)
	return p
}

type counter struct {
	adds    []int32 // events
	relaxed []bool
	sums    []past // sums[i] holds the events that precede the first i+1 adds to the counter
	waiting []int32
}

// issuer finds an order of all events and their complete clocks. It also finds the clock entries that a certificate
// needs.
type issuer struct {
	s        *certify.Statement
	order    [][2]int32
	ran      []int32   // events in the order
	clocks   []past    // by event
	learned  [][]int32 // by thread: the events whose waits added entries to the thread's clock, in order
	pos      []int32   // by event: its position in its thread
	counters []counter
	entries  map[int32]map[int32]int32
}

// execute runs the events greedily: each chain continues until it has to wait.
func (is *issuer) execute() error {
	s := is.s
	chains := make([][]int32, s.Chains)
	for i := range s.Events {
		chains[s.Events[i].Chain] = append(chains[s.Events[i].Chain], int32(i))
	}
	now, pos, kept := make([]past, s.Threads), make([]int32, s.Threads), 0
	// The chains are pushed from last to first, since the queue is a stack.
	var queue []int32
	for c := range s.Chains {
		queue = append(queue, int32(s.Chains-1-c))
	}
	for len(queue) > 0 {
		c := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		ran := int32(0)
		for ; len(chains[c]) > 0; chains[c] = chains[c][1:] {
			id := chains[c][0]
			e := &s.Events[id]
			if i := slices.IndexFunc(e.Waits, func(w certify.Wait) bool {
				return int(w.N) > len(is.counters[w.Counter].adds)
			}); i >= 0 {
				at := &is.counters[e.Waits[i].Counter]
				at.waiting = append(at.waiting, c)
				break
			}
			t := e.Thread
			for _, w := range e.Waits {
				if w.N > 0 && !w.Blind {
					now[t] = now[t].join(is.counters[w.Counter].sums[w.N-1], w.Relaxed)
				}
			}
			pos[t]++
			now[t] = past{now[t].memory.With(t, pos[t]), now[t].time.With(t, pos[t])}
			if kept += 2 * len(now[t].time); kept > maxClocks {
				return fmt.Errorf("the statement is too large: %d events of %d threads", len(s.Events), s.Threads)
			}
			is.clocks[id], is.pos[id] = now[t], pos[t]
			if len(e.Waits) > 0 {
				is.learned[t] = append(is.learned[t], id)
			}
			is.ran = append(is.ran, id)
			ran++
			for _, a := range e.Adds {
				at := &is.counters[a.Counter]
				sum := past{}
				if n := len(at.sums); n > 0 {
					sum = at.sums[n-1]
				}
				at.adds, at.relaxed = append(at.adds, id), append(at.relaxed, a.Relaxed)
				at.sums = append(at.sums, sum.join(now[t], a.Relaxed))
				queue = append(queue, at.waiting...)
				at.waiting = at.waiting[:0]
			}
		}
		if ran > 0 {
			is.order = append(is.order, [2]int32{c, ran})
		}
	}
	if left := len(s.Events) - len(is.ran); left > 0 {
		return fmt.Errorf("it deadlocks: %d events can never run", left)
	}
	return nil
}

// at returns the entry for a thread in the clock of an event. For thread numbers from Threads on, it returns the
// entry in the order of time.
func (is *issuer) at(event, thread int32) int32 {
	if n := int32(is.s.Threads); thread >= n {
		return is.clocks[event].time.At(thread - n)
	}
	return is.clocks[event].memory.At(thread)
}

// knows reports whether the first pos events of a thread precede an event. It marks the entries of clocks that
// prove this as needed in the certificate.
func (is *issuer) knows(event, thread, pos int32) bool {
	learned := is.learned[is.s.Events[event].Thread]
	i, _ := slices.BinarySearchFunc(learned, pos, func(e, pos int32) int { return int(is.at(e, thread)) - int(pos) })
	if i == len(learned) || is.pos[learned[i]] > is.pos[event] {
		return false
	}
	is.need(learned[i], thread, pos)
	return true
}

// need marks the entry for thread and pos as needed in the clock of an event, and in the clocks of the events from
// which that entry was copied.
func (is *issuer) need(event, thread, pos int32) {
	if !is.note(event, thread, pos) {
		return
	}
	n := int32(is.s.Threads)
	for _, w := range is.s.Events[event].Waits {
		c := &is.counters[w.Counter]
		for i := w.N - 1; i >= 0 && !w.Blind; i-- {
			from := c.adds[i]
			if is.at(from, thread) < pos || thread < n && (w.Relaxed || c.relaxed[i]) {
				continue
			}
			if is.s.Events[from].Thread != thread%n {
				is.knows(from, thread, pos)
				is.note(from, thread, pos)
			}
			return
		}
	}
}

// note adds an entry to an event's clock. The result is false if the clock already has the entry.
func (is *issuer) note(event, thread, pos int32) bool {
	if is.entries[event] == nil {
		is.entries[event] = map[int32]int32{}
	}
	if is.entries[event][thread] >= pos {
		return false
	}
	is.entries[event][thread] = pos
	return true
}
