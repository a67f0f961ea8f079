package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
)

// Run holds the data that a page about a run shows in addition to the account of its time.
type Run struct {
	Title string
	// Program is the text of the program to whose lines the events refer. Program is empty if there is no program.
	Program string
	// Missing lists pairs of events that a counterexample shows to be unordered. An event is an index in the report's
	// list of events.
	Missing [][2]int
	// Bad are the lines of the program that a counterexample names.
	Bad []int
	// Facts, if it is not empty, is shown in place of the report's numbers. The report then has no numbers.
	Facts string
	// Notes are shown first, as a list of problems.
	Notes []string
	// Against holds the differences from an older profile, and Unlike the warnings about them. Both may be empty.
	Against []account.Difference
	Unlike  []string
}

// maxEvents is the largest number of events that a page shows. If a run has more events, the page shows the longest
// ones.
const maxEvents = 400_000

// runView is the input of the template of the page about a run.
type runView struct {
	frame
	Timed    bool // whether the report has times
	Lanes    bool // whether the timeline has events
	Exposed  bool // whether there are times of ranks
	Critical bool // whether there is a critical path
	Waits    bool // whether the wait for some collective is known
	Findings []account.Finding
	More     string // a line about the findings that are not shown; may be empty
	Problems []string
	Ops      []legend
	Program  []programLine
	Costs    bool // whether at least one line of the program has a time
	// AgainstHead has the column names of the table Against. Unlike lists warnings about the comparison.
	AgainstHead []string
	Against     [][]string
	Unlike      []string
	Data        template.JS
}

// programLine is a line of the program, with the total time of its events. Hot marks the line with the longest time.
type programLine struct {
	N           int
	HTML        template.HTML
	Cost, Share string
	Hot, Bad    bool
}

// runKeys are the keys of the page of a run.
var runKeys = []keyHelp{{[]string{"←", "→"}, "move"}, {[]string{"↑", "↓"}, "zoom"}, {[]string{"0"}, "all"},
	{[]string{"/"}, "search"}, {[]string{"n", "p"}, "next, previous"}, {[]string{"c"}, "critical path"},
	{[]string{"Esc"}, "clear"}}

// eventColumns stores a list of events as one list for each property, which keeps the JSON short.
type eventColumns struct {
	Lane   []int   `json:"lane"`
	Start  []int64 `json:"start"`
	Dur    []int64 `json:"dur"`
	Name   []int   `json:"name"`
	Wait   []int64 `json:"wait"`
	Group  []int   `json:"group"`
	Detail []int   `json:"detail"`
}

// document is the JSON input of the page's script.
type document struct {
	Span        int64                 `json:"span"`
	Virtual     bool                  `json:"virtual"`
	Lanes       []lane                `json:"lanes"`
	Names       []string              `json:"names"`
	Fills       []string              `json:"fills"` // the CSS class of each name in Names
	Details     []string              `json:"details"`
	Events      eventColumns          `json:"events"`
	Collectives []collective          `json:"collectives"`
	Exposed     []account.RankExposed `json:"exposed"`
	Idle        []account.Idle        `json:"idle"`
	Critical    *account.Critical     `json:"critical"`
	Path        []int                 `json:"path"`
	Edges       []edge                `json:"edges"`
}

type lane struct {
	Rank int    `json:"rank"`
	Name string `json:"name"`
}

// collective has the fields of an account.Collective that the script needs.
type collective struct {
	Index      int           `json:"index"`
	Label      string        `json:"label"`
	Op         string        `json:"op"`
	Group      string        `json:"group"`
	Bytes      *int64        `json:"bytes"`
	TransferUS *float64      `json:"transfer_us"`
	SkewUS     *float64      `json:"skew_us"`
	BusGBs     float64       `json:"bus_gb_s,omitempty"`
	Late       *account.Late `json:"late"`
	Start      int64         `json:"start"`
	Arrive     int64         `json:"arrive"`
	Ranks      []int         `json:"ranks"`
	Waits      []int64       `json:"waits"` // waiting time of each rank, in nanoseconds; empty if unknown
}

