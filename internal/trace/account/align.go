package account

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"slices"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// Clock describes how the clock of one rank was aligned with that of the first rank, or, if collectives do not connect
// all ranks, with that of the first rank of its part (see Alignment).
type Clock struct {
	Rank     int     `json:"rank"`
	OffsetUS float64 `json:"offset_us"` // the offset that is added to the rank's times at the start of the profile
	DriftPPM float64 `json:"drift_ppm"`
	// Collectives is the number of collectives whose ends on the two clocks were compared.
	Collectives int `json:"collectives"`
}

// Alignment describes how well the clocks of the ranks agree.
type Alignment struct {
	// ResidualUS is the largest distance that remains, after the alignment, between the ends of one collective on
	// different ranks. ResidualUS is nil if there are fewer than two collectives, from which it could be computed.
	ResidualUS *float64 `json:"residual_us"`
	// Method is the way in which clocks were aligned: "one clock" if there is only one, "ends" if the ends of
	// collectives were used, or "none".
	Method string  `json:"method"`
	Clocks []Clock `json:"clocks,omitempty"`
	// Parts lists the sets of ranks that are connected by common collectives. A rank is given by its number. The clocks
	// of different parts are not compared: each part begins at time 0. Parts is nil if all ranks are connected.
	Parts [][]int `json:"parts,omitempty"`
}

// align shifts the times of all ranks to the clock of the first rank. If collectives do not connect all ranks, each
// connected part has its own clock, which begins with the first event of the part.
func (a *matching) align() {
	a.r.Alignment.Method = "one clock"
	if a.exact() {
		zero := 0.0
		a.r.Alignment.ResidualUS = &zero
		return
	}
	shared := a.sharedEnds()
	if a.t.Ranks < 2 {
		a.refuse("one rank has only their sum: give the profiles of all ranks")
		return
	}
	if len(shared) == 0 {
		a.r.Alignment.Method = "none"
		a.refuse("the ranks share no collective that all end together, so their clocks cannot be compared")
		return
	}
	if oneClock(a.t.Clocks) && a.spread(shared) <= a.bound {
		a.settle(shared, 1)
		return
	}
	a.r.Alignment.Method = "ends"
	clocks := a.t.Clocks
	if oneClock(clocks) { // the ends of collectives show that this single clock is not correct
		clocks = make([]int, a.t.Ranks)
		for r := range clocks {
			clocks[r] = r
		}
	}
	gap, before, after := a.separateRuns()
	a.fitAll(clocks, shared)
	a.settle(shared, 2)
	switch {
	case gap > 0 && (a.untold != "" || gap > leastBetweenRuns):
		a.mixed(after, "the profile of rank %d begins %s after that of rank %d has ended, by the hosts' clocks: "+
			"if they are of two runs, give the profiles of one run", after, short(gap), before)
	case a.t.Repeats && a.untold != "":
		a.mixed(a.t.ID(0), "a device occurs in several sessions: if the rows are of several runs, put each run into a separate file")
	}
}

// mixed adds the problem that the profiles may be of several runs. This problem is placed first, because it explains
// the others.
func (a *matching) mixed(rank int, format string, args ...any) {
	a.r.Problems = slices.Insert(a.r.Problems, 0, Problem{"runs", rank, fmt.Sprintf(format, args...)})
}

// leastBetweenRuns is the time in nanoseconds between the end of one profile and the start of another from which they
// are considered to be of two runs, even if their collectives agree. The clocks of hosts differ by less.
const leastBetweenRuns = 1_000_000_000

// separateRuns returns the largest time by which the profile of one rank begins after that of another has ended, and
// the two ranks. Before clocks are aligned, only the times in profiles of kineto can be compared.
func (a *matching) separateRuns() (gap int64, before, after int) {
	if a.t.Source != "kineto" {
		return 0, 0, 0
	}
	ranks := make([]ends, a.t.Ranks)
	for i := range a.t.Events {
		e := &a.t.Events[i]
		ranks[e.Rank].add(e.Start)
		ranks[e.Rank].add(e.End)
	}
	first, last := -1, -1
	for r := range ranks {
		if ranks[r].n == 0 {
			continue
		}
		if first < 0 || ranks[r].hi < ranks[first].hi {
			first = r
		}
		if last < 0 || ranks[r].lo > ranks[last].lo {
			last = r
		}
	}
	if first < 0 {
		return 0, 0, 0
	}
	return ranks[last].lo - ranks[first].hi, a.t.ID(first), a.t.ID(last)
}

