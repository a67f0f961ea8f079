package account

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// call is the event of one rank in a collective, as an index in the list of events of the trace.
type call = int

// matching finds which events of the ranks belong to one collective, and aligns the clocks.
type matching struct {
	t       *trace.Trace // a copy of the trace, with the times on one clock
	r       *Report
	bound   int64
	members [][]call        // members of each collective, by its number
	outlier map[int]bool    // collectives whose ends are not used to fit clocks
	part    []int           // the part of each rank (see Alignment); nil if all ranks are in one part
	alike   map[string]bool // names that several groups with different members share
	untold  string          // the reason why waiting is unknown; empty if it is known
}

// match finds the collectives of a trace. In hocket's own traces, each event of a collective has the number of the
// collective. In other traces, the calls of a group of ranks are matched by their numbers, if all calls have one,
// and otherwise by their order. match sets Group and Run of the events that it matches, and stores the members of
// each collective by Group.
func (a *matching) match() {
	if a.t.Source == "" {
		a.matchOwn()
	} else {
		a.matchByGroup()
	}
	a.renumber()
}

// renumber numbers the collectives in the order of their starts.
func (a *matching) renumber() {
	at := make(map[call]int64, len(a.members))
	for _, list := range a.members {
		slices.SortFunc(list, func(x, y call) int { return cmp.Compare(a.t.Events[x].Rank, a.t.Events[y].Rank) })
		first := a.t.Events[list[0]].Start
		for _, i := range list {
			first = min(first, a.t.Events[i].Start)
		}
		at[list[0]] = first
	}
	slices.SortStableFunc(a.members, func(x, y []call) int { return cmp.Compare(at[x[0]], at[y[0]]) })
	for g, list := range a.members {
		for _, i := range list {
			a.t.Events[i].Group = g
		}
	}
}

func (a *matching) matchOwn() {
	type key struct {
		run   int64
		group int
	}
	at := map[key]int{}
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if e.Group == trace.NoGroup {
			continue
		}
		k := key{e.Run, e.Group}
		g, ok := at[k]
		if !ok {
			g = len(a.members)
			at[k] = g
			a.members = append(a.members, nil)
		}
		a.members[g] = append(a.members[g], i)
	}
}

// series holds the calls of one group of ranks: a list for each rank, in the order in which the rank made them.
type series struct {
	name  string
	calls map[int][]call
}

func (a *matching) matchByGroup() {
	groups := map[string]*series{}
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if e.Call == nil || e.Call.PointToPoint {
			continue
		}
		name := e.Call.Group
		key := name + fmt.Sprint(e.Call.Members)
		if name == "" { // if the name is empty, nothing identifies the group
			key = "\x00" + e.Detail
		}
		s := groups[key]
		if s == nil {
			s = &series{name: name, calls: map[int][]call{}}
			groups[key] = s
		}
		s.calls[e.Rank] = append(s.calls[e.Rank], i)
	}
	a.alike = map[string]bool{}
	keyOf := map[string]string{}
	for key, s := range groups {
		if other, known := keyOf[s.name]; known && other != key && s.name != "" {
			a.alike[s.name] = true
		}
		keyOf[s.name] = key
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		a.matchSeries(groups[key])
	}
}

// groupOf returns the name of the group of a call. The name includes the members if another group has the same name.
func (a *matching) groupOf(c *trace.Call) string {
	switch {
	case !a.alike[c.Group]:
		return c.Group
	case len(c.Members) == 0:
		return c.Group + " (of unknown ranks)"
	}
	return fmt.Sprintf("%s (ranks %s)", c.Group, ranklist.String(slices.Sorted(slices.Values(c.Members))))
}

