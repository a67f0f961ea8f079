package eval

import (
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestLocalForms tests the less common ways to name a rank's own memory. Rank 0 holds 1 2 3 4 of %x, and rank 1 holds 5
// 6 7 8.
func TestLocalForms(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []float64
	}{
		"results without into": {`
  %b = alloc i32[4]
  copy %x into %b
  %s = add %b, %b
  %g = all_gather %s, over=tp
  %y = slice %g, axis=0, 2..6
  return %y`, []float64{6, 8, 10, 12, 6, 8, 10, 12}},
		"zeroed": {`
  %y = alloc i32[4] zero
  %first = slice %y, axis=0, 0..1
  %from = slice %y, axis=0, 3..4
  copy %from into %first
  return %y`, make([]float64, 8)},
		"a view with into": {`
  %b = alloc i32[2, 2]
  reshape %x, shape=(2, 2) into %b
  %c = alloc i32[2, 2]
  transpose %b into %c
  %y = reshape %c, shape=(4)
  return %y`, []float64{1, 3, 2, 4, 5, 7, 6, 8}},
		"integer reductions": {`
  %a = alloc i32[4]
  %m = alloc i32[4]
  %n = alloc i32[4]
  %y = alloc i32[4]
  all_reduce %x into %a, over=tp, op=sum
  all_reduce %x into %m, over=tp, op=max
  all_reduce %x into %n, over=tp, op=min
  sub %a, %m into %y
  sub %y, %n into %y
  return %y`, make([]float64, 8)},
		"chosen by rank": {`
  %own = slice %whole, axis=0, rank(tp) * 4..rank(tp) * 4 + 4
  %y = alloc i32[4]
  copy %own into %y
  return %y`, []float64{1, 2, 3, 4, 5, 6, 7, 8}},
		"buffers as arguments": {`
  %b = alloc i32[4]
  copy %x into %b
  call increment %b
  %c = call doubled %b
  return %c`, []float64{4, 6, 8, 10, 12, 14, 16, 18}},
		"scaled and filled": {`
  %y = alloc i32[4]
  fill value=3 into %y
  scale %y, by=size(tp) into %y
  mul %y, %x into %y
  neg %y into %y
  relu %y into %y
  return %y`, make([]float64, 8)},
		"array of buffers": {`
  %b = alloc[3] i32[4]
  for %i in 0..3 {
    scale %x, by=%i into %b[%i]
  }
  add %b[0], %b[2] into %b[1]
  %y = alloc i32[4]
  copy %b[1] into %y
  free %b[0]
  return %y`, []float64{2, 4, 6, 8, 10, 12, 14, 16}},
	} {
		t.Run(name, func(t *testing.T) {
			src := `mesh tp[2]
func increment(%b: inout i32[8/tp]) {
  %one = alloc i32[4]
  fill value=1 into %one
  add %b, %one into %b
}
func doubled(%v: i32[8/tp]) -> i32[8/tp] {
  %w = add %v, %v
  return %w
}
func f(%x: i32[8/tp], %whole: i32[8]) -> i32[8/tp] {` + c.body + "\n}\n"
			x := tensorOf(t, ir.I32, []int64{8}, 1, 2, 3, 4, 5, 6, 7, 8)
			res, err := Run(t.Context(), bind(t, src, ir.Binding{}), map[string]*tensor.Tensor{"x": x, "whole": x},
				Options{})
			if err != nil {
				t.Fatal(err)
			}
			demand(t, res, c.want...)
		})
	}
}

// TestContributions tests the ranks' contributions to values that are partial over two axes, over one of two axes after
// a reduction, and in views.
func TestContributions(t *testing.T) {
	const src = `mesh dp[2] tp[2]
func f(%x: f32[2, 4/(dp,tp)], %w: f32[1, 4/(dp,tp)]) -> f32[8/(dp,tp), 1] {
  %p = linear %x, %w
  %y = alloc f32[2, 1]
  copy %p into %y
  return %y
}
func g(%x: f32[2, 4/(dp,tp)], %w: f32[1, 4/(dp,tp)]) -> f32[4/tp, 1] {
  %p = linear %x, %w
  %q = all_reduce %p, over=dp, op=sum
  %n = neg %q
  %y = alloc f32[2, 1]
  neg %n into %y
  return %y
}
func h(%x: f32[2, 4/(dp,tp)], %w: f32[1, 4/(dp,tp)]) -> f32[4/(dp,tp), 1] {
  %p = linear %x, %w
  %row = slice %p, axis=0, 1..2
  %y = alloc f32[1, 1]
  copy %row into %y
  return %y
}`
	// Column k of %x is 1+k in row 0 and 5+k in row 1; %w is 1 10 100 1000.
	in := map[string]*tensor.Tensor{
		"x": tensorOf(t, ir.F32, []int64{2, 4}, 1, 2, 3, 4, 5, 6, 7, 8),
		"w": tensorOf(t, ir.F32, []int64{1, 4}, 1, 10, 100, 1000)}
	for fn, want := range map[string][]float64{
		"f": {1, 5, 20, 60, 300, 700, 4000, 8000},
		"g": {301, 705, 4020, 8060},
		"h": {5, 60, 700, 8000},
	} {
		res, err := Run(t.Context(), bind(t, src, ir.Binding{Func: fn}), in, Options{})
		if err != nil {
			t.Fatal(err)
		}
		demand(t, res, want...)
		if !res.Outputs[0].Exact {
			t.Errorf("%s is not certified: %v", fn, res.Outputs[0].Err)
		}
	}
}
