package pack

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Search returns the offsets of the best packing that it finds. Search first places the items greedily in several
// orders. Search then searches for up to the given number of steps, at most half of them with items joined into blocks.
// In each step, the search examines an item or a section. Search stops when the height of a packing equals the load or
// the argument bound, because no packing is lower. bound may be 0 if it is unknown.
func Search(items []Item, bound, steps int64) []int64 {
	p := newProblem(items)
	bound = max(bound, p.load)
	best, order := p.fit(bound, steps)
	further := slices.ContainsFunc(items, func(it Item) bool { return len(it.Also) > 0 })
	if steps > 0 && !further && Height(items, best) > bound {
		off, left := searchJoined(items, best, bound, steps/2)
		if Height(items, off) < Height(items, best) {
			best, order = off, p.by(func(i int32) int64 { return -off[i] })
		}
		steps += left - steps/2
	}
	return p.lower(best, order, bound, steps)
}

// search is like the function Search, but does not join items.
func (p *problem) search(bound, steps int64) []int64 {
	best, order := p.fit(bound, steps)
	return p.lower(best, order, bound, steps)
}

// lower searches for a packing that is lower than best. It calls descend if the conflicts of the items are listed, and
// then improve. The argument order is the order of the items for which greedy placing gave best.
func (p *problem) lower(best []int64, order []int32, bound, steps int64) []int64 {
	if len(p.items) == 0 || Height(p.items, best) <= bound {
		return best
	}
	rng := rand.New(rand.NewPCG(uint64(len(p.items)), 1))
	p.steps = steps
	if p.near != nil {
		p.steps = steps / 8 * 7
		best = p.descend(best, bound, rng)
		p.steps += steps - steps/8*7
	}
	return p.improve(best, order, bound, rng)
}

// improve packs the items repeatedly while steps are left. Before each attempt it changes their order: it moves the
// items that reached the top of the last packing to the front, because an item that is placed early gets a lower
// offset, and then moves up to three random items forward. Every second attempt starts from the lowest packing so far.
func (p *problem) improve(best []int64, order []int32, bound int64, rng *rand.Rand) []int64 {
	n := len(p.items)
	if p.dense && int64(n)*int64(n)/2 > p.steps { // one packing would take more than the remaining steps
		return best
	}
	last := best
	lowest, lowestOrder, lowestTop := last, order, Height(p.items, last)
	top := lowestTop
	for k := 0; p.steps > 0 && top > bound; k++ {
		if k%2 == 1 {
			last, order = lowest, lowestOrder
		}
		order = p.topFirst(order, last)
		for range 1 + k%3 {
			order = forward(order, rng.IntN(n), rng)
		}
		last = p.gapFit(order, nil, 0, 0)
		h := Height(p.items, last)
		if h <= lowestTop { // an equally high packing is also accepted, to continue from a different order
			lowest, lowestOrder, lowestTop = last, order, h
		}
		if h < top {
			best, top = last, h
		}
	}
	return best
}

// topFirst returns an order in which the items that reach the top of a packing are first.
func (p *problem) topFirst(order []int32, off []int64) []int32 {
	top := Height(p.items, off)
	var first, rest []int32
	for _, i := range order {
		if off[i]+p.items[i].Size == top {
			first = append(first, i)
		} else {
			rest = append(rest, i)
		}
	}
	return append(first, rest...)
}

// forward moves the item at the index from to a random earlier position in the order.
func forward(order []int32, from int, rng *rand.Rand) []int32 {
	x := order[from]
	return slices.Insert(slices.Delete(order, from, from+1), rng.IntN(from+1), x)
}

// tries lists the capacities that descend tries, in 64ths of the distance from the lower bound to the height of the
// best known packing.
var tries = []int64{0, 1, 2, 4, 8, 16, 32, 48, 56}

// likely lists the capacities that descend tries if each try takes many of the remaining steps.
var likely = []int64{24, 40, 56}

// descend searches for packings within increasing capacities. It works in rounds. Later rounds have more steps and use
// other rules for the choice of the next item.
func (p *problem) descend(best []int64, bound int64, rng *rand.Rand) []int64 {
	d := newDFS(p)
	orders := slices.Delete(p.orders(), 1, 2) // the order outwards is not suitable for placing from the bottom
	top := Height(p.items, best)
	for round := 0; p.steps > 0 && bound < top; round++ {
		order := orders[round%len(orders)]
		switch {
		case round%3 == 2 && round > 6:
			order = d.blamed(order)
		case round >= 6*len(orders):
			order = slices.Clone(order)
			for range 1 + len(order)/8 {
				order = forward(order, rng.IntN(len(order)), rng)
			}
		}
		d.tilt, d.walls = int64(round%3), round%2 == 0
		gap, parts, patience := top-bound, tries, int64(8)
		if 32*d.descent > p.steps { // only few descents can be made, so the more likely capacities are tried
			parts, patience = likely, 2
		}
		for _, part := range parts {
			if p.steps <= 0 {
				break
			}
			limit := min(p.steps, patience*d.descent<<min(round/9, 16))
			if off := d.solve(order, bound+gap*part/64, limit); off != nil {
				best, top = off, Height(p.items, off)
				break
			}
		}
	}
	return best
}

