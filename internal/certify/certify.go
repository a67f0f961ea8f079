// Package certify checks certificates. A certificate is evidence that a plan has no data race, reads only memory
// that was written before, and cannot deadlock. The certificate of a collective schedule also proves that the
// schedule computes its collective. This package imports neither the planner, nor the verifier, nor package issue,
// which makes certificates. Its main function is Check.
//
// A Statement describes a run. A Statement is never read from a certificate: the functions Plan and Schedule compute it
// from the plan or schedule. A Certificate contains evidence about a statement: an order in which all events can run,
// the add that satisfies each wait, vector clocks, and the last uses of memory before its reuse. Check accepts a
// certificate if
//
//   - the order contains every event once and preserves the order of each chain, and, at each wait, its counter
//     has reached the required count. Counters only increase, so then no other order can deadlock;
//   - for each wait for n adds, every add after the n-th is ordered after the first n adds. Then the first
//     n adds are the same in every order;
//   - each entry of a clock is justified: it is an entry of an earlier clock of the same thread, or an entry that
//     a wait gets from the adds that it counts;
//   - each access is ordered after all conflicting accesses before it, and each read finds memory that the owner
//     of the read wrote.
//
// The check takes time linear in the sizes of the statement and the certificate, except for binary searches and the
// sort of addresses in Plan.
//
// # What is trusted
//
// The proof relies on this package, on the meaning that it gives to operations, and on the following imports: the
// types of package plan and its functions Accesses, HashString and Validate, which checks indices and ranges; the
// tables of element sizes and elementwise operations in package ir; and the types of package schedule. It also
// relies on packages mscclpp and msccl, which read schedules into these types and check their indices. From the
// standard library, encoding/json reads certificates, crypto/sha256 computes the digests that identify schedules,
// and math/rand/v2 draws the 128 random bits that represent each tensor or contribution.
package certify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Statement describes a run: the order of its events and their accesses to memory. Chains, threads, counters and spots
// are numbered from 0. A spot is a piece of memory that is always accessed as a whole.
type Statement struct {
	Plan                             string // digest of the plan
	Chains, Threads, Counters, Spots int
	Events                           []Event // all events; the events of one chain are in the order of the chain

	numbers map[key]int32
	after   func(event int32) error // if not nil, Check calls it after each event of the order
}

// Event is a step of a chain. It begins when the waits of the preceding events of its chain have ended. In the
// orders of memory and of time, it follows the preceding events of its thread.
type Event struct {
	Chain, Thread int32
	Waits         []Wait
	Adds          []Add
	Accesses      []Access
	moves         elements // for a schedule: the moves that the event performs
}

// Add adds one to a counter. An add orders the memory accesses of the adding thread before those of a thread that
// waits for it. A relaxed add orders them only in time, which suffices for a write after a read.
type Add struct {
	Counter int32
	Relaxed bool
}

// Wait waits until a counter is at least N. A blind wait establishes no order of events. A relaxed wait establishes
// an order in time only.
type Wait struct {
	Counter, N     int32
	Blind, Relaxed bool
}

// Access reads or writes spots on behalf of a buffer, the owner. The numbers of an access's spots are relative to Base.
// Unless the owner is -1, a read must find that the last write of the spot has the same owner. Two accesses of one
// event may share a spot if they belong to the same group.
type Access struct {
	Base         int32
	Spots        []int32
	Write        bool
	Owner, Group int32
	// the write is a packet: an event that waits for the packet sees its data, but is not ordered after other events
	Packet bool
}

// Format identifies the version of the format of certificates.
const Format = "hocket certificate 2"

// Certificate holds the evidence that a statement is correct. Its lists are parallel to Order.
type Certificate struct {
	Format string `json:"format"`
	Plan   string `json:"plan"`
	// pairs of a chain and the number of its events that run next, without events of other chains between them
	Order   [][2]int32 `json:"order"`
	Matches []int32    `json:"matches"` // for each wait for N adds, the event that performs the N-th add
	// vector clocks: the events that precede an event; if the event waits, the events that precede its end
	Clocks []Past `json:"clocks"`
	// for each event that writes memory which another buffer used before: the last uses of this memory
	Reuses []Past `json:"reuses"`
}

