package bench

import (
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// WriteText writes the report as tables, preceded by descriptions of the machine and the method.
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
		t.Line("- table: %s; * marks the algorithm that it chooses", r.Table.text())
	}
	t.collectives(r.Collectives)
	for i := range r.Layers {
		t.layer(&r.Layers[i], r.Ranks)
		t.peers(r.Peers, r.Layers[i].Shape)
	}
	t.step(r.Step, r.Peers)
	t.generation(r.Generation)
	return t.Err
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

// teraFLOPs returns how many 10¹² operations a rank performs per second if a layer takes the given number of
// microseconds. As usual, a layer counts as 2·M·N·K operations, which are divided by the number of ranks.
func (l *Layer) teraFLOPs(ranks int, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return 2 * float64(l.M) * float64(l.N) * float64(l.K) / float64(ranks) / us / 1e6
}

// guesses writes the names of the GEMMs whose algorithms were not timed.
func (t *table) guesses(of string, products []string) {
	for _, p := range products {
		t.Line("%sGEMM %s uses an algorithm that was not timed, because there was too little free memory", of, p)
	}
}

// refusal writes a line with the reason why something was not measured, if there is one.
func (t *table) refusal(what, why string) {
	if first, _, _ := strings.Cut(why, "\n"); first != "" {
		t.Line("%s: %s", what, first)
	}
}

// table writes reports as text.
type table struct{ contest.Lines }