// exact reports whether all times come from one clock. Only traces that hocket recorded can have a single clock.
func (a *matching) exact() bool { return a.t.Source == "" && oneClock(a.t.Clocks) }

func oneClock(clocks []int) bool {
	return len(clocks) == 0 || !slices.ContainsFunc(clocks, func(c int) bool { return c != clocks[0] })
}

// sharedEnds returns the collectives whose ends can be used to compare clocks.
func (a *matching) sharedEnds() [][]call {
	var out [][]call
	for _, list := range a.members {
		if len(list) > 1 && trace.EndsTogether(a.t.Events[list[0]].Name) {
			out = append(out, list)
		}
	}
	return out
}

// spread returns the largest distance between the ends of one collective on different ranks.
func (a *matching) spread(shared [][]call) int64 {
	var most int64
	for _, list := range shared {
		most = max(most, a.apart(list))
	}
	return most
}

func (a *matching) apart(list []call) int64 {
	var all ends
	for _, i := range list {
		all.add(a.t.Events[i].End)
	}
	return all.hi - all.lo
}

// settle sets the residual, and names the parts that share only one collective, so that their alignment cannot be
// checked. If the residual exceeds the bound, the ranks are not compared. least is the smallest number of shared
// collectives by which an alignment can be checked.
func (a *matching) settle(shared [][]call, least int) {
	if a.untold != "" {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(shared),
		func(list []call) bool { return a.outlier[a.t.Events[list[0]].Group] })
	count, ranks := map[int]int{}, map[int][]int{} // by part
	for _, list := range kept {
		count[a.partOf(a.t.Events[list[0]].Rank)]++
	}
	for r := range a.t.Ranks {
		ranks[a.partOf(r)] = append(ranks[a.partOf(r)], a.t.ID(r))
	}
	checked := false
	for _, p := range slices.Sorted(maps.Keys(ranks)) {
		switch {
		case count[p] >= least:
			checked = true
		case len(ranks[p]) > 1:
			who := "the ranks"
			if len(ranks) > 1 {
				who = "ranks " + ranklist.String(ranks[p])
			}
			a.problem("alignment", ranks[p][0],
				"%s share only one collective, by which their clocks were aligned, so the alignment cannot be checked",
				who)
		}
	}
	if !checked {
		return
	}
	ns := a.spread(kept)
	us := float64(ns) / 1e3
	a.r.Alignment.ResidualUS = &us
	if ns > a.bound && slices.ContainsFunc(a.r.Problems, func(p Problem) bool { return p.Kind == "missing" }) {
		a.refuse("ends of collectives differ by up to %s, beyond the bound of %s, because ranks have different numbers of calls, "+
			"and calls in the middle may be missing: give profiles of the same steps; --max-residual accepts less exact clocks",
			trace.Microseconds(us), trace.Microseconds(float64(a.bound)/1e3))
	} else if ns > a.bound {
		a.refuse("ends of collectives differ by up to %s, beyond the bound of %s, so the clocks do not agree, or the "+
			"collectives do not belong together: "+
			"give the profiles of one run, over the same steps; --max-residual accepts less exact clocks",
			trace.Microseconds(us), trace.Microseconds(float64(a.bound)/1e3))
	}
}

// partOf returns the number of the part of a rank (see Alignment).
func (a *matching) partOf(rank int) int {
	if a.part == nil {
		return 0
	}
	return a.part[rank]
}

// onePart reports whether all members of a collective are in one part, so that their times can be compared.
func (a *matching) onePart(list []call) bool {
	first := a.partOf(a.t.Events[list[0]].Rank)
	return !slices.ContainsFunc(list, func(i call) bool { return a.partOf(a.t.Events[i].Rank) != first })
}

// refuse records why waiting is unknown.
func (a *matching) refuse(format string, args ...any) {
	a.untold = fmt.Sprintf(format, args...)
	rank := 0
	if a.t.Ranks > 0 {
		rank = a.t.ID(0)
	}
	a.problem("alignment", rank, "%s", a.untold)
}

// onClock holds the indices of the ranks, events, host calls and steps of the trace whose times are from one clock.
type onClock struct {
	ranks, events, host, steps []int
	shared                     map[int][]call // events by the number of a shared collective
}

