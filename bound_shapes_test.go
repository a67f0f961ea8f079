package hocket_test

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestBindContradicts checks that Bind refuses a tensor that contradicts the dims of other bound tensors, and keeps the
// tensor that was bound before. The error of a run names an argument that contradicts bound tensors.
func TestBindContradicts(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "dim T = 4\ndim H = 8\ndim F = 16\nmesh tp[1]\nfunc f(%w1: f32[F, H], %w2: f32[H, F], %x: f32[T, H], "+
		"%s: inout f32[T, H]) -> f32[T, H] {\n  %h = linear %x, %w1\n  %y = linear %h, %w2\n  copy %x into %s\n  return %y\n}\n",
		hocket.LoadOptions{})
	of := func(shape ...int64) *hocket.Tensor {
		x, err := hocket.NewTensor(ir.F32, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	run := func(x *hocket.Tensor) error {
		_, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		return err
	}
	if err := errors.Join(model.Bind("w1", of(16, 8)), model.Bind("w2", of(8, 16))); err != nil {
		t.Fatal(err)
	}
	if _, err := model.BindState(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for name, shape := range map[string][]int64{"w1": {3, 3}, "w2": {8, 17}} {
		if err := model.Bind(name, of(shape...)); !errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), "other bound tensors") {
			t.Errorf("%s %v: %v", name, shape, err)
		}
	}
	if err := run(of(4, 8)); err != nil {
		t.Errorf("after tensors were refused: %v", err)
	}
	if err := run(of(4, 9)); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), "x is f32[4, 9], want f32[4, 8]") {
		t.Errorf("an argument that contradicts the weights: %v", err)
	}
	for _, name := range []string{"%x", "X"} {
		_, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": of(4, 8), name: of(4, 8)}})
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "the parameter is called x") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := model.RandomInputs("foo:1"); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("unknown inputs: %v", err)
	}
}

// TestMessages checks that errors name the option, the machine and the index that the caller wrote.
func TestMessages(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	p, err := hocket.Parse("f.hkt", "dim B = 2\ndim N = 64\nmesh tp[1]\nfunc f(%at: i32[B, 1], %rows: f32[B, 1, 2], %c: inout f32[B, N, 2]) {\n"+
		"  index_copy %rows, %at into %c, axis=1\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	load := func(opts hocket.LoadOptions) error {
		_, err := m.Load(p, hocket.Binding{}, opts)
		return err
	}
	_, oerr := hocket.Open(t.Context(), hocket.MachineOptions{Name: "CPU"})
	if !errors.Is(oerr, hocket.ErrUnsupported) {
		t.Errorf("an unknown machine: %v", oerr)
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, rerr := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"at": vals(t, ir.I32, []float64{3, 64},
		2, 1),
		"rows": vals(t, ir.F32, make([]float64, 4), 2, 1, 2), "c": vals(t, ir.F32, make([]float64, 256), 2, 64, 2)}})
	for want, err := range map[string]error{
		`there is no machine "CPU"`:         oerr,
		"LoadOptions.Arena is -100":         load(hocket.LoadOptions{Arena: -100}),
		"its dims are B, N":                 load(hocket.LoadOptions{Buckets: map[string][]int64{"Q": {1}}}),
		"the list of buckets of B is empty": load(hocket.LoadOptions{Buckets: map[string][]int64{"B": {}}}),
		"%at[1, 0] is 64":                   rerr,
		"the value must be from -1 to 63":   rerr,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	model, err = m.Load(p, hocket.Binding{}, hocket.LoadOptions{Cache: 16, HardCache: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Prepare(t.Context(), nil); !errors.Is(err, hocket.ErrBudget) ||
		!strings.Contains(err.Error(), "the hard limit of the plan cache") {
		t.Errorf("a plan larger than the cache: %v", err)
	}
}
