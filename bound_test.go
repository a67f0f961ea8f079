package hocket_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

const boundText = `dim T = 4
mesh tp[2]
func f(%x: f32[T/tp, 2], %w: f32[4/tp, 2], %s: inout f32[2]) -> f32[T, 4/tp] {
  %y = linear %x, %w
  %t = add %s, %s
  copy %t into %s
  return %y
}
`

// TestBound checks that runs of every plan use the bound tensor until a tensor is bound again, which may be the same
// one with other elements; that a run's own argument takes precedence; and that an inout parameter has the bound
// tensor's value at the start of each run.
func TestBound(t *testing.T) {
	for name, dev := range map[string]cpu.Options{"concurrent": {}, "scheduled": {Mode: cpu.Scheduled, Seed: 7}} {
		t.Run(name, func(t *testing.T) {
			testBound(t, modeltest.Load(t, modeltest.Open(t, cpu.New(dev)), boundText, hocket.LoadOptions{}))
		})
	}
}

func testBound(t *testing.T, model *hocket.Model) {
	t.Helper()
	floats := func(vals []float64, shape ...int64) *hocket.Tensor {
		x, err := hocket.FromFloats(ir.F32, vals, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	bind := func(name string, x *hocket.Tensor) {
		if err := model.Bind(name, x); err != nil {
			t.Fatal(err)
		}
	}
	count := 0.0
	// run runs the model with new rows and compares the results with values that it computes itself.
	run := func(what string, rows int64, w []float64, args map[string]*hocket.Tensor) {
		t.Helper()
		in := map[string]*hocket.Tensor{}
		for name, x := range args {
			in[name] = x
		}
		var x, want []float64
		for range rows {
			count++
			x = append(x, count, -count-1)
			for n := range 4 {
				want = append(want, count*w[2*n]-(count+1)*w[2*n+1])
			}
		}
		in["x"] = floats(x, rows, 2)
		a := hocket.Args{In: in}
		check := func(r *hocket.Report) {
			t.Helper()
			if got := r.Out["y"].Floats(); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
			if got := r.Out["s"].Floats(); !slices.Equal(got, []float64{6, 10}) {
				t.Errorf("%s: the inout parameter is %v", what, got)
			}
		}
		for range 2 {
			r, err := model.Run(t.Context(), a)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			check(r)
		}
		ref, err := model.Reference(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if err := model.Explore(t.Context(), []hocket.Args{a, a}, hocket.ExploreOptions{Schedules: 3},
			func(_ int64, rs []*hocket.Report) error {
				for _, r := range rs {
					check(r)
				}
				return ref.Compare(rs[1]).Err()
			}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	one, two := []float64{1, 2, 3, 4, 5, 6, 7, 8}, []float64{0, 1, 0, 0, 2, 0, 0, 3}
	w := floats(one, 4, 2)
	bind("s", floats([]float64{3, 5}, 2))
	bind("w", w)
	run("bound", 4, one, nil)
	run("another plan", 6, one, nil)
	bind("w", floats(two, 4, 2))
	run("another tensor", 6, two, nil)
	run("another tensor in the first plan", 4, two, nil)
	run("a run's own", 4, one, map[string]*hocket.Tensor{"w": w})
	run("the bound one again", 4, two, nil)
	bind("w", w)
	run("the first one", 4, one, nil)
	copy(w.Data, floats(two, 4, 2).Data)
	bind("w", w)
	run("the first one with other bytes", 4, two, nil)
	run("with other bytes in another plan", 6, two, nil)
	bind("w", w)
	if err := model.Prepare(t.Context(), map[string]int64{"T": 8}); err != nil {
		t.Fatal(err)
	}
	bytes := slices.Clone(w.Data)
	clear(w.Data) // callers must not do this; it shows that the weight was already uploaded
	if r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": floats(slices.Repeat([]float64{1,
		1}, 8), 8, 2)}}); err != nil {
		t.Error(err)
	} else if got, want := r.Out["y"].Floats(), slices.Repeat([]float64{1, 0, 2, 3}, 8); !slices.Equal(got, want) {
		t.Errorf("prepared: got %v, want %v", got, want)
	}
	copy(w.Data, bytes)
	if err := model.Bind("w", floats(one[:6], 3, 2)); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("bound with another shape: %v", err)
	}
	bind("w", nil)
	if _, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": floats(make([]float64, 8), 4,
		2)}}); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("without the parameter: %v", err)
	}
	run("a run's own where none is bound", 4, one, map[string]*hocket.Tensor{"w": floats(one, 4, 2)})
}

