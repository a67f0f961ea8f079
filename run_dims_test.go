package hocket_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestRunDims checks that a run whose arguments are blocks, from which no dims follow, uses Args.Dims, with the same
// effect as dims that follow from shapes.
func TestRunDims(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const text = "dim T = 2\ndim H = 3\nmesh tp[2]\nfunc f(%x: f32[T/tp, H]) -> f32[T/tp, H] {\n  %y = add %x, %x\n  return %y\n}\n"
	model := modeltest.Load(t, m, text, hocket.LoadOptions{})
	blocks := func(rows, width int64) hocket.Args {
		a := hocket.Args{InLocal: map[string]map[int]*hocket.Tensor{"x": {}}}
		for r := range 2 {
			vals := slices.Repeat([]float64{float64(r + 1)}, int(rows*width))
			x, err := hocket.FromFloats(ir.F32, vals, rows, width)
			if err != nil {
				t.Fatal(err)
			}
			a.InLocal["x"][r] = x
		}
		return a
	}
	for rows := range int64(4) {
		a := blocks(rows, 3)
		a.Dims = map[string]int64{"T": 2 * rows}
		r, err := model.Run(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat(slices.Repeat([]float64{2}, int(3*rows)), slices.Repeat([]float64{4}, int(3*rows)))
		if got := r.Out["y"]; !slices.Equal(got.Shape, []int64{2 * rows, 3}) || !slices.Equal(got.Floats(), want) {
			t.Errorf("%d rows: %s %v", rows, got, got.Floats())
		}
	}
	wrong := blocks(3, 3)
	for name, c := range map[string]struct {
		batch []hocket.Args
		says  string
	}{
		"blocks of other dims": {[]hocket.Args{wrong}, "the block of x for rank 0 is f32[3, 3], want f32[1, 3]: " +
			"x is f32[2, 3] where H=3, T=2; each process must pass the block of its rank, and a run for other dims"},
		"a whole tensor": {[]hocket.Args{blocks(2, 3)}, "x as a whole is f32[2, 3] where H=3, T=2; each process"},
		"no such dim":    {[]hocket.Args{{InLocal: wrong.InLocal, Dims: map[string]int64{"Q": 1}}}, "Q"},
		"other dims": {[]hocket.Args{{InLocal: wrong.InLocal, Dims: map[string]int64{"T": 4}}, wrong},
			"run 2 of the batch has dims map[], but the first run has map[T:4]"},
	} {
		_, err := model.RunBatch(t.Context(), c.batch)
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := hocket.Parse("f.hkt", text)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := m.Load(p, hocket.Binding{Dims: map[string]int64{"T": 4}}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := blocks(1, 3)
	a.Dims = map[string]int64{"T": 2}
	if _, err := bound.Run(t.Context(), a); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), "T=2, but the model was loaded with T=4") {
		t.Errorf("a fixed dim: %v", err)
	}
}
