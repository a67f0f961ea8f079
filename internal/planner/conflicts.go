package planner

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner/pack"
)

// pairsBound returns the maximum number of pairs of buffers that are compared in a plan with n buffers. Plans with more
// pairs use the online layout, which takes linear time.
func pairsBound(n int) int { return min(n*n, 1<<18+32*n) }

// mostOverlaps is the maximum number of pairs of simultaneously live buffers for which package pack is used. Packing
// with this number of pairs takes about 100 ms.
const mostOverlaps = 16 << 20

// packItems returns the input of package pack: the items with their lifetimes on rank 0, and the conflicts between
// items whose lifetimes on rank 0 do not overlap. If there are too many pairs to compare, ok is false.
//
// Two buffers conflict if their lifetimes overlap in the issue order of some rank. Other pairs of buffers may conflict
// only if some use of one buffer is not certain to be done before a use of the other begins; only such pairs are
// compared. The pairs to compare are found stream by stream. The knowledge of a stream only grows. Therefore, for a
// given use y, the uses on another stream that are neither done before y begins nor begin after y is done are
// consecutive: they form a window of the uses on that stream.
func packItems(p *plan.Plan, u *usage, items []item, stats *Stats) (out []pack.Item, ok bool) {
	out = make([]pack.Item, len(items))
	index := make([]int32, len(p.Buffers))
	for i := range index {
		index[i] = -1
	}
	for i, it := range items {
		index[it.buf] = int32(i)
		out[i].Size = it.size
		if hs := u.holders[it.buf]; len(hs) > 0 && hs[0].rank == 0 {
			out[i].Begin, out[i].End = hs[0].begin, hs[0].end+1
		}
	}
	if pack.Overlaps(out) > mostOverlaps {
		return nil, false
	}
	f := &pairFinder{p: p, u: u, items: out, index: index, stats: stats, most: pairsBound(len(items))}
	late := slices.ContainsFunc(p.Cmds, func(c plan.Cmd) bool { return c.Late })
	switch {
	case late && len(items) > 2048:
		return nil, false
	case late: // a wait may need a signal that is later in the command list, so all pairs are compared
		for i := range items {
			for j := range i {
				f.add(int32(i), int32(j))
			}
		}
	default:
		for r := range p.Ranks {
			if !f.onRank(int32(r)) {
				return nil, false
			}
		}
	}
	return out, f.compare(items)
}

type pairFinder struct {
	p     *plan.Plan
	u     *usage
	items []pack.Item
	index []int32 // for each buffer, its index in items
	pairs []uint64
	most  int // maximum number of pairs
	stats *Stats
}

// rankUse is one use of a buffer on one rank.
type rankUse struct {
	item int32
	use  *use
}

func (f *pairFinder) add(i, j int32) {
	if i != j && max(f.items[i].Begin, f.items[j].Begin) >= min(f.items[i].End, f.items[j].End) {
		f.pairs = append(f.pairs, uint64(min(i, j))<<32|uint64(max(i, j)))
	}
}

// onRank adds the pairs of buffers that may conflict on rank r. onRank returns false if there are too many pairs.
func (f *pairFinder) onRank(r int32) bool {
	byStream := map[int32][]rankUse{}
	var spans []pack.Item // the lifetimes on this rank
	var ids []int32
	for b, i := range f.index {
		if i < 0 {
			continue
		}
		for h := range f.u.holders[b] {
			x := &f.u.holders[b][h]
			if x.rank != r {
				continue
			}
			spans, ids = append(spans, pack.Item{Begin: x.begin, End: x.end + 1}), append(ids, i)
			for k := x.uses; k >= 0; k = f.u.uses[k].next {
				s := f.u.uses[k].stream
				byStream[s] = append(byStream[s], rankUse{i, &f.u.uses[k]})
			}
		}
	}
	if r > 0 && !f.meeting(spans, ids) {
		return false
	}
	streams := make([]*usesOf, 0, len(byStream))
	for s, us := range byStream {
		slices.SortFunc(us, func(a, b rankUse) int {
			return cmp.Or(cmp.Compare(a.use.first, b.use.first), cmp.Compare(a.item, b.item))
		})
		streams = append(streams, newUsesOf(s, us))
	}
	slices.SortFunc(streams, func(a, b *usesOf) int { return cmp.Compare(a.stream, b.stream) })
	for _, on := range streams {
		for _, y := range on.uses {
			for _, s := range streams {
				f.window(y, s)
			}
			if len(f.pairs) > 2*f.most {
				return false
			}
		}
	}
	return true
}

