package account

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// facts checks that the sentences of a report are true, by a separate computation from the events.
type facts struct {
	t      *trace.Trace
	groups [][]int // the members of each collective
	nth    map[string][]int
}

func newFacts(r *Report) *facts {
	t, _ := r.Trace()
	f := &facts{t: t, nth: map[string][]int{}}
	for i, e := range t.Events {
		if e.Group != trace.NoGroup {
			for len(f.groups) <= e.Group {
				f.groups = append(f.groups, nil)
			}
			f.groups[e.Group] = append(f.groups[e.Group], i)
		}
	}
	for g, list := range f.groups {
		name := t.Events[list[0]].Name
		f.nth[name] = append(f.nth[name], g)
	}
	return f
}

// all checks every finding of a report. The method all also checks that the text contains every cause of a late rank.
func (f *facts) all(r *Report) error {
	for _, x := range r.Findings {
		if err := f.sentence(sentence(&x)); err != nil {
			return fmt.Errorf("%q: %w", sentence(&x), err)
		}
	}
	return nil
}

// sentence joins the lines of a finding.
func sentence(f *Finding) string {
	if len(f.Details) == 0 {
		return f.Text
	}
	return f.Text + ": " + strings.Join(f.Details, "; ")
}

const aTime = `([0-9.]+ (?:µs|ms|s))`

// match holds the parts of a sentence that match a regular expression. The method n returns the next part as a number,
// and s returns it as text.
type match struct{ parts []string }

func (m *match) s() string {
	v := m.parts[0]
	m.parts = m.parts[1:]
	return v
}

func (m *match) n() int {
	v, _ := strconv.Atoi(m.s())
	return v
}

func matched(pattern, text string) *match {
	if m := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "TIME",
		aTime) + "$").FindStringSubmatch(text); m != nil {
		return &match{m[1:]}
	}
	return nil
}

// same compares a time in the text with the one that the test computes.
func same(what, written string, ns int64) error {
	if got := trace.Microseconds(float64(ns) / 1e3); got != written {
		return fmt.Errorf("%s: it says %s, the events %s", what, written, got)
	}
	return nil
}

// atMost compares a time in the text with a bound, and allows for rounding.
func atMost(what, written string, ns int64) error {
	if micro(written) > float64(ns)/1e3*1.006+0.06 {
		return fmt.Errorf("%s: it says %s, the events at most %s", what, written, trace.Microseconds(float64(ns)/1e3))
	}
	return nil
}

func micro(written string) float64 {
	number, unit, _ := strings.Cut(written, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return math.NaN()
	}
	switch unit {
	case "ms":
		v *= 1e3
	case "s":
		v *= 1e6
	}
	return v
}

// first returns the first error.
func first(list ...error) error { return cmp.Or(list...) }

func (f *facts) collective(op string, nth, of int) (int, error) {
	list := f.nth[op]
	if nth < 1 || nth > len(list) || of != len(list) {
		return 0, fmt.Errorf("there are %d %s, and no %d of %d", len(list), op, nth, of)
	}
	return list[nth-1], nil
}

// member returns the event of a rank in a collective.
func (f *facts) member(g, rank int) *trace.Event {
	for _, i := range f.groups[g] {
		if e := &f.t.Events[i]; f.t.ID(e.Rank) == rank {
			return e
		}
	}
	return &trace.Event{Rank: -1}
}

// last returns the time at which the last member entered a collective, and the rank of this member.
func (f *facts) last(g int) (int64, int) {
	at, rank := int64(math.MinInt64), -1
	for _, i := range f.groups[g] {
		if e := &f.t.Events[i]; e.Start > at {
			at, rank = e.Start, f.t.ID(e.Rank)
		}
	}
	return at, rank
}

// sum returns the time between from and to that the events with a name took on a rank, and the number of these events.
func (f *facts) sum(rank int, name string, from, to int64) (ns int64, n int) {
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) == rank && e.Name == name && !e.Waits() && e.Start < to && e.End > from {
			ns, n = ns+min(e.End, to)-max(e.Start, from), n+1
		}
	}
	return ns, n
}

// moved returns the time between from and to in which the events of an operation moved data on a rank.
func (f *facts) moved(rank int, op string, from, to int64) int64 {
	moving, _, _ := f.moving(op, rank)
	return trace.Covered(trace.Interval{Lo: from, Hi: to}, moving)
}

