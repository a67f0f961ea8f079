package certify

import (
	"fmt"
	"slices"
)

// maxClocks bounds the memory that Issue takes for clocks, in entries.
const maxClocks = 1 << 28

// Issue looks for a certificate of a statement. It fails if the statement is wrong, or cannot be shown to be right in
// the way that certificates do.
func Issue(s *Statement) (*Certificate, error) {
	is := &issuer{s: s, cert: &Certificate{Format: Format, Plan: s.Plan},
		clocks:  make([]*[Memory + 1][]int32, len(s.Events)),
		learned: make([][]int32, s.Chains), pos: make([]int32, len(s.Events)), adds: make([][]int32, s.Counters),
		waited: map[int32][]Wait{}, entries: map[int32]*[Memory + 1]map[int32]int32{}}
	if err := is.execute(); err != nil {
		return nil, err
	}
	k := newChecker(s)
	k.issuer = is
	if err := k.run(is.cert.Order); err != nil {
		return nil, err
	}
	return is.close(k), nil
}

// issuer finds an order, the whole clocks of all events that wait or add, and which of their entries are needed.
type issuer struct {
	s       *Statement
	cert    *Certificate
	clocks  []*[Memory + 1][]int32 // by event: by level and chain
	learned [][]int32              // by chain: the events that waited, in order
	pos     []int32                // by event
	adds    [][]int32              // by counter
	waited  map[int32][]Wait       // by event, with Take's number in N
	entries map[int32]*[Memory + 1]map[int32]int32
}

// execute runs the events greedily: a chain goes on until it has to wait.
func (is *issuer) execute() error {
	s := is.s
	chains := make([][]int32, s.Chains)
	for i := range s.Events {
		c := s.Events[i].Chain
		chains[c] = append(chains[c], int32(i))
		is.pos[i] = int32(len(chains[c]))
	}
	done, taken := make([]int, s.Chains), make([]int32, s.Counters)
	now := make([][Memory + 1][]int32, s.Chains)
	waiting := make([][]int32, s.Counters)
	// From the last chain to the first, since the queue is a stack.
	queue := make([]int32, 0, s.Chains)
	for c := range s.Chains {
		queue = append(queue, int32(s.Chains-1-c))
		for l := Time; l <= Memory; l++ {
			now[c][l] = make([]int32, s.Chains)
		}
	}
	left, kept := len(s.Events), 0
	for len(queue) > 0 {
		c := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		ran := int32(0)
	chain:
		for done[c] < len(chains[c]) {
			id := chains[c][done[c]]
			e := &s.Events[id]
			waits := slices.Clone(e.Waits)
			for i := range waits {
				w := &waits[i]
				if w.Take {
					w.N = taken[w.Counter] + 1
				}
				if int(w.N) > len(is.adds[w.Counter]) {
					waiting[w.Counter] = append(waiting[w.Counter], c)
					for _, v := range waits[:i] {
						if v.Take {
							taken[v.Counter]--
						}
					}
					break chain
				}
				if w.Take {
					taken[w.Counter]++
				}
			}
			is.join(&now[c], waits)
			if !e.Loose {
				now[c][Time][c], now[c][Memory][c] = is.pos[id], is.pos[id]
			}
			if len(waits)+len(e.Adds) > 0 {
				if kept += 2 * s.Chains; kept > maxClocks {
					return fmt.Errorf("too large: %d events of %d chains", len(s.Events), s.Chains)
				}
				is.clocks[id] = &[Memory + 1][]int32{Time: slices.Clone(now[c][Time]),
					Memory: slices.Clone(now[c][Memory])}
			}
			if len(waits) > 0 {
				is.learned[c] = append(is.learned[c], id)
				is.waited[id] = waits
			}
			done[c]++
			ran++
			left--
			for _, a := range e.Adds {
				is.adds[a.Counter] = append(is.adds[a.Counter], id)
				queue = append(queue, waiting[a.Counter]...)
				waiting[a.Counter] = waiting[a.Counter][:0]
			}
		}
		if ran > 0 {
			is.cert.Order = append(is.cert.Order, [2]int32{c, ran})
		}
	}
	if left > 0 {
		return fmt.Errorf("it gets stuck: %d events wait for ever", left)
	}
	return nil
}

// join adds to a clock what waits bring.
func (is *issuer) join(now *[Memory + 1][]int32, waits []Wait) {
	for _, w := range waits {
		for i := range max(w.N, 0) {
			from := is.adds[w.Counter][i]
			for level := Time; level <= min(w.Level, is.level(from, w.Counter)); level++ {
				for c, t := range is.clocks[from][level] {
					now[level][c] = max(now[level][c], t)
				}
			}
		}
	}
}

// level returns what an event's add to a counter orders.
func (is *issuer) level(event, counter int32) Level {
	adds := is.s.Events[event].Adds
	return adds[slices.IndexFunc(adds, func(a Add) bool { return a.Counter == counter })].Level
}

// knows reports whether the first pos events of a chain come before an event, and notes the clocks that show it.
func (is *issuer) knows(event, chain, pos int32, level Level) bool {
	at := is.learned[is.s.Events[event].Chain]
	i, _ := slices.BinarySearchFunc(at, pos,
		func(e, pos int32) int { return int(is.clocks[e][level][chain]) - int(pos) })
	if i == len(at) || is.pos[at[i]] > is.pos[event] {
		return false
	}
	is.need(at[i], chain, pos, level)
	return true
}

// need notes that the clock of an event that learned of chain and pos has to say so, and so those that it learned from.
func (is *issuer) need(event, chain, pos int32, level Level) {
	if !is.note(event, chain, pos, level) {
		return
	}
	for _, w := range is.waited[event] {
		if w.Level < level {
			continue
		}
		for i := w.N - 1; i >= 0; i-- {
			from := is.adds[w.Counter][i]
			if is.level(from, w.Counter) < level || is.clocks[from][level][chain] < pos {
				continue
			}
			if is.s.Events[from].Chain != chain || is.s.Events[from].Loose {
				is.knows(from, chain, pos, level)
				is.note(from, chain, pos, level)
			}
			return
		}
	}
}

// note adds an entry to an event's clock; false if it is there.
func (is *issuer) note(event, chain, pos int32, level Level) bool {
	e := is.entries[event]
	if e == nil {
		e = &[Memory + 1]map[int32]int32{Time: {}, Memory: {}}
		is.entries[event] = e
	}
	if e[level][chain] >= pos {
		return false
	}
	e[level][chain] = pos
	return true
}

// close writes the clocks in the order of events.
func (is *issuer) close(k *checker) *Certificate {
	done := make([]int32, is.s.Chains)
	for _, o := range is.cert.Order {
		for range o[1] {
			id := k.chains[o[0]].events[done[o[0]]]
			done[o[0]]++
			if e := is.entries[id]; e != nil {
				is.cert.Clocks = append(is.cert.Clocks, Clock{id, sorted(e[Time]), sorted(e[Memory])})
			}
		}
	}
	return is.cert
}

func sorted(m map[int32]int32) [][2]int32 {
	var out [][2]int32
	for c, t := range m {
		out = append(out, [2]int32{c, t})
	}
	slices.SortFunc(out, func(a, b [2]int32) int { return int(a[0]) - int(b[0]) })
	return out
}
