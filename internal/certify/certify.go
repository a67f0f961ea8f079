// Package certify checks certificates: evidence that a plan has no data race, reads only what was written and cannot
// deadlock. Begin with Check, which takes time linear in the statement and the certificate, but for a sort. The package
// imports neither the planner nor the verifier.
//
// A Statement says what is to be run: events in chains, what each waits for, adds to and accesses. A Certificate is
// evidence about it: an order in which all events can run, the add that satisfies each wait, clocks, and the last uses
// of memory before it is reused. Check accepts if
//
//   - the order contains every event once, keeps the order of each chain, and every wait finds its count reached. Waits
//     only ever become easier, so no other order gets stuck;
//   - the adds that a wait counts are determined: an add after the n-th, where a wait asks for n, knows the
//     first n, and takers of a counter know the taker before;
//   - each entry of a clock comes from an earlier clock of its chain or over an add that was waited for;
//   - at each access the clocks know all conflicting accesses before it, and the memory holds what its owner wrote.
//
// # What is trusted
//
// Check, plan.Validate, Plan, which makes the statement, and what it takes operations to mean. A statement is never
// read from a certificate: it is made again of the plan to be run. Issue, the planner and the verifier are not
// trusted: a fault of theirs gives a certificate that Check rejects.
//
// A certificate says nothing of shapes and operations of collectives that do not fit, nor of claims in the text, nor
// of what is computed.
package certify

import (
	"fmt"
	"slices"
)

// Level says what an edge orders. Memory includes Time.
type Level int8

const (
	Nothing Level = iota // it only makes a wait end
	Time                 // what came before has been executed: enough for a write after a read
	Memory               // and its writes are visible
)

// Statement is what a plan does, as far as order and memory are concerned.
type Statement struct {
	Plan     string // digest of the plan
	Chains   int
	Counters int
	Spots    int     // places in memory that are accessed as a whole
	Events   []Event // those of a chain in its order
}

// Event is a step of a chain, which is a stream, a thread or a block of threads. The chain's next event starts after
// the waits of this one. Unless it is loose, all accesses of the chain before it come before all after it.
type Event struct {
	Chain int32
	Loose bool
	// InPlace: it may access a spot twice.
	InPlace  bool
	Waits    []Wait
	Adds     []Add
	Accesses []Access
}

// Wait waits until a counter is at least N; or with Take, until it exceeds the number of takes before.
type Wait struct {
	Counter int32
	N       int32
	Take    bool
	Level   Level
}

// Add adds one to a counter.
type Add struct {
	Counter int32
	Level   Level
}

// Access reads or writes spots: those listed, or without a list N from Lo on.
type Access struct {
	Spots []int32
	Lo, N int32
	Write bool
	// Owner is the buffer by which memory is accessed: a read has to find the same owner's write. -1 asks
	// for nothing.
	Owner int32
	// Thread, if not 0, names the threads of the chain: accesses of the same threads are in the order of the chain.
	Thread int64
	// Packet: written with flags, or read when they are there.
	Packet bool
}

// Certificate is evidence that a statement is right. Its lists are in the order of Order.
type Certificate struct {
	Format string `json:"format"`
	Plan   string `json:"plan"`
	// Order lists chains, and of each the number of events that run next.
	Order [][2]int32 `json:"order"`
	// Matches are the events that satisfy the waits: of each wait the one with the last add that it needs.
	Matches []int32 `json:"matches"`
	Clocks  []Clock `json:"clocks"`
	Reuses  []Reuse `json:"reuses"`
}

// Clock lists events that come before Event, or before its end if it waits: a pair {c, t} is the first t of chain c.
type Clock struct {
	Event  int32      `json:"event"`
	Time   [][2]int32 `json:"time,omitempty"`
	Memory [][2]int32 `json:"memory,omitempty"`
}

// Reuse says which events were the last to use memory, one of a chain, that Event writes as another buffer's.
type Reuse struct {
	Event int32   `json:"event"`
	Last  []int32 `json:"last"`
}

// Format is the version of certificates.
const Format = "hocket certificate 1"

