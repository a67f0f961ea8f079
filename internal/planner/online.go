package planner

import (
	"cmp"
	"container/heap"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/plan"
)

// The online layout places buffers in the order of their first use, as an allocator does. A buffer may use a free
// range if it is ordered, by happens-before, after all buffers that used the range. For each buffer, at most
// maxProbes free ranges are examined.

// maxProbes is the maximum number of free ranges that are examined for one buffer.
const maxProbes = 64

// maxPast is the maximum number of earlier buffers that a range records. A range that would need to record more is not
// used again.
const maxPast = 16

// rangeOf is a range of the arena that is free or is occupied by one buffer.
type rangeOf struct {
	off, size  int64
	prev, next int32 // neighbours by address, -1 at the ends
	free, gone bool
	// first and last list the buffers that used these bytes first and last in a run. A new buffer must be ordered
	// after the buffers in last, and the buffers in first must, in the next run, be ordered after the new buffer.
	// Then all other buffers of the range are ordered, too. The order is checked rank by rank. Therefore a buffer
	// remains in last until it is replaced by a buffer that exists on all of its ranks.
	first, last []int32
}

type onlineLayout struct {
	p      *plan.Plan
	u      *usage
	stats  *Stats
	ranges []rangeOf
	tail   int32 // the topmost range, or -1 if the arena is empty
	bins   [binCount][]int32
	live   liveHeap
}

func online(p *plan.Plan, u *usage, items []item, stats *Stats) []item {
	o := &onlineLayout{p: p, u: u, stats: stats, tail: -1}
	for i := range items {
		it := &items[i]
		b := &p.Buffers[it.buf]
		for len(o.live) > 0 && o.live[0].last < b.First {
			o.release(heap.Pop(&o.live).(liveRange).at)
		}
		at := o.take(it.buf, it.size)
		it.off = o.ranges[at].off
		heap.Push(&o.live, liveRange{b.Last, at})
	}
	return items
}

// take returns a range of exactly size bytes for buf. It uses a free range or extends the arena.
func (o *onlineLayout) take(buf int32, size int64) int32 {
	at := o.find(buf, size)
	if at < 0 {
		at = o.mergeFree(buf, size)
	}
	if at < 0 {
		at = o.grow(buf, size)
	}
	o.split(at, size)
	r := &o.ranges[at]
	r.free = false
	r.last = o.replaceLast(r.last, buf)
	if !slices.ContainsFunc(r.first, func(x int32) bool { return o.covers(x, buf) }) {
		r.first = append(slices.Clone(r.first), buf)
	}
	return at
}

// replaceLast returns the list last of a range after buf has used the range. The list contains buf and those earlier
// buffers that also exist on ranks without buf.
func (o *onlineLayout) replaceLast(last []int32, buf int32) []int32 {
	out := []int32{buf}
	for _, x := range last {
		if !o.covers(buf, x) {
			out = append(out, x)
		}
	}
	return out
}

// covers reports whether the buffer a is used on every rank that uses b.
func (o *onlineLayout) covers(a, b int32) bool {
	x, y := o.u.holders[a], o.u.holders[b]
	if len(x) == o.p.Ranks {
		return true
	}
	for _, h := range y {
		for len(x) > 0 && x[0].rank < h.rank {
			x = x[1:]
		}
		if len(x) == 0 || x[0].rank != h.rank {
			return false
		}
	}
	return true
}

// fits reports whether buf may use the free range at.
func (o *onlineLayout) fits(at, buf int32) bool {
	o.stats.Probes++
	r := &o.ranges[at]
	for _, past := range [][]int32{r.last, r.first} {
		for _, x := range past {
			o.stats.Compares++
			if !o.u.mayShare(x, buf) {
				return false
			}
		}
	}
	return true
}

// find returns a free range of at least size bytes. It searches the smallest sufficient size class first.
func (o *onlineLayout) find(buf int32, size int64) int32 {
	probes := 0
	for c := binOf(size); c < binCount; c++ {
		for i := len(o.bins[c]) - 1; i >= 0; i-- {
			at := o.bins[c][i]
			r := &o.ranges[at]
			if r.gone || !r.free {
				o.bins[c] = slices.Delete(o.bins[c], i, i+1)
				continue
			}
			if r.size < size {
				continue
			}
			if o.fits(at, buf) {
				o.bins[c] = slices.Delete(o.bins[c], i, i+1)
				return at
			}
			if probes++; probes == maxProbes {
				return -1
			}
		}
	}
	return -1
}

// mergeFree joins adjacent free ranges that buf may use until they have size bytes. mergeFree starts with the larger of
// the ranges that are too small.
func (o *onlineLayout) mergeFree(buf int32, size int64) int32 {
	probes := 0
	for c := binOf(size); c >= 0 && probes < maxProbes; c-- {
		for i := len(o.bins[c]) - 1; i >= 0 && probes < maxProbes; i-- {
			at := o.bins[c][i]
			if r := &o.ranges[at]; r.gone || !r.free {
				continue
			}
			total, end := int64(0), at
			for end >= 0 && total < size && probes < maxProbes && o.ranges[end].free {
				if probes++; !o.fits(end, buf) {
					break
				}
				total += o.ranges[end].size
				end = o.ranges[end].next
			}
			if total >= size {
				if merged := o.merge(at, end, maxPast); merged >= 0 {
					return merged
				}
			}
		}
	}
	return -1
}

