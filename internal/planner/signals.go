package planner

import (
	"hocket.example/hocket/internal/plan"
)

// elemState is the state of one element of a counter over all runs. The signals to an element are numbered in the order
// in which the rank that raises the element issues them.
type elemState struct {
	signals []raised
	fired   int
	waiting []int32
}

// raised describes one signal: the knowledge of the signalling stream, and the number of earlier signals that were
// certain to be done.
type raised struct {
	fired  bool
	clock  clock
	prefix int
}

func (s *simulator) elem(k elemOf) *elemState { return s.elems[k] }

// countSignals creates the states of the counter elements that are signalled or waited for.
func (s *simulator) countSignals() {
	s.elems, s.ordinal = map[elemOf]*elemState{}, map[int32]int32{}
	at := func(k elemOf) *elemState {
		if s.elems[k] == nil {
			s.elems[k] = new(elemState)
		}
		return s.elems[k]
	}
	for i := range s.p.Cmds {
		switch c := &s.p.Cmds[i]; c.Kind {
		case plan.Signal:
			e := at(elemOf{c.Counter, c.Peer, c.Elem})
			e.signals = append(e.signals, raised{})
			s.ordinal[int32(i)] = int32(len(e.signals))
		case plan.WaitCounter:
			at(elemOf{c.Counter, c.Rank, c.Elem})
		}
	}
	for _, e := range s.elems {
		e.signals = make([]raised, runs*len(e.signals))
	}
}

// raise executes a signal command.
func (s *simulator) raise(cmd int32, run int, k *knowledge) {
	c := &s.p.Cmds[cmd]
	e := s.elem(elemOf{c.Counter, c.Peer, c.Elem})
	n := int(s.ordinal[cmd]) + run*len(e.signals)/runs
	e.signals[n-1] = raised{fired: true, clock: k.snapshot(), prefix: e.knownPrefix(n, k)}
	e.fired++
	s.wake(&e.waiting)
}

// maxUnordered is the maximum number of earlier signals that are examined for one signal because they are not ordered
// before it. If more signals are not ordered before it, the signal is treated as if no earlier signal were ordered
// before it.
const maxUnordered = 64

// knownPrefix returns the largest m < n such that, according to k, the signals 1 to m are certain to be done.
func (e *elemState) knownPrefix(n int, k *knowledge) int {
	m := n - 1
	for j := n - 1; j > 0; j-- {
		g := &e.signals[j-1]
		switch {
		case !g.fired || !k.knows(g.clock.stream, g.clock.pos):
			m = j - 1
		case g.prefix == j-1:
			return m // this signal was ordered after all earlier signals
		}
		if n-j > maxUnordered {
			return 0
		}
	}
	return m
}

// hear adds to k the knowledge of the first want signals to an element. It visits the signals in reverse order, and
// stops at a signal that is ordered after all earlier ones. It may add less knowledge than a wait guarantees, which is
// safe: then fewer buffers share memory.
func (s *simulator) hear(k *knowledge, e *elemState, want int) {
	for j := want; j > 0; j-- {
		g := &e.signals[j-1]
		s.join(k, g.clock)
		if g.prefix == j-1 || want-j == maxUnordered {
			return
		}
	}
}

// ambiguousWait returns an error for a wait that counts n signals if other signals than the first n could also satisfy
// it. The signal can be a later one if it is not ordered after the wait, so that it may arrive earlier (S12). Two runs
// are examined, because signals of the next run count, too.
func (s *simulator) ambiguousWait() error {
	least := map[elemOf][]int{} // for each element: the smallest prefix among the signals after the v-th
	for i := range s.p.Cmds {
		c := &s.p.Cmds[i]
		if c.Kind != plan.WaitCounter {
			continue
		}
		k := elemOf{c.Counter, c.Rank, c.Elem}
		if least[k] == nil {
			least[k] = s.elem(k).leastPrefixes()
		}
		perRun := len(s.elem(k).signals) / runs
		for run := range runs {
			if v := int(c.Value) + run*perRun; least[k][v] < v {
				return s.ambiguity(c, perRun)
			}
		}
	}
	return nil
}

// leastPrefixes returns, for each v, the smallest prefix among signals v+1, v+2, …
func (e *elemState) leastPrefixes() []int {
	n := len(e.signals)
	least := make([]int, n+1)
	least[n] = n
	for v := n - 1; v >= 0; v-- {
		least[v] = min(least[v+1], e.signals[v].prefix)
	}
	return least
}

func (s *simulator) ambiguity(c *plan.Cmd, perRun int) error {
	name := s.p.Counters[c.Counter].Name
	d := s.w.diag("match", c, "%s[%d] >= %d does not identify its signals: any %d of the %d signals of a run may end the wait, because they are on streams that are not ordered (%s)",
		name, c.Elem, c.Value, c.Value, perRun, s.w.where(c))
	for i := range s.p.Cmds {
		o := &s.p.Cmds[i]
		if o.Kind == plan.Signal && o.Counter == c.Counter && o.Elem == c.Elem && o.Peer == c.Rank && len(d.Notes) < maxHeads {
			d.Notes = append(d.Notes, s.w.note(o, "a signal (%s)", s.w.where(o)))
		}
	}
	d.Help = "order the signalling streams by waits, within a run and between consecutive runs, or use a separate counter element for each stream"
	return d
}