// byClock groups the ranks, events, host calls and steps of the trace by clock.
func (a *matching) byClock(clocks []int, shared [][]call) map[int]*onClock {
	all := map[int]*onClock{}
	for r, c := range clocks {
		if all[c] == nil {
			all[c] = &onClock{shared: map[int][]call{}}
		}
		all[c].ranks = append(all[c].ranks, r)
	}
	of := func(rank int) *onClock { return all[clocks[rank]] }
	for i := range a.t.Events {
		x := of(a.t.Events[i].Rank)
		x.events = append(x.events, i)
	}
	for i := range a.t.Host {
		x := of(a.t.Host[i].Rank)
		x.host = append(x.host, i)
	}
	for i := range a.t.Steps {
		x := of(a.t.Steps[i].Rank)
		x.steps = append(x.steps, i)
	}
	for k, list := range shared {
		for _, i := range list {
			x := of(a.t.Events[i].Rank)
			x.shared[k] = append(x.shared[k], i)
		}
	}
	return all
}

// fitAll aligns one clock after another with the clock of the first rank. The next clock is always the one that has the
// most ends in common with the clocks that are already aligned. If no remaining clock has a common end, the first
// remaining clock begins the next part.
func (a *matching) fitAll(clocks []int, shared [][]call) {
	all := a.byClock(clocks, shared)
	// the ends of each shared collective on the clocks that are already aligned, by the collective's number
	there := make([]ends, len(shared))
	// the number of collectives that each remaining clock shares with the aligned clocks
	common := map[int]int{}
	// the remaining clocks; a clock is added again each time its number of shared collectives grows
	var ready most
	left := map[int]bool{}
	for c := range all {
		left[c] = true
	}
	var parts [][]*onClock
	put := func(clock int) {
		delete(left, clock)
		parts[len(parts)-1] = append(parts[len(parts)-1], all[clock])
		for k, list := range all[clock].shared {
			first := there[k].n == 0
			for _, i := range list {
				there[k].add(a.t.Events[i].End)
			}
			if !first {
				continue
			}
			counted := map[int]bool{}
			for _, i := range shared[k] {
				if c := clocks[a.t.Events[i].Rank]; left[c] && !counted[c] {
					counted[c] = true
					common[c]++
					heap.Push(&ready, sharing{c, common[c]})
				}
			}
		}
	}
	for _, first := range clocks {
		if !left[first] {
			continue
		}
		parts = append(parts, nil)
		put(first)
		for ready.Len() > 0 {
			next := heap.Pop(&ready).(sharing).clock
			if !left[next] {
				continue
			}
			points := a.points(all[next], shared, there)
			l := fit(points, a.outlier)
			a.r.Alignment.Clocks = append(a.r.Alignment.Clocks, a.clocksOf(all[next], l, len(points))...)
			a.shiftClock(all[next], l)
			put(next)
		}
	}
	if len(parts) > 1 {
		a.separate(parts)
	}
}

// separate records the part of each rank. separate shifts the times of each part so that the first events of all parts
// have the same time. Waits of hocket's commands for signals may connect parts, so times of hocket's own traces are not
// compared at all.
func (a *matching) separate(parts [][]*onClock) {
	if a.t.Source == "" {
		a.refuse("some ranks share no collective with the others")
		return
	}
	a.part = make([]int, a.t.Ranks)
	var origin int64
	for p, clocks := range parts {
		var all ends
		var ids []int
		for _, c := range clocks {
			for _, i := range c.events {
				all.add(a.t.Events[i].Start)
			}
			for _, r := range c.ranks {
				a.part[r] = p
				ids = append(ids, a.t.ID(r))
			}
		}
		slices.Sort(ids)
		a.r.Alignment.Parts = append(a.r.Alignment.Parts, ids)
		if p == 0 {
			origin = all.lo
		}
		for _, c := range clocks {
			a.shiftClock(c, line{offset: origin - all.lo})
		}
	}
}

// sharing is a clock and the number of collectives that it shares with the aligned clocks.
type sharing struct{ clock, collectives int }

// most is a heap of clocks. The clock that shares the most collectives with the aligned ones is first.
type most []sharing

func (m most) Len() int      { return len(m) }
func (m most) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m most) Less(i, j int) bool {
	return m[i].collectives > m[j].collectives ||
		m[i].collectives == m[j].collectives && m[i].clock < m[j].clock
}
func (m *most) Push(x any) { *m = append(*m, x.(sharing)) }
func (m *most) Pop() any {
	x := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return x
}

// point is the end of a collective on one clock, and the difference between the end on the aligned clocks and this end.
type point struct {
	at, behind int64
	group      int
}

// points compares the ends of shared collectives on a clock with those on the aligned clocks.
func (a *matching) points(clock *onClock, shared [][]call, there []ends) []point {
	var out []point
	for _, k := range slices.Sorted(maps.Keys(clock.shared)) {
		if there[k].n == 0 {
			continue
		}
		var here ends
		for _, i := range clock.shared[k] {
			here.add(a.t.Events[i].End)
		}
		at := here.middle()
		out = append(out, point{at: at, behind: there[k].middle() - at, group: a.t.Events[shared[k][0]].Group})
	}
	return out
}