// Past lists, for each other thread, the number of its events that precede Event. The entry with the number of a thread
// refers to the order of memory. The entry with that number plus the number of threads refers to the order in time
// only.
type Past struct {
	Event int32           `json:"event"`
	Of    map[int32]int32 `json:"of"`
}

// Parse reads a certificate. Parse accepts only text that is identical to the output of json.Marshal for a certificate.
func Parse(text []byte) (*Certificate, error) {
	c := &Certificate{}
	if err := json.Unmarshal(text, c); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("byte %d of %d: %w", syntax.Offset, len(text), err)
		}
		return nil, err
	}
	if again, err := json.Marshal(c); err != nil || !bytes.Equal(again, bytes.TrimSpace(text)) {
		return nil, fmt.Errorf("the text is not in the form of a certificate: it has unknown keys, repeated keys " +
			"or additional spaces")
	}
	return c, nil
}

// Check returns nil if the certificate proves the statement.
func Check(s *Statement, c *Certificate) error {
	if c.Format != Format {
		return fmt.Errorf("the certificate's format is %.40q, want %q", c.Format, Format)
	}
	if c.Plan != s.Plan {
		return fmt.Errorf("the certificate is for another plan: its digest begins with %.8q, and that of this plan with %.8q", c.Plan,
			s.Plan)
	}
	k := newChecker(s)
	k.clocks, k.knows = c.Clocks, func(_, thread, pos int32) bool { return k.known(thread, pos) }
	if err := k.run(c.Order); err != nil {
		return err
	}
	same := func(a, b Past) bool { return a.Event == b.Event && maps.Equal(a.Of, b.Of) }
	switch {
	case !slices.Equal(k.matches, c.Matches):
		return fmt.Errorf("its list of matches differs from the adds that satisfy the waits in its order")
	case !slices.EqualFunc(k.reuses, c.Reuses, same):
		return fmt.Errorf("its list of reuses differs from the reuses of memory that follow from its order of commands")
	case len(k.clocks) > 0:
		return fmt.Errorf("the clock of event %d is not in the order of events, or the event does not exist",
			k.clocks[0].Event)
	}
	return nil
}

// Needs is for package issue. Needs checks a statement in a given order of events and returns a certificate without
// clocks. Where Check would read a clock, it calls the function knows.
func Needs(s *Statement, order [][2]int32, knows func(event, thread, pos int32) bool) (*Certificate, error) {
	k := newChecker(s)
	k.knows = knows
	err := k.run(order)
	return &Certificate{Format: Format, Plan: s.Plan, Order: order, Matches: k.matches, Reuses: k.reuses}, err
}

type checker struct {
	*Statement
	clocks   []Past // the certificate's clocks that Check has not used yet
	matches  []int32
	reuses   []Past
	knows    func(event, thread, pos int32) bool
	chains   [][]int32 // remaining events of each chain
	threads  []thread
	counters []counter
	spots    []spot

	id   int32 // number of the current event
	now  stamp
	last map[int32]int32 // by thread: the thread's last event that uses the memory which the current event reuses
}

type thread struct {
	pos   int32           // number of events that have run
	known map[int32]int32 // by thread: the number of events that precede the current event
}

type counter struct {
	adds  []int32        // the events that performed this counter's adds so far, in order
	asked map[int32]bool // the values of this counter for which some event waits
	// batch holds the last add of each thread since the last value in asked was reached; before holds each thread's
	// last add until then
	batch, before []stamp
	// by thread: pairs of a number of adds, and the number of the thread's events that precede these adds
	brought map[int32][][2]int32
}

type spot struct {
	write  stamp
	reads  []stamp // reads since the last write
	owner  int32   // owner of the last write
	packet bool    // the last write of the spot is a packet
}

