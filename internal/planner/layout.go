package planner

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner/pack"
)

// packSteps returns the maximum number of steps of the search for a small layout. The search takes about a millisecond
// for few buffers and tens of milliseconds for many buffers.
func packSteps(buffers int) int64 { return min(8<<20, 4096*int64(buffers+16)) }

// mostBounded is the maximum number of buffers for which the search for a layout first computes the lower bound that
// follows from the order of the commands (Footprint.Bound).
const mostBounded = 512

// item describes one buffer to be placed.
type item struct {
	buf  int32
	size int64 // a multiple of plan.Align
	off  int64
}

// layOut assigns an offset to every buffer and sets the plan's sizes. Parameters are placed first and share no bytes
// with other buffers. If a buffer would end beyond maxArena, layOut returns that buffer.
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

// placeSpace assigns offsets, starting at base, to all buffers of one memory space. placeSpace returns the end of the
// last buffer. If a buffer would end beyond maxArena, placeSpace also returns that buffer.
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
	// Sort by first use, so that indices in items increase with time.
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

// bestLayout returns the smallest layout that it finds. bestLayout stops at a layout of size bound, because no layout
// is smaller.
func bestLayout(p *plan.Plan, u *usage, items []item, bound int64, stats *Stats) []item {
	best := online(p, u, slices.Clone(items), stats)
	if height(best) <= bound {
		return best
	}
	// For more than mostBounded items, computing the lower bound takes longer than the search.
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
