package trace

// Exposure says how well some communication was hidden, in nanoseconds.
type Exposure struct {
	Busy    int64 // its events' durations
	Exposed int64 // the part of them in which no compute ran on the rank
}

// ExposedBy splits exposed communication over n groups, such as the program's
// statements. groupOf says which group the event with an ID belongs to; below
// 0 or from n on it belongs to none. Only communication that moved bytes
// counts. Each group gets the numbers of the rank where it was busy longest.
func (t *Trace) ExposedBy(groupOf func(id int64) int, n int) []Exposure {
	out := make([]Exposure, n)
	for r := range t.Ranks {
		compute := union(t.intervals(r, Compute))
		sums := make([]Exposure, n)
		for i := range t.Events {
			e := &t.Events[i]
			if e.Rank != r || e.Class != Comm || e.Bytes == 0 {
				continue
			}
			if g := groupOf(e.ID); g >= 0 && g < n {
				sums[g].Busy += e.Duration()
				sums[g].Exposed += e.Duration() - overlap([]interval{{e.Start, e.End}}, compute)
			}
		}
		for g, s := range sums {
			if s.Busy > out[g].Busy {
				out[g] = s
			}
		}
	}
	return out
}

// intervals returns when events of a class lasted on a rank.
func (t *Trace) intervals(rank int, c Class) []interval {
	var list []interval
	for i := range t.Events {
		if e := &t.Events[i]; e.Rank == rank && e.Class == c {
			list = append(list, interval{e.Start, e.End})
		}
	}
	return list
}
