package pack

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Search places the items greedily, in several orders, then searches for so many steps, up to half of them with items
// joined, and returns the offsets of the best packing. A step is one look at an item or at a section. Search stops at a
// packing that ends at bound, which may be 0, or at the load, since none is better.
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

// search is Search without joining items.
func (p *problem) search(bound, steps int64) []int64 {
	best, order := p.fit(bound, steps)
	return p.lower(best, order, bound, steps)
}

// lower searches from a packing, which items placed in this order make about, for a lower one.
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

// improve places items again and again, those first that reached the top the last time: what is placed early finds a
// lower place. Where that goes round in circles, some are drawn to go before them.
func (p *problem) improve(best []int64, order []int32, bound int64, rng *rand.Rand) []int64 {
	n := len(p.items)
	if p.dense && int64(n)*int64(n)/2 > p.steps { // one packing takes more
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
		if h <= lowestTop { // also where it is no better: a way on
			lowest, lowestOrder, lowestTop = last, order, h
		}
		if h < top {
			best, top = last, h
		}
	}
	return best
}

// topFirst is an order with those first that reach the top of a packing.
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

// forward moves one item to a drawn place before its own.
func forward(order []int32, from int, rng *rand.Rand) []int32 {
	x := order[from]
	return slices.Insert(slices.Delete(order, from, from+1), rng.IntN(from+1), x)
}

// tries are the capacities that are tried, from the bound up to the best packing known, in parts of 64.
var tries = []int64{0, 1, 2, 4, 8, 16, 32, 48, 56}

// likely are those that are tried where each try takes long.
var likely = []int64{24, 40, 56}

// descend looks for packings within growing capacities, in rounds that differ in how the next item is chosen and become
// longer.
func (p *problem) descend(best []int64, bound int64, rng *rand.Rand) []int64 {
	d := newDFS(p)
	orders := slices.Delete(p.orders(), 1, 2) // outwards is no order to fill from below
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
		if 32*d.descent > p.steps { // few descents can be made: the likelier capacities first
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

// dfs looks for a packing within a capacity, from the bottom. Each section has a level, below which its bytes are used
// or abandoned. The search picks a section with a low level: either one of its items is placed at that level, or none
// is, and the level rises to the lowest place of the first of them. A capacity is unreachable if a section's level
// plus its unplaced items exceeds it.
type dfs struct {
	p        *problem
	capacity int64
	rank     []int32 // in the order
	floor    []int64 // by item: the lowest place that it can still take
	off      []int64 // -1: not placed
	level    []int64 // by section
	lacks    []int64 // by section: bytes of the items that are not placed
	members  [][]int32
	across   []int32 // by section: items not placed that live in it and in the one before
	lows     lows
	left     int
	limit    int64
	undo     []undo
	looked   []int32 // by section: the placing that it was last looked at for
	placing  int32

	apart   bool    // items conflict only where they live together
	setup   int64   // the steps that a search takes before it places an item
	descent int64   // the steps that a search takes that never goes back
	walls   bool    // prefer items that leave no step beside them
	tilt    int64   // how much sections with little room to spare go first, in eighths
	weight  []int64 // by item: how often it lacked room
}

// undo is one change to take back.
type undo struct {
	what  change
	at    int32
	level int64 // as it was
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

// solve returns offsets within the capacity; nil where none were found in so many steps.
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
		if d.p.items[i].Size == 0 { // lies anywhere
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

// stretch is a range of sections, [lo, hi).
type stretch struct{ lo, hi int32 }

// split packs what a stretch lacks, where only the sections from lo up to hi have changed. Where no item lies across,
// both sides are packed on their own: what one cannot do, the other cannot help.
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

// decide decides what lies at one section's level, and goes on.
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

// candidates returns the items that can be placed at the level of s, in the order of trial, and the new level if none
// of them is.
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
	// One that does not lie here lies on another that is not placed.
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

// open measures how uneven an item would leave the levels: 2 for each neighbouring section with the same level, -1 for
// each whose level equals the item's end.
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

// alike reports whether one item may stand for the other.
func (d *dfs) alike(i, j int32) bool {
	a, b := &d.p.items[i], &d.p.items[j]
	return a.Size == b.Size && a.Begin == b.Begin && a.End == b.End && len(a.Also) == 0 && len(b.Also) == 0
}

// low is what a section is taken by: the lowest first.
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

// place puts an item on its floor, and reports whether what is left may still fit.
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

// mostLooks bounds the members that are looked at for one item placed.
const mostLooks = 1 << 12

// hopeful reports whether the sections of the items whose floors rose can still take what they lack.
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

// blame counts which items lacked room.
func (d *dfs) blame(s int32) {
	for _, i := range d.members[s] {
		if d.off[i] < 0 {
			d.weight[i]++
		}
	}
}

// blamed is an order with those first that lacked room most, weighed by their sizes.
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

// back takes all changes behind mark back.
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

// lows is a tree that finds the section with the least value in a stretch, the leftmost of several.
type lows struct {
	leaves int32
	value  []int64 // by node; the sons of n are 2n and 2n+1, and section s is node leaves+s
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

// least returns the section of [lo, hi) with the least value.
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