// dfs searches for a packing within a capacity by depth-first search from the bottom. Each section has a level: the
// bytes below the level are used or are left unused. The search selects a section with a low level. The search then has
// two choices: it places one of the section's items at that level, or it places none and raises the level to the lowest
// offset that one of the items can have. If a section's level plus the bytes of its unplaced items exceeds the
// capacity, there is no packing.
type dfs struct {
	p        *problem
	capacity int64
	rank     []int32 // for each item: its index in the order
	floor    []int64 // for each item: the lowest offset that it can still have
	off      []int64 // for each item: its offset, or -1 if it is not placed
	level    []int64 // for each section: the bytes below this offset are used or abandoned
	lacks    []int64 // for each section: bytes of the items that are not placed
	members  [][]int32
	across   []int32 // for each section: number of unplaced items that are live in this section and the previous one
	lows     lows
	left     int
	limit    int64
	undo     []undo
	looked   []int32 // for each section: the last placing for which the method hopeful has examined it
	placing  int32

	apart   bool    // items conflict only in sections in which both are live
	setup   int64   // number of steps that a search takes before it places the first item
	descent int64   // number of steps of a search that never backtracks
	walls   bool    // prefer items whose placing leaves the levels of neighbouring sections even (open)
	tilt    int64   // weight in eighths with which sections with little spare room are selected first
	weight  []int64 // for each item: how often a section had too little room for it
}

// undo records one change, so that it can be undone.
type undo struct {
	what  change
	at    int32
	level int64 // the value before the change
}

type change uint8

const (
	levelRose change = iota
	floorRose
	itemPlaced
)

func newDFS(p *problem) *dfs {
	n, m := len(p.items), p.sections
	d := &dfs{
		p: p, rank: make([]int32, n), floor: make([]int64, n), off: make([]int64, n), weight: make([]int64, n),
		level: make([]int64, m), lacks: make([]int64, m), members: make([][]int32, m), across: make([]int32, m),
		looked: make([]int32, m), apart: true, setup: int64(n + m),
	}
	for i := range p.items {
		d.apart = d.apart && len(p.items[i].Also) == 0
		d.setup += int64(p.to[i] - p.from[i])
		d.descent += int64(len(p.near[i])) + 8*int64(p.to[i]-p.from[i]) + 64
		for s := p.from[i]; s < p.to[i]; s++ {
			d.members[s] = append(d.members[s], int32(i))
		}
	}
	return d
}

// solve returns offsets within the capacity, or nil if it found none within limit steps.
func (d *dfs) solve(order []int32, capacity, limit int64) []int64 {
	d.capacity, d.limit, d.undo, d.left, d.placing = capacity, limit, d.undo[:0], len(order), 0
	d.spend(d.setup)
	for _, a := range [][]int64{d.floor, d.level, d.lacks} {
		clear(a)
	}
	clear(d.across)
	clear(d.looked)
	for k, i := range order {
		d.rank[i] = int32(k)
		d.off[i] = -1
		if d.p.items[i].Size == 0 { // an empty item fits at any offset
			d.off[i] = 0
			d.left--
			continue
		}
		for s := d.p.from[i]; s < d.p.to[i]; s++ {
			d.lacks[s] += d.p.items[i].Size
			if s > d.p.from[i] {
				d.across[s]++
			}
		}
	}
	d.lows.build(len(d.level), d.low)
	if d.split(stretch{0, int32(len(d.level))}, 0, int32(len(d.level))) {
		return slices.Clone(d.off)
	}
	return nil
}

// stretch is the range of sections [lo, hi).
type stretch struct{ lo, hi int32 }

// split packs the unplaced items of a range of sections. Only the sections in [lo, hi) have changed since the last
// call. If no unplaced item is live on both sides of a section boundary, the two sides are packed separately. If
// one side cannot be packed, other packings of the other side would not help, so split does not try them.
func (d *dfs) split(all stretch, lo, hi int32) bool {
	if !d.apart {
		return d.left == 0 || d.decide(all)
	}
	var parts []stretch
	from := all.lo
	for s := lo; s <= hi; s++ {
		if s > from && (s == all.hi || s < all.hi && d.across[s] == 0) {
			if s-from > 1 || d.lacks[from] > 0 {
				parts = append(parts, stretch{from, s})
			}
			from = s
		}
	}
	if from < all.hi && (all.hi-from > 1 || d.lacks[from] > 0) {
		parts = append(parts, stretch{from, all.hi})
	}
	slices.SortStableFunc(parts, func(a, b stretch) int { return cmp.Compare(a.hi-a.lo, b.hi-b.lo) })
	for _, x := range parts {
		if !d.decide(x) {
			return false
		}
	}
	return true
}

