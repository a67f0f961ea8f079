package examples_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// sharded lists the examples that consist only of sharded layers, each with the strategies with which its functions are
// lowered.
var sharded = map[string][]string{
	"ag_linear_two_axes.hkt":   {"chunked(3)", "exchange", "exchange(2)"},
	"column_parallel.hkt":      {"chunked(3)", "exchange", "exchange(2)"},
	"row_parallel_scatter.hkt": {"chunked(3)", "exchange", "exchange(2)", "exchange(1,2)"},
	"symbolic_rows.hkt":        {"chunked(3)"},
	"mlp.hkt":                  {"chunked(3)", "exchange", "exchange(2)", "exchange(1,2)"},
	"dp_tp_mlp.hkt":            {"chunked(3)", "exchange", "exchange(2)", "exchange(1,3)"},
	"linear_rs_2d.hkt":         {"chunked(3)", "exchange", "exchange(2)"},
	"tp_sp_linears.hkt":        {"chunked(3)", "exchange", "exchange(2)"},
	"llama_layer.hkt":          {"chunked(3)", "exchange", "exchange(3)", "exchange(1,3)", "auto"},
	"model_32.hkt":             {"chunked(2)", "exchange"},
}

// TestShardedExamplesOverlapped lowers each sharded example with each strategy, proves it for two runs back to back
// (acceptance case S13), and runs it so under many schedules.
func TestShardedExamplesOverlapped(t *testing.T) {
	for file, strategies := range sharded {
		for _, s := range strategies {
			t.Run(file+" "+s, func(t *testing.T) {
				t.Parallel()
				e := load(t, file)
				u := e.overlapped(t, s)
				p, err := u.Plan(e.binding)
				if err != nil {
					t.Fatal(err)
				}
				prog := u.Lowered.Info.Prog
				if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved {
					t.Fatalf("%s: %s\n%s", r.Verdict, r.Reason, r.Diagnostics(prog))
				}
				for seed := range int64(*schedules) {
					if err := e.try(p, seed); err != nil {
						t.Fatalf("schedule %d: %v", seed, err)
					}
					if file == "model_32.hkt" && seed == 3 {
						break // 64 pairs a run
					}
				}
			})
		}
	}
}

func (e *example) overlapped(t *testing.T, strategy string) *compile.Unit {
	t.Helper()
	info, ds := checker.Check(e.prog)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	return unit
}

// TestSixPatterns checks that four of the six linears of a forward and backward pass are overlapped, and that the
// reason is printed why those that compute the gradients of the two weights are not.
func TestSixPatterns(t *testing.T) {
	src, err := os.ReadFile("tp_sp_linears.hkt")
	if err != nil {
		t.Fatal(err)
	}
	prog, ds := ir.Parse("tp_sp_linears.hkt", string(src))
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	e := &example{name: "tp_sp_linears.hkt", prog: prog}
	for _, s := range []string{"chunked(3)", "exchange"} {
		u := e.overlapped(t, s)
		var got []string
		for _, c := range u.Lowered.Choices {
			got = append(got, c.Pair.Func+" "+c.Strategy.String())
		}
		want := "linear1_forward S, linear1_input_grad S, linear2_forward S, linear2_input_grad S"
		if text := strings.Join(got, ", "); text != strings.ReplaceAll(want, "S", s) {
			t.Errorf("%s is used for: %s", s, text)
		}
		if n := len(u.Lowered.Alone); n != 2 {
			t.Errorf("%d collectives are left alone, want the two of the weights' gradients", n)
		}
	}
}

// TestSymbolicRows runs one lowered program with many numbers of rows, because the text that a strategy generates must
// not depend on the values of dims.
func TestSymbolicRows(t *testing.T) {
	for _, s := range []string{"sequential", "chunked(3)", "exchange"} {
		for _, rows := range []int64{4, 8, 20, 36} {
			t.Run(fmt.Sprintf("%s T=%d", s, rows), func(t *testing.T) {
				t.Parallel()
				oneTextFor(t, "llama_layer.hkt", s, map[string]int64{"T": rows})
			})
		}
	}
}

// TestAnyRowsOnAnyRanks runs lowered programs with numbers of rows that are not multiples of the number of chunks, and
// with several numbers of ranks.
func TestAnyRowsOnAnyRanks(t *testing.T) {
	for _, s := range []string{"sequential", "chunked(3)", "exchange", "exchange(2)"} {
		for ranks := int64(1); ranks <= 8; ranks++ {
			for _, rows := range []int64{0, 1, 2, 13, 5 * ranks} {
				t.Run(fmt.Sprintf("%s T=%d P=%d", s, rows, ranks), func(t *testing.T) {
					dims := map[string]int64{"T": rows, "P": ranks}
					if strings.HasPrefix(s, "exchange") && rows%ranks != 0 {
						textFor(t, "symbolic_rows.hkt", s, dims) // with ragged blocks
						return
					}
					oneTextFor(t, "symbolic_rows.hkt", s, dims)
				})
			}
		}
	}
}

// oneTextFor runs the program that a strategy generates from an example, with the given dims. The text of the program
// must not depend on the dims.
func oneTextFor(t *testing.T, file, strategy string, dims map[string]int64) {
	t.Helper()
	if u, res := textFor(t, file, strategy, dims); res != u.Lowered {
		t.Fatalf("lowered once more for %v", dims)
	}
}

// textFor runs the program that a strategy generates from an example for these dims, and returns its text.
func textFor(t *testing.T, file, strategy string, dims map[string]int64) (*compile.Unit, *lower.Result) {
	t.Helper()
	e := loadWith(t, file, dims)
	u := e.overlapped(t, strategy)
	res, err := u.LoweredFor(e.binding)
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.Plan(e.binding)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range int64(3) {
		if err := e.try(p, seed); err != nil {
			t.Fatalf("schedule %d: %v", seed, err)
		}
	}
	return u, res
}
