package trace

import (
	"cmp"
	"slices"
)

// Summary is a trace in numbers. Times are in nanoseconds, or in steps if the trace is virtual.
type Summary struct {
	Span  int64 // from the first start to the last end
	Bytes int64 // moved between ranks
	// Exposed is the largest value of any rank.
	Exposed int64
	Ranks   []RankTime // by rank
	Ops     []OpTotal  // by class; within a class the longest time comes first
}

// RankTime says where the time of one rank went. Time in which several streams work counts once.
type RankTime struct {
	Rank    int
	Compute int64 // the time in which compute runs
	Comm    int64 // the time in which communication runs, including waiting for other ranks
	// Exposed is the part of Comm during which the rank computes nothing.
	Exposed int64
}

// OpTotal is the total of the events of one name.
type OpTotal struct {
	Name  string
	Class Class
	Count int
	Time  int64 // sum over the events
	Bytes int64
}

// Summarize computes the numbers of the trace.
func (t *Trace) Summarize() *Summary {
	s := &Summary{Ranks: make([]RankTime, t.Ranks)}
	lo, hi := t.Bounds()
	s.Span = hi - lo
	compute, comm := t.busy(Compute), t.busy(Comm)
	for r := range s.Ranks {
		a, b := compute[r], comm[r]
		s.Ranks[r] = RankTime{Rank: r, Compute: Length(a), Comm: Length(b), Exposed: Length(b) - Overlap(a, b)}
		s.Exposed = max(s.Exposed, s.Ranks[r].Exposed)
	}
	for i := range t.Events {
		if e := &t.Events[i]; e.Class == Comm {
			s.Bytes += e.Bytes
		}
	}
	s.Ops = t.totals()
	return s
}

func (t *Trace) totals() []OpTotal {
	index := map[string]int{}
	var ops []OpTotal
	for i := range t.Events {
		e := &t.Events[i]
		key := e.Class.String() + " " + e.Name
		k, ok := index[key]
		if !ok {
			k = len(ops)
			index[key] = k
			ops = append(ops, OpTotal{Name: e.Name, Class: e.Class})
		}
		ops[k].Count++
		ops[k].Time += e.Duration()
		ops[k].Bytes += e.Bytes
	}
	slices.SortFunc(ops, func(a, b OpTotal) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name))
	})
	return ops
}

// Collective is one collective. Its time is divided into waiting for late members and moving data.
type Collective struct {
	Run     int64
	Group   int
	Name    string
	Detail  string
	Arrived int64 // when the last member started
	Last    int   // the rank of that member
	Members []Share
}

// Share is the time of one member in a collective.
type Share struct {
	Rank    int
	Waiting int64 // from its start until the last member has arrived, or until its own end
	Moving  int64 // from then until its end
}

// instance identifies a collective of a run.
type instance struct {
	run   int64
	group int
}

// arrivals returns when the last member of each collective started.
func (t *Trace) arrivals() map[instance]int64 {
	last := map[instance]int64{}
	for i := range t.Events {
		e := &t.Events[i]
		k := instance{e.Run, e.Group}
		if at, ok := last[k]; e.Group != NoGroup && (!ok || e.Start > at) {
			last[k] = e.Start
		}
	}
	return last
}

// Collectives returns the collectives by run and group. In collectives such as broadcast not every member needs all
// others; there Waiting is an upper bound.
func (t *Trace) Collectives() []Collective {
	index := map[instance]int{}
	var list []Collective
	var members [][]*Event
	for i := range t.Events {
		e := &t.Events[i]
		if e.Group == NoGroup {
			continue
		}
		k := instance{e.Run, e.Group}
		at, ok := index[k]
		if !ok {
			at = len(list)
			index[k] = at
			list = append(list, Collective{Run: e.Run, Group: e.Group, Name: e.Name, Detail: e.Detail, Arrived: e.Start, Last: e.Rank})
			members = append(members, nil)
		}
		if c := &list[at]; e.Start > c.Arrived {
			c.Arrived, c.Last = e.Start, e.Rank
		}
		members[at] = append(members[at], e)
	}
	for i := range list {
		for _, e := range members[i] {
			list[i].Members = append(list[i].Members, split(e, list[i].Arrived))
		}
	}
	slices.SortFunc(list, func(a, b Collective) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Group, b.Group))
	})
	return list
}

func split(e *Event, arrived int64) Share {
	begun := min(max(arrived, e.Start), e.End)
	return Share{Rank: e.Rank, Waiting: begun - e.Start, Moving: e.End - begun}
}
