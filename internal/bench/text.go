package bench

import (
	"fmt"
	"io"
	"math"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// WriteText writes the report as tables, under what the machine is and how it
// was measured.
func (r *Report) WriteText(w io.Writer) error {
	t := &table{contest.Lines{W: w}}
	t.Line("bench %s: %s, %d ranks", r.Bench, r.Machine, r.Ranks)
	for _, l := range r.Environment {
		t.Line("  %s", l)
	}
	for _, l := range r.Method {
		t.Line("- %s", l)
	}
	if r.Wire != nil {
		t.Line("- one copy between two ranks: %s GB/s", r.Wire.Text(1))
	}
	if r.Table != nil {
		t.Line("- table: %s; * is what it chooses", r.Table.text())
	}
	t.collectives(r.Collectives)
	t.transfers(r.P2P)
	t.hostCosts(r.Host, r.Peers)
	for i := range r.Layers {
		t.layer(&r.Layers[i], r.Ranks)
		t.peers(r.Peers, r.Layers[i].Shape)
	}
	t.beside(r.Beside)
	t.memory(r.Memory)
	t.step(r.Step, r.Peers)
	return t.Err
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
		rows = append(rows, []string{contest.BytesText(x.Bytes), x.Form, x.Issue, fmt.Sprintf("%.2f", x.Slowest),
			fmt.Sprintf("%.2f", x.Time),
			fmt.Sprintf("%.2f", x.Fastest), fmt.Sprintf("%.2f", x.Spread), both})
	}
	t.Line("")
	t.Rows(rows)
	for i := range list {
		x := &list[i]
		t.Line("\n%s, %s, %s: GB/s from row to column", contest.BytesText(x.Bytes), x.Form, x.Issue)
		t.matrix(x.OneWay, func(s, d int) bool { return s != d })
		if x.TwoWay != nil {
			t.Line("both ways at once")
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
	t.Rows(rows)
}

func (t *table) hostCosts(costs []HostCost, peers []contest.Peer) {
	if len(costs) == 0 {
		return
	}
	rows := [][]string{{"", "issued", "ranks", "ops", "host ns/op", "total ns/op"}}
	for _, c := range costs {
		if c.Refused != "" {
			continue
		}
		rows = append(rows, []string{c.Op, c.Issued, fmt.Sprint(c.Ranks), fmt.Sprint(c.Ops), c.Issue.Text(0),
			c.Total.Text(0)})
	}
	for _, p := range peers {
		host := ""
		if p.HostMicros > 0 {
			host = fmt.Sprintf("%.0f", 1e3*p.HostMicros)
		}
		rows = append(rows, []string{p.Op + " by " + p.Name, p.Issued, fmt.Sprint(p.Ranks), "", host,
			fmt.Sprintf("%.0f", 1e3*p.Micros)})
	}
	t.Line("")
	t.Rows(rows)
	for _, c := range costs {
		t.refusal(fmt.Sprintf("%s on %d ranks, %s", c.Op, c.Ranks, c.Issued), c.Refused)
	}
}

func (t *table) layer(l *Layer, ranks int) {
	t.Line("\nm %d, n %d, k %d: GEMM alone %s µs, wire %.1f, bound %.1f", l.M, l.N, l.K, l.GEMM.Text(1), l.Wire,
		l.Bound)
	rows := [][]string{{"", "µs", "× bound", "graph µs", "× bound", "TFLOP/s a rank", "- sequential", ""}}
	for _, s := range l.Strategies {
		if s.Refused != "" {
			continue
		}
		against := ""
		if s.Against != nil {
			against = s.Against.Text(1)
		}
		graph, over, best := "", "", s.Time.Median
		if s.Graph != nil {
			best = min(best, s.Graph.Median)
			graph, over = strings.TrimSpace(s.Graph.Text(1)+" "+s.GraphForm), s.GraphOverBound.Text(3)
		}
		rows = append(rows, []string{s.Strategy, s.Time.Text(1), s.OverBound.Text(3), graph, over,
			fmt.Sprintf("%.4g", l.teraFLOPs(ranks, best)), against, s.Verdict})
	}
	t.Rows(rows)
	for _, s := range l.Strategies {
		t.refusal(s.Strategy, s.Refused)
		t.refusal(s.Strategy+" by graph", s.GraphRefused)
		t.guesses(s.Strategy+": ", s.Guesses)
	}
}

// teraFLOPs is what a rank multiplies and adds in a second, in 10¹², where a layer takes so many microseconds: as
// others count it, its part of 2·M·N·K.
func (l *Layer) teraFLOPs(ranks int, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return 2 * float64(l.M) * float64(l.N) * float64(l.K) / float64(ranks) / us / 1e6
}

// guesses says which products ran by a guess of an algorithm.
func (t *table) guesses(of string, products []string) {
	for _, p := range products {
		t.Line("%sproduct %s by a guess: no memory was free to time its algorithms in", of, p)
	}
}

// refusal says in a line why something was not measured, if it was not.
func (t *table) refusal(what, why string) {
	if first, _, _ := strings.Cut(why, "\n"); first != "" {
		t.Line("%s: %s", what, first)
	}
}

func (t *table) memory(uses []MemoryUse) {
	if len(uses) == 0 {
		return
	}
	rows := [][]string{{"", "parameters", "peak", "bound", "activations", "bound"}}
	for _, m := range uses {
		whole := func(n int64) string { return fmt.Sprintf("%.2f", float64(n-m.Inputs)/float64(m.Unit)) }
		rows = append(rows, []string{m.Program, contest.BytesText(m.Inputs), contest.BytesText(m.Peak),
			contest.BytesText(m.Bound), whole(m.Peak), whole(m.Bound)})
	}
	t.Line("")
	t.Rows(rows)
}

// table writes reports.
type table struct{ contest.Lines }
