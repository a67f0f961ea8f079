package account

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// blame explains why each late rank was late. blame compares the late rank with the rank that waited longest. The
// reasons are the activities that only the late rank had since the last collective that both ranks left.
func (a *accounting) blame() {
	for g := range a.r.Collectives {
		if c := &a.r.Collectives[g]; c.Late != nil {
			c.Late.Since, c.Late.Causes = a.causes(g)
			c.Late.After = joined(c.Late.Causes)
		}
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Cause is one reason why a rank was late.
type Cause struct {
	// Kind is the kind of the late rank's activity:
	//   - "kernel": a kernel or copy took longer than on the other rank
	//   - "alone": it ran on this rank only
	//   - "overlap": the other rank ran it before it left the last collective
	//   - "host": the host issued the work late
	//   - "gap": nothing ran, and the profile does not say why
	//   - "transfer": communication took longer
	//   - "peer": the rank itself waited for another in a collective
	//   - "signal": it waited for a signal
	//   - "stream": it waited for another stream
	//   - "begins": its profile begins later
	//   - "unknown"
	Kind string `json:"kind"`
	Rank int    `json:"rank"` // the rank on which the activity happened
	Op   string `json:"op,omitempty"`
	// US is the part of the delay that the activity explains. TookUS is the duration of the activity on the rank
	// Rank, and OtherUS its duration on the rank that waited.
	US      float64 `json:"us"`
	TookUS  float64 `json:"took_us"`
	OtherUS float64 `json:"other_us"`
	Text    string  `json:"text"`
}

func joined(causes []Cause) string {
	var texts []string
	for _, c := range causes {
		texts = append(texts, c.Text)
	}
	return strings.Join(texts, "; and ")
}

func short(ns int64) string { return trace.Microseconds(us(ns)) }

// The type what is the key of an activity: the times of activities with equal keys are added up, and compared between
// two ranks.
type what struct {
	kind  string
	class trace.Class
	name  string
	by    int // for a wait, the index of the rank that was waited for, or -1
	group int // for isPeer: the collective
}

// window is a period before a rank entered a collective, divided into the activities for which the rank had to wait.
type window struct {
	rank     int
	from, to int64
	parts    []stretch
	sums     map[what]int64
	unsure   bool
}

// The method window returns the period of the rank of event i that begins at the time from and ends at the start of i.
func (a *tracer) window(i int, from int64) *window {
	e := &a.t.Events[i]
	w := &window{rank: e.Rank, from: from, to: e.Start, sums: map[what]int64{}}
	w.parts, w.unsure = a.back(i, from)
	for _, p := range w.parts {
		w.sums[a.whatOf(p)] += p.long()
	}
	return w
}

func (a *tracer) whatOf(p stretch) what {
	k := what{kind: p.kind, by: -1, group: trace.NoGroup}
	e := &a.t.Events[p.event]
	switch p.kind {
	case isWork, isTransfer:
		k.class, k.name = e.Class, e.Name
	case isPeer:
		k.by, k.group = a.t.ID(a.t.Events[p.by].Rank), e.Group
	case isSignal:
		if p.by >= 0 {
			k.by = a.t.ID(a.t.Events[p.by].Rank)
		}
	}
	return k
}

// comparison compares a late rank with the rank that waited longest for it.
type comparison struct {
	a              *tracer
	slowAt, fastAt call
	slow, fast     *window
	since          string // the last earlier collective that both ranks left; empty if there is none
	least          int64  // the smallest part of the delay, in nanoseconds, that a reported cause must explain
	out            []Cause
}

// mostCauses is the largest number of causes that one sentence names.
const mostCauses = 3

// causes compares the late rank of collective g with the rank that waited longest, and returns the differences. causes
// also returns the name of the collective at whose end the comparison begins, or "" if there is none.
func (a *tracer) causes(g int) (since string, causes []Cause) {
	late, early := -1, -1
	for k, s := range a.shares[g] {
		if late < 0 || a.t.Events[s.event].Start > a.t.Events[a.shares[g][late].event].Start {
			late = k
		}
		if early < 0 || s.wait-s.skew > a.shares[g][early].wait-a.shares[g][early].skew {
			early = k
		}
	}
	x, y, skew := a.shares[g][late].event, a.shares[g][early].event, a.shares[g][early].skew
	p, q := &a.t.Events[x], &a.t.Events[y]
	if a.bare {
		return "", a.unknown(p.Rank, "the profile holds no work but collectives")
	}
	c := &comparison{a: a, slowAt: x, fastAt: y, least: max((p.Start-q.Start-skew)/10, 1)}
	if h, left, otherLeft := a.parted(g, p, q); h >= 0 {
		c.slow, c.fast = a.window(x, left), a.window(y, otherLeft)
		before := &a.r.Collectives[h]
		c.since = fmt.Sprintf("%s %d of %d", before.Op, before.Nth, before.OfOp)
		c.left(before.Op, left-otherLeft)
	} else if g > mostBack {
		return "", a.unknown(p.Rank, fmt.Sprintf("none of the %d collectives before it was left by both", mostBack))
	} else {
		c.slow, c.fast = a.window(x, a.lanes[p.Rank].begin()), a.window(y, a.lanes[q.Rank].begin())
		c.begun(c.slow.from-c.fast.from, skew)
	}
	c.compare()
	if len(c.out) == 0 {
		if len(c.slow.parts) == 0 {
			return c.since, a.unknown(p.Rank, "the profile shows nothing before it")
		}
		return c.since, a.unknown(p.Rank, "no kernel, gap or wait explains a tenth of it")
	}
	slices.SortFunc(c.out, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(y.US, x.US), strings.Compare(x.Text, y.Text))
	})
	c.out = c.out[:min(len(c.out), mostCauses)]
	if c.slow.unsure || c.fast.unsure {
		c.out = append(c.out, a.unknown(p.Rank,
			"several streams ran before it, and the profile does not say which of them it waited for")...)
		c.out[len(c.out)-1].Text = "the profile does not say for which of several streams it waited"
	}
	return c.since, c.out
}