// whole returns the sum of the complete durations of the events with a name on a rank that overlap the time between
// from and to.
func (f *facts) whole(rank int, name string, from, to int64) (ns int64, n int) {
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) == rank && e.Name == name && !e.Waits() && e.Start < to && e.End > from {
			ns, n = ns+e.Duration(), n+1
		}
	}
	return ns, n
}

// one returns an error unless there is an event with the given name that took as long as the text says.
func (f *facts) one(rank int, name string, from, to int64, written string) error {
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) == rank && e.Name == name && e.Start < to && e.End > from &&
			same("", written, e.Duration()) == nil {
			return nil
		}
	}
	return fmt.Errorf("no %s of rank %d took %s", name, rank, written)
}

func (f *facts) sentence(text string) error {
	if regexp.MustCompile(`transfer of barrier|barrier is not overlapped|barrier \d+ of \d+ has a slow ` +
		`transfer|barrier moved`).MatchString(text) {
		return fmt.Errorf("a barrier moves no data")
	}
	switch {
	case regexp.MustCompile("; causes on rank .*:; ").MatchString(text):
		return f.late(text)
	case strings.Contains(text, "for a signal"):
		return f.signal(text)
	case strings.Contains(text, "overlapped"):
		return f.exposed(text)
	}
	return f.slow(text)
}

func (f *facts) late(text string) error {
	m := matched(`(\S+) (\d+) of (\d+): (.+) for rank (\d+): (?:(rank .+); )?TIME (?:of transfer|after the last `+
		`came); causes on rank (\d+)(?:, after (\S+) (\d+) of (\d+))?:; (.*)`, text)
	if m == nil {
		return fmt.Errorf("no such sentence")
	}
	g, err := f.collective(m.s(), m.n(), m.n())
	if err != nil {
		return err
	}
	arrival, last := f.last(g)
	waits, rank, each, transfer := m.s(), m.n(), m.s(), m.s()
	if m := matched(`(\d+) ranks waited up to TIME`, waits); m != nil {
		n := m.n()
		var most int64
		for _, i := range f.groups[g] {
			e := &f.t.Events[i]
			most = max(most, min(arrival, e.End)-f.counts(e, last))
		}
		if err := same("longest wait", m.s(), most); err != nil || n < 2 {
			return fmt.Errorf("%d ranks waited: %w", n, err)
		}
		waits = each
	}
	if r := m.n(); r != rank {
		return fmt.Errorf("the causes are of rank %d, and rank %d is late", r, rank)
	}
	late := f.member(g, rank)
	if rank != last && late.Start != arrival {
		return fmt.Errorf("rank %d came last", last)
	}
	if err := same("transfer", transfer, late.End-late.Start); err != nil {
		return err
	}
	early := -1
	named := 0
	for _, w := range strings.Split(waits, ", ") {
		if m := matched(`(\d+) more waited`, w); m != nil {
			named += m.n()
			continue
		}
		m := matched(`rank (\d+) waited TIME`, w)
		if m == nil {
			return fmt.Errorf("who waited: %q", w)
		}
		r := m.n()
		e := f.member(g, r)
		if err := same("wait", m.s(), min(arrival, e.End)-f.counts(e, last)); err != nil {
			return err
		}
		if named++; early < 0 {
			early = r
		}
	}
	for _, i := range f.groups[g] {
		if e := &f.t.Events[i]; f.counts(e, last) < min(arrival, e.End) {
			named--
		}
	}
	if named != 0 {
		return fmt.Errorf("it says of %d too many or too few that they waited", named)
	}
	w := span{rank: rank, other: early, to: late.Start, otherTo: f.member(g, early).Start, before: -1}
	if op := m.s(); op != "" {
		if w.before, err = f.collective(op, m.n(), m.n()); err != nil {
			return err
		}
		w.from, w.otherFrom = f.member(w.before, rank).End, f.member(w.before, early).End
		if w.from > w.to || w.otherFrom > w.otherTo {
			return fmt.Errorf("they had not left the collective before")
		}
	} else {
		m.n()
		m.n()
		w.from, w.otherFrom = f.begin(rank), f.begin(early)
	}
	for _, c := range strings.Split(m.s(), "; and ") {
		if err := f.cause(c, &w); err != nil {
			return fmt.Errorf("%q: %w", c, err)
		}
	}
	return nil
}

