package trace

// Exposure says how well some communication was hidden, in nanoseconds.
type Exposure struct {
	Busy    int64 // its events' durations
	Exposed int64 // the part of them in which no compute ran on the rank
}

// ExposedBy splits exposed communication over n groups, such as the program's
// statements. groupOf says which group the event with an ID belongs to; below
// 0 or from n on it belongs to none. Only communication that moved bytes
// counts. Each group gets the numbers of the rank where most of it was exposed, since
// that rank is waited for; where several have as much, of the one busy longest.
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