func newCollective(c *account.Collective) collective {
	x := collective{Index: c.Index, Label: c.Label(), Op: c.Op, Group: c.Group, Bytes: c.Bytes, TransferUS: c.TransferUS,
		SkewUS: c.SkewUS,
		BusGBs: math.Round(c.BusGBs*10) / 10, Late: c.Late, Waits: []int64{}}
	for k, m := range c.ByRank {
		at := int64(m.StartUS * 1e3)
		if k == 0 || at < x.Start {
			x.Start = at
		}
		x.Arrive = max(x.Arrive, at)
		x.Ranks = append(x.Ranks, m.Rank)
		if m.WaitUS != nil {
			x.Waits = append(x.Waits, int64(*m.WaitUS*1e3))
		}
	}
	return x
}

type edge struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// WriteRun writes a page about a run, with the account r of its time. If o.Facts is set, it replaces the numbers of
// r.
func WriteRun(w io.Writer, r *account.Report, o Run) error {
	tr, _ := r.Trace()
	var p paint
	v := &runView{frame: frame{Title: o.Title, About: r.Facts(), Keys: runKeys,
		Hint: "Point at a mark of the timeline, or click it. The wheel zooms, dragging moves."}}
	if tr != nil {
		p, v.Ops = newPaint(tr)
	}
	doc, left := newDocument(r, o, p)
	data, err := json.Marshal(doc) // json.Marshal escapes everything that could end the script element
	if err != nil {
		return err
	}
	v.Data, v.Problems = template.JS(data), slices.Clone(o.Notes)
	v.Program, v.Costs = program(r, o)
	if len(doc.Lanes) == 0 {
		v.Keys, v.Hint = nil, "" // they are about the timeline
	}
	v.Lanes, v.Exposed, v.Critical = len(doc.Lanes) > 0, len(doc.Exposed) > 0, doc.Critical != nil
	if v.Timed = o.Facts == ""; !v.Timed {
		for i := range v.Ops {
			v.Ops[i].Total = "" // the order of issue has no times
		}
		v.About, v.Verdict = "", o.Facts
		if len(o.Notes) > 0 {
			v.Verdict, v.Problems = o.Facts+": "+o.Notes[0], o.Notes[1:]
		}
		return v.write(w, "run.html", "run.js", v)
	}
	v.Verdict = r.Verdict()
	v.Findings, v.More = r.Shown()
	v.AgainstHead, v.Unlike = account.AgainstHead, o.Unlike
	for i := range o.Against {
		v.Against = append(v.Against, o.Against[i].Row())
	}
	v.Waits = slices.ContainsFunc(r.Collectives, func(c account.Collective) bool { return c.TransferUS != nil })
	if r.StartSkew != nil {
		v.About += "; " + r.StartSkew.Words()
	}
	for k, p := range r.Problems {
		if k == 0 && r.Source == "flight" {
			continue // it is the verdict
		}
		v.Problems = append(v.Problems, p.Kind+": "+p.Text)
	}
	if left > 0 {
		v.Problems = append(v.Problems,
			fmt.Sprintf("the timeline shows the %d longest events and omits %d shorter ones", maxEvents, left))
	}
	if most := 20; len(v.Problems) > most {
		v.Problems = append(v.Problems[:most], fmt.Sprintf("and %d more problems", len(v.Problems)-most))
	}
	return v.write(w, "run.html", "run.js", v)
}

// table assigns consecutive numbers to different strings.
type table struct {
	list []string
	at   map[string]int
}

func (t *table) of(s string) int {
	if t.at == nil {
		t.at = map[string]int{}
	}
	i, ok := t.at[s]
	if !ok {
		i = len(t.list)
		t.at[s] = i
		t.list = append(t.list, s)
	}
	return i
}