// TestPrepareBound checks that Prepare takes dims from the shapes of bound weights, as runs do, together with the dims
// in its arguments.
func TestPrepareBound(t *testing.T) {
	cm, m := tightly(t, 3)
	model := modeltest.Load(t, m, `dim T = 4
dim H = 2
dim F
mesh tp[2]
func f(%x: f32[T/tp, H], %w: f32[F/tp, H]) -> f32[T, F/tp] {
  %y = linear %x, %w
  return %y
}
`, hocket.LoadOptions{})
	w, err := hocket.NewTensor(ir.F32, 4, 6)
	if err != nil {
		t.Fatal(err)
	}
	x, err := hocket.NewTensor(ir.F32, 8, 6)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(model.Bind("w", w), model.Prepare(t.Context(), map[string]int64{"T": 8})); err != nil {
		t.Fatal(err)
	}
	if _, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}}); err != nil {
		t.Fatal(err)
	}
	if got := cm.ranksOpened(); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("worlds of %v ranks were opened, want the plan's and the store's", got)
	}
	if err := model.Prepare(t.Context(), map[string]int64{"H": 2}); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("for other dims than the weight's: %v", err)
	}
}

// TestBoundNames checks that weights are kept separate even if their names, types and shapes form equal strings when
// concatenated.
func TestBoundNames(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), `mesh tp[2]
func f(%w: bf16[2], %wb: f16[2], %wbf: bf16[2]) -> (f32[2], f32[2], f32[2]) {
  %a: f32[2] = cast %w
  %b: f32[2] = cast %wb
  %c: f32[2] = cast %wbf
  return %a, %b, %c
}
`, hocket.LoadOptions{})
	want := map[string][]float64{"a": {1, 2}, "b": {3, 4}, "c": {5, 6}}
	for name, c := range map[string]struct {
		dt  ir.DType
		out string
	}{"w": {ir.BF16, "a"}, "wb": {ir.F16, "b"}, "wbf": {ir.BF16, "c"}} {
		x, err := hocket.FromFloats(c.dt, want[c.out], 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := model.Bind(name, x); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		r, err := model.Run(t.Context(), hocket.Args{})
		if err != nil {
			t.Fatal(err)
		}
		for out, vals := range want {
			if got := r.Out[out].Floats(); !slices.Equal(got, vals) {
				t.Errorf("%s is %v, want %v", out, got, vals)
			}
		}
	}
}

// TestBoundShared checks that plans for other dims share the weights that are already on the devices, in one additional
// world. If memory suffices for one plan only, the plans replace each other, and the weights are freed with the last
// plan. At the end nothing is allocated.
func TestBoundShared(t *testing.T) {
	for room, want := range map[int][]int{3: {2, 2, 2}, 2: {2, 2, 2, 2, 2, 2, 2, 2}} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			cm, m := tightly(t, room)
			model := modeltest.Load(t, m, boundText, hocket.LoadOptions{})
			for name, shape := range map[string][]int64{"w": {4, 2}, "s": {2}} {
				x, err := hocket.NewTensor(ir.F32, shape...)
				if err == nil {
					err = model.Bind(name, x)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, rows := range []int64{4, 6, 4} {
				x, err := hocket.NewTensor(ir.F32, rows, 2)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := cm.ranksOpened(); !slices.Equal(got, want) {
				t.Errorf("worlds of %v ranks were opened, want %v", got, want)
			}
			if err := model.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
