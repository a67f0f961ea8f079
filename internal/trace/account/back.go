package account

import (
	"cmp"
	"slices"
	"sort"

	"hocket.example/hocket/internal/trace"
)

// These are the kinds of activity in a stretch of time.
const (
	isWork     = "work"     // a kernel, or a copy of the host
	isTransfer = "transfer" // communication after all members have arrived
	isPeer     = "peer"     // waiting in a collective for another member
	isSignal   = "signal"   // waiting for a signal
	isStream   = "stream"   // waiting for another stream, whose activity was not recorded
	isLag      = "lag"      // the time from the end of the event that was waited for to the end of the wait
	isGap      = "gap"      // nothing ran on the stream
)

// stretch is a time interval before the start of an event, with the activity for which the event had to wait.
type stretch struct {
	kind   string
	lo, hi int64
	event  int // the event that was active in the interval; for a gap, the event after the gap
	by     int // for isPeer and isSignal: the event of another rank that ended the wait, or -1
}

func (s *stretch) long() int64 { return s.hi - s.lo }

// tracer finds the activities for which an event had to wait, going back in time from the event.
type tracer struct {
	matching
	shares [][]share
	bare   bool // the trace contains only communication
	lanes  []lane
	same   map[statement][]int // the events of each statement; only in traces that hocket recorded
	chains *trace.Chains
}

// back divides the time from the argument from until the start of event i, on the rank of i, into the activities for
// which i had to wait, the latest first. If the rank waited for another of its streams, the activities are those of the
// other stream. The result unsure, which is false for hocket's own traces, reports that the profile does not show for
// which of several streams the event waited.
func (a *tracer) back(i int, from int64) (out []stretch, unsure bool) {
	chains := a.chain()
	now := a.t.Events[i].Start
	put := func(kind string, lo int64, event, by int) {
		if lo = max(lo, from); lo < now {
			out = append(out, stretch{kind, lo, now, event, by})
			now = lo
		}
	}
	seen := map[int]bool{i: true}
	for at := i; now > from; {
		j := chains.Before(at, seen)
		if j < 0 {
			put(isGap, from, at, -1)
			break
		}
		if a.t.Events[j].End < now {
			put(isGap, a.t.Events[j].End, at, -1)
		}
		if now > from && a.t.Events[j].Stream != a.t.Events[at].Stream && chains.Others(at, j, launchGap) {
			unsure = true
		}
		for seen[j] = true; now > from; seen[j] = true { // replace a wait by the work of the stream that it waits for
			e := &a.t.Events[j]
			d := chains.Released(j)
			if d < 0 || a.t.Events[d].Rank != e.Rank || a.t.Events[d].End <= e.Start || seen[d] {
				break
			}
			put(isLag, a.t.Events[d].End, j, -1)
			j = d
		}
		a.putEvent(j, put)
		at = j
	}
	return out, unsure
}

// chain returns the chains of the trace, which have for each event the event for which it had to wait.
func (a *tracer) chain() *trace.Chains {
	if a.chains == nil {
		a.chains = a.t.Chains()
	}
	return a.chains
}

// putEvent divides the time of event j into parts of one kind, and calls put for each.
func (a *tracer) putEvent(j int, put func(kind string, lo int64, event, by int)) {
	e := &a.t.Events[j]
	switch {
	case e.Waits() && e.Tie != nil && e.Tie.Counter != "":
		by := a.chains.Released(j)
		if by >= 0 {
			put(isLag, max(a.t.Events[by].End, e.Start), j, -1)
		}
		put(isSignal, e.Start, j, by)
	case e.Waits() && a.chains.Released(j) >= 0: // the event that was waited for had ended before the wait began
		put(isLag, e.Start, j, -1)
	case e.Waits():
		put(isStream, e.Start, j, -1)
	case e.Class == trace.Comm:
		if wait := a.r.waits[j]; wait > 0 {
			put(isTransfer, e.Start+wait, j, -1)
			put(isPeer, e.Start, j, a.lastOf(e.Group))
		}
		put(isTransfer, e.Start, j, -1)
	default:
		put(isWork, e.Start, j, -1)
	}
}

// lastOf returns the index of the event of the member that entered a collective last.
func (a *tracer) lastOf(group int) int {
	last := a.members[group][0]
	for _, i := range a.members[group] {
		if a.t.Events[i].Start > a.t.Events[last].Start {
			last = i
		}
	}
	return last
}

// lane is the activity of one rank: its events by start, except waits and signals, and the calls of its host.
type lane struct {
	events  []*trace.Event
	ends    []int64          // for each event, the latest end of this and all earlier events
	host    []trace.HostCall // by start
	hostEnd []int64          // for each call, the latest end of this and all earlier calls
	// the ascending start times of the events of each operation; computed when first needed
	begun map[opOf][]int64
}

func (a *tracer) byRank() []lane {
	lanes := make([]lane, a.t.Ranks)
	for i := range a.t.Events {
		if e := &a.t.Events[i]; e.Class != trace.Sync {
			lanes[e.Rank].events = append(lanes[e.Rank].events, e)
		}
	}
	for _, h := range a.t.Host {
		lanes[h.Rank].host = append(lanes[h.Rank].host, h)
	}
	for r := range lanes {
		l := &lanes[r]
		slices.SortStableFunc(l.events, func(x, y *trace.Event) int { return cmp.Compare(x.Start, y.Start) })
		slices.SortStableFunc(l.host, func(x, y trace.HostCall) int { return cmp.Compare(x.Start, y.Start) })
		for k, e := range l.events {
			l.ends = append(l.ends, e.End)
			if k > 0 {
				l.ends[k] = max(l.ends[k], l.ends[k-1])
			}
		}
		for k := range l.host {
			l.hostEnd = append(l.hostEnd, l.host[k].End)
			if k > 0 {
				l.hostEnd[k] = max(l.hostEnd[k], l.hostEnd[k-1])
			}
		}
	}
	return lanes
}

// opOf identifies the events of one operation.
type opOf struct {
	class trace.Class
	name  string
}

// until returns the number of events of a class and name that started before the time to.
func (l *lane) until(class trace.Class, name string, to int64) int {
	if l.begun == nil {
		l.begun = map[opOf][]int64{}
		for _, e := range l.events {
			k := opOf{e.Class, e.Name}
			l.begun[k] = append(l.begun[k], e.Start)
		}
	}
	list := l.begun[opOf{class, name}]
	return sort.Search(len(list), func(k int) bool { return list[k] >= to })
}

// ran is the number and the total time of the events of one name on one rank between two times.
type ran struct {
	times int
	ns    int64 // sum of the events' durations between the two times
	full  int64 // sum of their complete durations
}

// ran returns the number and the total time of the events of a name and class between the times from and to.
func (l *lane) ran(class trace.Class, name string, from, to int64) ran {
	var out ran
	k := sort.Search(len(l.events), func(k int) bool { return l.events[k].Start >= to })
	for k--; k >= 0 && l.ends[k] > from; k-- {
		e := l.events[k]
		if e.Class != class || e.Name != name || e.End <= from {
			continue
		}
		out.times++
		out.ns += min(e.End, to) - max(e.Start, from)
		out.full += e.Duration()
	}
	return out
}

// begin returns the time at which the first event of the rank started.
func (l *lane) begin() int64 {
	if len(l.events) == 0 {
		return 0
	}
	return l.events[0].Start
}