// Check returns nil if the certificate proves the statement.
func Check(s *Statement, c *Certificate) error {
	if c.Format != Format {
		return fmt.Errorf("the certificate's format is %.40q, want %q", c.Format, Format)
	}
	if c.Plan != s.Plan {
		return fmt.Errorf("the certificate is of plan %.64q, not of %s", c.Plan, s.Plan)
	}
	k := newChecker(s)
	k.cert = c
	if err := k.run(c.Order); err != nil {
		return err
	}
	if k.match < len(c.Matches) || k.clock < len(c.Clocks) || k.reuse < len(c.Reuses) {
		return fmt.Errorf("the certificate has matches, clocks or reuses out of order, or more of them than events")
	}
	return nil
}

type stamp struct {
	chain, pos int32 // pos counts from 1
	thread     int64
}

type spot struct {
	write  stamp
	reads  []stamp // since the write
	owner  int32   // who wrote it, -1 for nobody
	packet bool
}

type known [Memory + 1]map[int32]int32 // by level, of a chain how many events

type chainState struct {
	events []int32
	done   int32
	fence  int32 // position of the last event that is not loose
	known  known
}

type counterState struct {
	adds []int32 // events
	cuts map[int32]bool
	// The last add of each chain: since the last count that a wait asks for, and before that.
	batch, before []stamp
	taken         int32
	taker         stamp
	takes         bool
	// given is what the first adds bring, as pairs of a number of adds and a position.
	given [Memory + 1]map[int32][][2]int32
}

type checker struct {
	s        *Statement
	cert     *Certificate
	chains   []chainState
	counters []counterState
	spots    []spot
	issuer   *issuer // records what it is asked instead of reading cert

	match, clock, reuse int // next of the certificate

	// Of the current event.
	id, pos int32
	chain   *chainState
	waited  []Wait // with Take's number in N
	last    map[int32]int32
}

func newChecker(s *Statement) *checker {
	k := &checker{s: s, chains: make([]chainState, s.Chains), counters: make([]counterState, s.Counters),
		spots: make([]spot, s.Spots)}
	for i := range k.spots {
		k.spots[i].owner = -1
	}
	for i := range k.counters {
		k.counters[i].cuts = map[int32]bool{}
	}
	for i := range s.Events {
		e := &s.Events[i]
		k.chains[e.Chain].events = append(k.chains[e.Chain].events, int32(i))
		for _, w := range e.Waits {
			k.counters[w.Counter].cuts[w.N] = true
			k.counters[w.Counter].takes = k.counters[w.Counter].takes || w.Take
		}
	}
	return k
}

func (k *checker) run(order [][2]int32) error {
	left := len(k.s.Events)
	for _, o := range order {
		if o[0] < 0 || int(o[0]) >= len(k.chains) || o[1] < 1 ||
			int(o[1]) > len(k.chains[o[0]].events)-int(k.chains[o[0]].done) {
			return fmt.Errorf("the order has more events of chain %d than there are", o[0])
		}
		for range o[1] {
			if err := k.step(o[0]); err != nil {
				return fmt.Errorf("event %d, number %d of chain %d: %w", k.id, k.pos, o[0], err)
			}
			left--
		}
	}
	if left > 0 {
		return fmt.Errorf("the order leaves %d events out", left)
	}
	return nil
}

func (k *checker) step(chain int32) error {
	k.chain = &k.chains[chain]
	k.id = k.chain.events[k.chain.done]
	k.chain.done++
	k.pos = k.chain.done
	e := &k.s.Events[k.id]
	if !e.Loose {
		k.chain.fence = k.pos
	}
	if err := k.waits(e); err != nil {
		return err
	}
	mine, err := k.learn()
	if err != nil {
		return err
	}
	k.last = nil
	for i := range e.Accesses {
		if err := k.access(e, &e.Accesses[i]); err != nil {
			return err
		}
	}
	if err := k.reused(); err != nil {
		return err
	}
	for _, a := range e.Adds {
		if err := k.add(e, a, mine); err != nil {
			return err
		}
	}
	return nil
}

