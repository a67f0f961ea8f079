package footprint

import (
	"cmp"
	"slices"
)

// Allocator simulates torch's caching allocator for one pool of one stream: sizes are rounded, blocks are cut from
// segments, the best free block is taken and neighbours are joined. What other streams use is given back once their
// events have passed, which is looked at when memory is next asked for.
type Allocator struct {
	blocks   []*block // free ones, by size and then address
	waiting  []wait   // in the order in which they were given back
	next     int64    // address of the next segment
	Reserved int64
	// Held is what the program holds, Waiting what waits for other streams.
	Held, Waiting          int64
	ReservedPeak, HeldPeak int64
	WaitingPeak            int64
	Segments               int
	Curve                  []Point
}

// Point is a state of the allocator.
type Point struct {
	At                      float64 // seconds
	Reserved, Held, Waiting int64
}

type block struct {
	addr, bytes int64
	free        bool
	prev, next  *block // neighbours in the segment
	asked       int64
}

type wait struct {
	b     *block
	until float64
}

// These are the constants of c10/cuda/CUDACachingAllocator.cpp.
const (
	roundTo     = 512
	smallSize   = 1 << 20  // the largest block of the small pool
	smallBuffer = 2 << 20  // segments of the small pool
	largeBuffer = 20 << 20 // segments for blocks below minLarge
	minLarge    = 10 << 20
	roundLarge  = 2 << 20
)

func rounded(n int64) int64 { return max(roundTo, (n+roundTo-1)/roundTo*roundTo) }

// segmentFor is the size of the segment that is reserved for a block.
func segmentFor(n int64) int64 {
	switch {
	case n <= smallSize:
		return smallBuffer
	case n < minLarge:
		return largeBuffer
	}
	return (n + roundLarge - 1) / roundLarge * roundLarge
}

// Alloc takes memory at a time of the host, and reports whether a segment was reserved for it.
func (a *Allocator) Alloc(bytes int64, now float64) (b *block, grew bool) {
	a.poll(now)
	n := rounded(bytes)
	small := n <= smallSize
	k := slices.IndexFunc(a.blocks, func(b *block) bool {
		return b.bytes >= n &&
			(segmentBytes(b) == smallBuffer) == small
	})
	if k < 0 {
		size := segmentFor(n)
		b = &block{addr: a.next, bytes: size}
		a.next += size + 1<<21
		a.Reserved += size
		a.Segments++
		grew = true
	} else {
		b = a.blocks[k]
		a.blocks = slices.Delete(a.blocks, k, k+1)
	}
	if rest := b.bytes - n; small && rest >= roundTo || !small && rest > smallSize {
		r := &block{addr: b.addr + n, bytes: rest, free: true, prev: b, next: b.next}
		if b.next != nil {
			b.next.prev = r
		}
		b.next, b.bytes = r, n
		a.insert(r)
	}
	b.free, b.asked = false, bytes
	a.Held += b.bytes
	a.note(now)
	return b, grew
}

// segmentBytes is the size of the segment that a block is of.
func segmentBytes(b *block) int64 {
	sum := b.bytes
	for x := b.prev; x != nil; x = x.prev {
		sum += x.bytes
	}
	for x := b.next; x != nil; x = x.next {
		sum += x.bytes
	}
	return sum
}

// Free gives memory back. until is when the other streams that used it are through with it; 0 for none.
func (a *Allocator) Free(b *block, now, until float64) {
	a.Held -= b.bytes
	if until > 0 {
		a.Waiting += b.bytes
		a.waiting = append(a.waiting, wait{b, until})
	} else {
		a.release(b)
	}
	a.note(now)
}

// poll gives back what waits no longer. An event that has not passed keeps those recorded behind it waiting.
func (a *Allocator) poll(now float64) {
	for len(a.waiting) > 0 && a.waiting[0].until <= now {
		b := a.waiting[0].b
		a.waiting = a.waiting[1:]
		a.Waiting -= b.bytes
		a.release(b)
	}
}

func (a *Allocator) release(b *block) {
	b.free = true
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
