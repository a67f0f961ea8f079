package account

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/flight"
)

// lateHost is the smallest difference between wall clocks of hosts, in nanoseconds, with which a rank is called
// late in a call. The clocks of different hosts do not agree better than that.
const lateHost = 100_000

// flights computes a report from flight records.
type flights struct {
	r       *Report
	records []*flight.Record  // by rank
	byGroup map[string][]made // calls by group, in the order of ranks and of the calls of each rank
	given   map[int]bool      // ranks for which there is a record
	origin  int64
	behind  map[int][]int64 // by rank: how much later than the first rank it made each call that has completed
}

// made is an entry of a record, with the rank that made the call.
type made struct {
	rank int
	*flight.Entry
}

// mostProblems is the largest number of problems that are reported. One collective that hangs can cause one problem
// for each rank.
const mostProblems = 1 << 16

// OfFlight computes the report for the flight records of several ranks. The report shows which collectives the
// ranks called with different arguments, which collectives are incomplete, and which ranks have not arrived. A
// record contains the times of the host's calls by the host's wall clock, but no times of transfers.
func OfFlight(records []*flight.Record) *Report {
	f := &flights{behind: map[int][]int64{}, byGroup: map[string][]made{}, given: map[int]bool{},
		records: slices.Clone(records), r: &Report{Source: "flight", Ranks: len(records),
			Collectives: []Collective{}, Problems: []Problem{}, Findings: []Finding{}}}
	f.r.Alignment.Method = "none"
	f.r.Untold = "a flight record says when hosts called and not when devices began, so transfer times are unknown"
	slices.SortFunc(f.records, func(a, b *flight.Record) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, r := range f.records {
		f.given[r.Rank] = true
		f.r.ids = append(f.r.ids, r.Rank)
		for i := range r.Entries {
			e := &r.Entries[i]
			f.byGroup[e.Group] = append(f.byGroup[e.Group], made{r.Rank, e})
			if f.origin == 0 || e.Created < f.origin {
				f.origin = e.Created
			}
			f.r.SpanUS = max(f.r.SpanUS, us(e.Created-f.origin))
		}
	}
	for _, g := range slices.Sorted(maps.Keys(f.byGroup)) {
		f.group(g)
	}
	f.trailing()
	slices.SortStableFunc(f.r.Collectives, func(a, b Collective) int { return cmp.Compare(a.first(), b.first()) })
	ofOp := map[string]int{}
	for i := range f.r.Collectives {
		c := &f.r.Collectives[i]
		ofOp[c.Op]++
		c.Index, c.Nth = i, ofOp[c.Op]
	}
	for i := range f.r.Collectives {
		f.r.Collectives[i].OfOp = ofOp[f.r.Collectives[i].Op]
	}
	f.r.waited()
	f.r.sortFindings()
	return f.r
}

func (c *Collective) first() float64 {
	at := c.ByRank[0].StartUS
	for _, m := range c.ByRank {
		at = min(at, m.StartUS)
	}
	return at
}

// calls are the entries of one collective, by rank.
type calls map[int]*flight.Entry

func (f *flights) group(key string) {
	bySeq := map[int64]calls{}
	name, members := key, []int(nil)
	least := map[int]int64{}
	for _, r := range f.records {
		if g := r.Groups[key]; g.Name != "" || g.Members != nil {
			name = cmp.Or(g.Name, key)
			if g.Members != nil {
				members = g.Members
			}
		}
	}
	for _, e := range f.byGroup[key] {
		if e.P2P {
			continue
		}
		if bySeq[e.Seq] == nil {
			bySeq[e.Seq] = calls{}
		}
		bySeq[e.Seq][e.rank] = e.Entry
		if at, ok := least[e.rank]; !ok || e.Seq < at {
			least[e.rank] = e.Seq
		}
	}
	if len(members) == 0 {
		for _, r := range f.records {
			members = append(members, r.Rank)
		}
	}
	members = slices.Clone(members)
	slices.Sort(members)
	members = slices.Compact(members)
	given := slices.DeleteFunc(slices.Clone(members), func(m int) bool { return !f.given[m] })
	for _, seq := range slices.Sorted(maps.Keys(bySeq)) {
		f.collective(name, members, given, seq, bySeq[seq], least)
	}
}

func (f *flights) collective(group string, members, given []int, seq int64, list calls, least map[int]int64) {
	ranks := slices.Sorted(maps.Keys(list))
	e := list[ranks[0]]
	where := fmt.Sprintf("call %d of group %q, %s", seq, group, e.Op)
	var entries []Entry
	c := Collective{Op: e.Op, Group: group}
	open := false
	var span ends
	for _, r := range ranks {
		x := list[r]
		entries = append(entries, Entry{Rank: r, Op: x.Op, Group: group, DType: x.DType, In: x.In, Out: x.Out})
		span.add(x.Created)
		open = open || x.State != "completed"
		c.ByRank = append(c.ByRank, Member{Rank: r, StartUS: us(x.Created - f.origin)})
		first, _, _ := strings.Cut(x.DType, ",")
		if size := trace.DTypeSize(first); size > 0 && max(x.In, x.Out) >= 0 && max(x.In, x.Out) < 1<<50 {
			if b := size * max(x.In, x.Out); c.Bytes == nil || b > *c.Bytes {
				c.Bytes = &b
			}
		}
	}
	skew := us(span.hi - span.lo)
	c.SkewUS = &skew
	problems := Disagreements(where, entries)
	for i := range problems {
		problems[i].Text += stack(list[problems[i].Rank])
	}
	f.r.Problems = append(f.r.Problems, problems...)
	if open { // otherwise a rank without a record may have made the call
		given = members
	}
	missing := f.missing(where, given, seq, list, least)
	if len(problems) == 0 && !missing && len(ranks) > 1 {
		f.late(&c, where, list, open)
	}
	f.r.Collectives = append(f.r.Collectives, c)
}

// stack returns a text with the position in the code at which a rank made its call.
func stack(e *flight.Entry) string {
	if len(e.Stack) == 0 {
		return ""
	}
	return "; it called from " + strings.Join(e.Stack[:min(len(e.Stack), 4)], " < ")
}

// missing names the members that did not make a call that others made. A call that is older than the oldest call in
// a rank's record does not count as missing.
func (f *flights) missing(where string, members []int, seq int64, list calls, least map[int]int64) bool {
	found := false
	for _, m := range members {
		oldest, some := least[m]
		if list[m] != nil || some && seq < oldest {
			continue
		}
		if found = true; len(f.r.Problems) >= mostProblems {
			break
		}
		if !f.given[m] {
			f.problem("missing", m, "%s: it is not complete, and rank %d gave no record", where, m)
			continue
		}
		f.problem("missing", m, "%s: rank %d has not called it; its last call is %s", where, m, f.last(m))
	}
	return found
}

func (f *flights) last(rank int) string {
	for _, r := range f.records {
		if n := len(r.Entries); r.Rank == rank && n > 0 {
			e := &r.Entries[n-1]
			return fmt.Sprintf("%d, %s, %s%s", e.Seq, e.Op, e.State, stack(e))
		}
	}
	return "not in its record"
}

// late records which rank made a call last. If the call is not complete and the devices of only some ranks have
// begun it, the other ranks are late.
func (f *flights) late(c *Collective, where string, list calls, open bool) {
	ranks := slices.Sorted(maps.Keys(list))
	last, first := ranks[0], ranks[0]
	var begun, waiting []int
	for _, r := range ranks {
		if list[r].Created > list[last].Created {
			last = r
		}
		if list[r].Created < list[first].Created {
			first = r
		}
		switch list[r].State {
		case "started":
			begun = append(begun, r)
		case "scheduled":
			waiting = append(waiting, r)
		}
	}
	if open && len(begun) > 0 && len(waiting) > 0 {
		for _, r := range waiting {
			f.problem("late", r,
				"%s: rank %d has called it, and its device has not begun it, as those of ranks %v have%s", where, r,
				begun, stack(list[r]))
		}
		return
	}
	by := list[last].Created - list[first].Created
	switch {
	case by <= lateHost:
	case open:
		c.Late = &Late{Rank: last, US: us(by),
			After: "its host called later, according to wall clocks that are not checked" + stack(list[last])}
		f.problem("late", last,
			"%s: all ranks have called it and not all have completed it; rank %d called last, %s after rank %d, "+
				"by the hosts' wall clocks%s", where, last, short(by), first, stack(list[last]))
	default:
		f.behind[last] = append(f.behind[last], by)
	}
}

// trailing reports which ranks made their call last in collectives that have completed.
func (f *flights) trailing() {
	for _, r := range slices.Sorted(maps.Keys(f.behind)) {
		list := f.behind[r]
		f.problem("late", r,
			"rank %d called %s of those that are complete last, up to %s after the first rank, by the hosts' wall clocks",
			r, plural(len(list), "collective"), short(slices.Max(list)))
	}
}

func (f *flights) problem(kind string, rank int, format string, args ...any) {
	if len(f.r.Problems) >= mostProblems {
		return
	}
	f.r.Problems = append(f.r.Problems, Problem{Kind: kind, Rank: rank, Text: fmt.Sprintf(format, args...)})
}
