package trace

import (
	"cmp"
	"slices"
	"sort"
)

// Critical returns the chain of events that decided when the trace ended, the
// oldest first. It goes back from the last event to end: from a member of a
// collective to the member that arrived last; from a wait to what ended last
// before it was over; from anything else to what its stream did before. The
// chain ends where a stream begins. It is read off the times alone, so where
// two events end at one moment it may name either. Profiles by others do not say what
// streams waited for: there anything goes back to what ended last on its rank before it began.
func (t *Trace) Critical() []Event {
	if len(t.Events) == 0 {
		return nil
	}
	c := newChain(t)
	for i := c.last; i >= 0 && !c.seen[i]; i = c.before(i) {
		c.seen[i] = true
		c.path = append(c.path, i)
	}
	out := make([]Event, len(c.path))
	for k, i := range c.path {
		out[len(out)-1-k] = c.events[i]
	}
	return out
}

// Chains tells what events of a trace had to wait for.
type Chains struct{ c *chain }

// Chains prepares a trace, which must be in the order of Sort and have events.
func (t *Trace) Chains() *Chains { return &Chains{newChain(t)} }

// Before returns the chain of events that decided when event i began, the latest first, as
// far as they ended after a time.
func (c *Chains) Before(i int, from int64) []Event {
	var out []Event
	for j := c.c.before(i); j >= 0 && c.c.events[j].End > from && len(out) < len(c.c.events); j = c.c.before(j) {
		out = append(out, c.c.events[j])
	}
	return out
}

// chain walks the events of a trace backwards.
type chain struct {
	events  []Event
	last    int              // the event that ends last
	prev    []int            // the event before on the same stream, or -1
	lates   map[instance]int // by collective: the member that began last
	release []int            // events that may let a wait pass, by end
	ends    map[int][]int    // in profiles by others: each rank's events, by end
	seen    []bool
	path    []int
}

func newChain(t *Trace) *chain {
	sorted := t
	if !slices.IsSortedFunc(t.Events, inOrder) {
		sorted = &Trace{Events: slices.Clone(t.Events)}
		sorted.Sort()
	}
	n := len(sorted.Events)
	c := &chain{events: sorted.Events, prev: make([]int, n), lates: map[instance]int{}, seen: make([]bool, n)}
	for i := range c.events {
		e := &c.events[i]
		c.prev[i] = -1
		if i > 0 && c.events[i-1].Rank == e.Rank && c.events[i-1].Stream == e.Stream {
			c.prev[i] = i - 1
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
		if !e.waits() {
			c.release = append(c.release, i)
		}
	}
	slices.SortStableFunc(c.release, func(a, b int) int { return cmp.Compare(c.events[a].End, c.events[b].End) })
	if t.Source != "" {
		c.ends = map[int][]int{}
		for _, i := range c.release {
			r := c.events[i].Rank
			c.ends[r] = append(c.ends[r], i)
		}
	}
	return c
}

// waits reports whether the event only waits for others.
func (e *Event) waits() bool { return e.Class == Sync && e.Name == "wait" }

// before returns what event i had to wait for, or -1.
func (c *chain) before(i int) int {
	e := &c.events[i]
	if e.Group != NoGroup {
		if j := c.lates[instance{e.Run, e.Group}]; j != i && c.events[j].Start > e.Start {
			return j
		}
	}
	if e.waits() {
		if j := c.released(e); j >= 0 {
			return j
		}
	}
	if c.ends != nil {
		return c.lastBefore(e)
	}
	return c.prev[i]
}

// lastBefore returns the event that ended last on e's rank before e began, or -1.
func (c *chain) lastBefore(e *Event) int {
	list := c.ends[e.Rank]
	k := sort.Search(len(list), func(k int) bool { return c.events[list[k]].End > e.Start })
	if k == 0 {
		return -1
	}
	return list[k-1]
}

// released returns the event that ended last while the wait e lasted, or -1.
func (c *chain) released(e *Event) int {
	k := sort.Search(len(c.release), func(k int) bool { return c.events[c.release[k]].End > e.End })
	if k == 0 {
		return -1
	}
	if j := c.release[k-1]; c.events[j].End > e.Start {
		return j
	}
	return -1
}
