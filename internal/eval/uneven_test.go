package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// unevenly evaluates one uneven collective on two ranks. Each rank has 3 rows of %x and its counts, which are given in
// the text or as an operand. unevenly returns the result of both ranks.
func unevenly(t *testing.T, stmt string, x, n *tensor.Tensor) (*Result, error) {
	t.Helper()
	src := fmt.Sprintf(`mesh tp[2]
func f(%%x: %s[6/tp, 2], %%n: i32[4/tp]) -> %[1]s[10/tp, 2] {
  %%b = alloc %[1]s[5, 2]
  %s
  return %%b
}
`, x.DType, stmt)
	return Run(context.Background(), bind(t, src, ir.Binding{}), map[string]*tensor.Tensor{"x": x, "n": n}, Options{})
}

func TestUneven(t *testing.T) {
	x := tensorOf(t, ir.F32, []int64{6, 2}, 1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16)
	for _, c := range []struct {
		stmt string
		n    []float64
		want string
	}{
		{"all_gatherv %x, %n into %b, over=tp", []float64{1, 3, 1, 3},
			"[1 2 11 12 13 14 15 16 0 0 1 2 11 12 13 14 15 16 0 0]"},
		{"all_gatherv %x into %b, over=tp, axis=0, counts=(0, 1)", []float64{9, 9, 9, 9},
			"[11 12 0 0 0 0 0 0 0 0 11 12 0 0 0 0 0 0 0 0]"},
		{"reduce_scatterv %x, %n into %b, over=tp, op=sum", []float64{1, 2, 1, 2},
			"[12 14 0 0 0 0 0 0 0 0 16 18 20 22 0 0 0 0 0 0]"},
		{"reduce_scatterv %x into %b, over=tp, op=max, counts=(0, 2)", []float64{9, 9, 9, 9},
			"[0 0 0 0 0 0 0 0 0 0 11 12 13 14 0 0 0 0 0 0]"},
		{"all_to_allv %x, %n into %b, over=tp", []float64{1, 2, 3, 0},
			"[1 2 11 12 13 14 15 16 0 0 3 4 5 6 0 0 0 0 0 0]"},
		{"all_to_allv %x into %b, over=tp, counts=(rank(tp), 2)", []float64{9, 9, 9, 9},
			"[11 12 0 0 0 0 0 0 0 0 1 2 3 4 13 14 15 16 0 0]"},
	} {
		res, err := unevenly(t, c.stmt, x, tensorOf(t, ir.I32, []int64{4}, c.n...))
		if err != nil {
			t.Fatalf("%s: %v", c.stmt, err)
		}
		if got := fmt.Sprint(floats(res.Outputs[0].Tensor)); got != c.want || !res.Outputs[0].Exact {
			t.Errorf("%s of %v: %s (exact %v), want %s", c.stmt, c.n, got, res.Outputs[0].Exact, c.want)
		}
	}
}

// TestUnevenRefused checks that invalid counts are reported as errors with a position, which name the rank and have the
// same text as the errors of a run.
func TestUnevenRefused(t *testing.T) {
	x := tensorOf(t, ir.F32, []int64{6, 2}, make([]float64, 12)...)
	for _, c := range []struct {
		stmt string
		n    []float64
		me   int
		want string
	}{
		{"all_to_allv %x, %n into %b, over=tp", []float64{1, 1, 0, -2}, 0,
			"rank 1 of all_to_allv: counts[1] of member 1 of the team is -2"},
		{"all_to_allv %x, %n into %b, over=tp", []float64{3, 1, 0, 0}, 0,
			"rank 0 of all_to_allv: the counts [3 1] of member 0 of the team take 4 rows"},
		{"all_to_allv %x, %n into %b, over=tp", []float64{3, 0, 3, 0}, 0,
			"rank 0 of all_to_allv: member 0 of the team gets 6 rows"},
		{"all_to_allv %x, %n into %b, over=tp", []float64{9, 0, 0, 0}, 0,
			"rank 0 of all_to_allv: counts[0] of member 0 of the team is 9"},
		{"all_gatherv %x, %n into %b, over=tp", []float64{1, 4, 1, 4}, 0,
			"rank 1 of all_gatherv: the counts [1 4] of member 1 of the team take 4 rows"},
		{"all_gatherv %x, %n into %b, over=tp", []float64{3, 3, 3, 3}, 1,
			"rank 1 of all_gatherv: member 1 of the team gets 6 rows"},
		{"all_gatherv %x, %n into %b, over=tp", []float64{1, 2, 1, 1}, 1, "members must have equal counts"},
		{"reduce_scatterv %x, %n into %b, over=tp, op=sum", []float64{2, 2, 2, 2}, 0,
			"the counts [2 2] of member 0 of the team take 4 rows"},
		{"reduce_scatterv %x, %n into %b, over=tp, op=min", []float64{1, 2, 2, 1}, 1, "members must have equal counts"},
		{"all_to_allv %x into %b, over=tp, counts=(1, 0 - rank(tp))", nil, 0,
			"rank 1 of all_to_allv: counts[1] of member 1 of the team is -1"},
	} {
		n := tensorOf(t, ir.I32, []int64{4}, append(c.n, 0, 0, 0, 0)[:4]...)
		_, err := unevenly(t, c.stmt, x, n)
		var d *ir.Diagnostic
		if !errors.As(err, &d) || d.Kind != "range" || d.Pos.Line != 4 || !strings.Contains(d.Message, c.want) {
			t.Errorf("%s of %v: %v, want %q", c.stmt, c.n, err, c.want)
			continue
		}
		if c.n == nil {
			continue
		}
		word, _, _ := strings.Cut(c.stmt, " ")
		op, _ := ir.ParseOp(word)
		counts := [][]int64{{int64(c.n[0]), int64(c.n[1])}, {int64(c.n[2]), int64(c.n[3])}}
		if _, err := device.Share(op, counts, c.me, 3, 5); err == nil || !strings.HasSuffix(d.Message, err.Error()) {
			t.Errorf("%s of %v: the evaluator reports %q, a run reports %v", c.stmt, c.n, d.Message, err)
		}
	}
}

// TestUncertainCounts checks that nothing is known about the result if a count is not certified.
func TestUncertainCounts(t *testing.T) {
	const src = `mesh tp[2]
func f(%x: f32[6/tp, 2], %r: f32[4/tp]) -> f32[10/tp, 2] {
  %n = alloc i32[2]
  %h = alloc f32[2]
  exp %r into %h
  cast %h into %n
  %b = alloc f32[5, 2]
  all_to_allv %x, %n into %b, over=tp
  return %b
}
`
	b := bind(t, src, ir.Binding{})
	in := inputsFor(t, b, "ints:1")
	in["r"] = tensorOf(t, ir.F32, []int64{4}, 0.1, 0.2, 0.1, 0.2)
	res, err := Run(context.Background(), b, in, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if e := res.Outputs[0].Err; len(e) != 20 || !math.IsInf(e[0], 1) || !math.IsInf(e[19], 1) {
		t.Errorf("bounds %v", e)
	}
}