func (a *matching) matchSeries(s *series) {
	ranks := slices.Sorted(maps.Keys(s.calls))
	name := a.groupOf(a.t.Events[s.calls[ranks[0]][0]].Call)
	numbered := true
	longest := ranks[0]
	for _, r := range ranks {
		list := s.calls[r]
		for _, i := range list {
			numbered = numbered && a.t.Events[i].Call.Seq >= 0
		}
		a.order(list)
		if len(list) > len(s.calls[longest]) {
			longest = r
		}
	}
	at := map[int64][]call{}
	for _, r := range ranks {
		shift, hole := 0, len(s.calls[r])
		if !numbered && r != longest {
			var spread int64
			if shift, spread = a.shift(s.calls[longest], s.calls[r]); spread > a.bound {
				if at := a.hole(s.calls[longest], s.calls[r], spread); at >= 0 {
					shift, hole = 0, at
				}
			}
		}
		for k, i := range s.calls[r] {
			if k == hole {
				shift = len(s.calls[longest]) - len(s.calls[r])
			}
			key := int64(k + shift)
			if numbered {
				key = a.t.Events[i].Call.Seq
			}
			at[key] = append(at[key], i)
		}
		if lack := len(s.calls[longest]) - len(s.calls[r]); lack > 0 {
			a.problem("missing", a.t.ID(r),
				"the profile of rank %d has %d of the %d collectives that rank %d has in group %q",
				a.t.ID(r), len(s.calls[r]), len(s.calls[longest]), a.t.ID(longest), name)
		}
	}
	var absent []string
	for _, member := range a.t.Events[s.calls[longest][0]].Call.Members {
		if !slices.ContainsFunc(ranks, func(r int) bool { return a.t.ID(r) == member }) {
			absent = append(absent, strconv.Itoa(member))
		}
	}
	if len(absent) > 0 {
		a.problem("missing", a.t.ID(longest),
			"group %q has no calls of rank %s: its waits are unknown; give the profiles of all its ranks",
			name, strings.Join(absent, ", "))
	}
	for _, k := range slices.Sorted(maps.Keys(at)) {
		a.members = append(a.members, at[k])
		a.compare(name, k+1, at[k])
	}
}

// order sorts calls in the order in which their rank made them. order uses the times at which the host issued the
// calls, if these are known for all calls, and otherwise the times at which the calls started.
func (a *matching) order(list []call) {
	issued := !slices.ContainsFunc(list, func(i call) bool { return a.t.Events[i].Issued == 0 })
	slices.SortStableFunc(list, func(x, y call) int {
		p, q := &a.t.Events[x], &a.t.Events[y]
		if issued {
			return cmp.Compare(p.Issued, q.Issued)
		}
		return cmp.Compare(p.Start, q.Start)
	})
}

// mostShifts limits the search for the call at which a shorter series begins.
const mostShifts = 256

// shift matches the calls of two ranks that made different numbers of calls. shift returns the index of the call in the
// longer series that corresponds to the first call of the shorter one: the index at which most calls are equal and, if
// there are several, at which the distances between the ends of calls vary least. The result spread is the difference
// between the largest and the smallest of these distances.
func (a *matching) shift(long, short []call) (at int, spread int64) {
	best, bestSame, bestSpread := 0, -1, int64(0)
	for s := 0; s <= min(len(long)-len(short), mostShifts); s++ {
		same, lo, hi := 0, int64(0), int64(0)
		for k, i := range short[:min(len(short), 512)] {
			x, y := &a.t.Events[long[k+s]], &a.t.Events[i]
			if x.Name == y.Name && x.Call.In == y.Call.In {
				same++
			}
			d := x.End - y.End
			if k == 0 {
				lo, hi = d, d
			}
			lo, hi = min(lo, d), max(hi, d)
		}
		if same > bestSame || same == bestSame && hi-lo < bestSpread {
			best, bestSame, bestSpread = s, same, hi-lo
		}
	}
	return best, bestSpread
}

