package trace

import (
	"cmp"
	"slices"
	"sort"
)

// Interval is the time from Lo to Hi, exclusive.
type Interval struct{ Lo, Hi int64 }

// Union sorts the intervals of a list, joins those that touch or overlap, and removes empty ones.
func Union(list []Interval) []Interval {
	slices.SortFunc(list, func(a, b Interval) int { return cmp.Compare(a.Lo, b.Lo) })
	var out []Interval
	for _, v := range list {
		switch last := len(out) - 1; {
		case v.Hi <= v.Lo:
		case last >= 0 && v.Lo <= out[last].Hi:
			out[last].Hi = max(out[last].Hi, v.Hi)
		default:
			out = append(out, v)
		}
	}
	return out
}

// Length returns the total length of a union.
func Length(list []Interval) int64 {
	var n int64
	for _, v := range list {
		n += v.Hi - v.Lo
	}
	return n
}

// Overlap returns the length of the time that two unions have in common.
func Overlap(a, b []Interval) int64 {
	var n int64
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if d := min(a[i].Hi, b[j].Hi) - max(a[i].Lo, b[j].Lo); d > 0 {
			n += d
		}
		if a[i].Hi < b[j].Hi {
			i++
		} else {
			j++
		}
	}
	return n
}

// Covered returns the length of the part of v that the union list covers.
func Covered(v Interval, list []Interval) int64 {
	var n int64
	first := sort.Search(len(list), func(i int) bool { return list[i].Hi > v.Lo })
	for _, u := range list[first:] {
		if u.Lo >= v.Hi {
			break
		}
		n += min(u.Hi, v.Hi) - max(u.Lo, v.Lo)
	}
	return n
}
