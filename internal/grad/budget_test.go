package grad_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/ir/checker"
)

// keptBytes is what the first rank returns of a forward program besides the results.
func keptBytes(t *testing.T, text string, results int) (n int64) {
	t.Helper()
	b := read(t, text)
	for _, r := range b.Func.Results[results:] {
		shape, err := b.LocalShape(r, b.Env(0, nil))
		if err != nil {
			t.Fatal(err)
		}
		size := r.DType.Size()
		for _, e := range shape {
			size *= e
		}
		n += size
	}
	return n
}

// TestBudget: whatever the budget, the gradients are those that are computed when all is kept, and what is kept is
// within it. A budget below what cannot be computed again is refused with that.
func TestBudget(t *testing.T) {
	layer, err := os.ReadFile("../../examples/llama_layer.hkt")
	if err != nil {
		t.Fatal(err)
	}
	sources := []string{strings.ReplaceAll(string(layer), "f32", "f64")}
	for _, c := range programCases[:3] {
		sources = append(sources, strings.ReplaceAll(c.src, "[N]", "[2]"))
	}
	for _, src := range sources {
		all := halves(t, src, grad.Options{}, 5)
		results := len(read(t, src).Func.Results)
		most := keptBytes(t, all.Forward, results)
		tried, last := 0, most+1
		for budget := most; budget > 0; budget = last - 1 {
			opts := grad.Options{Keep: grad.KeepAuto, Budget: budget}
			in, ds := checker.Read("test.hkt", src)
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			if _, err := grad.Split(in, opts); err != nil {
				var over *grad.BudgetError
				if !errors.As(err, &over) || over.Least <= budget || over.Budget != budget {
					t.Fatal(err)
				}
				break
			}
			parts := halves(t, src, opts, 5)
			have := keptBytes(t, parts.Forward, results)
			if have > budget {
				t.Fatalf("%d bytes are kept, and the budget is %d\n%s", have, budget, parts.Forward)
			}
			if last = min(have, budget); last < 1 {
				break
			}
			tried++
		}
		if t.Logf("%d budgets from %d bytes to %d", tried, most, last); tried < 2 {
			t.Errorf("%d budgets are kept to, from %d bytes\n%s", tried, most, all.Forward)
		}
	}
}
