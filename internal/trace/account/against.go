package account

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// Difference holds the values of one number in an older and in a newer report.
type Difference struct {
	What string   `json:"what"`
	Was  *float64 `json:"was_us"`
	Is   *float64 `json:"is_us"`
	// WasTimes and Times are the numbers of calls in the old and in the new report, if Was and Is are means over calls.
	WasTimes int `json:"was_times,omitempty"`
	Times    int `json:"times,omitempty"`
}

// Against compares a report with an older one: the whole run, the collectives of each operation, and those
// computations whose times differ most. The times of computations and of exposed communication are means over
// calls, because the two profiles may have different numbers of steps or ranks.
func (r *Report) Against(old *Report) []Difference {
	value := func(v float64) *float64 { return &v }
	out := []Difference{{What: "span", Was: value(old.commonUS()), Is: value(r.commonUS())}}
	if r.Steps != nil && old.Steps != nil {
		out = append(out, Difference{What: "step, median", Was: value(old.Steps.P50US), Is: value(r.Steps.P50US)})
	}
	was, is := old.communications(), r.communications()
	perCall := func(what string, of func(*Report) *float64) Difference {
		return Difference{What: what, Was: mean(of(old), was), Is: mean(of(r), is), WasTimes: was, Times: is}
	}
	out = append(out, perCall("exposed waiting", func(r *Report) *float64 { return r.Exposed.WaitUS }),
		perCall("exposed transfer", func(r *Report) *float64 { return r.Exposed.TransferUS }))
	if r.Exposed.UnknownUS+old.Exposed.UnknownUS > 0 {
		out = append(out, perCall("exposed waiting or transfer",
			func(r *Report) *float64 { return &r.Exposed.UnknownUS }))
	}
	out = append(out, byOp(r, old, "transfer of %s, median", func(c *Collective) *float64 { return c.TransferUS })...)
	out = append(out, byOp(r, old, "skew of %s, median", func(c *Collective) *float64 { return c.SkewUS })...)
	return append(out, byKernel(r, old)...)
}

// communications returns the number of communication events on all ranks.
func (r *Report) communications() int {
	n := 0
	for _, o := range r.Ops {
		if o.Class == trace.Comm.String() {
			n += o.Count
		}
	}
	return n
}

// mean returns sum divided by n, or nil if either is unknown.
func mean(sum *float64, n int) *float64 {
	if sum == nil || n == 0 {
		return nil
	}
	v := *sum / float64(n)
	return &v
}

// ranks lists the ranks of the profile.
func (r *Report) ranks() string {
	return plural(r.Ranks, "rank") + " (" + ranklist.String(r.ids) + ")"
}

// Unlike returns warnings if two reports have different ranks, or different numbers of steps or calls, so that their
// sums and spans cannot be compared.
func (r *Report) Unlike(old *Report) []string {
	var out []string
	if r.Source != "nsys" && !slices.Equal(r.ids, old.ids) { // nsys numbers GPUs and not ranks
		out = append(out, fmt.Sprintf("the older profile has %s, and the newer one %s", old.ranks(), r.ranks()))
	}
	if old.Untold != "" && old.Untold != r.Untold {
		out = append(out, "in the older profile, waiting cannot be separated from transfer: "+old.Untold)
	}
	for _, p := range old.Problems {
		if p.Kind == "runs" {
			out = append(out, "in the older profile: "+p.Text)
		}
	}
	var differ []string
	note := func(what string, was, is int) {
		if was != is {
			differ = append(differ, fmt.Sprintf("%d and %d %s", was, is, what))
		}
	}
	if old.Steps != nil && r.Steps != nil {
		note("steps", old.Steps.Count+old.Steps.Cut, r.Steps.Count+r.Steps.Cut)
	}
	was, is := map[string]int{}, map[string]int{}
	var ops []string
	count := func(r *Report, to map[string]int) {
		for i := range r.Collectives {
			op := r.Collectives[i].Op
			if to[op]++; !slices.Contains(ops, op) {
				ops = append(ops, op)
			}
		}
	}
	count(old, was)
	count(r, is)
	for _, op := range ops {
		note(op+" collectives", was[op], is[op])
	}
	if len(differ) > 0 {
		out = append(out, fmt.Sprintf("the older and the newer profile have %s: compare the times per call, not the span",
			strings.Join(differ, ", ")))
	}
	return out
}