// span holds two ranks, and for each rank the period in which it is compared with the other.
type span struct {
	rank, other        int
	from, to           int64
	otherFrom, otherTo int64
	before             int
}

// counts returns the time from which a wait of the event e for another rank is counted as waiting. This time is later
// than the start of e if the ranks were profiled separately and e starts before the first event of the other rank: by
// the difference between the starts of their profiles.
func (f *facts) counts(e *trace.Event, last int) int64 {
	compute := slices.ContainsFunc(f.t.Events, func(e trace.Event) bool { return e.Class == trace.Compute })
	if f.t.Source == "" || oneClock(f.t.Clocks) || !compute {
		return e.Start
	}
	begins := func(rank int) int64 {
		at := int64(math.MaxInt64)
		for i := range f.t.Events {
			if x := &f.t.Events[i]; f.t.ID(x.Rank) == rank {
				at = min(at, x.Start)
			}
		}
		return at
	}
	if e.Start >= begins(last) {
		return e.Start
	}
	return e.Start + begins(last) - begins(f.t.ID(e.Rank))
}

func (f *facts) begin(rank int) int64 {
	at := int64(math.MaxInt64)
	for i := range f.t.Events {
		if e := &f.t.Events[i]; f.t.ID(e.Rank) == rank && e.Class != trace.Sync {
			at = min(at, e.Start)
		}
	}
	return at
}

