package account

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
)

// Difference is one number in two reports.
type Difference struct {
	What  string   `json:"what"`
	Was   *float64 `json:"was_us"`
	Is    *float64 `json:"is_us"`
	Times int      `json:"times,omitempty"` // how often an operation ran, in the new report
}

// Against compares a report with an older one: the whole run, the collectives of each operation, and the computations
// whose times differ most.
func (r *Report) Against(old *Report) []Difference {
	value := func(v float64) *float64 { return &v }
	out := []Difference{{What: "span", Was: value(old.SpanUS), Is: value(r.SpanUS)}}
	if r.Steps != nil && old.Steps != nil {
		out = append(out, Difference{What: "step, median", Was: value(old.Steps.P50US), Is: value(r.Steps.P50US)})
	}
	out = append(out, Difference{What: "exposed waiting", Was: old.Exposed.WaitUS, Is: r.Exposed.WaitUS},
		Difference{What: "exposed transfer", Was: old.Exposed.TransferUS, Is: r.Exposed.TransferUS})
	out = append(out, byOp(r, old, "transfer of %s, median", func(c *Collective) *float64 { return c.TransferUS })...)
	out = append(out, byOp(r, old, "skew of %s, median", func(c *Collective) *float64 { return &c.SkewUS })...)
	return append(out, byKernel(r, old)...)
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
	note := func(o Op, to func(d *Difference) **float64) *Difference {
		d := all[o.Name]
		if d == nil {
			d = &Difference{What: o.Name}
			all[o.Name] = d
			list = append(list, d)
		}
		v := o.TimeUS
		*to(d) = &v
		return d
	}
	for _, o := range r.busiest(len(r.Ops)) {
		note(o, func(d *Difference) **float64 { return &d.Is }).Times = o.Count
	}
	for _, o := range old.busiest(len(old.Ops)) {
		note(o, func(d *Difference) **float64 { return &d.Was })
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

// size returns the absolute difference of the two numbers.
func (d *Difference) size() float64 {
	a, _ := deref(d.Was)
	b, _ := deref(d.Is)
	return math.Abs(a - b)
}

// WriteAgainst writes the differences as a table.
func WriteAgainst(w io.Writer, list []Difference) error {
	t := &writer{w: w}
	rows := [][]string{{"", "was", "is", "change"}}
	for _, d := range list {
		row := []string{d.What, told(d.Was), told(d.Is), ""}
		if d.Was != nil && d.Is != nil && *d.Was > 0 {
			row[3] = fmt.Sprintf("%+.1f %%", 100*(*d.Is / *d.Was - 1))
		}
		rows = append(rows, row)
	}
	t.printf("\n")
	t.rows(rows)
	return t.err
}
