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
//     first n;
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

// Statement is what a plan does, as far as order and memory are concerned.
type Statement struct {
	Plan     string // digest of the plan
	Chains   int
	Counters int
	Spots    int     // places in memory that are accessed as a whole
	Events   []Event // those of a chain in its order
}

// Event is a step of a chain, which is a stream: it starts once the chain's events before it have ended.
type Event struct {
	Chain int32
	// InPlace: it may access a spot twice.
	InPlace bool
	// Join: later accesses of the chain come after all earlier ones.
	Join     bool
	Waits    []Wait
	Adds     []Add
	Accesses []Access
}

// Add adds one to a counter. A relaxed add orders time only: that is enough for a write after a read.
type Add struct {
	Counter int32
	Relaxed bool
}

// Wait waits until a counter is at least N. If it is blind it orders nothing: the event still has to wait.
type Wait struct {
	Counter int32
	N       int32
	Blind   bool
	Relaxed bool
}

// Access reads or writes spots by a buffer, its owner. A read has to find the same owner's write, unless the owner is
// -1. Accesses of a chain that no join
// separates are in its order if they are of one group.
type Access struct {
	Spots []int32
	Write bool
	Owner int32
	Group int32
	// Packet: a write is seen whole, by those that wait for it, though nothing else is ordered after it.
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

// Clock lists events that come before Event, or before its end if it waits: a pair {c, t} is the first t of chain c,
// and with c + the number of chains, these in time only.
type Clock struct {
	Event  int32      `json:"event"`
	Before [][2]int32 `json:"before"`
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

type stamp struct{ chain, pos, group int32 } // pos counts from 1

type spot struct {
	write  stamp
	reads  []stamp // since the write
	owner  int32   // of the write
	packet bool    // the write is one
}

type chainState struct {
	events []int32
	done   int32
	join   int32           // the last event that joins
	known  map[int32]int32 // of a chain how many events
}

type counterState struct {
	adds []int32        // events
	cuts map[int32]bool // counts that waits ask for
	// The last add of each chain: since the last cut, and before that.
	batch, before []stamp
	// given is what the first adds bring of a chain, as pairs of a number of adds and a position.
	given map[int32][][2]int32
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
	last    map[int32]int32
}

func newChecker(s *Statement) *checker {
	k := &checker{s: s, chains: make([]chainState, s.Chains), counters: make([]counterState, s.Counters),
		spots: make([]spot, s.Spots)}
	for i := range k.counters {
		k.counters[i].cuts, k.counters[i].given = map[int32]bool{}, map[int32][][2]int32{}
	}
	for i := range k.chains {
		k.chains[i].known = map[int32]int32{}
	}
	for i := range s.Events {
		e := &s.Events[i]
		k.chains[e.Chain].events = append(k.chains[e.Chain].events, int32(i))
		for _, w := range e.Waits {
			k.counters[w.Counter].cuts[w.N] = true
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
	if err := k.waits(e); err != nil {
		return err
	}
	mine, err := k.learn(e)
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
	if e.Join {
		k.chain.join = k.pos
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
	for _, w := range e.Waits {
		c := &k.counters[w.Counter]
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
			return fmt.Errorf("number %d of counter %d is added by event %d, and the certificate says otherwise",
				w.N, w.Counter, by)
		}
		k.match++
	}
	return nil
}

// learn checks the event's clock and takes it over.
func (k *checker) learn(e *Event) ([][2]int32, error) {
	if k.issuer != nil || k.clock >= len(k.cert.Clocks) || k.cert.Clocks[k.clock].Event != k.id {
		return nil, nil
	}
	before := k.cert.Clocks[k.clock].Before
	k.clock++
	for _, t := range before {
		if !k.granted(e, t) {
			return nil, fmt.Errorf("nothing shows that event %d of chain %d comes before", t[1], t[0])
		}
	}
	for _, t := range before {
		k.chain.known[t[0]] = max(k.chain.known[t[0]], t[1])
	}
	return before, nil
}

// granted reports whether the chain knows t, or one of the event's waits brings it.
func (k *checker) granted(e *Event, t [2]int32) bool {
	if k.knows(stamp{chain: t[0], pos: t[1]}) {
		return true
	}
	for _, w := range e.Waits {
		inTime := int(t[0]) >= len(k.chains)
		if !w.Blind && (inTime || !w.Relaxed) && (k.gives(w, t) || inTime && k.gives(w, [2]int32{t[0] - int32(len(k.chains)), t[1]})) {
			return true
		}
	}
	return false
}

// gives reports whether the adds that a wait counts bring t.
func (k *checker) gives(w Wait, t [2]int32) bool {
	given := k.counters[w.Counter].given[t[0]]
	i, found := slices.BinarySearchFunc(given, w.N, func(g [2]int32, n int32) int { return int(g[0]) - int(n) })
	if !found {
		i--
	}
	return i >= 0 && given[i][1] >= t[1]
}

// knows reports whether the chain knows t, whose chain is that of an order: memory's, or that in time.
func (k *checker) knows(t stamp) bool {
	n := int32(len(k.chains))
	return k.chain.known[t.chain] >= t.pos || t.chain >= n && k.chain.known[t.chain-n] >= t.pos
}

// before reports whether what a stamp names comes before the current event, in memory's order or in time.
func (k *checker) before(t stamp, inTime bool) bool {
	switch {
	case t.pos == 0 || &k.chains[t.chain] == k.chain:
		return true
	case inTime:
		t.chain += int32(len(k.chains))
	}
	if k.issuer != nil {
		return k.issuer.knows(k.id, t.chain, t.pos)
	}
	return k.knows(t)
}

func (k *checker) access(e *Event, a *Access) error {
	for _, x := range a.Spots {
		if err := k.touch(e, a, x); err != nil {
			return err
		}
	}
	return nil
}

// touch checks one access to one spot.
func (k *checker) touch(e *Event, a *Access, x int32) error {
	sp, me := &k.spots[x], stamp{e.Chain, k.pos, a.Group}
	ordered := func(t stamp, inTime bool) bool {
		if t.chain == me.chain && t.pos > k.chain.join {
			return (t.pos != me.pos || e.InPlace) && t.group == me.group
		}
		return k.before(t, inTime)
	}
	if !a.Write && a.Owner >= 0 && (sp.write.pos == 0 || sp.owner != a.Owner) {
		return fmt.Errorf("reads spot %d of buffer %d, which another buffer wrote, or none", x, a.Owner)
	}
	if a.Write && sp.write.pos > 0 && sp.owner != a.Owner {
		k.uses(sp)
	}
	if !ordered(sp.write, false) && (a.Write || !a.Packet || !sp.packet) {
		return fmt.Errorf("accesses spot %d, and nothing orders it after the write by event %d of chain %d",
			x, sp.write.pos, sp.write.chain)
	}
	if !a.Write {
		sp.reads = append(slices.DeleteFunc(sp.reads, func(r stamp) bool { return r.chain == me.chain && (r.group == me.group || r.pos <= k.chain.join) }), me)
		return nil
	}
	for _, r := range sp.reads {
		if !ordered(r, true) {
			return fmt.Errorf("writes spot %d, and nothing orders it after the read by event %d of chain %d",
				x, r.pos, r.chain)
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

// add counts, and notes what its waiters will know.
func (k *checker) add(e *Event, a Add, mine [][2]int32) error {
	c := &k.counters[a.Counter]
	if c.cuts[int32(len(c.adds))] {
		c.before, c.batch = append(c.before[:0], c.batch...), c.batch[:0]
	}
	for _, t := range c.before {
		if !k.before(t, true) {
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
	for _, t := range append([][2]int32{{e.Chain, k.pos}}, mine...) {
		if n := int32(len(k.chains)); a.Relaxed && t[0] < n {
			t[0] += n
		}
		if g := c.given[t[0]]; len(g) == 0 || g[len(g)-1][1] < t[1] {
			c.given[t[0]] = append(g, [2]int32{int32(len(c.adds)), t[1]})
		}
	}
	return nil
}