func (f *facts) cause(text string, w *span) error {
	other := func(m *match) error {
		if r := m.n(); r != w.other {
			return fmt.Errorf("it compares with rank %d, and rank %d waited longest", r, w.other)
		}
		return nil
	}
	in := func(name string) (int64, int) { return f.sum(w.rank, name, w.from, w.to) }
	inOther := func(name string) (int64, int) { return f.sum(w.other, name, w.otherFrom, w.otherTo) }
	if strings.HasPrefix(text, "unknown, because ") ||
		text == "the profile does not say for which of several streams it waited" {
		return nil
	}
	if m := matched(`its profile begins TIME after that of rank (\d+), and does not show what came before`,
		text); m != nil {
		return first(same("begin", m.s(), f.begin(w.rank)-f.begin(w.other)), other(m))
	}
	if m := matched(`(\S+) (\d+) of (\d+) ended there TIME after it ended on rank (\d+)`, text); m != nil {
		g, err := f.collective(m.s(), m.n(), m.n())
		if err == nil && g != w.before {
			err = fmt.Errorf("it is not the collective before")
		}
		return first(err, same("end", m.s(), w.from-w.otherFrom), other(m))
	}
	if m := matched(`(.+) took TIME there, and TIME on rank (\d+)(?:, in (\d+) calls each)?`, text); m != nil {
		name := m.s()
		a, n := f.whole(w.rank, name, w.from, w.to)
		b, k := f.whole(w.other, name, w.otherFrom, w.otherTo)
		took, its := m.s(), m.s()
		err := other(m)
		if want := max(m.n(), 1); err == nil && n == want && k == want {
			return first(same("there", took, a), same("other", its, b))
		} else if err == nil && want > 1 {
			err = fmt.Errorf("%d and %d calls", n, k)
		}
		// If there are several events with this name, the text may mean a single one.
		return first(err, f.one(w.rank, name, w.from, w.to, took), f.one(w.other, name, w.otherFrom, w.otherTo, its))
	}
	if m := matched(`it ran (.+) for TIME, where rank (\d+) ran (.+) for TIME`, text); m != nil {
		check := func(names, long string, rank, against int, from, to, othersFrom, othersTo int64) error {
			var sum int64
			exact := !strings.Contains(names, " more")
			for _, name := range strings.Split(regexp.MustCompile(` and \d+ more$`).ReplaceAllString(names, ""), ", ") {
				ns, _ := f.sum(rank, name, from, to)
				if _, n := f.sum(against, name, othersFrom, othersTo); n > 0 {
					return fmt.Errorf("rank %d ran %s, too", against, name)
				}
				sum += ns
			}
			if exact {
				return same(names, long, sum)
			}
			return nil
		}
		mine, took := m.s(), m.s()
		err := other(m)
		return first(err, check(mine, took, w.rank, w.other, w.from, w.to, w.otherFrom, w.otherTo),
			check(m.s(), m.s(), w.other, w.rank, w.otherFrom, w.otherTo, w.from, w.to))
	}
	if m := matched(`(.+) ran (\d+) times? there, for TIME, and (\d+) times? on rank (\d+), for TIME`, text); m != nil {
		name := m.s()
		a, n := in(name)
		b, k := inOther(name)
		wrote, took, wroteOther := m.n(), m.s(), m.n()
		if wrote != n || wroteOther != k {
			return fmt.Errorf("%d and %d times", n, k)
		}
		return first(same("there", took, a), other(m), same("other", m.s(), b))
	}
	if m := matched(`(.+?) (ran|moved data) there for TIME, and (not on|on) rank (\d+)(| in that time|(?: before `+
		`(\S+) (\d+) of (\d+) ended))`, text); m != nil {
		name := m.s()
		a, _ := in(name)
		_, k := inOther(name)
		if m.s() == "moved data" {
			a = f.moved(w.rank, name, w.from, w.to)
		}
		err := same("there", m.s(), a)
		not := m.s() == "not on"
		err = first(err, other(m))
		tail := m.s()
		_, whole := f.sum(w.other, name, math.MinInt64, math.MaxInt64)
		_, mine := f.sum(w.rank, name, math.MinInt64, w.to)
		_, its := f.sum(w.other, name, math.MinInt64, w.otherTo)
		switch {
		case err != nil:
		case k != 0:
			err = fmt.Errorf("it ran on rank %d, too", w.other)
		case not && tail == "" && whole > 0:
			err = fmt.Errorf("it ran on rank %d at another time", w.other)
		case !not && (mine != its || w.before < 0):
			err = fmt.Errorf("%d and %d times until then", mine, its)
		}
		return err
	}
	if m := matched(`(the transfer of )?(.+) delayed it by TIME, and rank (\d+) by TIME`, text); m != nil {
		transfer, name := m.s() != "", m.s()
		a, _ := in(name)
		b, _ := inOther(name)
		if transfer {
			a, b = f.moved(w.rank, name, w.from, w.to), f.moved(w.other, name, w.otherFrom, w.otherTo)
		}
		return first(atMost("there", m.s(), a), other(m), atMost("other", m.s(), b))
	}
	if m := matched(`nothing ran on its stream for TIME, and for TIME on that of rank (\d+); (?:its longest gap `+
		`took|the gap that differs most took) TIME(?:, and TIME on rank \d+; it is|,) before (.+?)(, which its host .*|; the trace does not say why|; the profile does not say when its host `+
		`issued that)`, text); m != nil {
		total, its := m.s(), m.s()
		err := first(atMost("all gaps", total, w.to-w.from), atMost("its gaps", its, w.otherTo-w.otherFrom), other(m))
		took, counterpart := m.s(), m.s()
		if counterpart != "" {
			err = first(err, atMost("its gap", counterpart, w.otherTo-w.otherFrom))
		}
		return first(err, f.gap(w.rank, took, m.s(), m.s(), w.from, w.to))
	}
	if m := matched(`it waited TIME for rank (\d+) in (\S+) (\d+) of (\d+)`, text); m != nil {
		took, rank := m.s(), m.n()
		g, err := f.collective(m.s(), m.n(), m.n())
		if err != nil {
			return err
		}
		arrival, last := f.last(g)
		if e := f.member(g, rank); rank != last && e.Start != arrival {
			return fmt.Errorf("rank %d came last", last)
		}
		return atMost("wait", took, arrival-f.member(g, w.rank).Start)
	}
	if m := matched(`it waited TIME for signals of rank (\d+)(?:, TIME for one of them)?: (.*)`, text); m != nil {
		took, rank := m.s(), m.n()
		m.s()
		var sum int64
		for i := range f.t.Events {
			if e := &f.t.Events[i]; f.t.ID(e.Rank) == w.rank && e.Waits() && e.Tie != nil && e.Tie.Counter != "" {
				sum += max(min(e.End, w.to)-max(e.Start, w.from), 0)
			}
		}
		return first(atMost("waits", took, sum), f.meantime(m.s(), w.from, w.to, rank))
	}
	if m := matched(`its waits continued for TIME after the events they waited for had ended, and those of rank `+
		`(\d+) for TIME; the trace does not say why`, text); m != nil {
		return first(atMost("waits", m.s(), f.waiting(w.rank, w.from, w.to)), other(m))
	}
	if m := matched(`it waited TIME for other streams, of which the trace shows nothing, and rank (\d+) TIME`,
		text); m != nil {
		return first(atMost("waits", m.s(), f.waiting(w.rank, w.from, w.to)), other(m))
	}
	return fmt.Errorf("no such reason")
}

