package planner

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/plan"
)

const (
	// pairwiseLimit is the number of buffers up to which all pairs are always compared and
	// several layouts tried. More are as long as the pairs, on all ranks that have both, are
	// no more than pairwiseWork; beyond, the online layout keeps time linear.
	pairwiseLimit = 768
	pairwiseWork  = 16 << 20
	// improvements bounds the orders tried when a layout takes more than is live at once, and
	// improvingWork the pairs of buffers looked at for them.
	improvements  = 128
	improvingWork = 16 << 20
)

// item is one buffer to place.
type item struct {
	buf  int32
	size int64 // a multiple of plan.Align
	off  int64
}

// layOut gives every buffer its offset and fills the plan's sizes. Parameters
// come first and share with nobody.
func layOut(w *world, p *plan.Plan, u *usage, stats *Stats) error {
	top := int64(0)
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Role == plan.RoleInput {
			b.Offset = top
			top += plan.Aligned(b.Bytes)
		}
	}
	p.Memory = plan.Memory{Inputs: top, Bound: top + liveBound(p, u)}
	end, err := placeSpace(w, p, u, stats, plan.Arena, top)
	if err != nil {
		return err
	}
	p.ArenaBytes, p.Memory.Peak = end, end
	p.HostBytes, err = placeSpace(w, p, u, stats, plan.Host, 0)
	return err
}

// placeSpace places all buffers of one memory space from base on, and returns
// where the last one ends.
func placeSpace(w *world, p *plan.Plan, u *usage, stats *Stats, space plan.Space, base int64) (int64, error) {
	var items []item
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Role != plan.RoleInput && b.Space == space && b.Bytes > 0 {
			items = append(items, item{buf: int32(i), size: plan.Aligned(b.Bytes)})
		}
	}
	// The order of first use: ids in items then mean time.
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(p.Buffers[a.buf].First, p.Buffers[b.buf].First) })
	bound := int64(0)
	if space == plan.Arena {
		bound = p.Memory.Bound - p.Memory.Inputs
	}
	best := bestLayout(p, u, items, bound, stats)
	end := base
	for _, it := range best {
		b := &p.Buffers[it.buf]
		b.Offset = base + it.off
		end = max(end, b.Offset+it.size)
		if end > maxArena {
			d := w.b.Info.Prog.Diag("limit", p.Sites[b.Site].Pos, "memory for %s would end behind %d bytes, the most that a plan may use", b.Name, int64(maxArena))
			return 0, d
		}
	}
	return end, nil
}

// bestLayout tries a portfolio and returns the smallest layout; one that takes no more than
// bound cannot be better.
func bestLayout(p *plan.Plan, u *usage, items []item, bound int64, stats *Stats) []item {
	best := online(p, u, slices.Clone(items), stats)
	if height(best) <= bound || !fewPairs(u, items) {
		return best
	}
	c := findConflicts(u, items, stats)
	bySize := func(a, b int) int { return cmp.Compare(items[b].size, items[a].size) }
	byTime := func(a, b int) int { return cmp.Compare(a, b) }
	var first []int // the order of the better of the greedy ones
	var least int64
	for _, less := range []func(a, b int) int{bySize, byTime} {
		order := make([]int, len(items))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, less)
		next := greedy(slices.Clone(items), order, c)
		if first == nil || height(next) < least {
			first, least = order, height(next)
		}
		if least < height(best) {
			best = next
		}
	}
	return improved(best, items, first, bound, c)
}

// fewPairs reports whether all pairs of items are compared.
func fewPairs(u *usage, items []item) bool {
	holders := 0
	for _, it := range items {
		holders += len(u.holders[it.buf])
	}
	return len(items) <= pairwiseLimit || len(items)*holders/2 <= pairwiseWork
}