// waits checks that what the event waits for has come in the order.
func (k *checker) waits(e *Event) error {
	k.waited = k.waited[:0]
	for _, w := range e.Waits {
		c := &k.counters[w.Counter]
		if w.Take {
			if !k.before(c.taker, Time) {
				return fmt.Errorf("which wait takes number %d of counter %d depends on time", c.taken+1, w.Counter)
			}
			c.taken++
			c.taker = stamp{chain: e.Chain, pos: k.pos}
			w.N = c.taken
		}
		k.waited = append(k.waited, w)
		if w.N < 1 {
			continue
		}
		if int(w.N) > len(c.adds) {
			return fmt.Errorf("waits for number %d of counter %d, which is at %d", w.N, w.Counter, len(c.adds))
		}
		by := c.adds[w.N-1]
		if k.issuer != nil {
			k.issuer.cert.Matches = append(k.issuer.cert.Matches, by)
		} else if k.match >= len(k.cert.Matches) || k.cert.Matches[k.match] != by {
			return fmt.Errorf("number %d of counter %d is added by event %d, and the certificate says otherwise", w.N,
				w.Counter, by)
		}
		k.match++
	}
	return nil
}

// learn checks the event's clock and takes it over.
func (k *checker) learn() (*Clock, error) {
	if k.issuer != nil || k.clock >= len(k.cert.Clocks) || k.cert.Clocks[k.clock].Event != k.id {
		return &Clock{}, nil
	}
	c := &k.cert.Clocks[k.clock]
	k.clock++
	for _, level := range [...]Level{Time, Memory} {
		for _, t := range c.at(level) {
			if !k.granted(t, level) {
				return nil, fmt.Errorf("nothing shows that event %d of chain %d comes before", t[1], t[0])
			}
		}
	}
	for _, level := range [...]Level{Time, Memory} { // Time alone, too, for what is in memory's order
		for _, t := range c.at(level) {
			for l := Time; l <= level; l++ {
				if k.chain.known[l] == nil {
					k.chain.known[l] = map[int32]int32{}
				}
				k.chain.known[l][t[0]] = max(k.chain.known[l][t[0]], t[1])
			}
		}
	}
	return c, nil
}

func (c *Clock) at(level Level) [][2]int32 {
	if level == Time {
		return c.Time
	}
	return c.Memory
}

// granted reports whether the chain knows t, or one of the event's waits brings it.
func (k *checker) granted(t [2]int32, level Level) bool {
	if k.chain.known[level][t[0]] >= t[1] {
		return true
	}
	for _, w := range k.waited {
		if w.Level < level {
			continue
		}
		given := k.counters[w.Counter].given[level][t[0]]
		i, found := slices.BinarySearchFunc(given, w.N, func(g [2]int32, n int32) int { return int(g[0]) - int(n) })
		if !found {
			i--
		}
		if i >= 0 && given[i][1] >= t[1] {
			return true
		}
	}
	return false
}

// before reports whether the event that a stamp names comes before the current one.
func (k *checker) before(t stamp, level Level) bool {
	switch {
	case t.pos == 0:
		return true
	case &k.chains[t.chain] == k.chain:
		return t.pos <= k.chain.fence
	case k.issuer != nil:
		return k.issuer.knows(k.id, t.chain, t.pos, level)
	}
	return k.chain.known[level][t.chain] >= t.pos
}

func (k *checker) access(e *Event, a *Access) error {
	if a.Spots == nil {
		for x := a.Lo; x < a.Lo+a.N; x++ {
			if err := k.touch(e, a, x); err != nil {
				return err
			}
		}
	}
	for _, x := range a.Spots {
		if err := k.touch(e, a, x); err != nil {
			return err
		}
	}
	return nil
}

