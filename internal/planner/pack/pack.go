// Package pack places buffers in one range of memory: it gives each buffer an offset, so that no two conflicting
// buffers share a byte, and tries to keep the end of the last buffer low.
//
// Buffers conflict if their lifetimes overlap, or if a list says so. Search first places them greedily. It then
// searches for a packing within a capacity, which increases from the lower bound, by depth-first search as in
// MiniMalloc (Moffitt, ASPLOS 2023), and then improves the greedy orders. Before that, it does the same with blocks:
// buffers that are likely to be placed together are joined, which makes the problem much smaller. The effort is counted
// in steps, not in time, and random choices use a fixed seed, so every process packs the same buffers in the same way.
package pack

import (
	"cmp"
	"slices"
)

// Item describes one buffer to be placed.
type Item struct {
	Size int64
	// The buffer is live in the steps from Begin up to, but not including, End. Two items with a common step conflict.
	// An item with Begin = End conflicts only with the items in Also.
	Begin, End int32
	// Also lists further conflicts. The relation is symmetric: each of two items lists the other.
	Also []int32
}

// Load returns the maximum number of bytes that are live in one step, and that step. No packing is smaller.
func Load(items []Item) (bytes int64, step int32) {
	live := int64(0)
	for _, e := range events(items) {
		if e.begins {
			live += items[e.item].Size
		} else {
			live -= items[e.item].Size
		}
		if live > bytes {
			bytes, step = live, e.at
		}
	}
	return bytes, step
}

// Height returns the end of the item that ends last in memory.
func Height(items []Item, offsets []int64) int64 {
	top := int64(0)
	for i, off := range offsets {
		top = max(top, off+items[i].Size)
	}
	return top
}

type event struct {
	at     int32
	begins bool
	item   int32
}

// events returns the begins and ends of items sorted by time. At equal times, ends precede begins.
func events(items []Item) []event {
	es := make([]event, 0, 2*len(items))
	for i := range items {
		if it := &items[i]; it.Begin < it.End {
			es = append(es, event{it.Begin, true, int32(i)}, event{it.End, false, int32(i)})
		}
	}
	slices.SortFunc(es, func(a, b event) int {
		if c := cmp.Compare(a.at, b.at); c != 0 {
			return c
		}
		if a.begins != b.begins {
			if b.begins {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.item, b.item)
	})
	return es
}

// mostPairs is the maximum number of conflicts that are listed. If there are more, gaps are found by examining all
// placed items.
const mostPairs = 16 << 20

// problem holds the input of the packing algorithms.
type problem struct {
	items []Item
	// near lists the conflicts of each item. It is nil if there are more than mostPairs.
	near [][]int32
	// dense reports that most items conflict with many others.
	dense bool
	// sections is the number of sections. A section is a step whose set of live items is not a subset of another
	// section's set. An item is live in the sections [from, to).
	sections int
	from, to []int32
	load     int64 // the most that live in one section
	steps    int64 // that may still be taken
}

func newProblem(items []Item) *problem {
	p := &problem{items: items, from: make([]int32, len(items)), to: make([]int32, len(items))}
	p.cut()
	p.list()
	p.load, _ = Load(items)
	return p
}

// cut determines the sections. A section ends at each end of an item that follows a begin.
func (p *problem) cut() {
	grown := false
	n := int32(0)
	for _, e := range events(p.items) {
		if e.begins {
			p.from[e.item], grown = n, true
			continue
		}
		if grown {
			n, grown = n+1, false
		}
		p.to[e.item] = n
	}
	for i := range p.items { // who lives in no step has a section alone
		if it := &p.items[i]; it.Begin >= it.End {
			p.from[i], p.to[i] = n, n+1
			n++
		}
	}
	p.sections = int(n)
}

// Overlaps returns the number of pairs of items with a common step. Greedy packing examines that many pairs.
func Overlaps(items []Item) int {
	total, live := 0, 0
	for _, e := range events(items) {
		if e.begins {
			total, live = total+live, live+1
		} else {
			live--
		}
	}
	return total
}

// list computes near.
func (p *problem) list() {
	total := Overlaps(p.items)
	for i := range p.items {
		total += len(p.items[i].Also)
	}
	p.dense = total > mostPairs || total > len(p.items)*len(p.items)/32
	if total > mostPairs {
		return
	}
	p.near = make([][]int32, len(p.items))
	var alive []int32
	for _, e := range events(p.items) {
		if e.begins {
			for _, j := range alive {
				p.near[j] = append(p.near[j], e.item)
			}
			p.near[e.item] = append(p.near[e.item], alive...)
			alive = append(alive, e.item)
			continue
		}
		k := slices.Index(alive, e.item)
		alive[k] = alive[len(alive)-1]
		alive = alive[:len(alive)-1]
	}
	for i := range p.items {
		for _, j := range p.items[i].Also {
			if !p.meet(int32(i), j) {
				p.near[i] = append(p.near[i], j)
			}
		}
	}
}

func (p *problem) meet(i, j int32) bool {
	a, b := &p.items[i], &p.items[j]
	return max(a.Begin, b.Begin) < min(a.End, b.End)
}
