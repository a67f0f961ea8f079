package trace

import (
	"cmp"
	"slices"
	"sort"
)

// Critical returns the chain of events that determined when the trace ended, the oldest first. Critical starts at the
// event that ends last and goes back:
//   - from a member of a collective to the member that arrived last
//   - from a wait to the event that it waited for, if that ended after the wait began
//   - from any other event to the previous event of its stream
//
// The chain ends at the first event of a stream. Profiles of other tools do not record the events for which streams
// waited. In their traces, Critical goes back from any other event to the event of the same rank that ended last before
// it started.
func (t *Trace) Critical() []Event {
	if len(t.Events) == 0 {
		return nil
	}
	return newChain(t).critical()
}

func (c *chain) critical() []Event {
	var out []Event
	for _, i := range c.path() {
		out = append(out, c.events[i])
	}
	return out
}

// Path returns the chain of events that Critical returns, as indices of events.
func (c *Chains) Path() []int { return c.c.path() }

// path returns the indices of the events on the critical path, the oldest first.
func (c *chain) path() []int {
	seen := make([]bool, len(c.events))
	var path []int
	for i := c.last; i >= 0; i = c.before(i, seen) {
		seen[i] = true
		path = append(path, i)
	}
	slices.Reverse(path)
	return path
}

// Chains finds, for each event of a trace, the event for which it had to wait.
type Chains struct{ c *chain }

// Chains returns the Chains of the trace. The trace must have at least one event, and its events must be sorted (see
// Sort).
func (t *Trace) Chains() *Chains { return &Chains{newChain(t)} }

// Before returns the event that event i followed on its rank, or -1 if there is none. In hocket's traces, this is the
// previous event of its stream. In profiles of other tools, it is an event of the same stream that was not yet over or,
// if there is none, the event on any stream of the rank that ended last before i started. Before never returns an event
// in seen.
func (c *Chains) Before(i int, seen map[int]bool) int {
	j := c.c.prev[i]
	if long := c.c.long[i]; c.c.ends != nil && long >= 0 && c.c.events[long].End > c.c.events[i].Start && !seen[long] {
		return long
	}
	if c.c.ends != nil {
		j = c.c.lastBefore(&c.c.events[i], func(k int) bool { return k == i || seen[k] })
	}
	if j >= 0 && seen[j] {
		return -1
	}
	return j
}

// Released returns the event that ended the wait i, or -1 if that is not recorded. This event is the last one of the
// other stream for which i waited, or the signal that raised the counter to the required value.
func (c *Chains) Released(i int) int { return c.c.released(i) }

// Others reports whether a profile of another tool leaves open for which event i waited. Others returns true if an
// event on the rank of i, but not on the stream of j, ended at most ns nanoseconds before the start of i, so that i may
// have waited for this event instead of j.
func (c *Chains) Others(i, j int, ns int64) bool {
	if c.c.ends == nil {
		return false
	}
	e := &c.c.events[i]
	list := c.c.ends[e.Rank]
	k := sort.Search(len(list), func(k int) bool { return c.c.events[list[k]].End > e.Start })
	for k--; k >= 0 && c.c.events[list[k]].End >= e.Start-ns; k-- {
		if list[k] != i && c.c.events[list[k]].Stream != c.c.events[j].Stream {
			return true
		}
	}
	return false
}

// chain follows the events of a trace backwards in time.
type chain struct {
	events  []Event
	of      *Trace
	last    int                 // the event that ends last
	prev    []int               // for each event: the previous event of the same stream, or -1
	long    []int               // for each event: the earlier event of the same stream that ends last, or -1
	lates   map[instance]int    // the member that started last, for each collective
	signals map[raised][]int    // signals of each element of a counter, in the order of their ends
	streams map[stretchOf][]int // commands of each stream in a run, in the order of the plan; only in hocket's traces
	ends    map[int][]int       // events of each rank, in the order of their ends; only in profiles of other tools
}

// raised identifies an element of a counter in one run. rank is the number of the rank in the job.
type raised struct {
	run     int64
	rank    int
	counter string
}

// stretchOf is a key for the commands of one stream in one run.
type stretchOf struct {
	run    int64
	rank   int
	stream string
}