func (a *tracer) unknown(rank int, why string) []Cause {
	return []Cause{{Kind: "unknown", Rank: a.t.ID(rank), Text: "unknown, because " + why}}
}

// mostBack is the largest number of earlier collectives that are examined to find one that both ranks left.
const mostBack = 1024

// parted returns the latest collective before g that both ranks, those of the events x and y, had left when they
// entered g, and the times at which they left it. The result h is -1 if there is no such collective.
func (a *tracer) parted(g int, x, y *trace.Event) (h int, left, otherLeft int64) {
	for h := g - 1; h >= 0 && h >= g-mostBack; h-- {
		p, q := a.member(h, x.Rank), a.member(h, y.Rank)
		if p != nil && q != nil && p.End <= x.Start && q.End <= y.Start {
			return h, p.End, q.End
		}
	}
	return -1, 0, 0
}

// member returns the event of a rank in a collective, or nil if the rank has no event in it.
func (a *tracer) member(g, rank int) *trace.Event {
	k, ok := slices.BinarySearchFunc(a.shares[g], rank, func(s share, rank int) int {
		return cmp.Compare(a.t.Events[s.event].Rank, rank)
	})
	if !ok {
		return nil
	}
	return &a.t.Events[a.shares[g][k].event]
}

func (c *comparison) add(kind, op string, explains, took, other int64, format string, args ...any) {
	c.out = append(c.out, Cause{Kind: kind, Rank: c.a.t.ID(c.slow.rank), Op: op, US: us(explains), TookUS: us(took),
		OtherUS: us(other), Text: fmt.Sprintf(format, args...)})
}

// other returns the number in the job of the rank that waited for the late rank.
func (c *comparison) other() int { return c.a.t.ID(c.fast.rank) }

// left adds a cause if the collective at which the comparison begins ended later on the late rank.
func (c *comparison) left(op string, after int64) {
	if after < max(c.least, c.a.residual()+1) {
		return
	}
	c.add("transfer", op, after, after, 0, "%s ended there %s after it ended on rank %d", c.since, short(after),
		c.other())
}

