package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// WriteText writes the report as tables, under what the machine is and how it
// was measured.
func (r *Report) WriteText(w io.Writer) error {
	t := &table{w: w}
	t.line("bench %s: %s, %d ranks", r.Bench, r.Machine, r.Ranks)
	for _, l := range r.Environment {
		t.line("  %s", l)
	}
	for _, l := range r.Method {
		t.line("- %s", l)
	}
	if r.Wire != nil {
		t.line("- one copy between two ranks: %s GB/s", r.Wire.text(1))
	}
	if r.Table != nil {
		t.line("- table: %s; * is what it chooses", r.Table.text())
	}
	t.collectives(r.Collectives)
	t.transfers(r.P2P)
	t.hostCosts(r.Host, r.Peers)
	for i := range r.Layers {
		t.layer(&r.Layers[i])
		t.peers(r.Peers, r.Layers[i].Shape)
	}
	t.beside(r.Beside)
	t.memory(r.Memory)
	return t.err
}

// text writes the median, and the spread behind ±.
func (f Figure) text(digits int) string {
	return fmt.Sprintf("%.*f ±%.*f", digits, f.Median, digits, f.Spread)
}

// table writes lines and remembers the first error.
type table struct {
	w   io.Writer
	err error
}

func (t *table) line(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format+"\n", args...)
	}
}

// rows writes rows in columns, numbers to the right.
func (t *table) rows(rows [][]string) {
	tw := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t")+"\t")
	}
	if err := tw.Flush(); t.err == nil {
		t.err = err
	}
}

// transfers writes a line for each kind of copy, and then all pairs of each.
func (t *table) transfers(list []Transfer) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"", "form", "issued", "slowest pair GB/s", "µs", "fastest GB/s", "spread", "both ways GB/s"}}
	for i := range list {
		x := &list[i]
		both := ""
		if x.TwoWay != nil {
			both = fmt.Sprintf("%.2f", slowest(x.TwoWay))
		}
		rows = append(rows, []string{bytesText(x.Bytes), x.Form, x.Issue, fmt.Sprintf("%.2f", x.Slowest), fmt.Sprintf("%.2f", x.Time),
			fmt.Sprintf("%.2f", x.Fastest), fmt.Sprintf("%.2f", x.Spread), both})
	}
	t.line("")
	t.rows(rows)
	for i := range list {
		x := &list[i]
		t.line("\n%s, %s, %s: GB/s from row to column", bytesText(x.Bytes), x.Form, x.Issue)
		t.matrix(x.OneWay, func(s, d int) bool { return s != d })
		if x.TwoWay != nil {
			t.line("both ways at once")
			t.matrix(x.TwoWay, func(s, d int) bool { return s < d })
		}
	}
}

// slowest returns the least rate above the diagonal.
func slowest(m [][]float64) float64 {
	least := math.Inf(1)
	for s := range m {
		for d := s + 1; d < len(m); d++ {
			least = min(least, m[s][d])
		}
	}
	return least
}

// matrix writes the elements that there are; the others are dots.
func (t *table) matrix(m [][]float64, there func(s, d int) bool) {
	head := []string{""}
	for d := range m {
		head = append(head, fmt.Sprintf("rank %d", d))
	}
	rows := [][]string{head}
	for s := range m {
		row := []string{fmt.Sprintf("rank %d", s)}
		for d, v := range m[s] {
			cell := "."
			if there(s, d) {
				cell = fmt.Sprintf("%.2f", v)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	t.rows(rows)
}

func (t *table) hostCosts(costs []HostCost, peers []Peer) {
	if len(costs) == 0 {
		return
	}
	rows := [][]string{{"", "issued", "ranks", "ops", "host ns/op", "total ns/op"}}
	for _, c := range costs {
		if c.Refused != "" {
			continue
		}
		rows = append(rows, []string{c.Op, c.Issued, fmt.Sprint(c.Ranks), fmt.Sprint(c.Ops), c.Issue.text(0), c.Total.text(0)})
	}
	for _, p := range peers {
		host := ""
		if p.HostMicros > 0 {
			host = fmt.Sprintf("%.0f", 1e3*p.HostMicros)
		}
		rows = append(rows, []string{p.Op + " by " + p.Name, p.Issued, fmt.Sprint(p.Ranks), "", host, fmt.Sprintf("%.0f", 1e3*p.Micros)})
	}
	t.line("")
	t.rows(rows)
	for _, c := range costs {
		t.refusal(fmt.Sprintf("%s on %d ranks, %s", c.Op, c.Ranks, c.Issued), c.Refused)
	}
}

func (t *table) layer(l *Layer) {
	t.line("\nm %d, n %d, k %d: GEMM alone %s µs, wire %.1f, bound %.1f", l.M, l.N, l.K, l.GEMM.text(1), l.Wire, l.Bound)
	rows := [][]string{{"", "µs", "× bound", "graph µs", "× bound", "- sequential", ""}}
	for _, s := range l.Strategies {
		if s.Refused != "" {
			continue
		}
		against := ""
		if s.Against != nil {
			against = s.Against.text(1)
		}
		graph, over := "", ""
		if s.Graph != nil {
			graph, over = strings.TrimSpace(s.Graph.text(1)+" "+s.GraphForm), s.GraphOverBound.text(3)
		}
		rows = append(rows, []string{s.Strategy, s.Time.text(1), s.OverBound.text(3), graph, over, against, s.Verdict})
	}
	t.rows(rows)
	for _, s := range l.Strategies {
		t.refusal(s.Strategy, s.Refused)
		t.refusal(s.Strategy+" by graph", s.GraphRefused)
		t.guesses(s.Strategy+": ", s.Guesses)
	}
}

// guesses says which products ran by a guess of an algorithm.
func (t *table) guesses(of string, products []string) {
	for _, p := range products {
		t.line("%sproduct %s by a guess: no memory was free to time its algorithms in", of, p)
	}
}

// refusal says in a line why something was not measured, if it was not.
func (t *table) refusal(what, why string) {
	if first, _, _ := strings.Cut(why, "\n"); first != "" {
		t.line("%s: %s", what, first)
	}
}

func (t *table) memory(uses []MemoryUse) {
	if len(uses) == 0 {
		return
	}
	rows := [][]string{{"", "parameters", "peak", "bound", "activations", "bound"}}
	for _, m := range uses {
		whole := func(n int64) string { return fmt.Sprintf("%.2f", float64(n-m.Inputs)/float64(m.Unit)) }
		rows = append(rows, []string{m.Program, bytesText(m.Inputs), bytesText(m.Peak), bytesText(m.Bound), whole(m.Peak), whole(m.Bound)})
	}
	t.line("")
	t.rows(rows)
}

// bytesText writes a size in the largest unit that leaves a number of 1 or more.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
