package account

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// blame says of every late rank what it did that those who waited did not: since the last
// collective that they left together, which kernels took it longer, and how long its
// device had nothing to do.
func (a *accounting) blame() {
	lanes := a.byRank()
	a.bare = !slices.ContainsFunc(a.t.Events, func(e trace.Event) bool { return e.Class == trace.Compute })
	type sum struct {
		n     int
		waits float64
		worst *Collective
	}
	by := map[int]*sum{}
	for g := range a.r.Collectives {
		c := &a.r.Collectives[g]
		if c.Late == nil {
			continue
		}
		c.Late.After = a.cause(lanes, g)
		s := by[c.Late.Rank]
		if s == nil {
			s = &sum{}
			by[c.Late.Rank] = s
		}
		s.n++
		for _, m := range c.ByRank {
			s.waits += *m.WaitUS
		}
		if s.worst == nil || c.Late.US > s.worst.Late.US {
			s.worst = c
		}
	}
	for r := range a.t.Ranks {
		if s := by[a.t.ID(r)]; s != nil {
			a.problem("late", a.t.ID(r),
				"rank %d was last in %s; the others waited %s in all, at most %s, in %s %d of %d", a.t.ID(r),
				plural(s.n, "collective"), trace.Microseconds(s.waits), trace.Microseconds(s.worst.Late.US), s.worst.Op,
				s.worst.Nth, s.worst.OfOp)
		}
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// lane is what one rank did: events by start, but for waits.
type lane struct {
	events []*trace.Event
	host   []trace.HostCall // by start
}

func (a *accounting) byRank() []lane {
	lanes := make([]lane, a.t.Ranks)
	for i := range a.t.Events {
		if e := &a.t.Events[i]; e.Class != trace.Sync {
			lanes[e.Rank].events = append(lanes[e.Rank].events, e)
		}
	}
	for r := range lanes {
		slices.SortStableFunc(lanes[r].events, func(x, y *trace.Event) int { return cmp.Compare(x.Start, y.Start) })
	}
	for _, h := range a.t.Host {
		lanes[h.Rank].host = append(lanes[h.Rank].host, h)
	}
	return lanes
}

// window is the time of one rank before it came to a collective.
type window struct {
	from, to int64
	whole    bool // from the begin of the profile
	busy     map[string]int64
	gaps     []gap
	idle     int64
}

// gap is a time in which a rank's device had nothing to do, before an event.
type gap struct {
	from, to int64
	before   *trace.Event
}

// cause compares the late rank with the one that waited longest.
func (a *accounting) cause(lanes []lane, g int) string {
	lateAt, earlyAt := a.shares[g][0].event, a.shares[g][0].event
	for _, s := range a.shares[g] {
		if e := &a.t.Events[s.event]; e.Start > a.t.Events[lateAt].Start {
			lateAt = s.event
		} else if e.Start < a.t.Events[earlyAt].Start {
			earlyAt = s.event
		}
	}
	late, early := &a.t.Events[lateAt], &a.t.Events[earlyAt]
	if a.bare {
		return "unknown, for the profile holds no work but collectives"
	}
	from := a.parted(g)
	slow, fast := a.before(lanes, from[late.Rank], lateAt), a.before(lanes, from[early.Rank], earlyAt)
	lateness := late.Start - early.Start
	var parts []part
	if ahead := slow.from - fast.from; slow.whole && fast.whole && ahead > lateness/10 {
		parts = append(parts, part{ahead,
			fmt.Sprintf("its profile begins %s after that of rank %d, and does not show what came before",
				short(ahead), a.t.ID(early.Rank))})
	}
	if after := from[late.Rank] - from[early.Rank]; len(from) > 0 && after > max(lateness/10, a.residual()) {
		parts = append(parts, part{after,
			fmt.Sprintf("it left the collective before %s after rank %d, its own share of the work taking longer",
				short(after), a.t.ID(early.Rank))})
	}
	for name, ns := range slow.busy {
		if more := ns - fast.busy[name]; more > lateness/10 {
			parts = append(parts, part{more, a.longer(name, ns, fast.busy[name], early.Rank)})
		}
	}
	if more := slow.idle - fast.idle; more > lateness/10 {
		parts = append(parts, part{more, a.idled(&lanes[late.Rank], slow)})
	}
	if len(parts) == 0 {
		if len(slow.busy) == 0 && len(slow.gaps) == 0 {
			return "unknown, for the profile shows nothing before it"
		}
		return "of many small differences"
	}
	slices.SortFunc(parts, func(x, y part) int {
		return cmp.Or(cmp.Compare(y.ns, x.ns), strings.Compare(x.text, y.text))
	})
	var texts []string
	for _, p := range parts[:min(len(parts), 3)] {
		texts = append(texts, p.text)
	}
	return strings.Join(texts, "; and ")
}

// part of a cause, and how much it explains.
type part struct {
	ns   int64
	text string
}

func short(ns int64) string { return trace.Microseconds(us(ns)) }

func (a *accounting) longer(name string, ns, other int64, early int) string {
	if other == 0 {
		return fmt.Sprintf("%s ran there for %s, and not on rank %d", name, short(ns), a.t.ID(early))
	}
	return fmt.Sprintf("%s took %s there, and %s on rank %d", name, short(ns), short(other), a.t.ID(early))
}

// parted returns when each member of a collective left the one before that all of them
// took part in.
func (a *accounting) parted(g int) map[int]int64 {
	from := map[int]int64{}
	var ranks []int
	for _, s := range a.shares[g] {
		ranks = append(ranks, a.t.Events[s.event].Rank)
	}
	for p := g - 1; p >= 0 && p > g-64; p-- {
		ends := map[int]int64{}
		for _, s := range a.shares[p] {
			e := &a.t.Events[s.event]
			ends[e.Rank] = e.End
		}
		missing := slices.ContainsFunc(ranks, func(r int) bool {
			_, ok := ends[r]
			return !ok
		})
		if !missing {
			return ends
		}
	}
	return from
}

// before measures what a rank did from a time on until it came to a collective. Where waits
// were recorded that is what the collective had to wait for, by the critical path to it;
// elsewhere all that ran on the rank's device.
func (a *accounting) before(lanes []lane, from int64, until call) *window {
	e := &a.t.Events[until]
	if a.t.Source != "" {
		return lanes[e.Rank].before(from, e)
	}
	if a.chains == nil {
		a.chains = a.t.Chains()
	}
	w := &window{from: from, to: e.Start, busy: map[string]int64{}, whole: from == 0}
	at := e
	for _, x := range a.chains.Before(until, from) {
		name := x.Name
		if x.Rank != e.Rank {
			name += fmt.Sprintf(" on rank %d", a.t.ID(x.Rank))
		}
		if x.End < at.Start {
			w.gaps = append(w.gaps, gap{max(x.End, from), at.Start, at})
			w.idle += at.Start - max(x.End, from)
		}
		if d := min(x.End, at.Start) - max(x.Start, from); d > 0 && x.Class != trace.Sync {
			w.busy[name] += d
		}
		w.from = max(x.Start, from)
		at = &x
	}
	return w
}

// before measures what ran on a rank from a time on until an event; from 0 means from the
// begin.
func (l *lane) before(from int64, until *trace.Event) *window {
	w := &window{from: from, to: until.Start, busy: map[string]int64{}}
	if from == 0 {
		w.whole, w.from = true, l.events[0].Start
	}
	k := sort.Search(len(l.events), func(k int) bool { return l.events[k].Start >= w.from })
	at := w.from
	for _, e := range l.events[k:] {
		if e.Start > until.Start || e == until {
			break
		}
		if e.Class != trace.Comm {
			w.busy[e.Name] += min(e.End, w.to) - e.Start
		}
		w.gap(at, e)
		at = max(at, min(e.End, w.to))
	}
	w.gap(at, until)
	return w
}

func (w *window) gap(at int64, e *trace.Event) {
	if e.Start > at {
		w.gaps = append(w.gaps, gap{at, e.Start, e})
		w.idle += e.Start - at
	}
}

// idled says what the host did in the longest gap.
func (a *accounting) idled(l *lane, w *window) string {
	longest := slices.MaxFunc(w.gaps, func(x, y gap) int { return cmp.Compare(x.to-x.from, y.to-y.from) })
	e := longest.before
	text := fmt.Sprintf("its device had nothing to do for %s, most of it before %s", short(w.idle), e.Name)
	if len(w.gaps) == 1 || longest.to-longest.from > w.idle*9/10 {
		text = fmt.Sprintf("its device had nothing to do for %s before %s", short(longest.to-longest.from), e.Name)
	}
	if e.Issued == 0 || e.Issued <= longest.from {
		return text
	}
	text += fmt.Sprintf(", which the host issued %s late", short(e.Issued-longest.from))
	return text + l.meanwhile(longest.from, e.Issued)
}

// mostCalls bounds how many of the host's calls before a time are looked at.
const mostCalls = 4096

// meanwhile names what the host did between two times: the call that took most of it, or
// that nothing was recorded.
func (l *lane) meanwhile(from, to int64) string {
	var best trace.HostCall
	var most int64
	var ran []trace.Interval
	k := sort.Search(len(l.host), func(k int) bool { return l.host[k].Start >= to })
	for _, h := range l.host[max(k-mostCalls, 0):k] {
		if h.End <= from {
			continue
		}
		ran = append(ran, trace.Interval{Lo: max(h.Start, from), Hi: min(h.End, to)})
		if d := min(h.End, to) - max(h.Start, from); d > most {
			best, most = h, d
		}
	}
	switch {
	case len(l.host) == 0:
		return ""
	case most > (to-from)/2:
		return fmt.Sprintf("; the host was in %s for %s of that", best.Name, short(most))
	}
	if quiet := to - from - trace.Length(trace.Union(ran)); quiet > (to-from)/2 {
		return fmt.Sprintf("; for %s of that the host did nothing that was recorded", short(quiet))
	}
	return ""
}