// improved places items again and again, those first that reached the top the last time: what
// is placed early finds a lower place. Where that goes round in circles, some are drawn to go
// before them. It returns the best of all layouts, the same whenever it is asked.
func improved(best, items []item, order []int, bound int64, c *conflicts) []item {
	n := len(items)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	last := greedy(slices.Clone(items), order, c)
	lowest, lowestOrder := last, order
	tries := min(improvements, improvingWork/max(1, n*n))
	for k := range tries {
		if height(best) <= bound {
			break
		}
		drawn := k >= tries/2
		if drawn {
			last, order = lowest, lowestOrder
		}
		order = topFirst(order, last)
		for range 2 {
			if from := rng.IntN(n); drawn {
				x := order[from]
				order = slices.Insert(slices.Delete(order, from, from+1), rng.IntN(from+1), x)
			}
		}
		last = greedy(slices.Clone(items), order, c)
		if height(last) <= height(lowest) { // also where it is no better: a way on
			lowest, lowestOrder = last, order
		}
		if height(last) < height(best) {
			best = last
		}
	}
	return best
}

// topFirst is an order with those first that reach the top of a layout.
func topFirst(order []int, layout []item) []int {
	top := height(layout)
	var first, rest []int
	for _, i := range order {
		if layout[i].off+layout[i].size == top {
			first = append(first, i)
		} else {
			rest = append(rest, i)
		}
	}
	return append(first, rest...)
}

func height(items []item) int64 {
	h := int64(0)
	for _, it := range items {
		h = max(h, it.off+it.size)
	}
	return h
}

// conflicts is a symmetric relation on items, as a bit matrix.
type conflicts struct {
	words int
	bits  []uint64
}

func (c *conflicts) set(i, j int)      { c.bits[i*c.words+j/64] |= 1 << (j % 64) }
func (c *conflicts) has(i, j int) bool { return c.bits[i*c.words+j/64]&(1<<(j%64)) != 0 }

func findConflicts(u *usage, items []item, stats *Stats) *conflicts {
	n := len(items)
	c := &conflicts{words: (n + 63) / 64}
	c.bits = make([]uint64, n*c.words)
	for i := range items {
		for j := range i {
			stats.Compares++
			if !u.mayShare(items[i].buf, items[j].buf) {
				c.set(i, j)
				c.set(j, i)
			}
		}
	}
	return c
}

// greedy places items in the given order, each into the smallest gap between
// those it conflicts with, or behind them.
func greedy(items []item, order []int, c *conflicts) []item {
	placed := make([]int, 0, len(items)) // by offset
	for _, i := range order {
		it := &items[i]
		it.off = bestGap(items, placed, i, c)
		at, _ := slices.BinarySearchFunc(placed, it.off, func(j int, off int64) int { return cmp.Compare(items[j].off, off) })
		placed = slices.Insert(placed, at, i)
	}
	return items
}

func bestGap(items []item, placed []int, i int, c *conflicts) int64 {
	size := items[i].size
	free, best, bestGap := int64(0), int64(-1), int64(0)
	for _, j := range placed {
		if !c.has(i, j) {
			continue
		}
		if gap := items[j].off - free; gap >= size && (best < 0 || gap < bestGap) {
			best, bestGap = free, gap
		}
		free = max(free, items[j].off+items[j].size)
	}
	if best >= 0 {
		return best
	}
	return free
}

// liveBound is the most bytes that a rank's buffers, parameters not counted,
// take at once in the order of the world list.
func liveBound(p *plan.Plan, u *usage) int64 {
	type change struct {
		at    int32
		delta int64
	}
	byRank := make([][]change, p.Ranks)
	for i, hs := range u.holders {
		b := &p.Buffers[i]
		if b.Space != plan.Arena {
			continue
		}
		size := plan.Aligned(b.Bytes)
		for _, h := range hs {
			byRank[h.rank] = append(byRank[h.rank], change{h.begin, size}, change{h.end + 1, -size})
		}
	}
	most := int64(0)
	for _, cs := range byRank {
		slices.SortFunc(cs, func(a, b change) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta))
		})
		live := int64(0)
		for _, c := range cs {
			live += c.delta
			most = max(most, live)
		}
	}
	return most
}