func newChain(t *Trace) *chain {
	sorted := t
	if !slices.IsSortedFunc(t.Events, inOrder) {
		sorted = &Trace{Events: slices.Clone(t.Events)}
		sorted.Sort()
	}
	n := len(sorted.Events)
	c := &chain{events: sorted.Events, of: t, prev: make([]int, n), long: make([]int, n), lates: map[instance]int{},
		signals: map[raised][]int{},
		streams: map[stretchOf][]int{}}
	ties := slices.ContainsFunc(c.events, func(e Event) bool { return e.Tie != nil && e.Tie.Stream != "" })
	for i := range c.events {
		e := &c.events[i]
		c.prev[i] = -1
		if i > 0 && c.events[i-1].Rank == e.Rank && c.events[i-1].Stream == e.Stream {
			c.prev[i] = i - 1
		}
		if j := c.prev[i]; j < 0 {
			c.long[i] = -1
		} else if c.long[i] = j; c.long[j] >= 0 && c.events[c.long[j]].End > c.events[j].End {
			c.long[i] = c.long[j]
		}
		if e.End > c.events[c.last].End {
			c.last = i
		}
		if e.Group != NoGroup {
			k := instance{e.Run, e.Group}
			if j, ok := c.lates[k]; !ok || e.Start > c.events[j].Start {
				c.lates[k] = i
			}
		}
		if e.Tie != nil && e.Tie.Counter != "" && !e.Waits() {
			k := raised{e.Run, e.Tie.Peer, e.Tie.Counter}
			c.signals[k] = append(c.signals[k], i)
		}
		if ties {
			k := stretchOf{e.Run, e.Rank, e.Stream}
			c.streams[k] = append(c.streams[k], i)
		}
	}
	byEnd := func(a, b int) int { return cmp.Compare(c.events[a].End, c.events[b].End) }
	for _, list := range c.signals {
		slices.SortStableFunc(list, byEnd)
	}
	for _, list := range c.streams {
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(c.events[a].ID, c.events[b].ID) })
	}
	if t.Source != "" {
		c.ends = map[int][]int{}
		for i := range c.events {
			r := c.events[i].Rank
			c.ends[r] = append(c.ends[r], i)
		}
		for _, list := range c.ends {
			slices.SortStableFunc(list, byEnd)
		}
	}
	return c
}

// Waits reports whether the event is only a wait.
func (e *Event) Waits() bool { return e.Class == Sync && e.Name == "wait" }

// before returns the event for which event i had to wait, or -1 if there is none. before skips the events in seen.
func (c *chain) before(i int, seen []bool) int {
	e := &c.events[i]
	unseen := func(j int) int {
		if j >= 0 && seen[j] {
			return -1
		}
		return j
	}
	if e.Group != NoGroup {
		if j := c.lates[instance{e.Run, e.Group}]; j != i && c.events[j].Start > e.Start {
			return unseen(j)
		}
	}
	if j := c.released(i); j >= 0 && c.events[j].End > e.Start && !seen[j] {
		return j
	}
	if c.ends != nil {
		return c.lastBefore(e, func(k int) bool { return seen[k] })
	}
	return unseen(c.prev[i])
}

// lastBefore returns, among the events on the rank of e that ended before e started, the one that ended last.
// lastBefore ignores events for which skip returns true, and returns -1 if no event is left.
func (c *chain) lastBefore(e *Event, skip func(int) bool) int {
	list := c.ends[e.Rank]
	k := sort.Search(len(list), func(k int) bool { return c.events[list[k]].End > e.Start })
	for k--; k >= 0; k-- {
		if !skip(list[k]) {
			return list[k]
		}
	}
	return -1
}

// released returns the event that ended the wait i, or -1.
func (c *chain) released(i int) int {
	e := &c.events[i]
	if e.Tie == nil || !e.Waits() {
		return -1
	}
	if e.Tie.Counter != "" {
		list := c.signals[raised{e.Run, c.of.ID(e.Rank), e.Tie.Counter}]
		if n := e.Tie.Count; n > 0 && n <= int64(len(list)) {
			return list[n-1]
		}
		return -1
	}
	list := c.streams[stretchOf{e.Run, e.Rank, e.Tie.Stream}]
	k := sort.Search(len(list), func(k int) bool { return c.events[list[k]].ID >= e.Tie.Until })
	if k == 0 {
		return -1
	}
	return list[k-1]
}
