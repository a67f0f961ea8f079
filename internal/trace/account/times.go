package account

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/trace"
)

// without returns the length of the part of a that is not in b. Both are unions of intervals.
func without(a, b []trace.Interval) int64 { return trace.Length(a) - trace.Overlap(a, b) }

// expose measures, for each rank, the communication during which the rank computed nothing, without start skew. If
// several collectives are in flight, a moment is counted as transfer if one of them moves data, and otherwise as
// unknown if the waiting of one of them is unknown. Barriers move no data.
func (a *accounting) expose() {
	n := a.t.Ranks
	lists := func() [][]trace.Interval { return make([][]trace.Interval, n) }
	compute, comm, moving, unclear := lists(), lists(), lists(), lists()
	begun := map[call]int64{} // the time at which the transfer of each call began
	skew := map[call]int64{}
	for _, list := range a.shares {
		for _, s := range list {
			if s.told {
				begun[s.event] = a.t.Events[s.event].Start + s.wait
				if s.skew > 0 {
					skew[s.event] = s.skew
				}
			}
		}
	}
	known := len(a.shares) == 0
	for i := range a.t.Events {
		e := &a.t.Events[i]
		whole := trace.Interval{Lo: e.Start + skew[i], Hi: e.End}
		switch e.Class {
		case trace.Compute:
			compute[e.Rank] = append(compute[e.Rank], whole)
		case trace.Comm:
			comm[e.Rank] = append(comm[e.Rank], whole)
			from, told := begun[i]
			switch known = known || told; {
			case !a.known(i):
				unclear[e.Rank] = append(unclear[e.Rank], whole)
				continue
			case !told: // it belongs to no collective
				from = e.Start
			}
			if e.Name != barrier {
				moving[e.Rank] = append(moving[e.Rank], trace.Interval{Lo: from, Hi: e.End})
			}
		}
	}
	x := &a.r.Exposed
	var wait, transfer float64
	for r := range n {
		busy, all := trace.Union(compute[r]), trace.Union(comm[r])
		total, moved := without(all, busy), without(trace.Union(moving[r]), busy)
		b := RankExposed{Rank: a.t.ID(r), TotalUS: us(total), HiddenUS: us(trace.Length(all) - total),
			ComputeUS: us(trace.Length(busy)), UnknownUS: us(total)}
		if known {
			open := without(trace.Union(slices.Concat(moving[r], unclear[r])), busy) - moved
			w, m := us(total-moved-open), us(moved)
			b.WaitUS, b.TransferUS, b.UnknownUS = &w, &m, us(open)
			wait, transfer = wait+w, transfer+m
		}
		x.ByRank = append(x.ByRank, b)
		x.TotalUS, x.HiddenUS, x.UnknownUS = x.TotalUS+b.TotalUS, x.HiddenUS+b.HiddenUS, x.UnknownUS+b.UnknownUS
	}
	if known {
		x.WaitUS, x.TransferUS = &wait, &transfer
	}
}

// known reports whether the waiting and the transfer of a communication are known. NCCL's kernels of sends and receives
// also wait for their peers, and the profile does not show how long. A command of hocket that belongs to no collective
// only moves data.
func (a *accounting) known(i int) bool {
	e := &a.t.Events[i]
	_, told := a.r.waits[i]
	return told || e.Group == trace.NoGroup && e.Call == nil
}

// Idle is the time in which nothing ran on the device of a rank, between its first event and its last, by cause.
type Idle struct {
	Rank    int     `json:"rank"`
	TotalUS float64 `json:"total_us"`
	// HostUS is the time in which the host had not yet issued the next work. SignalUS is the time in which a stream
	// waited for a signal of another rank. EventUS is the time in which a stream waited for another stream of its rank,
	// while no stream waited for a signal. LaunchUS is the remaining part of short gaps. UnknownUS is the idle time
	// that the profile does not explain.
	HostUS    float64 `json:"host_us"`
	SignalUS  float64 `json:"signal_us"`
	EventUS   float64 `json:"event_us"`
	LaunchUS  float64 `json:"launch_us"`
	UnknownUS float64 `json:"unknown_us"`
	// PeerUS is the exposed waiting in collectives, in which the device is busy but does no useful work.
	PeerUS float64 `json:"peer_us"`
}