type stamp struct{ thread, pos, group int32 } // an event, by its thread and its position in the thread (from 1)

func newChecker(s *Statement) *checker {
	k := &checker{Statement: s, chains: make([][]int32, s.Chains), threads: make([]thread, s.Threads),
		counters: make([]counter, s.Counters), spots: make([]spot, s.Spots)}
	for i := range k.threads {
		k.threads[i].known = map[int32]int32{}
	}
	for i := range k.counters {
		k.counters[i].asked, k.counters[i].brought = map[int32]bool{}, map[int32][][2]int32{}
	}
	for i := range s.Events {
		e := &s.Events[i]
		k.chains[e.Chain] = append(k.chains[e.Chain], int32(i))
		for _, w := range e.Waits {
			k.counters[w.Counter].asked[w.N] = true
		}
	}
	return k
}

func (k *checker) run(order [][2]int32) error {
	for _, o := range order {
		if o[0] < 0 || int(o[0]) >= k.Chains || o[1] < 1 || int(o[1]) > len(k.chains[o[0]]) {
			return fmt.Errorf("the order contains %d more events of chain %d, but the chain has fewer", o[1], o[0])
		}
		for range o[1] {
			k.id, k.chains[o[0]] = k.chains[o[0]][0], k.chains[o[0]][1:]
			if err := k.step(&k.Events[k.id]); err != nil {
				return fmt.Errorf("event %d of chain %d: %w", k.id, o[0], err)
			}
		}
	}
	for chain, left := range k.chains {
		if len(left) > 0 {
			return fmt.Errorf("the order omits %d events of chain %d", len(left), chain)
		}
	}
	return nil
}

func (k *checker) step(e *Event) error {
	for _, w := range e.Waits {
		adds := k.counters[w.Counter].adds
		if int(w.N) > len(adds) {
			return fmt.Errorf("it waits for add %d of counter %d, but only %d adds precede it", w.N, w.Counter,
				len(adds))
		}
		if w.N > 0 {
			k.matches = append(k.matches, adds[w.N-1])
		}
	}
	t := &k.threads[e.Thread]
	t.pos++
	k.now = stamp{thread: e.Thread, pos: t.pos}
	var clock map[int32]int32
	if len(k.clocks) > 0 && k.clocks[0].Event == k.id {
		clock, k.clocks = k.clocks[0].Of, k.clocks[1:]
	}
	for of, pos := range clock {
		brings := func(w Wait) bool { return k.brings(w, of, pos) }
		if int(of) >= 2*k.Threads || !k.known(of, pos) && !slices.ContainsFunc(e.Waits, brings) {
			return fmt.Errorf("the certificate does not show that event %d of thread %d precedes it", pos, of)
		}
	}
	for of, pos := range clock {
		t.known[of] = max(t.known[of], pos)
	}
	k.last = map[int32]int32{}
	for i := range e.Accesses {
		a := &e.Accesses[i]
		for _, x := range a.Spots {
			if err := k.access(a, &k.spots[a.Base+x]); err != nil {
				return fmt.Errorf("it accesses piece %d of memory, %w", a.Base+x, err)
			}
		}
	}
	if len(k.last) > 0 {
		k.reuses = append(k.reuses, Past{k.id, k.last})
	}
	for _, a := range e.Adds {
		if err := k.add(a, clock); err != nil {
			return err
		}
	}
	if k.after != nil {
		return k.after(k.id)
	}
	return nil
}

// known reports whether the first pos events of a thread (parameter of) precede the current event.
func (k *checker) known(of, pos int32) bool {
	known, n := k.threads[k.now.thread].known, int32(k.Threads)
	return known[of] >= pos || of >= n && known[of-n] >= pos
}