func (f *facts) waiting(rank int, from, to int64) (sum int64) {
	for i := range f.t.Events {
		if e := &f.t.Events[i]; f.t.ID(e.Rank) == rank && e.Waits() {
			sum += max(min(e.End, to)-max(e.Start, from), 0)
		}
	}
	return sum
}

// gap looks for an event with the given name before which nothing ran on its stream for the given time, and checks the
// reason in the text.
func (f *facts) gap(rank int, long, name, why string, from, to int64) error {
	err := fmt.Errorf("no gap of that length precedes %s", name)
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) != rank || e.Name != name || e.Start > to || e.Start <= from {
			continue
		}
		before := from
		for k := range f.t.Events {
			if x := &f.t.Events[k]; k != i && x.Rank == e.Rank && x.Stream == e.Stream && x.Start < e.Start {
				before = max(before, x.End)
			}
		}
		if micro(long) > float64(e.Start-before)/1e3*1.006+0.06 {
			continue
		}
		// The gap that the text mentions may start later than the idle time of the stream, if another stream ended
		// later.
		if err = f.why(why, e, e.Start-int64(micro(long)*1e3), int64(micro(long)*6+60)); err == nil {
			return nil
		}
	}
	return err
}

func (f *facts) why(text string, e *trace.Event, gap, slack int64) error {
	switch {
	case text == "; the trace does not say why":
		if f.t.Source != "" {
			return fmt.Errorf("the trace is not hocket's")
		}
		return nil
	case text == "; the profile does not say when its host issued that":
		if e.Issued != 0 {
			return fmt.Errorf("it says when")
		}
		return nil
	case text == ", which its host had issued before; the profile does not say what it waited for":
		if e.Issued > gap+slack || e.Issued == 0 {
			return fmt.Errorf("it was issued after the gap began")
		}
		return nil
	}
	m := matched(`, which its host issued TIME after the gap began(.*)`, text)
	if m == nil {
		return fmt.Errorf("no such reason: %q", text)
	}
	after := float64(min(e.Issued, e.Start)-gap) / 1e3
	if written := micro(m.s()); math.Abs(written-after) > float64(slack)/1e3+after*0.006+0.06 {
		return fmt.Errorf("issued %v µs after the gap began, it says %v", after, written)
	}
	rest := m.s()
	var ran []trace.Interval
	for _, h := range f.t.Host {
		if h.Rank == e.Rank && h.End > gap && h.Start < e.Issued {
			ran = append(ran, trace.Interval{Lo: max(h.Start, gap), Hi: min(h.End, e.Issued)})
		}
	}
	if m := matched(`; until then its host was in (.+) for TIME`, rest); m != nil {
		name, long := m.s(), micro(m.s())
		for _, h := range f.t.Host {
			d := float64(min(h.End, e.Issued)-max(h.Start, gap)) / 1e3
			if h.Rank == e.Rank && h.Name == name && math.Abs(d-long) <= float64(slack)/1e3+d*0.006+0.06 {
				return nil
			}
		}
		return fmt.Errorf("the host was not in %s for so long", name)
	}
	if m := matched(`; until then nothing that its host did was recorded for TIME`, rest); m != nil {
		return atMost("quiet", m.s(), e.Issued-gap-trace.Length(trace.Union(ran))+slack)
	}
	if rest != "" {
		return fmt.Errorf("no such remark: %q", rest)
	}
	return nil
}