func newDocument(r *account.Report, o Run, p paint) (*document, int) {
	tr, shares := r.Trace()
	d := &document{Exposed: r.Exposed.ByRank, Idle: r.Idle, Critical: r.Critical, Lanes: []lane{}}
	if tr == nil { // flight records have no timeline
		d.Names, d.Details = []string{}, []string{}
		d.Events = eventColumns{[]int{}, []int64{}, []int64{}, []int{}, []int64{}, []int{}, []int{}}
		for i := range r.Collectives {
			d.Collectives = append(d.Collectives, newCollective(&r.Collectives[i]))
		}
		return d, 0
	}
	lo, hi := tr.Bounds()
	d.Span, d.Virtual = hi-lo, tr.Virtual
	shown := longest(tr.Events)
	slices.SortStableFunc(shown, func(a, b int) int {
		x, y := &tr.Events[a], &tr.Events[b]
		return cmp.Or(cmp.Compare(x.Rank, y.Rank), trace.CompareStreams(x.Stream, y.Stream),
			cmp.Compare(x.Start, y.Start))
	})
	var names, details table
	place := make(map[int]int, len(shown))
	for k, i := range shown {
		e := &tr.Events[i]
		if n := len(d.Lanes); n == 0 || d.Lanes[n-1].Rank != tr.ID(e.Rank) || d.Lanes[n-1].Name != e.Stream {
			d.Lanes = append(d.Lanes, lane{tr.ID(e.Rank), e.Stream})
		}
		wait, told := shares[i]
		if !told {
			wait = -1
		}
		c := &d.Events
		c.Lane = append(c.Lane, len(d.Lanes)-1)
		c.Start, c.Dur = append(c.Start, e.Start-lo), append(c.Dur, e.End-e.Start)
		c.Name, c.Wait = append(c.Name, names.of(e.Name)), append(c.Wait, wait)
		if len(d.Fills) < len(names.list) {
			d.Fills = append(d.Fills, fill(e.Class, p[operation{e.Class, e.Name}]))
		}
		c.Group, c.Detail = append(c.Group, e.Group), append(c.Detail, details.of(e.Detail))
		place[i] = k
	}
	d.Names, d.Details = names.list, details.list
	for i := range r.Collectives {
		d.Collectives = append(d.Collectives, newCollective(&r.Collectives[i]))
	}
	if r.Critical != nil {
		d.Path = path(tr, shown)
	}
	for _, m := range o.Missing {
		a, ok1 := place[m[0]]
		b, ok2 := place[m[1]]
		if ok1 && ok2 {
			d.Edges = append(d.Edges, edge{a, b})
		}
	}
	return d, len(tr.Events) - len(shown)
}

// longest returns the indices of the events that a page shows: all, or the longest ones.
func longest(events []trace.Event) []int {
	out := make([]int, len(events))
	for i := range out {
		out[i] = i
	}
	if len(out) > maxEvents {
		slices.SortStableFunc(out, func(a, b int) int {
			return cmp.Compare(events[b].Duration(), events[a].Duration())
		})
		out = out[:maxEvents]
	}
	return out
}

// path returns the shown events on the critical path, as indices in the list of shown events.
func path(tr *trace.Trace, shown []int) []int {
	type key struct {
		rank   int
		stream string
		start  int64
	}
	on := map[key]bool{}
	for _, e := range tr.Critical() {
		on[key{e.Rank, e.Stream, e.Start}] = true
	}
	var out []int
	for k, i := range shown {
		if e := &tr.Events[i]; on[key{e.Rank, e.Stream, e.Start}] {
			out = append(out, k)
		}
	}
	return out
}

// lineOf matches the line number in the description of a statement, such as "all_gather %x (mlp.hkt:8:10), by
// staged".
var lineOf = regexp.MustCompile(`:(\d+):\d+[),]`)

// LastLine returns the largest number of a line of a program that an event with a time names, or 0 if no event names one.
func LastLine(r *account.Report) (last int) {
	for n := range lineTimes(r) {
		last = max(last, n)
	}
	return last
}

// lineTimes returns the sum of the times of the events that name a line of a program, by the line's number.
func lineTimes(r *account.Report) map[int]int64 {
	sums := map[int]int64{}
	if tr, _ := r.Trace(); tr != nil && !tr.Virtual {
		for i := range tr.Events {
			e := &tr.Events[i]
			m := lineOf.FindAllStringSubmatch(e.Detail, -1)
			if m == nil || e.Class == trace.Sync {
				continue
			}
			n, _ := strconv.Atoi(m[len(m)-1][1])
			sums[n] += e.Duration()
		}
	}
	return sums
}

// program returns the lines of the program, and reports whether any of them has a time.
func program(r *account.Report, o Run) (out []programLine, costs bool) {
	if o.Program == "" {
		return nil, false
	}
	sums := lineTimes(r)
	var all, most int64
	for _, ns := range sums {
		all += ns
		most = max(most, ns)
	}
	text := strings.ToValidUTF8(strings.TrimRight(o.Program, "\n"), "\uFFFD")
	for i, text := range strings.Split(text, "\n") {
		l := programLine{N: i + 1, HTML: highlight(text), Bad: slices.Contains(o.Bad, i+1)}
		if ns := sums[i+1]; ns > 0 {
			l.Cost, l.Share, l.Hot = nanoseconds(ns), fmt.Sprintf("%.1f%%", 100*float64(ns)/float64(all)), ns == most
		}
		out = append(out, l)
	}
	return out, all > 0
}
