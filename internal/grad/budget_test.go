package grad_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir/checker"
)

// keptBytes returns the number of bytes that the first rank returns from a forward program in addition to the results.
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

// partialSums is a program whose values are partial sums, which cannot be passed from one program to another.
const partialSums = `mesh a[1] b[2]
func f(%x0: f64[8, 4/(a, b)], %x1: f64[8/a, 8/b], %x2: f64[8/b, 8/a], %x3: f64[8]) -> (f64[8/b, 8]) {
  %v1 = clamp %x1, lo=-0.5, hi=0.75
  %v2 = scale (matmul (matmul %x0, %x0, tb=true), %x1), by=0.1
  %v3 = maximum %v2, %x1
  %v4 = scale (linear %v3, %x2, %x3), by=0.4
  %v5 = sum %v2, axis=0
  %v6 = sub %v2, %v5
  %out = mul %v6, %v6
  return %out
}
`

// TestBudget checks that, for every budget, the gradients are the same as if all values were kept, and that the kept
// values do not exceed the budget. A budget that is smaller than the values that cannot be computed again must be
// refused, with the size of those values.
func TestBudget(t *testing.T) {
	layer, err := os.ReadFile("../../examples/llama_layer.hkt")
	if err != nil {
		t.Fatal(err)
	}
	sources := []string{strings.ReplaceAll(string(layer), "f32", "f64"), partialSums}
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

// TestBudgetOfLoopView checks budgets for a program that reads views of a loop's result.
func TestBudgetOfLoopView(t *testing.T) {
	in, ds := checker.Read("test.hkt", `func f(%x: f64[4, 4], %w: f64[2, 4, 4]) -> f64[] {
  %y = for %l in 0..2 carry %h = %x {
    %z = tanh (linear %h, %w[%l])
    yield %z
  }
  %a = slice %y, axis=1, 0..2
  %b = slice %y, axis=1, 2..4
  %c = mul %a, %b
  %d = tanh %c
  %out = mean %d, axis=(0, 1)
  return %out
}
`)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	for budget := int64(1); budget < 4096; budget *= 2 {
		over := (*grad.BudgetError)(nil)
		parts, err := grad.Split(in, grad.Options{Keep: grad.KeepAuto, Budget: budget})
		switch {
		case errors.As(err, &over):
		case err != nil:
			t.Fatal(err)
		default:
			if have := keptBytes(t, parts.Forward, 1); have > budget {
				t.Errorf("%d bytes are kept, and the budget is %d\n%s", have, budget, parts.Forward)
			}
		}
	}
}

// TestBudgetOfRandomPrograms checks that the kept values do not exceed the budget, and that a budget that suffices for
// the inputs alone is accepted.
func TestBudgetOfRandomPrograms(t *testing.T) {
	tried, refused := 0, 0
	for seed := uint64(1); seed <= uint64(longtest.Of(60, 600)); seed++ {
		src := randomProgram(seed, 1+int(seed%2), 2)
		in, ds := checker.Read("test.hkt", src)
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		all, err := grad.Split(in, grad.Options{})
		if err != nil {
			continue // a statement without a gradient
		}
		inputs, err := grad.Split(in, grad.Options{Keep: grad.KeepInputs})
		if err != nil {
			t.Fatal(err)
		}
		results := len(read(t, src).Func.Results)
		most, least := keptBytes(t, all.Forward, results), keptBytes(t, inputs.Forward, results)
		for k := range int64(6) {
			budget := max(most*k/5, 1)
			parts, err := grad.Split(in, grad.Options{Keep: grad.KeepAuto, Budget: budget})
			over := (*grad.BudgetError)(nil)
			switch {
			case errors.As(err, &over) && over.Least > budget && least > budget:
				refused++
			case err != nil:
				t.Errorf("seed %d: %v, and the inputs take %d bytes\n%s", seed, err, least, src)
			default:
				tried++
				if have := keptBytes(t, parts.Forward, results); have > budget {
					t.Errorf("seed %d: %d bytes are kept, and the budget is %d\n%s%s", seed, have, budget, src, parts.Forward)
				}
			}
		}
	}
	if t.Logf("%d budgets, %d refused", tried, refused); tried == 0 {
		t.Error("no budget is tried")
	}
}