func (f *facts) signal(text string) error {
	if m := matched(`rank (\d+) waited TIME at (.+) for a signal of an unknown rank`, text); m != nil {
		return nil
	}
	if m := matched(`rank (\d+) waited TIME at (.+) for a signal of rank (\d+): clocks are not compared, so the `+
		`activity of rank \d+ in that time is unknown`, text); m != nil {
		rank, long, detail, sender := m.n(), m.s(), m.s(), m.n()
		for i := range f.t.Events {
			e := &f.t.Events[i]
			if f.t.ID(e.Rank) == rank && e.Waits() && e.Detail == detail && same("", long, e.Duration()) == nil {
				for k := range f.t.Events {
					if x := &f.t.Events[k]; x.Name == "signal" && x.Tie.Peer == rank &&
						x.Tie.Counter == e.Tie.Counter && f.t.ID(x.Rank) == sender {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("the trace has no such wait")
	}
	m := matched(`rank (\d+) waited TIME at (.+) for a signal of rank (\d+): (.*)`, text)
	if m == nil {
		return fmt.Errorf("no such sentence")
	}
	rank, long, detail, sender, why := m.n(), m.s(), m.s(), m.n(), m.s()
	err := fmt.Errorf("rank %d has no such wait for rank %d", rank, sender)
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) != rank || !e.Waits() || e.Tie == nil || e.Tie.Counter == "" ||
			cmp.Or(e.Detail, e.Name) != detail {
			continue
		}
		// These signals raised the counter, in the order of their ends.
		var signals []*trace.Event
		for k := range f.t.Events {
			if x := &f.t.Events[k]; x.Name == "signal" && x.Tie != nil && x.Tie.Peer == rank &&
				x.Tie.Counter == e.Tie.Counter && x.Run == e.Run {
				signals = append(signals, x)
			}
		}
		slices.SortStableFunc(signals, func(x, y *trace.Event) int { return cmp.Compare(x.End, y.End) })
		if int(e.Tie.Count) > len(signals) || e.Tie.Count < 1 {
			continue
		}
		by := signals[e.Tie.Count-1]
		if f.t.ID(by.Rank) != sender || same("wait", long, min(e.End, by.End)-e.Start) != nil {
			continue
		}
		if err = f.meantime(why, e.Start, min(e.End, by.End), sender); err == nil {
			return nil
		}
	}
	return err
}

// meantime checks the text about the activities of ranks between two times.
func (f *facts) meantime(text string, from, to int64, sender int) error {
	if matched(`nothing that rank (\d+) did before it takes a fifth of that`, text) != nil {
		return nil
	}
	for _, part := range strings.Split(regexp.MustCompile(`; (rank|nothing ran|waits of)`).ReplaceAllString(text,
		"\x00$1"), "\x00") {
		if err := f.meanwhile(part, from, to, sender); err != nil {
			return fmt.Errorf("%q: %w", part, err)
		}
	}
	return nil
}

func (f *facts) meanwhile(text string, from, to int64, sender int) error {
	const who = `rank (\d+)(?:, for whose signal rank (\d+) waited,)?`
	turn := func(m *match) int { // returns the rank, which is the sender or a rank for which another rank waited
		rank, via := m.n(), m.s()
		if via == "" && rank != sender {
			return -1
		}
		return rank
	}
	if m := matched(who+` was in (the transfer of )?(.+) for TIME of that(?:, which took TIME there, and at most `+
		`TIME on other ranks)?`, text); m != nil {
		rank := turn(m)
		m.s()
		name := m.s()
		ns, _ := f.sum(rank, name, from, to)
		if err := atMost("sum", m.s(), ns); err != nil {
			return err
		}
		took, most := m.s(), m.s()
		for i := range f.t.Events {
			e := &f.t.Events[i]
			if took == "" || f.t.ID(e.Rank) != rank || e.Name != name || same("", took, e.Duration()) != nil {
				continue
			}
			var others int64 = -1
			for k := range f.t.Events {
				if x := &f.t.Events[k]; x.Rank != e.Rank && x.Name == name && x.Detail == e.Detail && x.Run == e.Run {
					others = max(others, x.Duration())
				}
			}
			if same("", most, others) == nil {
				return nil
			}
		}
		if took != "" {
			return fmt.Errorf("no event of rank %d took %s, and %s elsewhere", rank, took, most)
		}
		return nil
	}
	if m := matched(`nothing ran on the stream of `+who+` for TIME of that, TIME before (.+?)(; the trace does not `+
		`say why)`, text); m != nil {
		rank := turn(m)
		total := m.s()
		return first(atMost("gaps", total, to-from), f.gap(rank, m.s(), m.s(), m.s(), from, to))
	}
	if m := matched(who+` waited TIME of that for rank (\d+) in (\S+) (\d+) of (\d+)`, text); m != nil {
		rank, took, peer := turn(m), m.s(), m.n()
		g, err := f.collective(m.s(), m.n(), m.n())
		if err != nil {
			return err
		}
		if arrival, _ := f.last(g); f.member(g, peer).Start != arrival {
			return fmt.Errorf("rank %d did not come last", peer)
		} else {
			return atMost("wait", took, arrival-f.member(g, rank).Start)
		}
	}
	if m := matched(`waits of `+who+` continued for TIME of that after the events they waited for had ended; the `+
		`trace does not say why`, text); m != nil {
		rank := turn(m)
		return atMost("waits", m.s(), f.waiting(rank, from, to))
	}
	if m := matched(who+` waited TIME of that for (?:other streams, of which the trace shows nothing|a signal of `+
		`an unknown rank)`, text); m != nil {
		rank := turn(m)
		return atMost("waits", m.s(), f.waiting(rank, from, to))
	}
	return fmt.Errorf("no such remark")
}

// transfer returns the time in which data moves for a member.
func (f *facts) transfer(g, rank int) int64 {
	at, _ := f.last(g)
	e := f.member(g, rank)
	return e.End - min(max(at, e.Start), e.End)
}

// bytes returns the size of the largest buffer of a collective's members.
func (f *facts) bytes(g int) (most int64) {
	for _, i := range f.groups[g] {
		most = max(most, f.t.Events[i].Bytes)
	}
	return most
}

func lowerMedian(list []int64) int64 {
	list = slices.Sorted(slices.Values(list))
	return list[(len(list)-1)/2]
}

func (f *facts) slow(text string) error {
	if m := matched(`(\S+) (\d+) of (\d+) has a slow transfer on rank (\d+): TIME there after all ranks had `+
		`entered; and at most TIME on the others`, text); m != nil {
		g, err := f.collective(m.s(), m.n(), m.n())
		if err != nil {
			return err
		}
		rank := m.n()
		var others int64
		for _, i := range f.groups[g] {
			if r := f.t.ID(f.t.Events[i].Rank); r != rank {
				others = max(others, f.transfer(g, r))
			}
		}
		return first(same("there", m.s(), f.transfer(g, rank)), same("others", m.s(), others))
	}
	if m := matched(`(\S+) (\d+) of (\d+) has a slow transfer: TIME after all ranks had entered; and TIME in the `+
		`median of (\d+) of (\d+) bytes`, text); m != nil {
		op := m.s()
		g, err := f.collective(op, m.n(), m.n())
		if err != nil {
			return err
		}
		_, last := f.last(g)
		took, median, n, bytes := m.s(), m.s(), m.n(), int64(m.n())
		var all []int64
		for _, h := range f.nth[op] {
			if f.bytes(h) == bytes && len(f.groups[h]) == len(f.groups[g]) {
				_, last := f.last(h)
				all = append(all, f.transfer(h, last))
			}
		}
		if len(all) != n || f.bytes(g) != bytes {
			return fmt.Errorf("there are %d of %d bytes", len(all), bytes)
		}
		return first(same("transfer", took, f.transfer(g, last)), same("median", median, lowerMedian(all)))
	}
	links := func(name string, bytes int64) map[string][]int64 {
		out := map[string][]int64{}
		for i := range f.t.Events {
			e := &f.t.Events[i]
			if e.Class != trace.Comm || e.Name != name || e.Bytes != bytes || e.Tie == nil {
				continue
			}
			from, to := f.t.ID(e.Rank), e.Tie.Peer
			if name == "get" {
				from, to = to, from
			}
			k := fmt.Sprintf("from rank %d to rank %d", from, to)
			out[k] = append(out[k], e.Duration())
		}
		return out
	}
	if m := matched(`transfers (from rank \d+ to rank \d+) are slow: (\S+) of (\d+) bytes took TIME in the median `+
		`of (\d+); and between other ranks at most TIME in the median`, text); m != nil {
		link, name, bytes := m.s(), m.s(), int64(m.n())
		all := links(name, bytes)
		var others []int64
		for k, list := range all {
			if k != link {
				others = append(others, lowerMedian(list))
			}
		}
		err := same("median", m.s(), lowerMedian(all[link]))
		if n := m.n(); err == nil && (n != len(all[link]) || len(others) == 0) {
			err = fmt.Errorf("there are %d", len(all[link]))
		}
		return first(err, same("others", m.s(), slices.Max(append(others, 0))))
	}
	if m := matched(`a transfer (from rank \d+ to rank \d+) is slow: (\S+) .* took TIME; and TIME in the median of `+
		`(\d+) of (\d+) bytes between them`, text); m != nil {
		link, name, took, median, n, bytes := m.s(), m.s(), m.s(), m.s(), m.n(), int64(m.n())
		list := links(name, bytes)[link]
		if len(list) != n || !slices.ContainsFunc(list, func(ns int64) bool { return same("", took, ns) == nil }) {
			return fmt.Errorf("there is none, or there are not %d, but %d", n, len(list))
		}
		return same("median", median, lowerMedian(list))
	}
	return fmt.Errorf("no such sentence")
}

// moving returns the intervals in which events of an operation move data on a rank, and those in which the rank
// computes.
func (f *facts) moving(op string, rank int) (moving, compute []trace.Interval, streams map[string]bool) {
	streams = map[string]bool{}
	for i := range f.t.Events {
		e := &f.t.Events[i]
		if f.t.ID(e.Rank) != rank {
			continue
		}
		switch {
		case e.Class == trace.Compute:
			compute = append(compute, trace.Interval{Lo: e.Start, Hi: e.End})
			streams[e.Stream] = true
		case e.Class == trace.Comm && e.Name == op:
			from := e.Start
			if e.Group != trace.NoGroup {
				at, _ := f.last(e.Group)
				from = min(at, e.End)
			}
			moving = append(moving, trace.Interval{Lo: from, Hi: e.End})
		}
	}
	return trace.Union(moving), trace.Union(compute), streams
}

func (f *facts) exposed(text string) error {
	if m := matched(`(\S+) is (not overlapped|overlapped in part): on rank (\d+) no kernel ran during TIME of the `+
		`TIME in which it moved data(; its streams there run kernels, too, one after the other)?`, text); m != nil {
		op, how, rank, bare, whole, tail := m.s(), m.s(), m.n(), m.s(), m.s(), m.s()
		moving, compute, streams := f.moving(op, rank)
		ns := trace.Length(moving) - trace.Overlap(moving, compute)
		if (how == "not overlapped") != (trace.Overlap(moving, compute) == 0) {
			return fmt.Errorf("%d ns are overlapped", trace.Overlap(moving, compute))
		}
		for i := range f.t.Events {
			if e := &f.t.Events[i]; tail != "" && f.t.ID(e.Rank) == rank && e.Name == op && e.Class == trace.Comm &&
				!streams[e.Stream] {
				return fmt.Errorf("no kernel runs on its stream %s", e.Stream)
			}
		}
		return first(same("exposed", bare, ns), same("whole", whole, trace.Length(moving)))
	}
	m := matched(`(\S+) (\d+) of (\d+) is not overlapped: on rank (\d+) no kernel ran during TIME of its transfer `+
		`of TIME; kernels overlapped at least (\d+) % of half of the (\d+)`, text)
	if m == nil {
		return fmt.Errorf("no such sentence")
	}
	op := m.s()
	g, err := f.collective(op, m.n(), m.n())
	if err != nil {
		return err
	}
	bare := func(g, rank int) (bare, whole int64) {
		_, compute, _ := f.moving(op, rank)
		whole = f.transfer(g, rank)
		end := f.member(g, rank).End
		return whole - trace.Covered(trace.Interval{Lo: end - whole, Hi: end}, compute), whole
	}
	rank, long, transfer, percent, n := m.n(), m.s(), m.s(), float64(m.n()), m.n()
	a, b := bare(g, rank)
	hidden, all := 0, 0
	for _, h := range f.nth[op] {
		all++
		least := 1.0
		for _, i := range f.groups[h] {
			if x, y := bare(h, f.t.ID(f.t.Events[i].Rank)); y > 0 {
				least = min(least, 1-float64(x)/float64(y))
			}
		}
		if 100*least >= percent {
			hidden++
		}
	}
	if 2*hidden < n || all < n {
		return fmt.Errorf("of %d of %d it is so", hidden, all)
	}
	return first(same("exposed", long, a), same("transfer", transfer, b))
}
