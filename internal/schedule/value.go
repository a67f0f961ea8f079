package schedule

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
)

// value represents the contents of a cell as a sum of symbols. Each cell with contents before the launch has one
// symbol. Equal sums have equal hashes. The hash adds two random words of 64 bits for each symbol, which are drawn anew
// in each process, so that different sums have equal hashes only with a probability of 2^-100.
type value struct {
	hash  [2]uint64
	terms []*value // summands; nil if the value is a symbol
	sym   int      // for a symbol: its cell and launch
}

// values creates values. Equal values are created only once.
type values struct {
	rng   *rand.ChaCha8
	known map[[2]uint64]*value
	syms  map[int]*value
}

func newValues() *values {
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		binary.LittleEndian.PutUint64(seed[:], rand.Uint64())
	}
	return &values{rng: rand.NewChaCha8(seed), known: map[[2]uint64]*value{}, syms: map[int]*value{}}
}

// symbol returns the contents of cell sym before the launch. For later launches, sym is increased by the number of
// cells times the launch.
func (vs *values) symbol(sym int) *value {
	v := vs.syms[sym]
	if v == nil {
		v = &value{hash: [2]uint64{vs.rng.Uint64(), vs.rng.Uint64()}, sym: sym}
		vs.syms[sym] = v
		vs.known[v.hash] = v
	}
	return v
}

func (vs *values) sum(terms []*value) *value {
	if len(terms) == 1 {
		return terms[0]
	}
	var h [2]uint64
	for _, t := range terms {
		h[0] += t.hash[0]
		h[1] += t.hash[1]
	}
	if v := vs.known[h]; v != nil {
		return v
	}
	v := &value{hash: h, terms: append([]*value(nil), terms...)}
	vs.known[h] = v
	return v
}

// most is the largest number of times that a symbol may occur in a value. Larger counts are not distinguished.
const most = 1 << 40

// contributions returns how often v contains each symbol. It visits each shared sum only once.
func contributions(v *value) map[int]int {
	var order []*value
	seen := map[*value]bool{}
	type frame struct {
		v    *value
		next int
	}
	stack := []frame{{v: v}}
	seen[v] = true
	for len(stack) > 0 {
		f := &stack[len(stack)-1]
		if f.next < len(f.v.terms) {
			t := f.v.terms[f.next]
			f.next++
			if !seen[t] {
				seen[t] = true
				stack = append(stack, frame{v: t})
			}
			continue
		}
		order = append(order, f.v)
		stack = stack[:len(stack)-1]
	}
	times, out := map[*value]int{v: 1}, map[int]int{}
	for i := len(order) - 1; i >= 0; i-- {
		n := times[order[i]]
		if order[i].terms == nil {
			out[order[i].sym] = min(out[order[i].sym]+n, most)
		}
		for _, t := range order[i].terms {
			times[t] = min(times[t]+n, most)
		}
	}
	return out
}