// begun adds a cause if the profile of the late rank begins later, by the time after. Of this time, skew is start skew,
// which is not counted as waiting.
func (c *comparison) begun(after, skew int64) {
	if after-skew >= c.least {
		c.add("begins", "", after-skew, after, 0,
			"its profile begins %s after that of rank %d, and does not show what came before",
			short(after), c.other())
	}
}

// compare adds a cause for each activity that took longer on the late rank.
func (c *comparison) compare() {
	keys := slices.SortedFunc(maps.Keys(c.slow.sums), func(x, y what) int {
		return cmp.Or(strings.Compare(x.kind, y.kind), strings.Compare(x.name, y.name), cmp.Compare(x.by, y.by),
			cmp.Compare(x.group, y.group), cmp.Compare(x.class, y.class))
	})
	instead, only := c.instead()
	for _, k := range keys {
		took, other := c.slow.sums[k], c.fast.sums[k]
		more := took - other
		if more < c.least || only[k] {
			continue
		}
		switch k.kind {
		case isWork, isTransfer:
			c.worked(k, took, other)
		case isPeer:
			x := &c.a.r.Collectives[k.group]
			c.add("peer", x.Op, more, took, other, "it waited %s for rank %d in %s %d of %d", short(took), k.by, x.Op,
				x.Nth, x.OfOp)
			c.out[len(c.out)-1].Rank = k.by
		case isSignal:
			c.signalled(k, took, other)
		case isStream:
			c.add("stream", "", more, took, other,
				"it waited %s for other streams, of which the trace shows nothing, and rank %d %s", short(took),
				c.other(),
				short(other))
		case isLag:
			c.add("stream", "", more, took, other,
				"its waits continued for %s after the events they waited for had ended, and those of rank %d for "+
					"%s; the trace does not say why",
				short(took), c.other(), short(other))
		case isGap:
			c.idled(took, other)
		}
	}
	if only != nil {
		c.out = append(c.out, instead...)
	}
}

// worked adds a cause for a kernel, a copy or a transfer that took longer on the late rank.
func (c *comparison) worked(k what, took, other int64) {
	kind, verb := "kernel", "ran"
	if k.kind == isTransfer {
		if kind = "transfer"; k.name != barrier {
			verb = "moved data"
		}
	}
	slow, fast := c.total(c.slow, k), c.total(c.fast, k)
	// whether no part of the activity ran on other streams at the same time
	plain := k.kind == isWork && slow.ns == took && fast.ns == other
	whole := slow.full == slow.ns && fast.full == fast.ns
	switch {
	case fast.times == 0 && slow.ns == took && slow.full == slow.ns:
		where := fmt.Sprintf("not on rank %d", c.other())
		ever := c.a.lanes[c.fast.rank].until(k.class, k.name, math.MaxInt64)
		switch mine, its := c.upTo(c.slow, k), c.upTo(c.fast, k); {
		case ever == 0 && kind == "kernel":
			kind = "alone"
		case ever == 0:
		case mine == its && c.since != "":
			kind, where = "overlap", fmt.Sprintf("on rank %d before %s ended", c.other(), c.since)
		default:
			where += " in that time"
		}
		c.add(kind, k.name, took-other, took, other, "%s %s there for %s, and %s", k.name, verb, short(took), where)
	case plain && slow.times == fast.times && (whole || slow.full-fast.full > (took-other)/2):
		c.add(kind, k.name, took-other, slow.full, fast.full, "%s took %s there, and %s on rank %d%s", k.name,
			short(slow.full), short(fast.full), c.other(), times(slow.times))
	case plain && whole:
		c.add(kind, k.name, took-other, took, other, "%s ran %s there, for %s, and %s on rank %d, for %s", k.name,
			plural(slow.times, "time"), short(took), plural(fast.times, "time"), c.other(), short(other))
	default:
		x, y := c.only(c.slow, k), c.only(c.fast, k)
		if k.kind == isWork && x != nil && y != nil && x.Duration()-y.Duration() > (took-other)/2 {
			c.add(kind, k.name, took-other, x.Duration(), y.Duration(), "%s took %s there, and %s on rank %d", k.name,
				short(x.Duration()), short(y.Duration()), c.other())
			return
		}
		if k.kind == isTransfer {
			verb = transferOf(k.name)
		} else {
			verb = k.name
		}
		c.add(kind, k.name, took-other, took, other, "%s delayed it by %s, and rank %d by %s", verb, short(took),
			c.other(),
			short(other))
	}
}

