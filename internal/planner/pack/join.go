package pack

import (
	"cmp"
	"slices"
)

// joiner makes few blocks of many items. It stacks blocks that live in the same steps, and chains blocks of one size in
// one place where one begins when the other ends. No step's load changes by that, and a packing of the blocks is one of
// the items. It may have to be higher, though, where two were joined that match by chance.
type joiner struct {
	items []Item
	all   []block // the items, in their order, then the blocks of two
	left  []int32 // those that are part of no other
	steps int64   // that may still be taken
}

// block is an item or two blocks.
type block struct {
	Item
	parts   [2]int32
	stacked bool // the second part lies on the first; otherwise it follows in the same place
}

const (
	// joinCost is the number of steps that it takes to look for the match of one block.
	joinCost = 32
	// firstCost is the number of steps that the greedy packings take for each pair of blocks that meet.
	firstCost = 16
	// chanceUnit is how many parts of one the expected number of matches by chance is given in.
	chanceUnit = 64
	// mostChance is the most such matches up to which blocks are joined.
	mostChance = 16 * chanceUnit
)

func newJoiner(items []Item, steps int64) joiner {
	j := joiner{items: items, steps: steps}
	for i, it := range items {
		j.all, j.left = append(j.all, block{Item: it}), append(j.left, int32(i))
	}
	return j
}

// searchJoined joins items, the surest matches first, and searches for a packing of the blocks whenever they have
// become fewer by an eighth, and then longer where that went best. It returns the best packing of the items and how
// many of the steps remain. No item may have further conflicts.
func searchJoined(items []Item, best []int64, bound, steps int64) ([]int64, int64) {
	j := newJoiner(items, steps)
	before := Height(items, best)
	lowest := before
	search := func(x *joiner, steps int64) int64 {
		j.steps -= steps
		off := x.unfold(newProblem(x.blocks()).search(bound, steps))
		h := Height(items, off)
		if h < lowest {
			best, lowest = off, h
		}
		return h
	}
	type stage struct {
		joiner
		height int64
	}
	var stages []stage
	searched := len(items)
	for chance := int64(1); chance <= mostChance && lowest > bound; chance *= 2 {
		for n := -1; n != len(j.left) && j.steps > 0; {
			n = len(j.left)
			j.stack(chance)
			j.chain(chance)
		}
		first := firstCost * int64(Overlaps(j.blocks()))
		if len(j.left) > searched-searched/8 || j.steps-first < steps/16 {
			continue
		}
		j.steps -= first
		searched = len(j.left)
		x := j
		x.left = slices.Clone(j.left)
		stages = append(stages, stage{x, search(&x, steps/16)})
	}
	slices.SortStableFunc(stages, func(a, b stage) int { return cmp.Compare(a.height, b.height) })
	for _, x := range stages {
		if j.steps < steps/4 || lowest <= bound || x.height >= before {
			break
		}
		search(&x.joiner, steps/4)
	}
	return best, max(j.steps, 0)
}

// blocks returns the blocks that are left as items.
func (j *joiner) blocks() []Item {
	var items []Item
	for _, b := range j.left {
		items = append(items, j.all[b].Item)
	}
	return items
}

// unfold returns the offsets of the items from those of the blocks that are left.
func (j *joiner) unfold(off []int64) []int64 {
	at := make([]int64, len(j.all))
	for k, b := range j.left {
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

// stack joins blocks that live in the same steps, where at most chance of those that begin in a step are expected to
// live as long by chance.
func (j *joiner) stack(chance int64) {
	begins, lengths := map[int32]int64{}, map[int32]int64{}
	for _, b := range j.left {
		it := &j.all[b]
		begins[it.Begin]++
		lengths[it.End-it.Begin]++
	}
	n := int64(len(j.left))
	j.steps -= joinCost * n
	at := map[[2]int32]int{} // places in left, by begin and end
	left := j.left[:0]
	for _, b := range j.left {
		it := &j.all[b]
		life := [2]int32{it.Begin, it.End}
		k, ok := at[life]
		if ok && it.Begin < it.End && chanceUnit*begins[it.Begin]*lengths[it.End-it.Begin] <= chance*n {
			left[k] = j.join(left[k], b, true)
			continue
		}
		at[life] = len(left)
		left = append(left, b)
	}
	j.left = left
}

// chain joins blocks of one size that follow each other, where at most chance of those that begin in a step are
// expected to have that size by chance.
func (j *joiner) chain(chance int64) {
	slices.SortFunc(j.left, func(a, b int32) int {
		return cmp.Or(cmp.Compare(j.all[a].Begin, j.all[b].Begin), cmp.Compare(a, b))
	})
	begins, sizes := map[int32]int64{}, map[int64]int64{}
	for _, b := range j.left {
		begins[j.all[b].Begin]++
		sizes[j.all[b].Size]++
	}
	n := int64(len(j.left))
	j.steps -= joinCost * n
	type end struct {
		size int64
		at   int32
	}
	ended := map[end][]int{} // places in left
	left := j.left[:0]
	for _, b := range j.left {
		it := j.all[b].Item
		if it.Begin >= it.End {
			left = append(left, b)
			continue
		}
		k := len(left)
		at := end{it.Size, it.Begin}
		if e := ended[at]; len(e) > 0 && chanceUnit*begins[it.Begin]*sizes[it.Size] <= chance*n {
			k, ended[at] = e[0], e[1:]
			left[k] = j.join(left[k], b, false)
		} else {
			left = append(left, b)
		}
		at.at = it.End
		ended[at] = append(ended[at], k)
	}
	j.left = left
}

// join makes a block of two and returns it.
func (j *joiner) join(first, second int32, stacked bool) int32 {
	a, b := &j.all[first], &j.all[second]
	it := Item{Size: a.Size, Begin: a.Begin, End: b.End}
	if stacked {
		it.Size += b.Size
	}
	j.all = append(j.all, block{it, [2]int32{first, second}, stacked})
	return int32(len(j.all) - 1)
}
