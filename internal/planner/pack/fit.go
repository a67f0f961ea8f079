package pack

import (
	"cmp"
	"slices"
)

// fitLooks bounds what greedy orders look at, besides the first, where they look at all placed items each time.
const fitLooks = 64 << 20

// fit returns the best of the greedy packings and its order. The first order is always tried, the others within so many
// looks where conflicts are many.
func (p *problem) fit(bound, looks int64) (best []int64, order []int32) {
	n := int64(len(p.items))
	most := len(p.items)
	if p.dense {
		most = int(1 + max(looks, fitLooks)/(n*n/2+1))
	}
	least := int64(-1)
	for k, o := range p.orders(most) {
		off := p.gapFit(o, k == 0)
		if h := Height(p.items, off); least < 0 || h < least {
			best, order, least = off, o, h
		}
		if least <= bound {
			break
		}
	}
	return best, order
}

// gapFit places items in the given order, each into the smallest gap between those it conflicts with, or above them. An
// order by begin is a sweep: who has ended is not looked at again.
func (p *problem) gapFit(order []int32, sweep bool) []int64 {
	f := fitter{p: p, sweep: sweep, off: make([]int64, len(p.items))}
	for i := range f.off {
		f.off[i] = -1
	}
	for _, i := range order {
		f.place(i)
	}
	return f.off
}

type fitter struct {
	p      *problem
	sweep  bool
	off    []int64 // -1: not placed
	placed []int32 // by offset, where conflicts are many
	found  []span
}

type span struct{ lo, hi int64 }

func (f *fitter) place(i int32) {
	f.collect(i)
	size := f.p.items[i].Size
	free, best, least := int64(0), int64(-1), int64(0)
	for _, s := range f.found {
		if gap := s.lo - free; gap >= size && (best < 0 || gap < least) {
			best, least = free, gap
		}
		free = max(free, s.hi)
	}
	if best < 0 {
		best = free
	}
	f.off[i] = best
	if f.p.dense {
		at, _ := slices.BinarySearchFunc(f.placed, best, func(j int32, off int64) int {
			return cmp.Compare(f.off[j], off)
		})
		f.placed = slices.Insert(f.placed, at, i)
	}
}

// collect fills found with the places of the placed items that i conflicts with, by offset.
func (f *fitter) collect(i int32) {
	p := f.p
	f.found = f.found[:0]
	if !p.dense {
		p.steps -= int64(len(p.near[i])) + 1
		for _, j := range p.near[i] {
			if f.off[j] >= 0 {
				f.found = append(f.found, span{f.off[j], f.off[j] + p.items[j].Size})
			}
		}
		slices.SortFunc(f.found, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
		return
	}
	p.steps -= int64(len(f.placed)) + 1
	it := &p.items[i]
	also := map[int32]bool{}
	for _, j := range it.Also {
		also[j] = true
	}
	kept := f.placed[:0]
	for _, j := range f.placed {
		b := &p.items[j]
		if f.sweep && b.End <= it.Begin && len(b.Also) == 0 {
			continue
		}
		kept = append(kept, j)
		if max(it.Begin, b.Begin) < min(it.End, b.End) || len(also) > 0 && also[j] {
			f.found = append(f.found, span{f.off[j], f.off[j] + b.Size})
		}
	}
	f.placed = kept
}

// orders returns the orders that items are placed in greedily, so many at the most.
func (p *problem) orders(most int) [][]int32 {
	length := func(i int32) int64 { return int64(p.items[i].End - p.items[i].Begin) }
	size := func(i int32) int64 { return p.items[i].Size }
	by := func(keys ...func(i int32) int64) []int32 {
		o := make([]int32, len(p.items))
		for i := range o {
			o[i] = int32(i)
		}
		slices.SortFunc(o, func(a, b int32) int {
			for _, k := range keys {
				if c := cmp.Compare(k(b), k(a)); c != 0 {
					return c
				}
			}
			return cmp.Compare(a, b)
		})
		return o
	}
	heat := p.heat()
	begin := func(i int32) int64 { return -int64(p.items[i].Begin) }
	area := func(i int32) int64 { return size(i) * length(i) }
	hot := func(i int32) int64 { return heat[i] }
	_, hottest := Load(p.items)
	// Outwards from the step in which most live: they lie without gaps, the longest lived lowest, and what is free
	// later and was free before lies together above.
	apart := func(i int32) int64 {
		return -max(0, int64(p.items[i].Begin)-int64(hottest), int64(hottest)+1-int64(p.items[i].End))
	}
	var orders [][]int32
	for _, keys := range [][]func(i int32) int64{
		{begin, size}, {apart, length}, {hot, length, size}, {size, length}, {length, size}, {area},
		{length, area, hot}, {hot, area},
	} {
		if len(orders) < most {
			orders = append(orders, by(keys...))
		}
	}
	return orders
}

// heat returns for each item the most that live in one of its sections.
func (p *problem) heat() []int64 {
	total := make([]int64, p.sections+1)
	for i := range p.items {
		if p.from[i] < p.to[i] {
			total[p.from[i]] += p.items[i].Size
			total[p.to[i]] -= p.items[i].Size
		}
	}
	for s := 1; s < len(total); s++ {
		total[s] += total[s-1]
	}
	// A sparse table of maxima over stretches of 2^k sections.
	table := [][]int64{total}
	for w := 1; 2*w <= len(total); w *= 2 {
		last := table[len(table)-1]
		next := make([]int64, len(last)-w)
		for s := range next {
			next[s] = max(last[s], last[s+w])
		}
		table = append(table, next)
	}
	heat := make([]int64, len(p.items))
	for i := range p.items {
		n := int(p.to[i] - p.from[i])
		if n <= 0 {
			continue
		}
		k := 0
		for 2<<k <= n {
			k++
		}
		heat[i] = max(table[k][p.from[i]], table[k][int(p.to[i])-1<<k])
	}
	return heat
}
