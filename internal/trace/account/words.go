package account

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// These constants are the largest numbers of elements of each list that the text shows.
const (
	shownWaits = 5
	shownRows  = 24
	shownOps   = 10
)

func text(us float64) string { return trace.Microseconds(us) }

// WriteText writes the report in sentences and then in tables.
func (r *Report) WriteText(w io.Writer) error {
	t := &writer{w: w}
	r.words(t)
	r.table(t)
	r.whole(t)
	return t.err
}

// writer writes text, and records the first error.
type writer struct {
	w   io.Writer
	err error
}

func (t *writer) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// rows writes an aligned table.
func (t *writer) rows(rows [][]string) {
	if t.err != nil || len(rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	t.err = tw.Flush()
}

func (r *Report) words(t *writer) {
	t.printf("%s\n", r.Facts())
	if v := r.Verdict(); v != r.Facts() {
		t.printf("%s\n", v)
	}
	if r.Untold != "" {
		t.printf("waiting cannot be separated from transfer: %s\n", r.Untold)
	}
	var found []string
	list, more := r.Shown()
	for _, f := range list {
		found = append(found, f.Text)
		for _, line := range f.Details {
			found = append(found, "  "+line)
		}
	}
	if more != "" {
		found = append(found, more)
	}
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Kind == "late" || f.Kind == "signal" }) &&
		r.Untold == "" && len(r.Collectives) > 0 {
		switch known := slices.ContainsFunc(r.Collectives, func(c Collective) bool { return c.TransferUS != nil }); {
		case known || r.Ranks < 2:
			none := "no rank waited for another in a collective for longer than the error of the clocks"
			if n := r.pointToPoint; n > 0 {
				none += fmt.Sprintf("; the waits in %s are unknown", pointToPoint(n))
			}
			found = append(found, none)
		default:
			found = append(found, "waits are unknown: no collective has the profiles of all its members")
		}
	}
	if s := r.StartSkew; s != nil {
		found = append(found, s.Words())
	}
	for k, p := range r.Problems[:min(len(r.Problems), shownRows)] {
		if p.Text != r.Untold && (r.Source != "flight" || k > 0) { // flight records: the verdict has the first
			found = append(found, p.Kind+": "+p.Text)
		}
	}
	if n := len(r.Problems) - shownRows; n > 0 {
		found = append(found, fmt.Sprintf("… and %s more: --json has them all", plural(n, "problem")))
	}
	if len(found) > 0 {
		t.printf("\n%s\n", strings.Join(found, "\n"))
	}
}

// Facts describes in one line the run that the report is about.
func (r *Report) Facts() string {
	ranks := plural(r.Ranks, "rank")
	if n := len(r.Absent); n > 0 {
		ranks += fmt.Sprintf(" of %d (without %s)", n+r.Ranks, ranklist.String(r.Absent))
	}
	calls := plural(len(r.Collectives), "collective")
	if n := r.pointToPoint; n > 0 && r.Source == "flight" {
		calls += " and " + pointToPoint(n)
	}
	return fmt.Sprintf("%s of %s, %s; %s", calls, ranks, r.Source, r.Alignment.words())
}

// pointToPoint returns words for a number of sends and receives.
func pointToPoint(n int) string {
	if n == 1 {
		return "1 send or receive"
	}
	return fmt.Sprintf("%d sends and receives", n)
}

// Words returns a sentence that describes the start skew.
func (s *StartSkew) Words() string {
	return fmt.Sprintf("start skew: the profile of rank %d begins %s after that of rank %d; %s of waiting "+
		"is due to that, and is not counted", s.Rank, text(s.US), s.From, text(s.WaitUS))
}