// merge joins the ranges from the one with index at up to, but not including, the one with index end. It returns -1 if
// the joined range would have to record more than most buffers.
func (o *onlineLayout) merge(at, end int32, most int) int32 {
	m := rangeOf{off: o.ranges[at].off, prev: o.ranges[at].prev, next: end, free: true}
	for k := at; k != end; k = o.ranges[k].next {
		m.size += o.ranges[k].size
		m.first = union(m.first, o.ranges[k].first)
		m.last = union(m.last, o.ranges[k].last)
	}
	m.first = o.pruned(m.first, func(x, y *holder) bool { return o.u.alternate(y, x) })
	m.last = o.pruned(m.last, o.u.alternate)
	if len(m.first) > most || len(m.last) > most {
		return -1
	}
	for k := at; k != end; k = o.ranges[k].next {
		o.ranges[k].gone = true
	}
	return o.link(m)
}

// coalesce joins a free range with its free neighbours if every buffer that may use one of the ranges may also use the
// joined range. Without joining, memory would be divided into many small ranges, none of which is large enough for a
// large buffer.
func (o *onlineLayout) coalesce(at int32) int32 {
	for _, pair := range [2]func(r *rangeOf) (int32, int32){
		func(r *rangeOf) (int32, int32) { return r.prev, at },
		func(r *rangeOf) (int32, int32) { return at, r.next },
	} {
		a, b := pair(&o.ranges[at])
		if a < 0 || b < 0 || !o.ranges[a].free || !o.ranges[b].free {
			continue
		}
		x, y := &o.ranges[a], &o.ranges[b]
		most := max(len(x.first), len(x.last), len(y.first), len(y.last))
		if m := o.merge(a, y.next, most); m >= 0 {
			at = m
		}
	}
	return at
}

// pruned removes redundant buffers from a list. Of two ordered buffers, it keeps only the later one, if that one exists
// on all ranks of the other: a buffer that is ordered after the later one is ordered after both. The function
// implies(x, y) compares the uses of two buffers on one rank, and reports whether y makes x redundant.
func (o *onlineLayout) pruned(list []int32, implies func(x, y *holder) bool) []int32 {
	var out []int32
	for i, a := range list {
		implied := slices.ContainsFunc(out, func(b int32) bool { return o.u.covers(b, a, implies) }) ||
			slices.ContainsFunc(list[i+1:], func(b int32) bool { return o.u.covers(b, a, implies) })
		o.stats.Compares += int64(len(list))
		if !implied {
			out = append(out, a)
		}
	}
	return out
}

func union(a, b []int32) []int32 {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// link inserts a range between its neighbours.
func (o *onlineLayout) link(r rangeOf) int32 {
	id := int32(len(o.ranges))
	o.ranges = append(o.ranges, r)
	if r.prev >= 0 {
		o.ranges[r.prev].next = id
	}
	if r.next >= 0 {
		o.ranges[r.next].prev = id
	} else {
		o.tail = id
	}
	return id
}

// grow extends the arena at the top. If the topmost range is free and buf may use it, the new range includes it.
func (o *onlineLayout) grow(buf int32, size int64) int32 {
	r := rangeOf{size: size, prev: o.tail, next: -1, free: true}
	if o.tail >= 0 {
		top := &o.ranges[o.tail]
		if top.free && top.size < size && o.fits(o.tail, buf) {
			top.gone = true
			r.off, r.prev, r.first, r.last = top.off, top.prev, top.first, top.last
		} else {
			r.off = top.off + top.size
		}
	}
	return o.link(r)
}

// split makes the bytes of a range beyond size a separate free range.
func (o *onlineLayout) split(at int32, size int64) {
	r := o.ranges[at]
	if r.size == size {
		return
	}
	o.ranges[at].size = size
	rest := o.link(rangeOf{off: r.off + size, size: r.size - size, prev: at, next: r.next, free: true, first: r.first, last: r.last})
	o.ranges[at].next = rest
	o.bin(rest)
}

func (o *onlineLayout) release(at int32) {
	r := &o.ranges[at]
	if len(r.last) > maxPast || len(r.first) > maxPast {
		return
	}
	r.free = true
	o.bin(o.coalesce(at))
}

func (o *onlineLayout) bin(at int32) {
	c := binOf(o.ranges[at].size)
	o.bins[c] = append(o.bins[c], at)
}

const binCount = 400

// binOf returns the size class of a size. There are eight classes for each power of two.
func binOf(size int64) int {
	q := uint64(size / plan.Align)
	l := bits.Len64(q) - 1
	if l < 3 {
		return int(q)
	}
	return (l-3)*8 + int(q>>(l-3)&7) + 8
}

// liveHeap is a heap of the ranges in use; the range whose use ends first is on top.
type liveHeap []liveRange

type liveRange struct{ last, at int32 }

func (h liveHeap) Len() int           { return len(h) }
func (h liveHeap) Less(i, j int) bool { return cmp.Compare(h[i].last, h[j].last) < 0 }
func (h liveHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *liveHeap) Push(x any)        { *h = append(*h, x.(liveRange)) }
func (h *liveHeap) Pop() any {
	old := *h
	top := old[len(old)-1]
	*h = old[:len(old)-1]
	return top
}
