package pack

import (
	"cmp"
	"slices"
)

// joiner combines items into fewer blocks. It stacks blocks that are live in the same steps. It chains two blocks of
// the same size if one begins when the other ends: both are then placed at one offset. Joining does not change the
// number of live bytes in any step, and a packing of the blocks is also a packing of the items. However, if two joined
// blocks match only by chance, the best packing of the blocks may be higher than the best packing of the items.
type joiner struct {
	items []Item
	all   []block // first the items in their order, then the joined blocks
	left  []int32 // the blocks that are not part of another block
	steps int64   // number of steps that remain
}

// block is one item or a combination of two blocks.
type block struct {
	Item
	parts [2]int32
	// whether the second part is directly above the first; otherwise it is at the same offset and is live later
	stacked bool
}

const (
	// joinCost is the number of steps that are counted for finding the match of one block.
	joinCost = 32
	// firstCost is the number of steps that are counted in the greedy packings for each overlapping pair of blocks.
	firstCost = 16
	// chanceUnit is the scale of expected numbers of matches by chance: a value of chanceUnit is one match.
	chanceUnit = 64
	// mostChance is the maximum expected number of matches by chance at which blocks are still joined.
	mostChance = 16 * chanceUnit
)

func newJoiner(items []Item, steps int64) joiner {
	j := joiner{items: items, steps: steps}
	for i, it := range items {
		j.all, j.left = append(j.all, block{Item: it}), append(j.left, int32(i))
	}
	return j
}

// searchJoined joins items, beginning with the pairs that are least likely to match by chance. Whenever the number of
// blocks has decreased by an eighth, searchJoined searches for a packing of the blocks. Finally searchJoined repeats
// the search, with more steps, for the set of blocks that had the best packing. searchJoined returns the best packing
// of the items and the number of remaining steps. The items must not list further conflicts in Also.
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

// blocks returns the remaining blocks as items.
func (j *joiner) blocks() []Item {
	var items []Item
	for _, b := range j.left {
		items = append(items, j.all[b].Item)
	}
	return items
}

// unfold returns the offsets of the items, computed from the offsets of the remaining blocks.
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

// stack joins blocks that are live in the same steps. It joins two blocks only if few blocks would match by chance:
// among the blocks that begin in the same step, the expected number that have the same lifetime by chance must be at
// most chance.
func (j *joiner) stack(chance int64) {
	begins, lengths := map[int32]int64{}, map[int32]int64{}
	for _, b := range j.left {
		it := &j.all[b]
		begins[it.Begin]++
		lengths[it.End-it.Begin]++
	}
	n := int64(len(j.left))
	j.steps -= joinCost * n
	at := map[[2]int32]int{} // maps the begin and end of a block to its index in left
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

// chain joins blocks of the same size that follow each other in time. It joins two blocks only if few blocks would
// match by chance: among the blocks that begin in the same step, the expected number that have the same size by chance
// must be at most chance.
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
	ended := map[end][]int{} // indices in left
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

// join combines two blocks into a new block and returns it.
func (j *joiner) join(first, second int32, stacked bool) int32 {
	a, b := &j.all[first], &j.all[second]
	it := Item{Size: a.Size, Begin: a.Begin, End: b.End}
	if stacked {
		it.Size += b.Size
	}
	j.all = append(j.all, block{it, [2]int32{first, second}, stacked})
	return int32(len(j.all) - 1)
}
