package footprint

import (
	"cmp"
	"slices"
)

// Allocator simulates torch's caching allocator for one pool of one stream. The allocator rounds sizes up, splits
// segments into blocks, allocates the best-fitting free block, and merges neighbouring free blocks. A block that other
// streams use is freed once their events have passed; events are polled when memory is next allocated.
type Allocator struct {
	blocks   []*block // free blocks, by size and then address
	waiting  []wait   // blocks that other streams still use, in the order of the calls of Free
	next     int64    // address of the next segment
	Reserved int64
	// Held is the number of bytes that the program has allocated. Waiting is the number of bytes that the program has
	// freed but that other streams still use.
	Held, Waiting          int64
	ReservedPeak, HeldPeak int64
	WaitingPeak            int64
	Segments               int
	Curve                  []Point
	settings               Settings
	// last block of the expandable segment of each pool; the key true stands for the pool of small blocks
	tails  map[bool]*block
	allocs int64
	trace  recorder
}

// Point is the state of the allocator at one time.
type Point struct {
	At                      float64 // seconds
	Reserved, Held, Waiting int64
}

type block struct {
	addr, bytes int64
	free        bool
	small       bool   // belongs to the small pool
	prev, next  *block // neighbours in the segment
	asked       int64
	freed       int64 // number of allocations so far when the block was freed
	site        string
}

type wait struct {
	b     *block
	until float64
}

// These constants are from c10/cuda/CUDACachingAllocator.cpp.
const (
	roundTo     = 512
	smallSize   = 1 << 20  // size of the largest block in the pool of small blocks
	smallBuffer = 2 << 20  // segments of the small pool
	largeBuffer = 20 << 20 // segments for blocks below minLarge
	minLarge    = 10 << 20
	roundLarge  = 2 << 20
)

func rounded(n int64) int64 { return max(roundTo, (n+roundTo-1)/roundTo*roundTo) }

// segmentFor returns the size of the segment that is reserved for a block of n bytes.
func segmentFor(n int64) int64 {
	switch {
	case n <= smallSize:
		return smallBuffer
	case n < minLarge:
		return largeBuffer
	}
	return (n + roundLarge - 1) / roundLarge * roundLarge
}

// Alloc allocates memory at the host time now. grew reports whether a new segment was reserved.
func (a *Allocator) Alloc(bytes int64, now float64) (b *block, grew bool) {
	a.poll(now)
	a.allocs++
	n := rounded(bytes)
	small := n <= smallSize
	most := a.settings.maxSplit
	k := slices.IndexFunc(a.blocks, func(b *block) bool {
		if b.bytes < n || b.small != small {
			return false
		}
		// A block that is too large to be split is used only for requests that are also above the limit for splitting,
		// and that are at most largeBuffer bytes smaller than the block.
		return small || most == 0 || !(n < most && b.bytes >= most) && !(n >= most && b.bytes >= n+largeBuffer)
	})
	switch {
	case k >= 0:
		b = a.blocks[k]
		a.blocks = slices.Delete(a.blocks, k, k+1)
	case a.settings.expandable:
		b, grew = a.expand(n, small, now), true
	default:
		a.collect(now)
		size := segmentFor(n)
		b = &block{addr: a.next, bytes: size, small: small}
		a.next += size + 1<<21
		a.Reserved += size
		a.Segments++
		a.trace.segment("segment_alloc", b.addr, size, now)
		grew = true
	}
	split := small && b.bytes-n >= roundTo || !small && b.bytes-n > smallSize && (most == 0 || n < most)
	if a.settings.expandable {
		split = b.bytes-n >= roundTo && small || b.bytes-n > smallSize
	}
	if split {
		r := &block{addr: b.addr + n, bytes: b.bytes - n, free: true, small: small, prev: b, next: b.next,
			freed: a.allocs}
		if b.next != nil {
			b.next.prev = r
		}
		if a.tails[small] == b {
			a.tails[small] = r
		}
		b.next, b.bytes = r, n
		a.insert(r)
	}
	b.free, b.asked = false, bytes
	a.Held += b.bytes
	a.trace.alloc(b, now)
	a.note(now)
	return b, grew
}

