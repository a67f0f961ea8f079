package grad_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// dataParallel returns layers of an MLP whose rows are split over dp, and whose hidden features are split over tp.
// Weights have the given layout over dp, and are gathered before they are used.
func dataParallel(layers int, over string) string {
	params, body, results := []string{"%x0: f64[8/dp, 4]"}, "", "%x0"
	for l := range layers {
		g := ""
		if over == "" {
			params = append(params, fmt.Sprintf("%%n%d: f64[4], %%u%d: f64[8/tp, 4], %%d%d: f64[4, 8/tp]", l, l, l))
		} else {
			g = "g"
			params = append(params, fmt.Sprintf("%%n%d: f64[4], %%u%d: f64[8/(tp, %s), 4], %%d%d: f64[4/%s, 8/tp]", l, l, over, l, over))
			body += fmt.Sprintf("  %%ug%d: f64[8/tp, 4] = reshard %%u%d\n  %%dg%d: f64[4, 8/tp] = reshard %%d%d\n", l, l, l, l)
		}
		body += fmt.Sprintf("  %%h%d = gelu (linear (rms_norm %%x%d, %%n%d), %%u%s%d)\n", l, l, l, g, l)
		body += fmt.Sprintf("  %%x%d = add %%x%d, (linear %%h%d, %%d%s%d)\n", l+1, l, l, g, l)
		results = fmt.Sprintf("%%x%d", l+1)
	}
	return fmt.Sprintf("mesh dp[2] tp[2]\nfunc f(%s) -> f64[8/dp, 4] {\n%s  return %s\n}\n", strings.Join(params, ", "), body, results)
}

// TestDataParallel checks on a mesh of 2 × 2 ranks that the gradients of weights are reduced over dp by few collectives,
// that these run while other gradients are computed, and that results do not change.
func TestDataParallel(t *testing.T) {
	for _, c := range []struct {
		over string
		// sequential and delayed are the numbers of reductions over dp.
		op                  string
		sequential, delayed int
	}{
		{"", "all_reduce", 12, 1},      // the gradients of the weights norm, up and down in each of four layers
		{"dp", "reduce_scatter", 8, 1}, // the gradients of up and down
	} {
		src := dataParallel(4, c.over)
		agrees(t, src, hocket.GradientOptions{}, "sequential", "delayed")
		p, err := hocket.Parse("test.hkt", src)
		if err != nil {
			t.Fatal(err)
		}
		q, err := p.Gradient(hocket.GradientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for strategy, want := range map[string]int{"sequential": c.sequential, "delayed": c.delayed} {
			l, err := q.Lower(hocket.LowerOptions{Strategy: strategy})
			if err != nil {
				t.Fatal(err)
			}
			var over []string
			for _, m := range collectives.FindAllStringSubmatch(l.Program.String(), -1) {
				over = append(over, m[1]+" "+m[2])
			}
			over = slices.DeleteFunc(over, func(s string) bool { return s != c.op+" dp" })
			if len(over) != want {
				t.Errorf("%q, %s: %d reductions over dp, want %d\n%s", c.over, strategy, len(over), want, l.Program)
			}
		}
	}
}
