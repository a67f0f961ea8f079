package pack

import (
	"cmp"
	"slices"
)

// fitLooks is the maximum number of items that greedy packings, except sweeps, may examine in total. For each item
// that it places, such a packing examines all items that are already placed.
const fitLooks = 64 << 20

// fit returns the best one of the greedy packings, and the order in which it places items. Sweeps are always tried.
// If many items conflict, the other orders are tried only until the number of examined items reaches looks.
func (p *problem) fit(bound, looks int64) (best []int64, order []int32) {
	n := int64(len(p.items))
	most := len(p.items)
	if p.dense {
		most = int(max(looks, fitLooks) / (n*n/2 + 1))
	}
	least := int64(-1)
	_, hottest := Load(p.items)
	try := func(o []int32, ended func(i, j int32) bool, align int64) bool {
		off := p.gapFit(o, ended, hottest, align)
		if h := Height(p.items, off); least < 0 || h < least {
			best, order, least = off, o, h
		}
		return least <= bound
	}
	orders := p.orders()
	if try(orders[0], p.endedBefore, 0) {
		return best, order
	}
	for k, align := range []int64{0, alignUnit / 8, alignUnit / 2, alignUnit, alignUnit * 7 / 4} {
		if k > 0 && Overlaps(p.items) > mostAligned {
			break
		}
		if try(orders[1], p.endedWithin(hottest), align) {
			return best, order
		}
	}
	for _, o := range orders[2:min(len(orders), 2+most)] {
		if try(o, nil, 0) {
			break
		}
	}
	return best, order
}

// endedBefore is the function ended of gapFit for items that are placed in the order of their begins. endedBefore
// reports that neither i nor any later item conflicts with j.
func (p *problem) endedBefore(i, j int32) bool { return p.items[j].End <= p.items[i].Begin }

// endedWithin returns the function ended of gapFit for items that are placed outwards from a step. endedWithin reports
// that the lifetime of j is inside the range of steps whose items have been placed.
func (p *problem) endedWithin(hottest int32) func(i, j int32) bool {
	return func(i, j int32) bool {
		d := p.distance(i, hottest)
		b := &p.items[j]
		return int64(b.Begin) > int64(hottest)-d && int64(b.End) <= int64(hottest)+d
	}
}

// distance returns the number of steps between an item's lifetime and a step, or 0 if the item is live in that step.
func (p *problem) distance(i, step int32) int64 {
	return max(0, int64(p.items[i].Begin)-int64(step), int64(step)+1-int64(p.items[i].End))
}

// alignUnit is the unit of the weight align of gapFit. At this weight, two neighbouring items whose lifetimes end
// one average lifetime apart have the same cost as a gap of the size of one average item.
const alignUnit = 1 << 10

// mostAligned is the maximum number of overlapping pairs of items for which packings with several weights are computed.
const mostAligned = 28 << 20

// gapFit places items in the given order. gapFit places each item into the gap between conflicting items that it fills
// best, or above all of them. A nonzero align is for the order outwards: gapFit then prefers a place next to items
// whose lifetimes end at the same time, so that the gaps that they leave are large. The function ended, which may be
// nil, reports that neither i nor any later item in the order conflicts with j.
func (p *problem) gapFit(order []int32, ended func(i, j int32) bool, hottest int32, align int64) []int64 {
	f := fitter{p: p, ended: ended, hottest: hottest, align: align, off: make([]int64, len(p.items)), size: 1,
		length: 1}
	n := int64(len(p.items))
	for i := range f.off {
		f.off[i] = -1
		f.size += p.items[i].Size / n
		f.length += int64(p.items[i].End - p.items[i].Begin)
	}
	f.length = 1 + f.length/max(n, 1)
	for _, i := range order {
		f.place(i)
	}
	return f.off
}