func (a *Alignment) words() string {
	var by string
	switch a.Method {
	case "one clock":
		by = "on one clock"
	case "ends":
		by = "put on one clock by ends of collectives"
		if len(a.Parts) > 0 {
			var parts []string
			for _, ids := range a.Parts[:min(len(a.Parts), 8)] {
				parts = append(parts, ranklist.String(ids))
			}
			if len(a.Parts) > 8 {
				parts = append(parts, "…")
			}
			by = fmt.Sprintf("put on %d clocks by ends of collectives (ranks %s), which are not compared with each other",
				len(a.Parts), strings.Join(parts, "; "))
		}
	default:
		return "clocks not compared"
	}
	switch {
	case a.ResidualUS == nil:
		return by + ", unchecked"
	case *a.ResidualUS == 0:
		return by
	}
	return fmt.Sprintf("%s, ends within %s", by, text(*a.ResidualUS))
}

// Verdict says which kind of work limited the run, how much communication was exposed, and what cost most time.
func (r *Report) Verdict() string {
	if r.Source == "flight" {
		return r.flightVerdict()
	}
	c := r.Critical
	if c == nil || len(c.ByKind) == 0 || r.SpanUS <= 0 {
		return r.Facts()
	}
	kind := slices.MaxFunc(c.ByKind, func(a, b KindTime) int { return cmp.Compare(a.US, b.US) })
	took := "The run took " + text(r.commonUS())
	if r.StartSkew != nil {
		took += ", counted from when the profiles of all ranks had begun"
	}
	loss := ""
	list, _ := r.Shown()
	if len(list) > 0 {
		loss = " The largest loss: " + list[0].Text + "."
	}
	if loss != "" && list[0].US > kind.US { // the critical path explains less
		return took + "." + loss
	}
	s := fmt.Sprintf("%s, bounded by %s: %s of the critical path", took, bounds[kind.Kind], text(kind.US))
	most := c.longest[kind.Kind]
	switch {
	case strings.HasPrefix(most.name, "before "): // idle
		s += fmt.Sprintf(", %s of it %s", text(most.us), most.name)
	case most.name != "" && most.name != kind.Kind:
		s += fmt.Sprintf(", %s of it in %s", text(most.us), most.name)
	}
	if r.Exposed.TotalUS+r.Exposed.HiddenUS == 0 {
		s += "; there was no communication."
	} else {
		s += fmt.Sprintf("; %.0f %% of the ranks' time was exposed communication.",
			100*r.Exposed.TotalUS/max(r.ranksUS(), 1e-9))
	}
	return s + loss
}

