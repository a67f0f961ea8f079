package trace

// Exposure is the time, in nanoseconds, of some communication, and the part of it during which the rank computed
// nothing.
type Exposure struct {
	Busy    int64 // the sum of the durations of its events
	Exposed int64 // the part during which the rank computed nothing
}

// ExposedBy divides exposed communication into n groups, such as the statements of a program. The function groupOf
// returns the group of the event with an ID. If the result is negative or at least n, the event belongs to no group.
// Only communication that moved bytes is included. The numbers of a group are those of the rank with the most exposed
// communication, because the other ranks wait for this rank. If several ranks have the same exposed communication, the
// one with the most communication is used.
func (t *Trace) ExposedBy(groupOf func(id int64) int, n int) []Exposure {
	compute := t.busy(Compute)
	sums := make([][]Exposure, t.Ranks)
	for r := range sums {
		sums[r] = make([]Exposure, n)
	}
	for i := range t.Events {
		e := &t.Events[i]
		if e.Class != Comm || e.Bytes == 0 || e.Rank < 0 || e.Rank >= t.Ranks {
			continue
		}
		if g := groupOf(e.ID); g >= 0 && g < n {
			s := &sums[e.Rank][g]
			s.Busy += e.Duration()
			s.Exposed += e.Duration() - Covered(Interval{e.Start, e.End}, compute[e.Rank])
		}
	}
	out := make([]Exposure, n)
	for _, row := range sums {
		for g, s := range row {
			if s.Exposed > out[g].Exposed || s.Exposed == out[g].Exposed && s.Busy > out[g].Busy {
				out[g] = s
			}
		}
	}
	return out
}

// busy returns, for each rank, the union of the times of a class of events.
func (t *Trace) busy(c Class) [][]Interval {
	lists := make([][]Interval, t.Ranks)
	for i := range t.Events {
		if e := &t.Events[i]; e.Class == c && e.Rank >= 0 && e.Rank < t.Ranks {
			lists[e.Rank] = append(lists[e.Rank], Interval{e.Start, e.End})
		}
	}
	for r := range lists {
		lists[r] = Union(lists[r])
	}
	return lists
}