// touch checks one access to one spot.
func (k *checker) touch(e *Event, a *Access, x int32) error {
	sp, me := &k.spots[x], stamp{chain: e.Chain, pos: k.pos, thread: a.Thread}
	ordered := func(t stamp, level Level) bool {
		if t.chain == me.chain && t.pos > 0 {
			if t.pos == me.pos && !e.Loose {
				return e.InPlace
			}
			if t.thread == a.Thread && a.Thread != 0 {
				return true
			}
		}
		return k.before(t, level)
	}
	if !a.Write {
		if a.Owner >= 0 && sp.owner != a.Owner {
			return fmt.Errorf("reads spot %d of buffer %d, which buffer %d wrote", x, a.Owner, sp.owner)
		}
		if a.Packet && !sp.packet {
			return fmt.Errorf("reads a packet of spot %d, which is none", x)
		}
		if !a.Packet && !ordered(sp.write, Memory) {
			return fmt.Errorf("reads spot %d, and nothing orders it after the write by event %d of chain %d", x,
				sp.write.pos, sp.write.chain)
		}
		kept := sp.reads[:0]
		for _, r := range sp.reads {
			same := r.chain == me.chain && (r.thread == me.thread || r.pos <= k.chain.fence && r.pos < me.pos)
			if !same {
				kept = append(kept, r)
			}
		}
		sp.reads = append(kept, me)
		return nil
	}
	if a.Owner >= 0 && sp.owner >= 0 && sp.owner != a.Owner {
		k.uses(sp)
	}
	if !ordered(sp.write, Memory) {
		return fmt.Errorf("writes spot %d, and nothing orders it after the write by event %d of chain %d", x,
			sp.write.pos, sp.write.chain)
	}
	for _, r := range sp.reads {
		if !ordered(r, Time) {
			return fmt.Errorf("writes spot %d, and nothing orders it after the read by event %d of chain %d", x, r.pos,
				r.chain)
		}
	}
	sp.write, sp.owner, sp.packet, sp.reads = me, a.Owner, a.Packet, sp.reads[:0]
	return nil
}

// uses notes the last uses of a spot that changes its owner.
func (k *checker) uses(sp *spot) {
	if k.last == nil {
		k.last = map[int32]int32{}
	}
	for _, t := range append(sp.reads, sp.write) {
		k.last[t.chain] = max(k.last[t.chain], t.pos)
	}
}

// reused compares the last uses of the memory that the event takes over with the certificate's.
func (k *checker) reused() error {
	if k.last == nil {
		return nil
	}
	var last []int32
	for chain, pos := range k.last {
		last = append(last, k.chains[chain].events[pos-1])
	}
	slices.Sort(last)
	if k.issuer != nil {
		k.issuer.cert.Reuses = append(k.issuer.cert.Reuses, Reuse{k.id, last})
		return nil
	}
	if k.reuse >= len(k.cert.Reuses) || k.cert.Reuses[k.reuse].Event != k.id ||
		!slices.Equal(k.cert.Reuses[k.reuse].Last, last) {
		return fmt.Errorf("the memory that it reuses was last used by events %d, and the certificate says otherwise",
			last)
	}
	k.reuse++
	return nil
}

// add counts, and notes what whoever waits for it will know.
func (k *checker) add(e *Event, a Add, mine *Clock) error {
	c := &k.counters[a.Counter]
	if c.takes || c.cuts[int32(len(c.adds))] {
		c.before, c.batch = append(c.before[:0], c.batch...), c.batch[:0]
	}
	for _, t := range c.before {
		if !k.before(t, Time) {
			return fmt.Errorf("which adds to counter %d are the first %d depends on time", a.Counter, len(c.adds))
		}
	}
	i := slices.IndexFunc(c.batch, func(t stamp) bool { return t.chain == e.Chain })
	if i < 0 {
		i = len(c.batch)
		c.batch = append(c.batch, stamp{})
	}
	c.batch[i] = stamp{chain: e.Chain, pos: k.pos}
	c.adds = append(c.adds, k.id)
	give := func(level Level, chain, pos int32) {
		if c.given[level] == nil {
			c.given[level] = map[int32][][2]int32{}
		}
		g := c.given[level][chain]
		if len(g) == 0 || g[len(g)-1][1] < pos {
			c.given[level][chain] = append(g, [2]int32{int32(len(c.adds)), pos})
		}
	}
	for level := Time; level <= a.Level; level++ {
		if !e.Loose {
			give(level, e.Chain, k.pos)
		}
		for l := level; l <= Memory; l++ {
			for _, t := range mine.at(l) {
				give(level, t[0], t[1])
			}
		}
	}
	return nil
}
