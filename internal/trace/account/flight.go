package account

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/ranklist"
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
	members map[string][]int  // ranks of each group, in the order of their numbers in the group; nil if unknown
	names   map[string]string // names of groups by their keys
	given   map[int]bool      // ranks for which there is a record
	silent  map[int]bool      // ranks whose records have no entries
	gaps    map[lacking]gap
	origin  int64
	behind  map[int][]int64 // delays of each rank's completed calls after the first rank's call
	open    []openCall
}

// made is an entry of a flight record, which describes a call, with the rank that made the call.
type made struct {
	rank int
	// part counts the earlier collectives of the rank that have the same number in the group. Torch gives one number to
	// all collectives that it issues together.
	part int
	*flight.Entry
}

// callID identifies a collective of a group.
type callID struct {
	seq  int64
	part int
}

// mostProblems is the largest number of problems that are reported. One collective that hangs can cause one problem
// for each rank.
const mostProblems = 1 << 16

// OfFlight computes the report for the flight records of several ranks. The report shows which collectives the
// ranks called with different arguments, which collectives are incomplete, and which ranks have not arrived. A
// record contains the times of the host's calls by the host's wall clock, but no times of transfers.
func OfFlight(records []*flight.Record) *Report {
	f := &flights{behind: map[int][]int64{}, gaps: map[lacking]gap{}, byGroup: map[string][]made{},
		given:   map[int]bool{},
		records: slices.Clone(records), r: &Report{Source: "flight", Ranks: len(records),
			Collectives: []Collective{}, Problems: []Problem{}, Findings: []Finding{}}}
	f.r.Alignment.Method = "none"
	f.r.Untold = "a flight record says when hosts called and not when devices began, so transfer times are unknown"
	slices.SortFunc(f.records, func(a, b *flight.Record) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, r := range f.records {
		f.given[r.Rank] = true
		f.r.ids = append(f.r.ids, r.Rank)
		type number struct {
			group string
			seq   int64
		}
		parts := map[number]int{}
		for i := range r.Entries {
			e := &r.Entries[i]
			m := made{r.Rank, 0, e}
			if k := (number{e.Group, e.Seq}); !e.P2P {
				m.part = parts[k]
				parts[k]++
			}
			f.byGroup[e.Group] = append(f.byGroup[e.Group], m)
			if f.origin == 0 || e.Created < f.origin {
				f.origin = e.Created
			}
			f.r.SpanUS = max(f.r.SpanUS, us(e.Created-f.origin))
		}
	}
	f.members = map[string][]int{}
	for _, r := range f.records {
		for key, g := range r.Groups {
			if g.Members != nil {
				f.members[key] = g.Members
			}
			for _, m := range g.Members {
				if !f.given[m] {
					f.r.Absent = append(f.r.Absent, m)
				}
			}
		}
	}
	slices.Sort(f.r.Absent)
	f.r.Absent = slices.Compact(f.r.Absent)
	f.nameGroups()
	f.silent = map[int]bool{}
	for _, r := range f.records {
		f.silent[r.Rank] = len(r.Entries) == 0
	}
	for _, g := range slices.Sorted(maps.Keys(f.byGroup)) {
		f.group(g)
	}
	f.circle()
	for _, g := range slices.Sorted(maps.Keys(f.byGroup)) {
		f.pairs(g)
	}
	f.absent()
	f.empty()
	f.trailing()
	severity := map[string]int{"missing": 1, "late": 2, "open": 3} // calls that differ come first
	slices.SortStableFunc(f.r.Problems, func(x, y Problem) int {
		return cmp.Compare(severity[x.Kind], severity[y.Kind])
	})
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

// calls maps a rank to the entry about its call of a collective.
type calls map[int]*flight.Entry

// nameGroups sets the name of each group to its description, followed by its key if several groups have the same
// description.
func (f *flights) nameGroups() {
	f.names = map[string]string{}
	count := map[string]int{}
	for key := range f.byGroup {
		f.names[key] = key
		for _, r := range f.records {
			if name := r.GroupName(key); name != key {
				f.names[key] = name
			}
		}
		count[f.names[key]]++
	}
	for key, name := range f.names {
		if count[name] > 1 && name != key {
			f.names[key] = fmt.Sprintf("%s (%s)", name, key)
		}
	}
}

func (f *flights) group(key string) {
	byID := map[callID]calls{}
	name, members := f.names[key], f.members[key]
	least := map[int]int64{}
	for _, e := range f.byGroup[key] {
		if e.P2P {
			continue
		}
		id := callID{e.Seq, e.part}
		if byID[id] == nil {
			byID[id] = calls{}
		}
		byID[id][e.rank] = e.Entry
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
	ids := slices.SortedFunc(maps.Keys(byID), func(x, y callID) int {
		return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.part, y.part))
	})
	before := len(f.open)
	var first string // describes the first incomplete call that all ranks have made with equal arguments
	later := 0
	for _, id := range ids {
		if hung := f.collective(key, name, members, given, id, byID[id], least); first == "" {
			first = hung
		} else if hung != "" {
			later++
		}
	}
	if first == "" || slices.ContainsFunc(f.open[before:], func(o openCall) bool { return o.to > o.from }) {
		return // a call of the group with a problem explains why later calls are not complete
	}
	if later > 0 {
		first += fmt.Sprintf("; later calls of the group that are not complete: %d", later)
	}
	f.problem("open", members[0], "%s", first)
}

// collective reports one collective of a group. If all ranks have made the call in the same way, and none is late, but
// it is not complete, collective returns a text that says so.
func (f *flights) collective(key, group string, members, given []int, id callID, list calls,
	least map[int]int64) string {
	ranks := slices.Sorted(maps.Keys(list))
	e := list[ranks[0]]
	seq := id.seq
	where := fmt.Sprintf("call %d of group %q, %s", seq, group, e.Op)
	if id.part > 0 {
		where = fmt.Sprintf("part %d of %s", id.part+1, where)
	}
	from := len(f.r.Problems)
	var entries []Entry
	c := Collective{Op: e.Op, Group: group, Seq: &seq}
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
	if skew := us(span.hi - span.lo); len(ranks) > 1 {
		c.SkewUS = &skew
	}
	problems := Disagreements(where, entries)
	for i := range problems {
		problems[i].Text += stack(problems[i].Rank, list[problems[i].Rank])
	}
	f.r.Problems = append(f.r.Problems, problems...)
	if open { // otherwise a rank without a record may have made the call
		given = members
	}
	lack, missing := f.missing(key, where, given, id, list, least)
	hung := ""
	if len(problems) == 0 && !missing {
		s := statesOf(list)
		if late := len(ranks) > 1 && f.late(&c, key, where, list, s); !late && open {
			hung = where + ": " + s.words() + stack(ranks[0], list[ranks[0]])
		}
	}
	if open {
		o := openCall{where: where, from: from, to: len(f.r.Problems)}
		if s := statesOf(list); len(problems) == 0 {
			o.begun, o.not = s.begun, slices.Concat(s.waiting, lack)
		}
		f.open = append(f.open, o)
	}
	f.r.Collectives = append(f.r.Collectives, c)
	return hung
}

// states has the ranks that have made a call, separated by the call's state on each rank.
type states struct {
	complete, begun, waiting []int
	unknown                  []int // ranks whose records do not contain the state
}

func statesOf(list calls) states {
	var s states
	for _, r := range slices.Sorted(maps.Keys(list)) {
		of := &s.unknown
		switch list[r].State {
		case "completed":
			of = &s.complete
		case "started":
			of = &s.begun
		case "scheduled":
			of = &s.waiting
		}
		*of = append(*of, r)
	}
	return s
}

// ranksOf names ranks in a sentence.
func ranksOf(ids []int) string {
	if len(ids) == 1 {
		return fmt.Sprintf("rank %d", ids[0])
	}
	return "ranks " + ranklist.String(ids)
}

// those returns words that refer to the devices of ranks, for a sentence.
func those(ids []int) string {
	if len(ids) == 1 {
		return fmt.Sprintf("that of rank %d", ids[0])
	}
	return "those of " + ranksOf(ids)
}

// The method words describes in words a call that is not complete.
func (s *states) words() string {
	open := slices.Sorted(slices.Values(slices.Concat(s.begun, s.waiting, s.unknown)))
	text := "it is not complete on " + ranksOf(open)
	if len(s.complete) > 0 {
		text = fmt.Sprintf("it is complete on %s, and not on %s", ranksOf(s.complete), ranksOf(open))
	}
	whose := ", whose devices have "
	if len(open) == 1 {
		whose = ", whose device has "
	}
	switch len(open) {
	case len(s.begun):
		return text + whose + "begun it"
	case len(s.waiting):
		return text + whose + "not begun it"
	}
	if len(s.begun) > 0 {
		text += "; begun on " + ranksOf(s.begun)
	}
	if len(s.waiting) > 0 {
		text += "; not begun on " + ranksOf(s.waiting)
	}
	return text
}

// stack returns words with the position in the source code from which a rank made its call.
func stack(rank int, e *flight.Entry) string {
	if len(e.Stack) == 0 {
		return ""
	}
	return fmt.Sprintf("; rank %d called from %s", rank, strings.Join(e.Stack[:min(len(e.Stack), 4)], " < "))
}

// empty reports the records without entries. The calls of the ranks of these records are unknown.
func (f *flights) empty() {
	for _, r := range f.records {
		if !f.silent[r.Rank] {
			continue
		}
		status := ""
		for _, g := range slices.Sorted(maps.Keys(r.Enqueued)) {
			status += fmt.Sprintf("; by its status it has made %s of group %q", plural(int(min(r.Enqueued[g], 1<<31)),
				"call"), cmp.Or(f.names[g], r.GroupName(g)))
		}
		f.problem("missing", r.Rank, "the record of rank %d has no entries, so its calls are unknown%s", r.Rank, status)
	}
}

// gap is a range of calls that the record of a rank lacks although the rank has made them.
type gap struct{ first, last int64 }

// absent reports the calls that ranks have made but that their records lack.
func (f *flights) absent() {
	keys := slices.SortedFunc(maps.Keys(f.gaps), func(x, y lacking) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), strings.Compare(x.group, y.group))
	})
	for _, k := range keys {
		g := f.gaps[k]
		f.problem("missing", k.rank, "the record of rank %d lacks calls between %d and %d of group %q, which the rank "+
			"has made: "+
			"it was written before them, or entries were lost", k.rank, g.first, g.last, f.names[k.group])
	}
}

