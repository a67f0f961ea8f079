package account

import (
	"fmt"
	"slices"
	"strings"
)

// openCall is a collective that is not complete.
type openCall struct {
	where string
	// begun lists the ranks whose devices have begun the collective. not lists the ranks whose devices have not begun
	// it, or that have not called it. begun and not are empty if the calls of the ranks differ.
	begun, not []int

	from, to int // the problems about the collective, as a range of indices
}

// circle finds a circle of ranks, each of which is in a collective that the next rank has not begun, so that no
// collective can end. circle replaces the problems about these collectives by one that names the circle, because none
// of the ranks is late.
func (f *flights) circle() {
	in := map[int][]int{} // the open calls that the device of each rank has begun
	for i := range f.open {
		for _, r := range f.open[i].begun {
			in[r] = append(in[r], i)
		}
	}
	type step struct{ rank, call int }
	var path []step
	begun, done := map[int]int{}, map[int]bool{} // the position of each rank in path; the calls that lead to no circle
	var walk func(rank int) []step
	walk = func(rank int) []step {
		if at, on := begun[rank]; on {
			if at < 0 {
				return nil // it leads to no circle
			}
			return path[at:]
		}
		begun[rank] = len(path)
		for _, i := range in[rank] {
			if done[i] {
				continue
			}
			path = append(path, step{rank, i})
			for _, next := range f.open[i].not {
				if found := walk(next); found != nil {
					return found
				}
			}
			path = path[:len(path)-1]
			done[i] = true
		}
		begun[rank] = -1
		return nil
	}
	var found []step
	for i := range f.open {
		for _, r := range f.open[i].begun {
			if found == nil {
				found = walk(r)
			}
		}
	}
	if found == nil {
		return
	}
	drop := map[int]bool{}
	var texts []string
	for k, s := range found {
		c := &f.open[s.call]
		for p := c.from; p < c.to; p++ {
			drop[p] = true
		}
		texts = append(texts, fmt.Sprintf("rank %d is in %s, which rank %d has not begun", s.rank, c.where,
			found[(k+1)%len(found)].rank))
	}
	at := -1
	f.r.Problems = slices.DeleteFunc(f.r.Problems, func(Problem) bool { at++; return drop[at] })
	f.problem("order", found[0].rank, "%s: they wait for each other; all ranks must call these groups in one order",
		strings.Join(texts, "; "))
}