// flightVerdict returns the first problem of flight records, which are in the order of severity.
func (r *Report) flightVerdict() string {
	if len(r.Problems) == 0 {
		return "All calls that several ranks recorded are equal and complete, and no rank is missing."
	}
	text := r.Problems[0].Text
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// bounds maps the kinds of KindTime to names in sentences.
var bounds = map[string]string{"compute": "computation", "transfer": "transfer between ranks", "barrier": "barriers",
	"communication": "communication", "io": "copies of the host", "sync": "waits for streams and signals",
	"idle": "idle streams"}

// Shown returns the most expensive findings, and a line about the others. The line is empty if there are no others. All
// collectives in which one rank was late for the same cause are one finding.
func (r *Report) Shown() (list []Finding, more string) {
	all := r.merged()
	n := min(len(all), shownWaits)
	if left := all[n:]; len(left) > 0 {
		more = fmt.Sprintf("and %d more, of at most %s each: --json has them all", len(left), text(left[0].US))
	}
	return all[:n], more
}

// leastSteady is the smallest number of collectives with the same late rank and cause that are merged into one finding.
const leastSteady = 3

// merged returns the findings. The findings about a rank that was late several times for the same cause are merged into
// one, with the sum of the waits.
func (r *Report) merged() []Finding {
	type key struct {
		rank           int
		op             string
		cause, causeOp string
	}
	groups := map[key][]int{} // indices of findings, the most expensive first
	of := func(f *Finding) (key, bool) {
		if f.Kind != "late" || f.Index < 0 || f.Index >= len(r.Collectives) || r.Collectives[f.Index].Late == nil {
			return key{}, false
		}
		k := key{rank: f.Rank, op: f.Op}
		if causes := r.Collectives[f.Index].Late.Causes; len(causes) > 0 {
			k.cause, k.causeOp = causes[0].Kind, causes[0].Op
		}
		return k, true
	}
	for i := range r.Findings {
		if k, late := of(&r.Findings[i]); late {
			groups[k] = append(groups[k], i)
		}
	}
	var out []Finding
	for i := range r.Findings {
		f := r.Findings[i]
		k, late := of(&f)
		switch list := groups[k]; {
		case !late || len(list) < leastSteady:
		case list[0] != i:
			continue
		default:
			sum := 0.0
			for _, j := range list {
				sum += r.Findings[j].US
			}
			f.Details = append([]string{"the longest: " + f.Text}, f.Details...)
			f.Text = fmt.Sprintf("rank %d was late in %d of %d %s, by %s in all and %s at most", f.Rank, len(list),
				r.Collectives[f.Index].OfOp, f.Op, text(sum), text(f.US))
			f.US, f.Index = sum, -1
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(x, y Finding) int { return cmp.Compare(y.US, x.US) })
	return out
}

// words describes which ranks waited in one collective, for which rank, and why.
func (c *Collective) words() (verdict string, details []string) {
	name := fmt.Sprintf("%s %d of %d", c.Op, c.Nth, c.OfOp)
	if c.Seq != nil {
		return fmt.Sprintf("%s of group %q: rank %d was late by %s", c.Label(), c.Group, c.Late.Rank, text(c.Late.US)),
			lines(c.Late.After)
	}
	var who []string
	for _, m := range c.sortedByWait() {
		if m.Rank != c.Late.Rank && *m.WaitUS > 0 {
			who = append(who, fmt.Sprintf("rank %d waited %s", m.Rank, text(*m.WaitUS)))
		}
	}
	waited := "a member waited " + text(c.Late.US) // the member may belong to the late rank
	if len(who) > 0 {
		waited = who[0]
	}
	if n := len(who); n > 1 {
		waited = fmt.Sprintf("%d ranks waited up to %s", n, text(c.Late.US))
		if n > 3 {
			who = append(who[:3], fmt.Sprintf("%d more waited", n-3))
		}
		details = append(details, strings.Join(who, ", "))
	}
	then := "of transfer"
	if c.Op == barrier {
		then = "after the last came"
	}
	causes := fmt.Sprintf("causes on rank %d", c.Late.Rank)
	if c.Late.Since != "" {
		causes += ", after " + c.Late.Since
	}
	details = append(details, text(*c.TransferUS)+" "+then, causes+":")
	return fmt.Sprintf("%s: %s for rank %d", name, waited, c.Late.Rank), append(details, lines(c.Late.After)...)
}

func (c *Collective) sortedByWait() []Member {
	list := slices.Clone(c.ByRank)
	slices.SortStableFunc(list, func(x, y Member) int { return cmp.Compare(*y.WaitUS, *x.WaitUS) })
	return list
}

// table writes the list of collectives.
func (r *Report) table(t *writer) {
	if len(r.Collectives) == 0 {
		t.printf("it has no collectives\n")
		return
	}
	rows := [][]string{{"collective", "group", "bytes", "transfer", "bus GB/s", "skew", "last", "waits by rank"}}
	for _, i := range r.shownRows() {
		c := &r.Collectives[i]
		row := []string{c.Label(), c.Group, "?", "?", "", told(c.SkewUS), "", c.waits()}
		if c.Bytes != nil {
			row[2] = fmt.Sprint(*c.Bytes)
		}
		if c.TransferUS != nil {
			row[3] = text(*c.TransferUS)
		}
		if c.BusGBs > 0 {
			row[4] = fmt.Sprintf("%.1f", c.BusGBs)
		}
		if c.Late != nil {
			row[6] = fmt.Sprintf("rank %d", c.Late.Rank)
		}
		rows = append(rows, row)
	}
	t.printf("\n")
	t.rows(rows)
	if n := len(r.Collectives) - shownRows; n > 0 {
		t.printf("… and %d more, in which ranks waited no longer: --json has them all\n", n)
	}
}

// shownRows returns the indices of the collectives that the table shows: those with the longest waits, and of equal
// ones the first.
func (r *Report) shownRows() []int {
	loss := func(i int) float64 {
		if c := &r.Collectives[i]; c.Late != nil {
			return c.Late.US
		}
		return 0
	}
	order := make([]int, len(r.Collectives))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(loss(j), loss(i)) })
	return slices.Sorted(slices.Values(order[:min(len(order), shownRows)]))
}