// decide selects one section, places an item at its level or raises the level, and continues with split.
func (d *dfs) decide(all stretch) bool {
	s := d.lows.least(all.lo, all.hi)
	d.spend(64)
	if d.lacks[s] == 0 {
		return true
	}
	mark := len(d.undo)
	next, rise := d.candidates(s)
	for k, i := range next {
		if k > 0 && d.alike(next[k-1], i) {
			continue
		}
		if d.place(i) && d.split(all, max(all.lo, d.p.from[i]), min(all.hi, d.p.to[i])) {
			return true
		}
		if d.back(mark); d.limit <= 0 {
			return false
		}
	}
	if rise+d.lacks[s] > d.capacity {
		return false
	}
	d.raise(s, rise)
	if d.decide(all) {
		return true
	}
	d.back(mark)
	return false
}

// candidates returns the items that can be placed at the level of s, in the order in which they are tried, and the new
// level of s if none of them is placed.
func (d *dfs) candidates(s int32) (next []int32, rise int64) {
	level, rise := d.level[s], int64(1)<<62
	for _, i := range d.members[s] {
		switch {
		case d.off[i] >= 0:
		case d.floor[i] == level:
			next = append(next, i)
		default:
			rise = min(rise, d.floor[i])
		}
	}
	d.spend(int64(len(d.members[s])))
	slices.SortFunc(next, func(a, b int32) int {
		if d.walls {
			if c := cmp.Compare(d.open(a, level), d.open(b, level)); c != 0 {
				return c
			}
		}
		return cmp.Compare(d.rank[a], d.rank[b])
	})
	// If an item is not placed at this level, it must be placed on top of another item that is not placed yet.
	for _, i := range next {
		if rise <= level+1 {
			break
		}
		for _, j := range d.p.near[i] {
			if d.off[j] < 0 {
				rise = min(rise, d.floor[j]+d.p.items[j].Size)
			}
		}
		d.spend(int64(len(d.p.near[i])))
	}
	return next, max(rise, level+1)
}

// open measures how uneven the levels would be after item i is placed in section s. It adds 2 for each neighbouring
// section with the same level as s, and subtracts 1 for each neighbouring section whose level equals the end of the
// item.
func (d *dfs) open(i int32, level int64) int {
	n := 0
	for _, s := range [2]int32{d.p.from[i] - 1, d.p.to[i]} {
		if s < 0 || int(s) == len(d.level) {
			continue
		}
		switch d.level[s] {
		case level:
			n += 2
		case level + d.p.items[i].Size:
			n--
		}
	}
	return n
}

// alike reports whether the two items are interchangeable.
func (d *dfs) alike(i, j int32) bool {
	a, b := &d.p.items[i], &d.p.items[j]
	return a.Size == b.Size && a.Begin == b.Begin && a.End == b.End && len(a.Also) == 0 && len(b.Also) == 0
}

// low returns the value by which sections are selected; the section with the lowest value is selected first.
func (d *dfs) low(s int32) int64 {
	if d.lacks[s] == 0 {
		return 1 << 62
	}
	return d.level[s] + (d.capacity-d.level[s]-d.lacks[s])*d.tilt/8
}

func (d *dfs) raise(s int32, to int64) {
	d.undo = append(d.undo, undo{levelRose, s, d.level[s]})
	d.level[s] = to
	d.lows.set(s, d.low(s))
	for _, i := range d.members[s] {
		if d.off[i] < 0 && d.floor[i] < to {
			d.undo = append(d.undo, undo{floorRose, i, d.floor[i]})
			d.floor[i] = to
		}
	}
	d.spend(int64(len(d.members[s])))
}

// place puts an item at its floor, and reports whether the remaining items may still fit.
func (d *dfs) place(i int32) bool {
	size := d.p.items[i].Size
	top := d.floor[i] + size
	d.off[i] = d.floor[i]
	d.left--
	d.placing++
	d.undo = append(d.undo, undo{what: itemPlaced, at: i})
	ok := top <= d.capacity
	for s := d.p.from[i]; s < d.p.to[i]; s++ {
		d.undo = append(d.undo, undo{levelRose, s, d.level[s]})
		d.level[s] = top
		d.lacks[s] -= size
		if s > d.p.from[i] {
			d.across[s]--
		}
		d.lows.set(s, d.low(s))
		if top+d.lacks[s] > d.capacity {
			d.blame(s)
			ok = false
		}
	}
	d.spend(8*int64(d.p.to[i]-d.p.from[i]) + int64(len(d.p.near[i])))
	first := len(d.undo)
	for _, j := range d.p.near[i] {
		if d.off[j] < 0 && d.floor[j] < top {
			d.undo = append(d.undo, undo{floorRose, j, d.floor[j]})
			d.floor[j] = top
			ok = ok && top+d.p.items[j].Size <= d.capacity
		}
	}
	return ok && d.hopeful(first)
}

