package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// shownOps is the number of statements of each strategy in the text. The JSON contains all statements.
const shownOps = 8

// step writes a program's times.
func (t *table) step(s *Step, peers []contest.Peer) {
	if s == nil {
		return
	}
	t.Line("\n%s", strings.TrimSpace(s.Func+" "+s.dims()))
	if len(s.Weights) > 0 {
		t.Line("weights: %s", strings.Join(s.Weights, " "))
	}
	if len(s.State) > 0 {
		t.Line("device tensors: %s", strings.Join(s.State, " "))
	}
	t.Line("bound %.1f µs by %s: memory %.1f, compute %.1f, wire %.1f", s.BoundUS, s.BoundBy, s.Bound.Memory,
		s.Bound.Compute, s.Bound.Wire)
	rows := [][]string{{"strategy", "issued", "back to back µs", "× bound", "single µs", "host µs", "- first", ""}}
	untold := false
	for _, w := range s.Ways {
		if w.Refused != "" {
			continue
		}
		against := ""
		if w.Against != nil {
			against = w.Against.Text(1)
		}
		chain, over, host := w.BackToBack.Text(1), fmt.Sprintf("%.2f", w.OverBound), w.Host.Text(1)
		if !w.conclusive() {
			chain, over, host, against, untold = "-", "-", "-", "", true
		}
		rows = append(rows, []string{w.Strategy, w.Issued, chain, over, w.Single.Text(1), host, against, w.Verdict})
	}
	for _, p := range peers {
		if p.Shape == s.dims() {
			over := ""
			if s.BoundUS > 0 {
				over = fmt.Sprintf("%.2f", p.Micros/s.BoundUS)
			}
			host := ""
			if p.HostMicros > 0 {
				host = fmt.Sprintf("%.1f", p.HostMicros)
			}
			rows = append(rows, []string{p.Name, p.Issued, fmt.Sprintf("%.1f", p.Micros), over, "", host, "", ""})
		}
	}
	t.Rows(rows)
	if untold {
		t.Line("-: a batch took no longer than a run, so the time cannot be determined; use more --runs or --rounds")
	}
	for _, w := range s.Ways {
		name := w.Strategy + ", " + w.Issued
		t.refusal(name, w.Refused)
		t.guesses(name+": ", w.Guesses)
	}
	for i := range s.Ways {
		t.opTimes(&s.Ways[i])
	}
}

// dims writes the values of a step's dims, sorted by name: "S=1024 T=1".
func (s *Step) dims() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.Dims)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, s.Dims[name]))
	}
	return strings.Join(parts, " ")
}

// opTimes writes the statements that exceed their bounds most.
func (t *table) opTimes(w *StepTimes) {
	if w.Refused != "" || w.Strategy == measuredAuto {
		for _, o := range w.Overlap {
			t.Line("%s, %s: %s", w.Strategy, w.Issued, o)
		}
		return
	}
	t.Line("\n%s, %s: the commands one after another, each at its bound, would take %.1f µs; the statements that "+
		"exceed their bounds most:", w.Strategy, w.Issued,
		w.OpsBound)
	for _, o := range w.Overlap {
		t.Line("%s", o)
	}
	if len(w.Ops) == 0 {
		t.Line("the machine does not report times of single commands")
		return
	}
	rows := [][]string{{"", "line", "times", "µs", "bound", "by", "lost", ""}}
	for _, o := range w.Ops[:min(len(w.Ops), shownOps)] {
		rows = append(rows, []string{o.Op, fmt.Sprint(o.Line), fmt.Sprint(o.Times), o.US.Text(1),
			fmt.Sprintf("%.1f", o.BoundUS), o.BoundBy,
			fmt.Sprintf("%.1f", o.Lost), o.Shapes})
	}
	t.Rows(rows)
	if more := len(w.Ops) - shownOps; more > 0 {
		t.Line("%d more statements with --json", more)
	}
}
