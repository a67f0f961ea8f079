package trace

import (
	"cmp"
	"slices"
	"sort"
)

// interval is the time from lo to hi, hi not included.
type interval struct{ lo, hi int64 }

// union sorts the intervals and joins those that touch; empty ones go.
func union(list []interval) []interval {
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.lo, b.lo) })
	var out []interval
	for _, v := range list {
		switch last := len(out) - 1; {
		case v.hi <= v.lo:
		case last >= 0 && v.lo <= out[last].hi:
			out[last].hi = max(out[last].hi, v.hi)
		default:
			out = append(out, v)
		}
	}
	return out
}

// length returns the total length of a union.
func length(list []interval) int64 {
	var n int64
	for _, v := range list {
		n += v.hi - v.lo
	}
	return n
}

// overlap returns how long two unions hold at the same time.
func overlap(a, b []interval) int64 {
	var n int64
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if d := min(a[i].hi, b[j].hi) - max(a[i].lo, b[j].lo); d > 0 {
			n += d
		}
		if a[i].hi < b[j].hi {
			i++
		} else {
			j++
		}
	}
	return n
}

// covered returns how much of v lies in the union list.
func covered(v interval, list []interval) int64 {
	var n int64
	first := sort.Search(len(list), func(i int) bool { return list[i].hi > v.lo })
	for _, u := range list[first:] {
		if u.lo >= v.hi {
			break
		}
		n += min(u.hi, v.hi) - max(u.lo, v.lo)
	}
	return n
}