// window adds the pairs of y with those uses on the stream s that are neither done before y begins nor begin after y is
// done. It considers both orders within one run and from one run to the next.
func (f *pairFinder) window(y rankUse, s *usesOf) {
	known := y.use.before[0].at(s.stream)
	after, _ := slices.BinarySearchFunc(s.uses, y, func(x, y rankUse) int {
		if x.use.before[0].knows(y.use.stream, y.use.last) {
			return 1
		}
		return -1
	})
	s.later(1, 0, s.leaves, int32(after), known, func(x int32) { f.add(s.uses[x].item, y.item) })
	if wrapped := y.use.before[1].at(s.stream); s.last[1] > wrapped {
		s.later(1, 0, s.leaves, int32(len(s.uses)), wrapped, func(x int32) { f.add(s.uses[x].item, y.item) })
	}
}

// meeting adds the pairs of buffers whose lifetimes overlap on a rank.
func (f *pairFinder) meeting(spans []pack.Item, ids []int32) bool {
	order := make([]int32, len(spans))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(spans[a].Begin, spans[b].Begin), cmp.Compare(a, b))
	})
	var alive []int32
	for _, i := range order {
		kept := alive[:0]
		for _, j := range alive {
			if spans[j].End > spans[i].Begin {
				kept = append(kept, j)
				f.add(ids[i], ids[j])
			}
		}
		if alive = append(kept, i); len(f.pairs) > 2*f.most {
			return false
		}
	}
	return true
}

// compare examines all pairs, and keeps those of buffers that must not share memory. It adds each of these to the
// conflicts of its two items.
func (f *pairFinder) compare(items []item) bool {
	slices.Sort(f.pairs)
	f.pairs = slices.Compact(f.pairs)
	if len(f.pairs) > f.most {
		return false
	}
	for _, pair := range f.pairs {
		i, j := int32(pair>>32), int32(pair&(1<<32-1))
		f.stats.Compares++
		if !f.u.mayShare(items[i].buf, items[j].buf) {
			f.items[i].Also = append(f.items[i].Also, j)
			f.items[j].Also = append(f.items[j].Also, i)
		}
	}
	return true
}

// usesOf holds the uses on one stream, sorted by first command, and a tree over their last commands. With the tree,
// the uses whose last command follows a given command are found without visiting the other uses.
type usesOf struct {
	stream int32
	uses   []rankUse
	leaves int32
	last   []int32 // for each node of the tree, the largest last command; node 1 is the root, and use k is node leaves+k
}

func newUsesOf(stream int32, uses []rankUse) *usesOf {
	t := &usesOf{stream: stream, uses: uses, leaves: 1}
	for int(t.leaves) < len(uses) {
		t.leaves *= 2
	}
	t.last = make([]int32, 2*t.leaves)
	for k, x := range uses {
		t.last[int(t.leaves)+k] = x.use.last
	}
	for n := t.leaves - 1; n > 0; n-- {
		t.last[n] = max(t.last[2*n], t.last[2*n+1])
	}
	return t
}

// later is an iterator: it calls f for each use whose index is less than end and whose last command is after known. It
// searches the subtree of node, which holds the uses with indices in [lo, hi).
func (t *usesOf) later(node, lo, hi, end, known int32, f func(k int32)) {
	switch {
	case lo >= end || t.last[node] <= known:
	case hi-lo == 1:
		f(lo)
	default:
		mid := (lo + hi) / 2
		t.later(2*node, lo, mid, end, known, f)
		t.later(2*node+1, mid, hi, end, known, f)
	}
}