// mostLooks is the maximum number of items of sections that are examined for one item that is placed.
const mostLooks = 1 << 12

// hopeful reports whether sections can still hold their unplaced items. It examines the sections of those items whose
// floors have risen.
func (d *dfs) hopeful(first int) bool {
	looks := int64(0)
	for _, u := range d.undo[first:] {
		d.spend(int64(d.p.to[u.at] - d.p.from[u.at]))
		for s := d.p.from[u.at]; s < d.p.to[u.at]; s++ {
			if d.looked[s] == d.placing {
				continue
			}
			d.looked[s] = d.placing
			least := int64(1) << 62
			for _, i := range d.members[s] {
				if d.off[i] < 0 {
					least = min(least, d.floor[i])
				}
			}
			d.spend(int64(len(d.members[s])))
			if looks += int64(len(d.members[s])); looks > mostLooks {
				return true
			}
			if least+d.lacks[s] > d.capacity {
				d.blame(s)
				return false
			}
		}
	}
	return true
}

// blame increases the weights of the items for which the section s had too little room.
func (d *dfs) blame(s int32) {
	for _, i := range d.members[s] {
		if d.off[i] < 0 {
			d.weight[i]++
		}
	}
}

// blamed returns an order in which the items are first that most often had too little room, weighted by their sizes.
func (d *dfs) blamed(order []int32) []int32 {
	out := slices.Clone(order)
	key := func(i int32) float64 { return float64(d.weight[i]) * float64(d.p.items[i].Size) }
	slices.SortStableFunc(out, func(a, b int32) int { return cmp.Compare(key(b), key(a)) })
	return out
}

func (d *dfs) spend(n int64) {
	d.limit -= n
	d.p.steps -= n
}

// back undoes all changes that were made since mark.
func (d *dfs) back(mark int) {
	for len(d.undo) > mark {
		u := d.undo[len(d.undo)-1]
		d.undo = d.undo[:len(d.undo)-1]
		switch u.what {
		case levelRose:
			d.level[u.at] = u.level
			d.lows.set(u.at, d.low(u.at))
		case floorRose:
			d.floor[u.at] = u.level
		case itemPlaced:
			d.off[u.at] = -1
			d.left++
			for s := d.p.from[u.at]; s < d.p.to[u.at]; s++ {
				d.lacks[s] += d.p.items[u.at].Size
				if s > d.p.from[u.at] {
					d.across[s]++
				}
				d.lows.set(s, d.low(s))
			}
		}
	}
}

// lows is a segment tree that finds the section with the smallest value in a range, and the leftmost one of several.
type lows struct {
	leaves int32
	value  []int64 // for each node: the smallest value; node n has children 2n and 2n+1, section s is node leaves+s
}

func (t *lows) build(sections int, value func(s int32) int64) {
	t.leaves = 1
	for int(t.leaves) < sections {
		t.leaves *= 2
	}
	if len(t.value) == 0 {
		t.value = make([]int64, 2*t.leaves)
	}
	for s := range t.leaves {
		t.value[t.leaves+s] = 1 << 62
		if int(s) < sections {
			t.value[t.leaves+s] = value(s)
		}
	}
	for n := t.leaves - 1; n > 0; n-- {
		t.value[n] = min(t.value[2*n], t.value[2*n+1])
	}
}

func (t *lows) set(s int32, v int64) {
	n := t.leaves + s
	t.value[n] = v
	for n /= 2; n > 0; n /= 2 {
		m := min(t.value[2*n], t.value[2*n+1])
		if t.value[n] == m {
			return
		}
		t.value[n] = m
	}
}

// least returns the section in [lo, hi) with the smallest value.
func (t *lows) least(lo, hi int32) int32 {
	best, least := int32(0), int64(1)<<62+1
	take := func(n int32) {
		if v := t.value[n]; v < least {
			best, least = n, v
		}
	}
	var right []int32
	l, h := lo+t.leaves, hi+t.leaves
	for ; l < h; l, h = l/2, h/2 {
		if l&1 == 1 {
			take(l)
			l++
		}
		if h&1 == 1 {
			h--
			right = append(right, h)
		}
	}
	for k := len(right) - 1; k >= 0; k-- {
		take(right[k])
	}
	for best < t.leaves {
		best *= 2
		if t.value[best] != least {
			best++
		}
	}
	return best - t.leaves
}