// lacking is a rank and the key of a group.
type lacking struct {
	rank  int
	group string
}

// hasMade reports whether a rank has made a call that its record lacks: the call is complete on another rank, which is
// possible only after all members have made it, or the rank's own status counts it. The status counts collectives that
// are issued together as one call.
func (f *flights) hasMade(key string, rank int, id callID, list calls) bool {
	for _, e := range list {
		if e.State == "completed" && trace.EndsTogether(e.Op) {
			return true
		}
	}
	for _, r := range f.records {
		if n, known := r.Enqueued[key]; r.Rank == rank && known && n >= id.seq && id.part == 0 {
			return true
		}
	}
	return false
}

// missing names the members that did not make a call that others made, and reports whether some member's call is not
// recorded. Calls that are older than the oldest call in a rank's record are not missing. For a rank with an empty
// record, no call is missing.
func (f *flights) missing(key, where string, members []int, id callID, list calls,
	least map[int]int64) (lack []int, found bool) {
	seq := id.seq
	for _, m := range members {
		oldest, some := least[m]
		if list[m] != nil || some && seq < oldest || f.silent[m] {
			continue
		}
		if found = true; len(f.r.Problems) >= mostProblems {
			break
		}
		switch {
		case !f.given[m]:
			f.problem("missing", m, "%s: it is not complete, and rank %d gave no record", where, m)
		case f.hasMade(key, m, id, list):
			k := lacking{m, key}
			g, more := f.gaps[k]
			if !more {
				g = gap{seq, seq}
			}
			f.gaps[k] = gap{min(g.first, seq), max(g.last, seq)}
		default:
			lack = append(lack, m)
			f.problem("missing", m, "%s: rank %d has not called it; its last call is %s", where, m, f.last(m))
		}
	}
	return lack, found
}