// hole matches the calls of two ranks of which one may lack successive calls in the middle. hole returns the index of
// the first call of the shorter series after the missing ones, if equal calls then correspond to each other and the
// distances between their ends vary by less than a quarter of spread. Otherwise it returns -1.
func (a *matching) hole(long, short []call, spread int64) int {
	n, lack := len(short), len(long)-len(short)
	type span struct {
		ends
		equal bool
	}
	add := func(s span, x, y call) span {
		p, q := &a.t.Events[x], &a.t.Events[y]
		s.add(p.End - q.End)
		s.equal = s.equal && p.Name == q.Name && p.Call.In == q.Call.In
		return s
	}
	after := make([]span, n+1) // the spread of the calls from an index on, if lack calls are missing before this index
	after[n].equal = true
	for k := n - 1; k >= 0; k-- {
		after[k] = add(after[k+1], long[k+lack], short[k])
	}
	best, before := -1, span{equal: true}
	for k := range n {
		if k > 0 {
			both := before
			both.add(after[k].lo)
			both.add(after[k].hi)
			if d := both.hi - both.lo; both.equal && after[k].equal && d < spread/4 {
				best, spread = k, 4*d
			}
		}
		before = add(before, long[k], short[k])
	}
	return best
}

// compare reports the arguments in which the members of one collective differ although they must be equal.
func (a *matching) compare(group string, nth int64, list []call) {
	if len(list) < 2 {
		return
	}
	calls := make([]Entry, len(list))
	for k, i := range list {
		e := &a.t.Events[i]
		calls[k] = Entry{Rank: a.t.ID(e.Rank), Op: e.Name, Group: e.Call.Group, DType: e.Call.DType, In: e.Call.In,
			Out: e.Call.Out}
	}
	a.r.Problems = append(a.r.Problems, Disagreements(fmt.Sprintf("call %d of group %q", nth, group), calls)...)
}

// Entry describes the arguments of one rank's call of a collective.
type Entry struct {
	Rank             int
	Op, Group, DType string
	In, Out          int64 // numbers of elements passed in and received; -1 if unknown
}

// Disagreements returns problems that name the ranks whose call of a collective differs from the call of most
// ranks, in an argument that must be equal on all ranks.
func Disagreements(where string, calls []Entry) []Problem {
	var out []Problem
	differ := func(kind, what string, of func(e *Entry) string) bool {
		most, groups := majority(calls, of)
		if len(groups) < 2 {
			return false
		}
		for i := range calls {
			if got := of(&calls[i]); got != most {
				out = append(out, Problem{Kind: kind, Rank: calls[i].Rank,
					Text: fmt.Sprintf("%s: rank %d has %s %s, rank %d has %s",
						where, calls[i].Rank, what, got, groups[most], most)})
			}
		}
		return true
	}
	if differ("order", "called", func(e *Entry) string { return e.Op }) {
		return out // if the operations differ, other differences have no meaning
	}
	differ("dtype", "dtype", func(e *Entry) string { return e.DType })
	switch calls[0].Op {
	case "all_to_all", "gather", "scatter", "send_recv": // an operation whose sizes may differ between ranks
	default:
		differ("size", calls[0].Op+" of", func(e *Entry) string {
			if e.In < 0 && e.Out < 0 {
				return "unknown size"
			}
			return fmt.Sprintf("%d elements in and %d out", e.In, e.Out)
		})
	}
	return out
}

// majority returns the most frequent value of a property of the calls, or the first of several equally frequent values.
// majority also returns, for each value, the first rank whose call has this value.
func majority(calls []Entry, of func(e *Entry) string) (string, map[string]int) {
	count, first := map[string]int{}, map[string]int{}
	best := ""
	for i := range calls {
		v := of(&calls[i])
		if count[v] == 0 {
			first[v] = calls[i].Rank
		}
		count[v]++
		if i == 0 {
			best = v
		}
	}
	for i := range calls {
		if v := of(&calls[i]); count[v] > count[best] {
			best = v
		}
	}
	return best, first
}
