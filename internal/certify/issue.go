package certify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// maxClocks bounds the memory that Issue takes for clocks, in entries.
const maxClocks = 1 << 28

// Issue looks for a certificate of a statement. It fails if the statement is wrong, or cannot be shown to be right in
// the way that certificates do.
func Issue(s *Statement) (*Certificate, error) {
	is := &issuer{s: s, cert: &Certificate{Format: Format, Plan: s.Plan},
		clocks:  make([][]int32, len(s.Events)),
		learned: make([][]int32, s.Chains), pos: make([]int32, len(s.Events)), adds: make([][]int32, s.Counters), relaxed: make([][]bool, s.Counters),
		entries: map[int32]map[int32]int32{}}
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

// Parse reads a certificate.
func Parse(text []byte) (*Certificate, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	c := &Certificate{}
	if err := d.Decode(c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is something after the certificate")
	}
	return c, nil
}

// issuer finds an order, the whole clocks of all events that wait or add, and which of their entries are needed.
type issuer struct {
	s       *Statement
	cert    *Certificate
	clocks  [][]int32 // by event: by chain
	learned [][]int32 // by chain: the events that waited, in order
	pos     []int32   // by event
	adds    [][]int32 // by counter
	relaxed [][]bool
	entries map[int32]map[int32]int32
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
	done, now := make([]int, s.Chains), make([][]int32, s.Chains)
	waiting := make([][]int32, s.Counters)
	// From the last chain to the first, since the queue is a stack.
	queue := make([]int32, 0, s.Chains)
	for c := range s.Chains {
		queue = append(queue, int32(s.Chains-1-c))
		now[c] = make([]int32, 2*s.Chains)
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
			for _, w := range e.Waits {
				if int(w.N) > len(is.adds[w.Counter]) {
					waiting[w.Counter] = append(waiting[w.Counter], c)
					break chain
				}
			}
			is.join(now[c], e.Waits)
			now[c][c], now[c][int(c)+s.Chains] = is.pos[id], is.pos[id]
			if len(e.Waits)+len(e.Adds) > 0 {
				if kept += 2 * s.Chains; kept > maxClocks {
					return fmt.Errorf("too large: %d events of %d chains", len(s.Events), s.Chains)
				}
				is.clocks[id] = slices.Clone(now[c])
			}
			if len(e.Waits) > 0 {
				is.learned[c] = append(is.learned[c], id)
			}
			done[c]++
			ran++
			left--
			for _, a := range e.Adds {
				is.adds[a.Counter] = append(is.adds[a.Counter], id)
				is.relaxed[a.Counter] = append(is.relaxed[a.Counter], a.Relaxed)
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
func (is *issuer) join(now []int32, waits []Wait) {
	for _, w := range waits {
		if w.Blind {
			continue
		}
		for i := range max(w.N, 0) {
			from := is.clocks[is.adds[w.Counter][i]]
			if w.Relaxed || is.relaxed[w.Counter][i] {
				from, now := from[is.s.Chains:], now[is.s.Chains:]
				for c, t := range from {
					now[c] = max(now[c], t)
				}
				continue
			}
			for c, t := range from {
				now[c] = max(now[c], t)
			}
		}
	}
}

// knows reports whether the first pos events of a chain come before an event, and notes the clocks that show it.
func (is *issuer) knows(event, chain, pos int32) bool {
	at := is.learned[is.s.Events[event].Chain]
	i, _ := slices.BinarySearchFunc(at, pos, func(e, pos int32) int { return int(is.clocks[e][chain]) - int(pos) })
	if i == len(at) || is.pos[at[i]] > is.pos[event] {
		return false
	}
	is.need(at[i], chain, pos)
	return true
}

// need notes that the clock of an event that learned of chain and pos has to say so, and so those that it learned from.
func (is *issuer) need(event, chain, pos int32) {
	if !is.note(event, chain, pos) {
		return
	}
	for _, w := range is.s.Events[event].Waits {
		if w.Blind {
			continue
		}
		for i := w.N - 1; i >= 0; i-- {
			from := is.adds[w.Counter][i]
			if is.clocks[from][chain] < pos || int(chain) < is.s.Chains && (w.Relaxed || is.relaxed[w.Counter][i]) {
				continue
			}
			if is.s.Events[from].Chain != chain%int32(is.s.Chains) {
				is.knows(from, chain, pos)
				is.note(from, chain, pos)
			}
			return
		}
	}
}

// note adds an entry to an event's clock; false if it is there.
func (is *issuer) note(event, chain, pos int32) bool {
	if is.entries[event] == nil {
		is.entries[event] = map[int32]int32{}
	}
	if is.entries[event][chain] >= pos {
		return false
	}
	is.entries[event][chain] = pos
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
				is.cert.Clocks = append(is.cert.Clocks, Clock{id, sorted(e)})
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
