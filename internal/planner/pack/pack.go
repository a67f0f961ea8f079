// Package pack places buffers in one range of memory: it gives each an offset, so that no two conflicting buffers
// share a byte, and tries to keep the end of the last one low.
//
// Buffers conflict if their lifetimes overlap, or if a list says so. Search first places them greedily. It then looks
// for a packing within a capacity, for growing capacities from the lower bound on, by depth-first search as in
// MiniMalloc (Moffitt, ASPLOS 2023), and then improves the greedy orders. It first does so with buffers joined that
// are likely to be placed together, which makes the problem much smaller. Its effort is counted in steps, not in time,
// and its random choices have a fixed seed, so every process packs equal buffers equally.
package pack

import (
	"cmp"
	"slices"
)

// Item is one buffer to place.
type Item struct {
	Size int64
	// Begin and End bound the steps that the buffer lives in: from Begin up to, not with, End. Items with a step in
	// common conflict. An item with Begin = End conflicts with those in Also alone.
	Begin, End int32
	// Also lists further conflicts. The relation is symmetric: each of two items lists the other.
	Also []int32
}

// Load returns the most bytes that live in one step, and that step: no packing is smaller.
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

// Height returns where the last item ends.
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

// events returns begins and ends by time; at one time the ends come first.
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

// mostPairs bounds the conflicts that are listed; where there are more, gaps are found by looking at all placed items.
const mostPairs = 16 << 20

// problem is what the algorithms work on.
type problem struct {
	items []Item
	// near lists the conflicts of each item; nil where there are too many.
	near [][]int32
	// dense tells that most items conflict with many others.
	dense bool
	// sections are the steps that matter: in each some items live, and no other section has all of these. from and to
	// are the range of sections [from, to) in which an item lives.
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

// cut finds the sections: one ends at each end that follows a begin.
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

// Overlaps returns the number of pairs of items that have a step in common: what greedy packing looks at.
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

// list fills near.
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