// expand grows a pool's only segment at its end, together with the free block there.
func (a *Allocator) expand(n int64, small bool, now float64) *block {
	page := int64(largeBuffer)
	if small {
		page = smallBuffer
	}
	if a.tails == nil {
		a.tails = map[bool]*block{}
	}
	last := a.tails[small]
	have := int64(0)
	if last != nil && last.free {
		have = last.bytes
	}
	more := (n - have + page - 1) / page * page
	a.Reserved += more
	switch {
	case last == nil:
		last = &block{addr: a.next, bytes: more, small: small}
		a.next += 1 << 44
		a.Segments++
	case last.free:
		a.drop(last)
		last.bytes += more
	default:
		b := &block{addr: last.addr + last.bytes, bytes: more, small: small, prev: last}
		last.next = b
		last = b
	}
	a.tails[small] = last
	a.trace.segment("segment_map", last.addr+last.bytes-more, more, now)
	return last
}

// collect returns whole free segments to the device if the reserved memory exceeds garbage_collection_threshold. It
// begins with segments that have been free for longer than average.
func (a *Allocator) collect(now float64) {
	if a.settings.threshold == 0 {
		return
	}
	most := int64(a.settings.threshold * float64(a.settings.memory))
	for a.Reserved > most {
		var free []*block
		age := int64(0)
		for _, b := range a.blocks {
			if b.prev == nil && b.next == nil && !b.small {
				free = append(free, b)
				age += a.allocs - b.freed
			}
		}
		before := a.Reserved
		for _, b := range free {
			if a.Reserved > most && (a.allocs-b.freed)*int64(len(free)) >= age {
				a.drop(b)
				a.Reserved -= b.bytes
				a.trace.segment("segment_free", b.addr, b.bytes, now)
			}
		}
		if a.Reserved == before {
			return
		}
	}
}

// Free frees a block. until is the time at which other streams finish using the block, or 0 if no other stream uses it.
func (a *Allocator) Free(b *block, now, until float64) {
	a.Held -= b.bytes
	a.trace.add("free_requested", b.addr, b.bytes, b.site, now)
	if until > 0 {
		a.Waiting += b.bytes
		a.waiting = append(a.waiting, wait{b, until})
	} else {
		a.release(b, now)
	}
	a.note(now)
}

// poll frees blocks whose events have passed. Events are polled in order, so an event that has not passed delays all
// later events.
func (a *Allocator) poll(now float64) {
	for len(a.waiting) > 0 && a.waiting[0].until <= now {
		b := a.waiting[0].b
		a.waiting = a.waiting[1:]
		a.Waiting -= b.bytes
		a.release(b, now)
	}
}

func (a *Allocator) release(b *block, now float64) {
	a.trace.free(b, now)
	b.free, b.freed = true, a.allocs
	if p := b.prev; p != nil && p.free {
		a.drop(p)
		b.addr, b.bytes, b.prev = p.addr, b.bytes+p.bytes, p.prev
		if p.prev != nil {
			p.prev.next = b
		}
	}
	if n := b.next; n != nil && n.free {
		a.drop(n)
		b.bytes, b.next = b.bytes+n.bytes, n.next
		if a.tails[b.small] == n {
			a.tails[b.small] = b
		}
		if n.next != nil {
			n.next.prev = b
		}
	}
	a.insert(b)
}

func (a *Allocator) insert(b *block) {
	k, _ := slices.BinarySearchFunc(a.blocks, b, func(x, y *block) int {
		return cmp.Or(cmp.Compare(x.bytes, y.bytes), cmp.Compare(x.addr, y.addr))
	})
	a.blocks = slices.Insert(a.blocks, k, b)
}

func (a *Allocator) drop(b *block) {
	a.blocks = slices.DeleteFunc(a.blocks, func(x *block) bool { return x == b })
}

func (a *Allocator) note(now float64) {
	a.ReservedPeak, a.HeldPeak, a.WaitingPeak = max(a.ReservedPeak, a.Reserved), max(a.HeldPeak,
		a.Held), max(a.WaitingPeak, a.Waiting)
	a.Curve = append(a.Curve, Point{now, a.Reserved, a.Held, a.Waiting})
}
