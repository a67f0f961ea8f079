// Package pack assigns an offset in one range of memory to each buffer, so that no two conflicting buffers share a
// byte. It tries to minimize the size of the range.
//
// Two buffers conflict if their lifetimes overlap, or if Item.Also lists the conflict. The function Search first places
// the buffers greedily. It then searches depth-first for a packing within a capacity, as MiniMalloc does (Moffitt,
// ASPLOS 2023), with capacities that increase from the lower bound. Finally Search improves the greedy orders. Before
// these searches, Search does the same with blocks: buffers that are likely to be adjacent are joined into a block,
// which makes the problem much smaller. The effort is limited by a number of steps and not by time, and random choices
// use a fixed seed. Every process therefore packs the same buffers in the same way.
package pack

import (
	"cmp"
	"slices"
)

// Item describes one buffer to be placed.
type Item struct {
	Size int64
	// The buffer is live in the steps from Begin to End-1. Two items with a common step conflict. An item with
	// Begin = End conflicts only with the items in Also.
	Begin, End int32
	// Also lists the indices of further items with which this item conflicts. If one item lists another, the other must
	// list it too.
	Also []int32
}

// Load returns the maximum number of bytes that are live in one step, and that step. No packing uses fewer bytes.
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

// Height returns the highest end of an item in memory, which is the size of the packing.
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

// mostPairs is the maximum number of conflicts that are listed. If there are more conflicts, gaps are found by
// examining all placed items.
const mostPairs = 16 << 20

// problem holds the input of the packing algorithms.
type problem struct {
	items []Item
	// near lists the conflicts of each item. near is nil if there are more than mostPairs conflicts.
	near [][]int32
	// dense reports that most items conflict with many others.
	dense bool
	// sections is the number of sections. A section is a step whose set of live items is not a subset of the set of
	// another section. Item i is live in the sections from[i] to to[i]-1.
	sections int
	from, to []int32
	load     int64 // maximum number of bytes that are live in one section
	steps    int64 // number of steps that remain
}

func newProblem(items []Item) *problem {
	p := &problem{items: items, from: make([]int32, len(items)), to: make([]int32, len(items))}
	p.cut()
	p.list()
	p.load, _ = Load(items)
	return p
}

// cut determines the sections. A section ends where the end of an item follows the beginning of an item.
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
	for i := range p.items { // an item that is live in no step gets a separate section
		if it := &p.items[i]; it.Begin >= it.End {
			p.from[i], p.to[i] = n, n+1
			n++
		}
	}
	p.sections = int(n)
}

// Overlaps returns the number of pairs of items with a common step, which is the number of pairs that greedy packing
// examines.
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

// list fills near with the conflicts of each item.
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
