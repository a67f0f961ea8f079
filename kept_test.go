package hocket_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// keptSource is a program that writes to a cache on one stream and reads the cache by attention on another stream.
const keptSource = `func step(
  %q: f32[1, 1, 2],
  %rows: f32[1, 1, 2],
  %at: i32[1],
  %sees: i32[1],
  %cache: inout f32[4, 1, 2],
) -> f32[1, 1, 2] {
  %s = stream
  %y = alloc f32[1, 1, 2]
  on %s {
    wait main
    index_copy %rows, %at into %cache
  }
  wait %s
  attention %q, %cache, %cache, %sees into %y
  return %y
}
`

// TestKeptInPlace checks that runs update a cache in place, and that attention reads the rows written so far. The error
// about a position outside the cache says which element is invalid.
func TestKeptInPlace(t *testing.T) {
	p, err := hocket.Parse("kept.hkt", keptSource)
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(dt ir.DType, vals []float64, shape ...int64) *hocket.Tensor {
		x, err := hocket.FromFloats(dt, vals, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	cache := tensor(ir.F32, make([]float64, 8), 4, 1, 2)
	args := func(at int) hocket.Args {
		return hocket.Args{
			In: map[string]*hocket.Tensor{
				"q": tensor(ir.F32, []float64{0, 0}, 1, 1, 2), "rows": tensor(ir.F32, []float64{float64(at + 1), 1}, 1, 1, 2),
				"at": tensor(ir.I32, []float64{float64(at)}, 1), "sees": tensor(ir.I32, []float64{float64(max(0, at+1))}, 1), "cache": cache,
			},
			Out: map[string]*hocket.Tensor{"cache": cache},
		}
	}
	ctx := context.Background()
	// Scores are 0, so the result of attention is the mean of the rows so far: 1, (1+2)/2, (1+2+3)/3.
	for at, want := range []float64{1, 1.5, 2} {
		rep, err := model.Run(ctx, args(at))
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Out["y"].Floats(); got[0] != want || got[1] != 1 {
			t.Errorf("after row %d: %v, want %v", at, got, want)
		}
	}
	if got := cache.Floats(); !slices.Equal(got, []float64{1, 1, 2, 1, 3, 1, 0, 0}) {
		t.Errorf("the cache holds %v", got)
	}
	bad := args(3)
	bad.In["at"] = tensor(ir.I32, []float64{4}, 1)
	bad.Out = nil
	_, err = model.Run(ctx, bad)
	for _, want := range []string{"rank 0", "index_copy %rows, %at into %cache", "kept.hkt:12", "%at[0] is 4", "from -1 to 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a position too far: %v lacks %q", err, want)
		}
	}
}

// TestKeptOrder checks that the program is proved, and that it is refuted if either wait is missing or if the read and
// the write are swapped.
func TestKeptOrder(t *testing.T) {
	for _, c := range []struct{ take, put, want string }{
		{"", "", ""},
		{"  wait %s\n", "", "writes %cache, the other reads %cache"},
		{"    wait main\n", "", "the caller's upload of %rows"},
		{"  wait %s\n  attention %q, %cache, %cache, %sees into %y\n", "  attention %q, %cache, %cache, %sees into %y\n  wait %s\n", "%cache"},
	} {
		p, err := hocket.Parse("kept.hkt", strings.Replace(keptSource, c.take, c.put, 1))
		if err != nil {
			t.Fatal(err)
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			if v.Kind != hocket.Proved {
				t.Errorf("%v", v)
			}
			continue
		}
		if v.Kind != hocket.Refuted || !strings.Contains(v.Diagnostics.Error(), c.want) {
			t.Errorf("without %q: %v %v", c.take, v.Kind, v.Diagnostics)
		}
	}
}