// brings reports whether the first pos events of a thread (parameter of) precede an add that the wait w counts.
func (k *checker) brings(w Wait, of, pos int32) bool {
	n, brought := int32(k.Threads), k.counters[w.Counter].brought
	by := func(of int32) bool {
		i, _ := slices.BinarySearchFunc(brought[of], w.N+1, func(g [2]int32, n int32) int { return int(g[0]) - int(n) })
		return i > 0 && brought[of][i-1][1] >= pos
	}
	return !w.Blind && (of >= n || !w.Relaxed) && (by(of) || of >= n && by(of-n))
}

// ordered reports whether the event that a stamp identifies precedes the current event in the order of memory or, if
// inTime is set, in the order of time.
func (k *checker) ordered(t stamp, inTime bool) bool {
	if t.pos == 0 || t.thread == k.now.thread {
		return true
	}
	if inTime {
		t.thread += int32(k.Threads)
	}
	return k.knows(k.id, t.thread, t.pos)
}

// access checks an access to a spot, and records it.
func (k *checker) access(a *Access, sp *spot) error {
	after := func(t stamp, inTime bool) bool {
		if t.thread == k.now.thread && t.pos == k.now.pos && t.group != a.Group {
			return false
		}
		return k.ordered(t, inTime)
	}
	if !a.Write && a.Owner >= 0 && (sp.write.pos == 0 || sp.owner != a.Owner) {
		return fmt.Errorf("but its last write, if there is one, is not for buffer %d", a.Owner)
	}
	if a.Write && sp.write.pos > 0 && sp.owner != a.Owner {
		for _, t := range append(sp.reads, sp.write) {
			k.last[t.thread] = max(k.last[t.thread], t.pos)
		}
	}
	if !after(sp.write, false) && (a.Write || !a.Packet || !sp.packet) {
		return fmt.Errorf("but is not ordered after the write by event %d of thread %d", sp.write.pos, sp.write.thread)
	}
	me := stamp{k.now.thread, k.now.pos, a.Group}
	if !a.Write {
		sp.reads = append(slices.DeleteFunc(sp.reads, func(r stamp) bool {
			return r.thread == me.thread && (r.pos < me.pos || r.group == me.group)
		}), me)
		return nil
	}
	for _, r := range sp.reads {
		if !after(r, true) {
			return fmt.Errorf("but is not ordered after the read by event %d of thread %d", r.pos, r.thread)
		}
	}
	sp.write, sp.owner, sp.packet, sp.reads = me, a.Owner, a.Packet, sp.reads[:0]
	return nil
}

// add counts an add to a counter. It records the event and its clock, because a wait that counts this add is
// ordered after the events in the clock.
func (k *checker) add(a Add, clock map[int32]int32) error {
	c := &k.counters[a.Counter]
	if c.asked[int32(len(c.adds))] {
		c.before, c.batch = append(c.before[:0], c.batch...), c.batch[:0]
	}
	for _, t := range c.before {
		if !k.ordered(t, true) {
			return fmt.Errorf("timing decides which adds to counter %[2]d are the first %[1]d", len(c.adds),
				a.Counter)
		}
	}
	c.batch = append(slices.DeleteFunc(c.batch, func(t stamp) bool { return t.thread == k.now.thread }), k.now)
	c.adds = append(c.adds, k.id)
	bring := func(of, pos int32) {
		if a.Relaxed && int(of) < k.Threads {
			of += int32(k.Threads)
		}
		if g := c.brought[of]; len(g) == 0 || g[len(g)-1][1] < pos {
			c.brought[of] = append(g, [2]int32{int32(len(c.adds)), pos})
		}
	}
	bring(k.now.thread, k.now.pos)
	for of, pos := range clock {
		bring(of, pos)
	}
	return nil
}

// key identifies an object by the object's kind and by indices that distinguish it from other objects of that kind.
type key [4]int32

// number returns the number of the object that a key identifies. If the key is new, the object gets the number *n, and
// *n is incremented.
func (s *Statement) number(of key, n *int) int32 {
	if _, ok := s.numbers[of]; !ok {
		s.numbers[of] = int32(*n)
		*n++
	}
	return s.numbers[of]
}

func (s *Statement) counter(of key) int32 { return s.number(of, &s.Counters) }
