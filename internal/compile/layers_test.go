package compile

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// layer holds one line of testdata/layers.txt: the measured microseconds of each strategy.
type layer struct {
	op, how, source string
	ranks           int
	m, n, k         int64
	us              map[string]float64
}

// readLayers reads testdata/layers.txt.
func readLayers(t *testing.T) []layer {
	t.Helper()
	f, err := os.Open("testdata/layers.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []layer
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, source, _ := strings.Cut(lines.Text(), "#")
		if strings.TrimSpace(text) == "" {
			continue
		}
		l := layer{source: strings.TrimSpace(source), us: map[string]float64{}}
		head, times, _ := strings.Cut(text, ":")
		if _, err := fmt.Sscanf(head, "%s %d %dx%dx%d %s", &l.op, &l.ranks, &l.m, &l.n, &l.k, &l.how); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		for words := strings.Fields(times); len(words) > 0; words = words[2:] {
			var us float64
			if len(words) < 2 {
				t.Fatalf("%q: a strategy without a time", lines.Text())
			}
			if _, err := fmt.Sscan(words[1], &us); err != nil || us <= 0 {
				t.Fatalf("%q: %q is no time", lines.Text(), words[1])
			}
			l.us[words[0]] = us
		}
		out = append(out, l)
	}
	if lines.Err() != nil || len(out) == 0 {
		t.Fatalf("%d layers, %v", len(out), lines.Err())
	}
	return out
}

func (l *layer) String() string {
	return fmt.Sprintf("%s of %d, %dx%dx%d, %s", l.op, l.ranks, l.m, l.n, l.k, l.how)
}

// text returns a program that repeats the layer in a chain, as hocket bench generates it.
func (l *layer) text() string {
	x, w, y, reduced := "M, K/tp", "N, K/tp", "M, N", true
	switch l.op {
	case "ag-gemm":
		x, w, y, reduced = "M/tp, K", "N/tp, K", "M, N/tp", false
	case "gemm-rs":
		y = "M/tp, N"
	}
	const layers = 3
	params, results, names := "", "", ""
	var body strings.Builder
	for i := range layers {
		params += fmt.Sprintf(", %%x%d: bf16[%s]", i, x)
		results += fmt.Sprintf(", bf16[%s]", y)
		names += fmt.Sprintf(", %%y%d", i)
		if reduced {
			fmt.Fprintf(&body, "  %%p%d = linear %%x%d, %%w\n  %%y%d: bf16[%s] = reshard %%p%d\n", i, i, i, y, i)
		} else {
			fmt.Fprintf(&body, "  %%y%d = linear %%x%d, %%w\n", i, i)
		}
	}
	return fmt.Sprintf("dim M = %d\ndim N = %d\ndim K = %d\nmesh tp[%d]\nfunc f(%%w: bf16[%s]%s) -> (%s) {\n%s  return %s\n}\n",
		l.m, l.n, l.k, l.ranks, w, params, results[2:], &body, names[2:])
}

// TestAutoAgainstMeasured uses layers that were measured under several strategies. The strategy that auto chooses with
// the shipped table must have been the fastest, or slower than the fastest by at most a given factor.
func TestAutoAgainstMeasured(t *testing.T) {
	most := map[string]float64{"graph": 1.04, "eager": 1.065}
	for _, l := range readLayers(t) {
		u, err := Build(check(t, l.text()), Options{Strategy: Auto, Machine: "h200x4"})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(ir.Binding{Func: "f"})
		if err != nil {
			t.Fatal(err)
		}
		p := e.Pairs[len(e.Pairs)-1] // the first gather has no preceding GEMM during which blocks could be sent
		if _, known := l.us[p.Chosen]; !known && strings.HasPrefix(p.Chosen, "exchange(") {
			// That strategy was added after these layers were measured: use the best of the measured ones.
			p.Chosen = best(slices.DeleteFunc(slices.Clone(p.Strategies), func(e Estimate) bool {
				_, known := l.us[e.Strategy]
				return !known
			})).Strategy
		}
		best := "sequential"
		for s, us := range l.us {
			if us < l.us[best] {
				best = s
			}
		}
		took, known := l.us[p.Chosen]
		switch {
		case !p.Tabled:
			t.Errorf("%s: its collective is not by the table", &l)
		case !known:
			t.Errorf("%s: auto takes %s, which was not measured: %v (%s)", &l, p.Chosen, l.us, l.source)
		case took > most[l.how]*l.us[best]:
			t.Errorf("%s: auto takes %s, %.1f µs, and %s took %.1f (%s)", &l, p.Chosen, took, best, l.us[best],
				l.source)
		}
		text := ""
		for _, s := range p.Strategies {
			if us, ok := l.us[s.Strategy]; ok {
				text += fmt.Sprintf(", %s %.0f predicted, %.0f measured", s.Strategy, s.Time, us)
			}
		}
		t.Logf("%s: %s, %.3f of the fastest%s", &l, p.Chosen, took/l.us[best], text)
	}
}