// last describes the last call in the record of a rank.
func (f *flights) last(rank int) string {
	for _, r := range f.records {
		if r.Rank != rank || len(r.Entries) == 0 {
			continue
		}
		e := &r.Entries[0]
		for i := range r.Entries {
			if r.Entries[i].Created >= e.Created {
				e = &r.Entries[i]
			}
		}
		state := cmp.Or(e.State, "in an unknown state")
		if e.P2P {
			return fmt.Sprintf("%s, %s%s", f.pointToPoint(rank, e), state, stack(rank, e))
		}
		return fmt.Sprintf("call %d of group %q, %s, %s%s", e.Seq, f.names[e.Group], e.Op, state, stack(rank, e))
	}
	return "not in its record"
}

// late adds a problem about the rank that made a call last. If the call is not complete and the devices of only some
// ranks have begun it, the other ranks are late. late reports whether it has added a problem about the call.
func (f *flights) late(c *Collective, key, where string, list calls, s states) bool {
	ranks := slices.Sorted(maps.Keys(list))
	last, first := ranks[0], ranks[0]
	for _, r := range ranks {
		if list[r].Created > list[last].Created {
			last = r
		}
		if list[r].Created < list[first].Created {
			first = r
		}
	}
	open := len(s.complete) < len(ranks)
	if len(s.begun) > 0 && len(s.waiting) > 0 {
		for _, r := range s.waiting {
			f.problem("late", r,
				"%s: rank %d has called it, and its device has not begun it, unlike %s%s", where, r,
				those(s.begun), stack(r, list[r]))
		}
		return true
	}
	by := list[last].Created - list[first].Created
	switch {
	case by <= lateHost:
	case open:
		doubt := f.earlier(key, last, first, by)
		c.Late = &Late{Rank: last, US: us(by),
			After: "its host called later, according to wall clocks that are not checked" + doubt + stack(last,
				list[last])}
		f.problem("late", last,
			"%s: all ranks have called it and not all have completed it; rank %d called last, %s after rank %d, "+
				"by the hosts' wall clocks, which are not checked%s%s", where, last, short(by), first, doubt,
			stack(last, list[last]))
		return true
	default:
		f.behind[last] = append(f.behind[last], by)
	}
	return false
}

