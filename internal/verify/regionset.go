package verify

// regionSet numbers different regions in the order of their insertion. It stores each region once, in a slice, and the
// regions' numbers in a hash table, so that it is fast for a million regions.
type regionSet struct {
	regions []region
	slots   []int32 // hash table: number + 1 of a region, or 0 if the slot is free; the length is a power of two
}

// id returns the number of a region, and reports whether the region had been inserted before.
func (s *regionSet) id(g *region) (id int32, known bool) {
	if 2*len(s.regions) >= len(s.slots) {
		s.grow()
	}
	at := s.slot(g)
	if n := s.slots[at]; n > 0 {
		return n - 1, true
	}
	s.regions = append(s.regions, *g)
	s.slots[at] = int32(len(s.regions))
	return s.slots[at] - 1, false
}

// slot returns the slot of the hash table that holds a region, or the free slot for it.
func (s *regionSet) slot(g *region) int {
	mask := len(s.slots) - 1
	at := int(g.hash()) & mask
	for s.slots[at] > 0 && s.regions[s.slots[at]-1] != *g {
		at = (at + 1) & mask
	}
	return at
}

func (s *regionSet) grow() {
	n := max(64, 2*len(s.slots))
	s.regions = append(make([]region, 0, n/2), s.regions...)
	s.slots = make([]int32, n)
	for i := range s.regions {
		s.slots[s.slot(&s.regions[i])] = int32(i) + 1
	}
}

func (g *region) hash() uint64 {
	h := mix(uint64(g.off)<<1 | uint64(g.space))
	h = mix(h ^ uint64(g.run))
	for i, n := range g.n {
		if n > 0 {
			h = mix(h ^ uint64(n) ^ uint64(g.str[i])<<20)
		}
	}
	return h
}
