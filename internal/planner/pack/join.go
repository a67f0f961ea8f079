package pack

import (
	"cmp"
	"slices"
)

// block is an item, or two blocks that are placed as one.
type block struct {
	Item
	parts   [2]int32 // of two blocks
	stacked bool     // the second lies on the first; otherwise it follows in the same place
}

// joiner makes few blocks of many items: it joins blocks that live in the same steps, and blocks of one size of which
// one begins where the other ends. No step's load changes, and a packing of the blocks is one of the items. Whether it
// can still be as low depends on whether two that match belong together or match by chance.
type joiner struct {
	items []Item
	all   []block // the items, in their order, and behind them what was joined of blocks before
	top   []int32 // the blocks that are part of no other
	steps int64   // that may still be taken
}

// joinCost is how many steps it takes to look for the match of one block.
const joinCost = 32

// searchJoined joins items, the surest matches first, and searches for packings of the blocks that are left each time
// that they have become fewer by an eighth. It returns best where it finds none lower. No item may have further
// conflicts. A fourth of the steps goes into joining and a sixteenth into each search, up to so many that half is left.
func searchJoined(items []Item, best []int64, bound, steps int64) (lowest []int64, left int64) {
	j := &joiner{items: items, steps: steps / 4}
	for i, it := range items {
		j.all, j.top = append(j.all, block{Item: it}), append(j.top, int32(i))
	}
	left = steps
	searched := len(items)
	for chance := int64(1); j.steps > 0 && left > steps/2; chance *= 4 {
		before := j.steps
		for n := -1; n != len(j.top) && j.steps > 0; {
			n = len(j.top)
			j.stack(chance)
			j.chain(chance)
		}
		left -= before - j.steps
		if len(j.top) <= searched-searched/8 {
			searched = len(j.top)
			p := newProblem(j.blocks())
			off := j.unfold(p.search(bound, steps/16))
			left -= steps / 16
			if Height(items, off) < Height(items, best) {
				best = off
			}
		}
		if Height(items, best) <= bound || chance > chances*int64(len(items)) {
			break
		}
	}
	return best, left
}

// chances is the unit of how many matches a block has by chance.
const chances = 64

// blocks returns the blocks that are left as items.
func (j *joiner) blocks() []Item {
	var items []Item
	for _, b := range j.top {
		items = append(items, j.all[b].Item)
	}
	return items
}

// unfold returns the offsets of the items from those of the blocks that are left.
func (j *joiner) unfold(off []int64) []int64 {
	at := make([]int64, len(j.all))
	for k, b := range j.top {
		at[b] = off[k]
	}
	for b := len(j.all) - 1; b >= len(j.items); b-- {
		first, second := j.all[b].parts[0], j.all[b].parts[1]
		at[first], at[second] = at[b], at[b]
		if j.all[b].stacked {
			at[second] += j.all[first].Size
		}
	}
	return at[:len(j.items)]
}

// stack joins blocks that live in the same steps, where of those that begin as they do at most so many live as long by
// chance.
func (j *joiner) stack(chance int64) {
	begins, lengths := map[int32]int64{}, map[int32]int64{}
	for _, b := range j.top {
		begins[j.all[b].Begin]++
		lengths[j.all[b].End-j.all[b].Begin]++
	}
	n := int64(len(j.top))
	j.steps -= joinCost * n
	left := j.top[:0]
	at := map[[2]int32]int{} // begin and end, to the place in left
	for _, b := range j.top {
		it := &j.all[b].Item
		life := [2]int32{it.Begin, it.End}
		if k, ok := at[life]; ok && chances*begins[it.Begin]*lengths[it.End-it.Begin] <= chance*n {
			left[k] = j.pair(left[k], b, true)
			continue
		}
		at[life] = len(left)
		left = append(left, b)
	}
	j.top = left
}

// chain joins blocks of one size that follow each other, where of those that begin then at most so many have that size
// by chance.
func (j *joiner) chain(chance int64) {
	slices.SortFunc(j.top, func(a, b int32) int {
		return cmp.Or(cmp.Compare(j.all[a].Begin, j.all[b].Begin), cmp.Compare(a, b))
	})
	begins, sizes := map[int32]int64{}, map[int64]int64{}
	for _, b := range j.top {
		begins[j.all[b].Begin]++
		sizes[j.all[b].Size]++
	}
	n := int64(len(j.top))
	j.steps -= joinCost * n
	left := j.top[:0]
	type end struct {
		size int64
		at   int32
	}
	ended := map[end][]int{} // places in left
	for _, b := range j.top {
		it := j.all[b].Item
		k := len(left)
		before := ended[end{it.Size, it.Begin}]
		if it.Begin < it.End && len(before) > 0 && chances*begins[it.Begin]*sizes[it.Size] <= chance*n {
			ended[end{it.Size, it.Begin}] = before[1:]
			k = before[0]
			left[k] = j.pair(left[k], b, false)
		} else {
			left = append(left, b)
		}
		if it.Begin < it.End {
			ended[end{it.Size, it.End}] = append(ended[end{it.Size, it.End}], k)
		}
	}
	j.top = left
}

// pair makes a block of two and returns it.
func (j *joiner) pair(a, b int32, stacked bool) int32 {
	x, y := &j.all[a].Item, &j.all[b].Item
	it := Item{Size: x.Size, Begin: x.Begin, End: y.End}
	if stacked {
		it.Size += y.Size
	}
	j.all = append(j.all, block{it, [2]int32{a, b}, stacked})
	return int32(len(j.all) - 1)
}