func byOp(r, old *Report, what string, of func(*Collective) *float64) []Difference {
	medians := func(r *Report) (map[string]*float64, []string) {
		lists := map[string][]float64{}
		var order []string
		for i := range r.Collectives {
			c := &r.Collectives[i]
			if v := of(c); v != nil {
				if lists[c.Op] == nil {
					order = append(order, c.Op)
				}
				lists[c.Op] = append(lists[c.Op], *v)
			}
		}
		out := map[string]*float64{}
		for op, list := range lists {
			m := percentile(list, 50)
			out[op] = &m
		}
		return out, order
	}
	now, ops := medians(r)
	was, more := medians(old)
	var out []Difference
	for _, op := range append(ops, more...) {
		if slices.ContainsFunc(out, func(d Difference) bool { return d.What == fmt.Sprintf(what, op) }) {
			continue
		}
		out = append(out, Difference{What: fmt.Sprintf(what, op), Was: was[op], Is: now[op]})
	}
	return out
}

// shownKernels is the largest number of computations that a comparison lists.
const shownKernels = 8

func byKernel(r, old *Report) []Difference {
	all := map[string]*Difference{}
	var list []*Difference
	of := func(o Op) *Difference {
		d := all[o.Name]
		if d == nil {
			d = &Difference{What: o.Name}
			all[o.Name] = d
			list = append(list, d)
		}
		return d
	}
	for _, o := range r.busiest(len(r.Ops)) {
		d := of(o)
		d.Is, d.Times = mean(&o.TimeUS, o.Count), o.Count
	}
	for _, o := range old.busiest(len(old.Ops)) {
		d := of(o)
		d.Was, d.WasTimes = mean(&o.TimeUS, o.Count), o.Count
	}
	slices.SortStableFunc(list, func(a, b *Difference) int { return cmp.Compare(b.size(), a.size()) })
	var out []Difference
	for _, d := range list[:min(len(list), shownKernels)] {
		if d.size() > 0 {
			out = append(out, *d)
		}
	}
	return out
}

// size returns the absolute difference between the two means, multiplied by the larger of the two numbers of calls.
func (d *Difference) size() float64 {
	a, _ := deref(d.Was)
	b, _ := deref(d.Is)
	return math.Abs(a-b) * float64(max(d.WasTimes, d.Times))
}

// calls describes the number of calls, if Was and Is are means over calls.
func (d *Difference) calls() string {
	switch {
	case d.WasTimes == d.Times && d.Times == 0:
		return ""
	case d.WasTimes == d.Times:
		return fmt.Sprint(d.Times)
	}
	return fmt.Sprintf("%d → %d", d.WasTimes, d.Times)
}

// WriteAgainst writes the warnings, and the differences as a table.
func WriteAgainst(w io.Writer, list []Difference, warnings []string) error {
	t := &writer{w: w}
	t.printf("\n")
	for _, s := range warnings {
		t.printf("warning: %s\n", s)
	}
	rows := [][]string{AgainstHead}
	for i := range list {
		rows = append(rows, list[i].Row())
	}
	t.rows(rows)
	return t.err
}

// AgainstHead are the names of the columns of Difference.Row.
var AgainstHead = []string{"", "was", "is", "change", "calls, all ranks"}

// Row returns the row of a table that shows the difference.
func (d *Difference) Row() []string {
	row := []string{d.What, told(d.Was), told(d.Is), "", d.calls()}
	if d.WasTimes > 0 || d.Times > 0 {
		row[0] += ", per call"
	}
	if d.Was != nil && d.Is != nil && *d.Was > 0 {
		row[3] = strings.Replace(fmt.Sprintf("%+.1f %%", 100*(*d.Is / *d.Was - 1)), "-0.0 %", "+0.0 %", 1)
	}
	return row
}