func (c *Collective) waits() string {
	var out []string
	for _, m := range c.ByRank[:min(len(c.ByRank), 8)] {
		if m.WaitUS == nil {
			return ""
		}
		out = append(out, text(*m.WaitUS))
	}
	if len(c.ByRank) > 8 {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}

// whole writes the lines about the whole run: exposed communication, idle time and the critical path.
func (r *Report) whole(t *writer) {
	if len(r.Exposed.ByRank) == 0 {
		return
	}
	t.printf("\nof %s in all\n", text(r.commonUS()))
	rows := [][]string{{"", "compute", "communication hidden", "exposed waiting", "exposed transfer", "idle for host",
		"for signal", "for event", "launching", "unknown"}}
	unclear := r.Exposed.UnknownUS > 0 && r.Exposed.TransferUS != nil
	if unclear {
		rows[0] = slices.Insert(rows[0], 5, "exposed waiting or transfer")
	}
	idle := map[int]Idle{}
	for _, x := range r.Idle {
		idle[x.Rank] = x
	}
	for _, x := range r.Exposed.ByRank {
		i := idle[x.Rank]
		rows = append(rows, []string{fmt.Sprintf("rank %d", x.Rank), text(x.ComputeUS), text(x.HiddenUS),
			told(x.WaitUS), told(x.TransferUS),
			text(i.HostUS), text(i.SignalUS), text(i.EventUS), text(i.LaunchUS), text(i.UnknownUS)})
		switch last := len(rows) - 1; {
		case x.WaitUS == nil:
			rows[last][3] = text(x.TotalUS) + " exposed"
		case unclear:
			rows[last] = slices.Insert(rows[last], 5, text(x.UnknownUS))
		}
	}
	t.rows(rows[:min(len(rows), shownRows)])
	if c := r.Critical; c != nil {
		var parts []string
		for _, k := range c.ByKind {
			parts = append(parts, fmt.Sprintf("%s %s", k.Kind, text(k.US)))
		}
		t.printf("critical path: %s: %s\n", text(c.SpanUS), strings.Join(parts, ", "))
		if c.beginUS > r.SpanUS/100 && r.StartSkew == nil {
			t.printf("it begins on rank %d, %s after the first event on any rank\n", c.beginRank, text(c.beginUS))
		}
	}
	if s := r.Steps; s != nil {
		t.printf("steps: %d, half of them within %s, 95 %% within %s", s.Count, text(s.P50US), text(s.P95US))
		if s.Cut > 0 {
			t.printf("; the first %d, which warm up, are left out", s.Cut)
		}
		t.printf("\n")
	}
	if busy := r.busiest(shownOps); len(busy) > 0 {
		t.printf("\n")
		rows = [][]string{{"most time", "times", "sum"}}
		for _, o := range busy {
			rows = append(rows, []string{o.Name, fmt.Sprint(o.Count), text(o.TimeUS)})
		}
		t.rows(rows)
	}
}

func told(us *float64) string {
	if us == nil {
		return "?"
	}
	return text(*us)
}

// busiest returns the computations that took the most time.
func (r *Report) busiest(n int) []Op {
	list := slices.DeleteFunc(slices.Clone(r.Ops), func(o Op) bool { return o.Class != "compute" })
	return list[:min(len(list), n)]
}
