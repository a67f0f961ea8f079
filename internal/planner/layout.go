package planner

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner/pack"
)

// packSteps bounds the search for a layout that takes no more than is live at once: a millisecond for few buffers, some
// tens for many.
func packSteps(buffers int) int64 { return min(8<<20, 4096*int64(buffers+16)) }

// mostBounded is the number of buffers up to which the bound of the order is found before a layout is searched for.
const mostBounded = 512

// item is one buffer to place.
type item struct {
	buf  int32
	size int64 // a multiple of plan.Align
	off  int64
}

// layOut gives every buffer its offset and fills in the plan's sizes. Parameters come first and share bytes with no
// buffer. If a buffer would end beyond maxArena, layOut returns it.
func layOut(p *plan.Plan, u *usage, stats *Stats) (beyond *plan.Buffer) {
	top := int64(0)
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Role == plan.RoleInput {
			b.Offset = top
			top += plan.Aligned(b.Bytes)
		}
	}
	live, _ := liveAtOnce(p, u)
	p.Memory = plan.Memory{Inputs: top, Bound: top + live}
	if p.ArenaBytes, beyond = placeSpace(p, u, stats, plan.Arena, top); beyond != nil {
		return beyond
	}
	p.Memory.Peak = p.ArenaBytes
	p.HostBytes, beyond = placeSpace(p, u, stats, plan.Host, 0)
	return beyond
}

// placeSpace places all buffers of one memory space from base on, and returns
// where the last one ends, and one that would end behind maxArena.
func placeSpace(
	p *plan.Plan, u *usage, stats *Stats, space plan.Space, base int64,
) (end int64, beyond *plan.Buffer) {
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
	end = base
	for _, it := range best {
		b := &p.Buffers[it.buf]
		b.Offset = base + it.off
		end = max(end, b.Offset+it.size)
		if end > maxArena {
			return 0, b
		}
	}
	return end, nil
}

// bestLayout returns the smallest layout it finds; one that takes no more than bound cannot be better.
func bestLayout(p *plan.Plan, u *usage, items []item, bound int64, stats *Stats) []item {
	best := online(p, u, slices.Clone(items), stats)
	if height(best) <= bound {
		return best
	}
	// Finding the bound of the order takes longer than searching does where there are many.
	if len(items) <= mostBounded && p.Buffers[items[0].buf].Space == plan.Arena {
		order, _ := mostUnordered(p, u, 0)
		if bound = max(bound, order); height(best) <= bound {
			return best
		}
	}
	packed, ok := packItems(p, u, items, stats)
	if !ok {
		return best
	}
	off := pack.Search(packed, bound, packSteps(len(items)))
	if pack.Height(packed, off) >= height(best) {
		return best
	}
	for i := range best {
		best[i].off = off[i]
	}
	return best
}

func height(items []item) int64 {
	h := int64(0)
	for _, it := range items {
		h = max(h, it.off+it.size)
	}
	return h
}