func times(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(", in %d calls each", n)
}

// only returns the event with the kind and name of k for which the rank had to wait in the window w. The result is nil
// if there is no such event, or more than one.
func (c *comparison) only(w *window, k what) *trace.Event {
	var e *trace.Event
	for _, p := range w.parts {
		if c.a.whatOf(p) == k {
			if e != nil {
				return nil
			}
			e = &c.a.t.Events[p.event]
		}
	}
	return e
}

// upTo returns how often the rank of the window w had run the operation of k by the end of the window.
func (c *comparison) upTo(w *window, k what) int {
	return c.a.lanes[w.rank].until(k.class, k.name, w.to)
}

// total returns the number and the total time of all activities with the name of k in the window w, including those for
// which no event waited.
func (c *comparison) total(w *window, k what) ran {
	return c.a.lanes[w.rank].ran(k.class, k.name, w.from, w.to)
}

// instead finds kernels that only the late rank ran and kernels that only the other rank ran. If both ranks ran such
// kernels, these are considered to be two implementations of the same work. instead returns a cause for the two kinds
// of kernels, and the keys of the late rank's activities that the cause covers.
func (c *comparison) instead() ([]Cause, map[what]bool) {
	alone := func(w, against *window) (keys []what, sum int64, names string) {
		for k, ns := range w.sums {
			if k.kind == isWork && c.total(against, k).times == 0 &&
				c.total(w, k) == (ran{c.total(w, k).times, ns, ns}) {
				keys, sum = append(keys, k), sum+ns
			}
		}
		slices.SortFunc(keys, func(x, y what) int {
			return cmp.Or(cmp.Compare(w.sums[y], w.sums[x]), strings.Compare(x.name, y.name))
		})
		for i, k := range keys[:min(len(keys), 3)] {
			if i > 0 {
				names += ", "
			}
			names += k.name
		}
		if n := len(keys) - 3; n > 0 {
			names += fmt.Sprintf(" and %d more", n)
		}
		return keys, sum, names
	}
	mine, took, names := alone(c.slow, c.fast)
	theirs, other, others := alone(c.fast, c.slow)
	if len(mine) == 0 || len(theirs) == 0 {
		return nil, nil
	}
	only := map[what]bool{}
	for _, k := range mine {
		only[k] = true
	}
	if took-other < c.least {
		return nil, only
	}
	return []Cause{{Kind: "alone", Rank: c.a.t.ID(c.slow.rank), Op: mine[0].name, US: us(took - other),
		TookUS:  us(took),
		OtherUS: us(other), Text: fmt.Sprintf("it ran %s for %s, where rank %d ran %s for %s", names, short(took),
			c.other(),
			others, short(other))}}, only
}

// signalled adds the cause that the late rank itself waited longer for signals, and describes the activities of their
// sender in that time.
func (c *comparison) signalled(k what, took, other int64) {
	if k.by < 0 {
		c.add("signal", "", took-other, took, other, "it waited %s for signals of an unknown rank",
			short(took))
		return
	}
	var longest stretch
	for _, p := range c.slow.parts {
		if c.a.whatOf(p) == k && p.long() > longest.long() {
			longest = p
		}
	}
	text := fmt.Sprintf("it waited %s for signals of rank %d", short(took), k.by)
	if longest.long() < took {
		text += fmt.Sprintf(", %s for one of them", short(longest.long()))
	}
	_, why := c.a.meantime(longest)
	c.add("signal", "", took-other, took, other, "%s: %s", text, why)
	c.out[len(c.out)-1].Rank = k.by
}

