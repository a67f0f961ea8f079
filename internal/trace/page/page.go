// Package page writes one HTML page that shows where the time of a run went. The page needs no network and no other
// files.
package page

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
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

//go:embed assets
var assets embed.FS

func asset(name string) string {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

var layout = template.Must(template.New("").Parse(asset("page.html")))

// Options are what a page shows in addition to a report.
type Options struct {
	Title string
	// Program is the text of the program whose lines the events name. It is empty if there is none.
	Program string
	// Missing are pairs of events that a counterexample leaves unordered, as indices of the report's events.
	Missing [][2]int
	// Bad are the lines of the program that a counterexample names.
	Bad []int
	// Facts is shown instead of the numbers of the report if it is not empty. The report then has no numbers.
	Facts string
	// Notes are shown first, as problems.
	Notes []string
}

// maxEvents is how many events a page shows. It shows the longest.
const maxEvents = 400_000

// view is the input of the template.
type view struct {
	Title, Facts    string
	Timed           bool // the report has numbers
	Words, Problems []string
	Program         []line
	Policy          string
	Style           template.CSS
	Script          template.JS
	Data            template.JS
}

// line is a line of the program, with the time that it took.
type line struct {
	N                 int
	Text, Cost, Share string
	Bad               bool
}

// columns stores the events by column, which makes the JSON short.
type columns struct {
	Lane   []int   `json:"lane"`
	Start  []int64 `json:"start"`
	Dur    []int64 `json:"dur"`
	Name   []int   `json:"name"`
	Class  []int   `json:"cls"`
	Wait   []int64 `json:"wait"`
	Group  []int   `json:"group"`
	Detail []int   `json:"detail"`
}

// document is the input of the script.
type document struct {
	Span        int64                 `json:"span"`
	Virtual     bool                  `json:"virtual"`
	Lanes       []lane                `json:"lanes"`
	Names       []string              `json:"names"`
	Details     []string              `json:"details"`
	Events      columns               `json:"events"`
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

// collective is an account.Collective with fewer fields.
type collective struct {
	Index      int           `json:"index"`
	Op         string        `json:"op"`
	Group      string        `json:"group"`
	Bytes      *int64        `json:"bytes"`
	TransferUS *float64      `json:"transfer_us"`
	SkewUS     float64       `json:"skew_us"`
	BusGBs     float64       `json:"bus_gb_s,omitempty"`
	Late       *account.Late `json:"late"`
	Start      int64         `json:"start"`
	Arrive     int64         `json:"arrive"`
	Ranks      []int         `json:"ranks"`
	Waits      []int64       `json:"waits"` // by rank, in nanoseconds; empty if they are unknown
}

func newCollective(c *account.Collective) collective {
	x := collective{Index: c.Index, Op: c.Op, Group: c.Group, Bytes: c.Bytes, TransferUS: c.TransferUS,
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

// Write writes the page.
func Write(w io.Writer, r *account.Report, o Options) error {
	doc, left := newDocument(r, o)
	data, err := json.Marshal(doc) // it escapes everything that could end the script element
	if err != nil {
		return err
	}
	script := asset("page.js")
	v := view{Title: o.Title, Facts: r.Facts(), Problems: slices.Clone(o.Notes), Style: template.CSS(asset("page.css")),
		Script: template.JS(script), Data: template.JS(data), Policy: policy(script), Program: program(r, o)}
	if v.Timed = o.Facts == ""; !v.Timed {
		v.Facts = o.Facts
		return layout.Execute(w, v)
	}
	v.Words = r.Sentences()
	for _, p := range r.Problems {
		if p.Kind != "late" || r.Source == "flight" {
			v.Problems = append(v.Problems, p.Kind+": "+p.Text)
		}
	}
	if left > 0 {
		v.Problems = append(v.Problems,
			fmt.Sprintf("the timeline shows the %d longest events; %d shorter ones are left out", maxEvents, left))
	}
	if most := 20; len(v.Problems) > most {
		v.Problems = append(v.Problems[:most], fmt.Sprintf("and %d problems more", len(v.Problems)-most))
	}
	return layout.Execute(w, v)
}

// policy allows the page to run its own script and to load nothing.
func policy(script string) string {
	sum := sha256.Sum256([]byte(script))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// table assigns a number to each string.
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

func newDocument(r *account.Report, o Options) (*document, int) {
	tr, shares := r.Trace()
	d := &document{Exposed: r.Exposed.ByRank, Idle: r.Idle, Critical: r.Critical, Lanes: []lane{}}
	if tr == nil { // flight records have no timeline
		d.Names, d.Details = []string{}, []string{}
		d.Events = columns{[]int{}, []int64{}, []int64{}, []int{}, []int{}, []int64{}, []int{}, []int{}}
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
		c.Name, c.Class, c.Wait = append(c.Name, names.of(e.Name)), append(c.Class, int(e.Class)), append(c.Wait, wait)
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

// longest returns the indices of the events that a page shows.
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

// path finds the events of the critical path among those that are shown.
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

// lineOf finds the line number in a statement's place: "all_gather %x (mlp.hkt:8:10), by staged".
var lineOf = regexp.MustCompile(`:(\d+):\d+[),]`)

// program sums the time of each line of the program.
func program(r *account.Report, o Options) []line {
	if o.Program == "" {
		return nil
	}
	sums := map[int]int64{}
	var all int64
	if tr, _ := r.Trace(); tr != nil && !tr.Virtual {
		for i := range tr.Events {
			e := &tr.Events[i]
			m := lineOf.FindAllStringSubmatch(e.Detail, -1)
			if m == nil || e.Class == trace.Sync {
				continue
			}
			n, _ := strconv.Atoi(m[len(m)-1][1])
			sums[n] += e.Duration()
			all += e.Duration()
		}
	}
	var out []line
	for i, text := range strings.Split(strings.TrimRight(o.Program, "\n"), "\n") {
		l := line{N: i + 1, Text: text, Bad: slices.Contains(o.Bad, i+1)}
		if ns := sums[i+1]; ns > 0 {
			l.Cost, l.Share = trace.Microseconds(float64(ns)/1e3), fmt.Sprintf("%.1f %%", 100*float64(ns)/float64(all))
		}
		out = append(out, l)
	}
	return out
}