// earlier compares two delays of a rank after another: in an open call, and in the completed calls of the group. The
// median of the latter may be a difference of the clocks. In this case the rank is late by the remaining time, or, if
// that is negative, the other rank is late. earlier returns "" if there are too few calls, or if the delays differ by
// less than the clocks of hosts.
func (f *flights) earlier(key string, rank, other int, by int64) string {
	at := map[callID]int64{}
	var before []int64
	for _, e := range f.byGroup[key] {
		if e.rank == other && e.State == "completed" && !e.P2P {
			at[callID{e.Seq, e.part}] = e.Created
		}
	}
	for _, e := range f.byGroup[key] {
		if from, both := at[callID{e.Seq, e.part}]; both && e.rank == rank && e.State == "completed" && !e.P2P {
			before = append(before, e.Created-from)
		}
	}
	if len(before) < leastEarlier {
		return ""
	}
	slices.Sort(before)
	median := before[len(before)/2]
	if abs(median) <= lateHost {
		return ""
	}
	order, usually := "after", short(median)
	if median < 0 {
		order, usually = "before", short(-median)
	}
	usual := fmt.Sprintf("; in the completed calls it called %s %s rank %d (median of %d); if their clocks differ by that,",
		usually, order, other, len(before))
	switch rest := by - median; {
	case rest > lateHost:
		return fmt.Sprintf("%s rank %d was late by only %s", usual, rank, short(rest))
	case rest < -lateHost:
		return fmt.Sprintf("%s rank %d called last here, %s after rank %d", usual, other, short(-rest), rank)
	}
	return usual + " no rank was late"
}

// leastEarlier is the smallest number of completed calls with which the delay in an open call is compared.
const leastEarlier = 3

// trailing reports which ranks made their call last in collectives that have completed.
func (f *flights) trailing() {
	for _, r := range slices.Sorted(maps.Keys(f.behind)) {
		list := f.behind[r]
		f.problem("late", r,
			"rank %d was the last to call %s, all of which are complete; it called up to %s after the first rank, by the "+
				"hosts' wall clocks", r, plural(len(list), "collective"), short(slices.Max(list)))
	}
}

func (f *flights) problem(kind string, rank int, format string, args ...any) {
	if len(f.r.Problems) >= mostProblems {
		return
	}
	f.r.Problems = append(f.r.Problems, Problem{Kind: kind, Rank: rank, Text: fmt.Sprintf(format, args...)})
}
