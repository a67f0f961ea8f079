package eval

import (
	"math"
	"strings"
	"testing"

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
		"equal":             {[]float64{1, 2, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0, 0, 0}, Exact, 0},
		"zeros":             {[]float64{math.Copysign(0, -1), 2, 3, 4}, []float64{0, 2, 3, 4}, []float64{0, 0, 0, 0}, Exact, 0},
		"within":            {[]float64{1, 2.5, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0.5, 0, 0}, Within, 0},
		"just outside":      {[]float64{1, 2.5, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 0.4375, 0, 0}, Differs, 1},
		"exact one differs": {[]float64{1, 2.5, 3, 5}, []float64{1, 2, 3, 4}, []float64{0, 1, 1, 0}, Differs, 1},
		"two differ":        {[]float64{1, 0, 3, 5}, []float64{1, 2, 3, 4}, []float64{0, 0, 0, 0}, Differs, 2},
		"nan for a number":  {[]float64{1, nan, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, 1e9, 0, 0}, Differs, 1},
		"number for a nan":  {[]float64{1, 2, 3, 4}, []float64{1, nan, 3, 4}, []float64{0, 1e9, 0, 0}, Differs, 1},
		"nan for nan":       {[]float64{1, nan, 3, 4}, []float64{1, nan, 3, 4}, []float64{0, 0, 0, 0}, Exact, 0},
		"no bound":          {[]float64{1, nan, 3, 4}, []float64{1, 2, 3, 4}, []float64{0, math.Inf(1), 0, 0}, Undecided, 0},
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
		if v.Kind == Differs && !strings.Contains(v.String(), "is wanted") {
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