// launchGap is the longest gap between two operations, in nanoseconds, that is attributed to the launch of the second
// one.
const launchGap = 20_000

func (a *accounting) idle() {
	signals, waits := make([][]trace.Interval, a.t.Ranks), make([][]trace.Interval, a.t.Ranks)
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if e.Class != trace.Sync || e.Tie == nil {
			continue
		}
		during := trace.Interval{Lo: e.Start, Hi: e.End}
		waits[e.Rank] = append(waits[e.Rank], during)
		if e.Waits() && e.Tie.Counter != "" {
			signals[e.Rank] = append(signals[e.Rank], during)
		}
	}
	for r, l := range a.lanes {
		if len(l.events) == 0 {
			continue
		}
		x := Idle{Rank: a.t.ID(r)}
		signals, waits := trace.Union(signals[r]), trace.Union(waits[r])
		at := l.events[0].Start
		for _, e := range l.events {
			if e.Start > at {
				x.gap(at, e, signals, waits)
			}
			at = max(at, e.End)
		}
		x.TotalUS = x.HostUS + x.SignalUS + x.EventUS + x.LaunchUS + x.UnknownUS
		if w := a.r.Exposed.ByRank[r].WaitUS; w != nil {
			x.PeerUS = *w
		}
		a.r.Idle = append(a.r.Idle, x)
	}
}

// gap adds the idle time of the device from the time at to the start of the event e. signals holds the times in which
// streams of the rank waited for signals, and waits those in which they waited for anything.
func (x *Idle) gap(at int64, e *trace.Event, signals, waits []trace.Interval) {
	during := trace.Interval{Lo: at, Hi: e.Start}
	signal, waited := trace.Covered(during, signals), trace.Covered(during, waits)
	x.SignalUS += us(signal)
	x.EventUS += us(waited - signal)
	rest := e.Start - at - waited
	if e.Issued != 0 {
		host := min(max(e.Issued-at, 0), rest)
		x.HostUS += us(host)
		rest -= host
	}
	if rest <= launchGap {
		x.LaunchUS += us(rest)
	} else {
		x.UnknownUS += us(rest)
	}
}

// Critical is the chain of work, across ranks, that determined how long the run took. If the clocks of the ranks
// cannot be compared, a report has none.
type Critical struct {
	SpanUS float64        `json:"span_us"`
	ByKind []KindTime     `json:"by_kind"`
	Path   []CriticalPart `json:"path"`

	beginUS   float64 // from the start of the trace to the start of the chain
	beginRank int
	longest   map[string]nameTime // the name with the most time on the whole chain, for each kind
}

// nameTime is the total time of the parts of the critical path with one name.
type nameTime struct {
	name string
	us   float64
}

// kindOf returns the kind of an event on the critical path. On this path, no event waits for other members of a
// collective.
func (a *accounting) kindOf(i int) string {
	e := &a.t.Events[i]
	switch {
	case e.Class != trace.Comm:
		return e.Class.String()
	case e.Name == barrier:
		return barrier
	case a.known(i):
		return "transfer"
	}
	return "communication" // waiting and transfer cannot be separated
}

// KindTime is the time of one kind of activity on the critical path: "compute", "transfer", "barrier", "communication"
// if waiting cannot be separated from transfer, "io", "sync" for waits and signals, "idle".
type KindTime struct {
	Kind string  `json:"kind"`
	US   float64 `json:"us"`
}

// CriticalPart is one stretch of the critical chain.
type CriticalPart struct {
	Rank    int     `json:"rank"`
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	StartUS float64 `json:"start_us"`
	US      float64 `json:"us"`
}

// maxPath is the largest number of stretches of the critical path that a report lists. Of a path with more stretches, a
// report lists the longest ones.
const maxPath = 200