// idled adds the cause that the late rank was idle for longer. idled describes the activity of the host in the gap that
// differs most from the corresponding gap of the other rank.
func (c *comparison) idled(took, other int64) {
	gap, its := c.gap()
	a, e := c.a, &c.a.t.Events[gap.event]
	which := fmt.Sprintf("its longest gap took %s,", short(gap.long()))
	if slices.ContainsFunc(c.slow.parts, func(p stretch) bool { return p.kind == isGap && p.long() > gap.long() }) {
		which = fmt.Sprintf("the gap that differs most took %s, and %s on rank %d; it is", short(gap.long()),
			short(its), c.other())
	}
	text := fmt.Sprintf("nothing ran on its stream for %s, and for %s on that of rank %d; %s before %s", short(took),
		short(other), c.other(), which, e.Name)
	kind, why := a.idleBefore(gap)
	c.add(kind, e.Name, took-other, took, other, "%s%s", text, why)
}

// gap returns the idle time of the late rank that differs most from the corresponding idle time of the other rank, and
// the length of the latter. Idle times correspond if they precede events of the same name and the same index, counted
// from the ends of the windows. The second length is 0 if the other rank has no corresponding idle time.
func (c *comparison) gap() (longest stretch, its int64) {
	type before struct {
		name string
		nth  int
	}
	each := func(w *window, do func(k before, p stretch)) {
		last, count := -1, map[string]int{} // the parts of a window are in the order from the latest to the earliest
		for _, p := range w.parts {
			name := c.a.t.Events[p.event].Name
			if p.event != last {
				count[name]++
			}
			if last = p.event; p.kind == isGap {
				do(before{name, count[name]}, p)
			}
		}
	}
	theirs := map[before]int64{}
	each(c.fast, func(k before, p stretch) { theirs[k] += p.long() })
	most := int64(math.MinInt64)
	each(c.slow, func(k before, p stretch) {
		if more := p.long() - theirs[k]; more > most || more == most && p.long() > longest.long() {
			most, longest, its = more, p, theirs[k]
		}
	})
	return longest, its
}

// idleBefore returns the reason why nothing ran in a gap, as far as the profile shows it.
func (a *tracer) idleBefore(gap stretch) (kind, why string) {
	e := &a.t.Events[gap.event]
	issued := min(e.Issued, gap.hi)
	switch {
	case a.t.Source == "":
		return "gap", "; the trace does not say why"
	case e.Issued == 0:
		return "gap", "; the profile does not say when its host issued that"
	case issued <= gap.lo:
		return "gap", ", which its host had issued before; the profile does not say what it waited for"
	}
	late := issued - gap.lo
	kind = "gap"
	if late >= gap.long()/2 {
		kind = "host"
	}
	return kind, fmt.Sprintf(", which its host issued %s after the gap began%s", short(late),
		a.lanes[e.Rank].meanwhile(gap.lo, issued))
}

// mostCalls is the largest number of calls of the host before a given time that are examined.
const mostCalls = 4096

// meanwhile describes what the host did between two times: the call that took most of that time, or that no call
// was recorded.
func (l *lane) meanwhile(from, to int64) string {
	var best trace.HostCall
	var most int64
	var during []trace.Interval
	k := sort.Search(len(l.host), func(k int) bool { return l.host[k].Start >= to }) - 1
	least := max(k-mostCalls, -1)
	for ; k > least && l.hostEnd[k] > from; k-- {
		h := l.host[k]
		if h.End <= from {
			continue
		}
		during = append(during, trace.Interval{Lo: max(h.Start, from), Hi: min(h.End, to)})
		if d := min(h.End, to) - max(h.Start, from); d >= most {
			best, most = h, d
		}
	}
	switch {
	case len(l.host) == 0:
		return ""
	case most > (to-from)/2:
		return fmt.Sprintf("; until then its host was in %s for %s", best.Name, short(most))
	case k > 0 && k == least && l.hostEnd[k] > from: // some calls were not examined
		return ""
	}
	if quiet := to - from - trace.Length(trace.Union(during)); quiet > (to-from)/2 {
		return fmt.Sprintf("; until then nothing that its host did was recorded for %s", short(quiet))
	}
	return ""
}