type fitter struct {
	p            *problem
	ended        func(i, j int32) bool
	hottest      int32
	align        int64
	size, length int64   // size in bytes and lifetime in steps of an average item
	off          []int64 // for each item: its offset, or -1 if it is not placed
	placed       []int32 // placed items sorted by offset; used if many items conflict
	found        []span
}

type span struct {
	lo, hi int64
	item   int32
}

func (f *fitter) place(i int32) {
	f.collect(i)
	size := f.p.items[i].Size
	free, below := int64(0), int32(-1)
	best, least := int64(-1), int64(0)
	for _, s := range f.found {
		if left := s.lo - free - size; left >= 0 {
			at, cost := free, left
			if f.align > 0 {
				low, high := f.misfit(i, below), f.misfit(i, s.item)
				if left == 0 {
					low = min(low, high)
				}
				if high < low {
					at, low = s.lo-size, high
				}
				cost = left*alignUnit/f.size + low
			}
			if best < 0 || cost < least {
				best, least = at, cost
			}
		}
		if s.hi > free {
			free, below = s.hi, s.item
		}
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

// misfit returns the cost of placing i next to a neighbour whose lifetime ends at another step. It is used if items are
// placed outwards from a step. The neighbour is -1 if i is placed at the bottom.
func (f *fitter) misfit(i, neighbour int32) int64 {
	if neighbour < 0 {
		return 0
	}
	a, b := &f.p.items[i], &f.p.items[neighbour]
	var steps int64
	if a.Begin <= f.hottest {
		steps += max(int64(a.Begin)-int64(b.Begin), int64(b.Begin)-int64(a.Begin))
	}
	if a.End > f.hottest {
		steps += max(int64(a.End)-int64(b.End), int64(b.End)-int64(a.End))
	}
	return steps * f.align / f.length
}

// collect fills found with the ranges, sorted by offset, of the placed items that i conflicts with.
func (f *fitter) collect(i int32) {
	p := f.p
	f.found = f.found[:0]
	if !p.dense {
		p.steps -= int64(len(p.near[i])) + 1
		for _, j := range p.near[i] {
			if f.off[j] >= 0 {
				f.found = append(f.found, span{f.off[j], f.off[j] + p.items[j].Size, j})
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
		if f.ended != nil && len(b.Also) == 0 && f.ended(i, j) {
			continue
		}
		kept = append(kept, j)
		if max(it.Begin, b.Begin) < min(it.End, b.End) || len(also) > 0 && also[j] {
			f.found = append(f.found, span{f.off[j], f.off[j] + b.Size, j})
		}
	}
	f.placed = kept
}

// by returns the items sorted by the given keys in descending order.
func (p *problem) by(keys ...func(i int32) int64) []int32 {
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

func (p *problem) length(i int32) int64 { return int64(p.items[i].End) - int64(p.items[i].Begin) }

// outwards returns the items in the order outwards from a step. The items that are live in that step are first. The
// items that are live in the step are placed without gaps, those with the longest lifetimes lowest. The free bytes
// before and after the step are therefore contiguous, above these items.
func (p *problem) outwards(step int32) []int32 {
	return p.by(func(i int32) int64 { return -p.distance(i, step) }, p.length)
}

// orders returns the orders in which items are placed greedily. The first order is by begin. The second is outwards
// from the step in which the most bytes are live.
func (p *problem) orders() [][]int32 {
	size := func(i int32) int64 { return p.items[i].Size }
	heat := p.heat()
	begin := func(i int32) int64 { return -int64(p.items[i].Begin) }
	area := func(i int32) int64 { return size(i) * p.length(i) }
	hot := func(i int32) int64 { return heat[i] }
	_, hottest := Load(p.items)
	return [][]int32{
		p.by(begin, size), p.outwards(hottest), p.by(hot, p.length, size), p.by(size, p.length), p.by(p.length, size),
		p.by(area), p.by(p.length, area, hot), p.by(hot, area),
	}
}

// heat returns for each item the maximum number of bytes that are live in one of the sections of the item.
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
	// table is a sparse table of maxima over ranges of 2^k sections.
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