func (a *accounting) critical() {
	if len(a.t.Events) == 0 || !a.compared() {
		return
	}
	chain := a.chain().Path()
	c := &Critical{}
	at := a.t.Events[chain[0]].Start
	c.beginUS, c.beginRank = us(at-a.origin), a.t.ID(a.t.Events[chain[0]].Rank)
	add := func(e *trace.Event, name, kind string, to int64) {
		if to > at {
			c.Path = append(c.Path, CriticalPart{Rank: a.t.ID(e.Rank), Name: name, Kind: kind,
				StartUS: us(at - a.origin), US: us(to - at)})
			at = to
		}
	}
	for _, i := range chain {
		e := &a.t.Events[i]
		add(e, "before "+e.Name, "idle", e.Start)
		add(e, e.Name, a.kindOf(i), e.End)
	}
	type part struct{ kind, name string }
	sums, byName := map[string]float64{}, map[part]float64{}
	c.longest = map[string]nameTime{}
	for _, p := range c.Path {
		sums[p.Kind] += p.US
		byName[part{p.Kind, p.Name}] += p.US
		c.SpanUS += p.US
	}
	for _, p := range c.Path {
		if us := byName[part{p.Kind, p.Name}]; us > c.longest[p.Kind].us {
			c.longest[p.Kind] = nameTime{p.Name, us}
		}
	}
	for _, kind := range []string{"compute", "transfer", barrier, "communication", "io", "sync", "idle"} {
		if sums[kind] > 0 {
			c.ByKind = append(c.ByKind, KindTime{kind, sums[kind]})
		}
	}
	if len(c.Path) > maxPath {
		slices.SortStableFunc(c.Path, func(x, y CriticalPart) int { return cmp.Compare(y.US, x.US) })
		c.Path = c.Path[:maxPath]
		slices.SortFunc(c.Path, func(x, y CriticalPart) int { return cmp.Compare(x.StartUS, y.StartUS) })
	}
	a.r.Critical = c
}

// Steps has statistics about the steps (iterations) that the profiled program marked. The time of a step is that of the
// slowest rank.
type Steps struct {
	Count int `json:"count"`
	// number of steps at the start that are omitted because they took more than 1.5 times the median
	Cut     int     `json:"cut"`
	P50US   float64 `json:"p50_us"`
	P95US   float64 `json:"p95_us"`
	LeastUS float64 `json:"least_us"`
	MostUS  float64 `json:"most_us"`
}

func (a *accounting) steps() {
	byStep := map[string]map[int]*ends{}
	var order []string
	note := func(name string, rank int, from, to int64) {
		if byStep[name] == nil {
			byStep[name] = map[int]*ends{}
			order = append(order, name)
		}
		b := byStep[name][rank]
		if b == nil {
			b = &ends{}
			byStep[name][rank] = b
		}
		b.add(from)
		b.add(to)
	}
	for _, s := range a.t.Steps {
		note(s.Name, s.Rank, s.Start, s.End)
	}
	if a.t.Source == "" {
		runs := map[int64]string{}
		for i := range a.t.Events {
			e := &a.t.Events[i]
			name, ok := runs[e.Run]
			if !ok {
				name = fmt.Sprint("run ", e.Run)
				runs[e.Run] = name
			}
			note(name, e.Rank, e.Start, e.End)
		}
	}
	var times []float64
	slices.SortStableFunc(order, func(x, y string) int {
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
	for _, name := range order {
		var most int64
		for _, b := range byStep[name] {
			most = max(most, b.hi-b.lo)
		}
		times = append(times, us(most))
	}
	if len(times) < 2 {
		return
	}
	s := &Steps{}
	median := percentile(times, 50)
	for s.Cut < len(times)/2 && times[s.Cut] > 1.5*median {
		s.Cut++
	}
	times = times[s.Cut:]
	s.Count, s.P50US, s.P95US = len(times), percentile(times, 50), percentile(times, 95)
	s.LeastUS, s.MostUS = slices.Min(times), slices.Max(times)
	a.r.Steps = s
}

// percentile returns the smallest time t in the list for which at least the given percentage of the times are t or
// less.
func percentile(times []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max((len(sorted)*percent+99)/100-1, 0)]
}
