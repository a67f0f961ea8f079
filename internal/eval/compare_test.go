package eval

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

func TestCompare(t *testing.T) {
	nan := math.NaN()
	shape := []int64{2, 2}
	for name, c := range map[string]struct {
		got, want, err []float64
		kind           Kind
		count          int64
	}{
		"equal": {[]float64{1, 2, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0, 0, 0}, Exact, 0},
		"zeros": {[]float64{math.Copysign(0, -1), 2, 3, 4}, []float64{0, 2, 3, 4}, []float64{0, 0, 0, 0},
			Exact, 0},
		"within":            {[]float64{1, 2.5, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0.5, 0, 0}, Within, 0},
		"just outside":      {[]float64{1, 2.5, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0.4375, 0, 0}, Differs, 1},
		"exact one differs": {[]float64{1, 2.5, 3, 5}, []float64{1, 2, 3, 4}, []float64{0, 1, 1, 0}, Differs, 1},
		"two differ":        {[]float64{1, 0, 3, 5}, []float64{1, 2, 3, 4}, []float64{0, 0, 0, 0}, Differs, 2},
		"nan for a number":  {[]float64{1, nan, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 1e9, 0, 0}, Differs, 1},
		"number for a nan":  {[]float64{1, 2, 3, 4}, []float64{1, nan, 3, 4}, []float64{0, 1e9, 0, 0}, Differs, 1},
		"nan for nan":       {[]float64{1, nan, 3, 4}, []float64{1, nan, 3, 4}, []float64{0, 0, 0, 0}, Exact, 0},
		"no bound": {[]float64{1, nan, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, math.Inf(1), 0, 0},
			Undecided, 0},
	} {
		exact := true
		for _, e := range c.err {
			exact = exact && e == 0
		}
		want := &Output{Name: "y", Tensor: tensorOf(t, ir.F32, shape, c.want...), Err: c.err, Exact: exact}
		v := Compare(tensorOf(t, ir.F32, shape, c.got...), want)
		if v.Kind != c.kind || v.Count != c.count {
			t.Errorf("%s: %v, %d differ", name, v, v.Count)
		}
		if none := strings.Contains(v.String(), "1 of 4 elements have no error bound"); none != (name == "no bound") {
			t.Errorf("%s: %v", name, v)
		}
		if v.Kind == Differs && !strings.Contains(v.String(), "want ") {
			t.Errorf("%s: %v", name, v)
		}
	}
	y := &Output{Tensor: tensorOf(t, ir.I64, []int64{1}, 0), Err: []float64{0}, Exact: true}
	y.Tensor.SetInt64(0, math.MaxInt64)
	near := tensorOf(t, ir.I64, []int64{1}, 0)
	near.SetInt64(0, math.MaxInt64-1)
	if v := Compare(near, y); v.Kind != Differs || !strings.Contains(v.Reason, "9223372036854775806") {
		t.Errorf("large integers: %v", v)
	}
	if v := Compare(tensorOf(t, ir.F32, []int64{1}, 0), y); v.Kind != Differs || v.Index != nil {
		t.Errorf("types: %v", v)
	}
}

// TestUndecided checks that a comparison is undecided if the bounds are as large as the values, except where zeros are
// correct and the bounds are small.
func TestUndecided(t *testing.T) {
	for name, c := range map[string]struct {
		want, err []float64
		kind      Kind
	}{
		"one element tells": {[]float64{1, 2}, []float64{0.5, 3}, Within},
		"none tells":        {[]float64{1, 2}, []float64{1.5, 3}, Undecided},
		"zeros, small":      {[]float64{0, 0}, []float64{1e-30, 1e-5}, Within},
		"zeros, large":      {[]float64{0, 0}, []float64{1e-30, 1}, Undecided},
		"one zero is known": {[]float64{0, 2}, []float64{0, 3}, Undecided},
		"no number":         {[]float64{math.NaN(), 0}, []float64{0, 1}, Within},
	} {
		want := &Output{Name: "y", Tensor: tensorOf(t, ir.F32, []int64{2}, c.want...), Err: c.err}
		v := Compare(want.Tensor, want)
		if v.Kind != c.kind || (v.Reason == "") != (c.kind == Within) {
			t.Errorf("%s: %v", name, v)
		}
	}
	if v := Compare(tensorOf(t, ir.F32, []int64{0}),
		&Output{Tensor: tensorOf(t, ir.F32, []int64{0}), Exact: true}); v.Kind != Exact {
		t.Errorf("nothing: %v", v)
	}
}

// TestSizes checks that a verdict describes the error of the element with the largest error.
func TestSizes(t *testing.T) {
	want := &Output{Tensor: tensorOf(t, ir.F32, []int64{4}, 410, 1, -5, math.Inf(1)), Err: []float64{9, 0.5, 100, 0}}
	v := Compare(tensorOf(t, ir.F32, []int64{4}, 412, 1.5, -5, math.Inf(1)), want)
	if v.Kind != Within || v.Sizes() != "largest error 2, allowed 9, values up to 410" {
		t.Errorf("%v", v)
	}
	if v := Compare(want.Tensor, want); v.Sizes() != "largest error 0, allowed 100, values up to 410" {
		t.Errorf("equal: %v", v)
	}
}

// TestInfinities checks that a quotient by a certified zero is an infinity of unknown sign, also after operations that
// move it, and that nothing is known about results computed from it. The quotient 0/0 and the root of a negative number
// are NaNs.
func TestInfinities(t *testing.T) {
	b := bind(t, `
mesh tp[2]
func f(%x: f32[4/tp], %z: f32[4/tp]) -> (f32[4], f32[4], f32[4], f32[4]) {
  %i = div %x, %z
  %b = alloc f32[4/tp]
  neg %i into %b
  %y = alloc f32[4]
  all_gather %b into %y, over=tp, axis=0
  %j = add %i, %i
  %r = rsqrt %x
  return %y, %j, %i, %r
}`, ir.Binding{})
	in := map[string]*tensor.Tensor{
		"x": tensorOf(t, ir.F32, []int64{4}, -1, 0, 3, -8), "z": tensorOf(t, ir.F32, []int64{4}, 0, 0, 2, -2),
	}
	res, err := Run(t.Context(), b, in, Options{})
	if err != nil {
		t.Fatal(err)
	}
	inf, nan := math.Inf(1), math.NaN()
	for k, c := range []struct {
		got    []float64
		kind   Kind
		reason string
	}{
		{[]float64{-inf, nan, -1.5, -4}, Exact, ""},
		{[]float64{-inf, nan, 3, 8}, Undecided, "1 of 4 elements have no error bound"},
		{[]float64{7, nan, 1.5, 4}, Differs, "element [0] is 7, want an infinity"},
		{[]float64{nan, inf, 1 / math.Sqrt(3), nan}, Undecided, "1 of 4 elements have no error bound"},
	} {
		v := Compare(tensorOf(t, ir.F32, []int64{4}, c.got...), res.Outputs[k])
		if v.Kind != c.kind || v.Reason != c.reason {
			t.Errorf("result %d: %v", k, v)
		}
	}
}
