package pack

import (
	"math/rand/v2"
	"slices"
)

// Search places the items greedily, in several orders, then improves these for so many steps, and returns the offsets
// of the best packing. A step is one look at an item. Search stops at a packing that ends at bound, which may be 0, or
// at the load, since none is better.
func Search(items []Item, bound, steps int64) []int64 {
	p := newProblem(items)
	bound = max(bound, p.load)
	best, order := p.fit(bound, steps)
	if len(p.items) == 0 || Height(p.items, best) <= bound {
		return best
	}
	p.steps = steps
	return p.improve(best, order, bound, rand.New(rand.NewPCG(uint64(len(p.items)), 1)))
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
