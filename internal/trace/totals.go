package trace

import (
	"cmp"
	"slices"
)

// OpTotal is the total of the events of one name.
type OpTotal struct {
	Name  string
	Class Class
	Count int
	Time  int64 // sum over the events
}

// Totals returns, for each class, the total of the events of each name. Within a class, the name with the longest
// time is first. Times are in nanoseconds, or in steps if the trace is virtual.
func (t *Trace) Totals() []OpTotal {
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
	}
	slices.SortFunc(ops, func(a, b OpTotal) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name))
	})
	return ops
}

// instance identifies a collective in one run.
type instance struct {
	run   int64
	group int
}

// arrivals returns, for each collective, the time at which the last member started.
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