// ends holds the first and the last one of several ends of a collective.
type ends struct {
	n      int
	lo, hi int64
}

func (e *ends) add(at int64) {
	if e.n == 0 {
		e.lo, e.hi = at, at
	}
	e.n++
	e.lo, e.hi = min(e.lo, at), max(e.hi, at)
}

func (e *ends) middle() int64 { return e.lo + (e.hi-e.lo)/2 }

// line converts the time at of one clock to another clock: at + offset + drift*(at - from).
type line struct {
	from, offset int64
	drift        float64
}

func (l line) behind(at int64) int64 { return l.offset + int64(math.Round(l.drift*float64(at-l.from))) }

const (
	// mostDrift is larger than the drift between any two quartz clocks.
	mostDrift = 200e-6
	// leastForDrift is the smallest number of ends from which drift can be distinguished from noise.
	leastForDrift = 8
	// gross is the smallest error of an end, in nanoseconds, with which it is ignored as an outlier.
	gross = 100_000
)

// fit finds the line whose largest distance to a point is the smallest. At most a quarter of the points are ignored as
// outliers, and recorded in outlier. The line has a slope, the drift between the clocks, only if the drift is
// physically possible and halves the distance.
func fit(points []point, outlier map[int]bool) line {
	kept := slices.Clone(points)
	slices.SortFunc(kept, func(a, b point) int { return cmp.Compare(a.behind, b.behind) })
	if len(kept) >= 4 {
		median := kept[len(kept)/2].behind
		off := make([]int64, len(kept))
		for i, p := range kept {
			off[i] = abs(p.behind - median)
		}
		slices.Sort(off)
		limit := max(gross, 8*off[len(off)/2])
		if off[len(off)-1-len(off)/4] <= limit {
			kept = slices.DeleteFunc(kept, func(p point) bool {
				far := abs(p.behind-median) > limit
				if far {
					outlier[p.group] = true
				}
				return far
			})
		}
	}
	flat := line{from: kept[0].at, offset: (kept[0].behind + kept[len(kept)-1].behind) / 2}
	if len(kept) < leastForDrift {
		return flat
	}
	sloped := leastSquares(kept)
	if math.Abs(sloped.drift) > mostDrift || 2*sloped.worst(kept) > flat.worst(kept) {
		return flat
	}
	return sloped
}

func abs(v int64) int64 { return max(v, -v) }

func (l line) worst(points []point) int64 {
	var most int64
	for _, p := range points {
		most = max(most, abs(p.behind-l.behind(p.at)))
	}
	return most
}

// leastSquares computes the drift by least squares, and the offset as the mean of the smallest and the largest
// remaining distance.
func leastSquares(points []point) line {
	from, base := points[0].at, points[0].behind
	var n, sx, sy, sxx, sxy float64
	for _, p := range points {
		x, y := float64(p.at-from), float64(p.behind-base)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	l := line{from: from, offset: base}
	if d := n*sxx - sx*sx; d > 0 {
		l.drift = (n*sxy - sx*sy) / d
	}
	var left ends
	for _, p := range points {
		left.add(p.behind - l.behind(p.at))
	}
	l.offset += left.middle()
	return l
}

// shiftClock moves all times of a clock.
func (a *matching) shiftClock(clock *onClock, l line) {
	move := func(at *int64) { *at += l.behind(*at) }
	for _, i := range clock.events {
		e := &a.t.Events[i]
		move(&e.Start)
		move(&e.End)
		if e.Issued != 0 {
			move(&e.Issued)
		}
	}
	for _, i := range clock.host {
		move(&a.t.Host[i].Start)
		move(&a.t.Host[i].End)
	}
	for _, i := range clock.steps {
		move(&a.t.Steps[i].Start)
		move(&a.t.Steps[i].End)
	}
}

// clocksOf describes how the clock of some ranks was aligned by n collectives. clocksOf must be called before the clock
// is shifted.
func (a *matching) clocksOf(clock *onClock, l line, n int) (out []Clock) {
	first := int64(math.MaxInt64)
	for _, i := range clock.events {
		first = min(first, a.t.Events[i].Start)
	}
	for _, r := range clock.ranks {
		out = append(out, Clock{Rank: a.t.ID(r), OffsetUS: float64(l.behind(first)) / 1e3, DriftPPM: l.drift * 1e6,
			Collectives: n})
	}
	return out
}
