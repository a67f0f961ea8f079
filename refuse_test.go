package hocket_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestRefusals checks that a program or an option that could never run is refused at its position, with the reason.
func TestRefusals(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	if _, err := m.Load(nil, hocket.Binding{}, hocket.LoadOptions{}); err == nil ||
		!strings.Contains(err.Error(), "the Program is nil or zero") {
		t.Errorf("no program: %v", err)
	}
	if v, err := hocket.Check(nil, hocket.Binding{}); err == nil || v.Kind != hocket.Unknown {
		t.Errorf("no program to check: %v, %v", v, err)
	}
	p, err := hocket.Parse("f.hkt", "dim T = 4\nmesh tp[2]\nfunc f(%x: f32[T/tp, 2]) -> f32[T/tp, 2] {\n  %y = add %x, %x\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Graph: true}); !errors.Is(err, hocket.ErrUnsupported) ||
		!strings.Contains(err.Error(), "cpu cannot record graphs") {
		t.Errorf("graphs on the CPU machine: %v", err)
	}
	_, err = m.Load(p, hocket.Binding{}, hocket.LoadOptions{Algorithm: "magic"})
	if want := `LoadOptions.Algorithm: unknown algorithm "magic"; the algorithms are staged, two-shot, `; err == nil ||
		!errors.Is(err, hocket.ErrAlgorithm) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "across") {
		t.Errorf("an unknown algorithm: %v, want %s…", err, want)
	}
	if model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Algorithm: "two-shot"}); err != nil {
		t.Errorf("a known algorithm: %v", err)
	} else if err := model.Close(); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		b    hocket.Binding
		want string
	}{
		"no such function": {hocket.Binding{Func: "g"}, "the program has no function g"},
		"-1 ranks":         {hocket.Binding{Ranks: -1}, "-1 ranks"},
		"3 ranks":          {hocket.Binding{Ranks: 3}, "the program's mesh has 2"},
		"no such dim":      {hocket.Binding{Dims: map[string]int64{"Q": 1}}, "Q"},
		"half a define":    {hocket.Binding{Defines: map[string]string{"T": "4+"}}, "T"},
		"a define of none": {hocket.Binding{Defines: map[string]string{"T": "Z+1"}}, "the program has no dim Z"},
		"below zero":       {hocket.Binding{Defines: map[string]string{"T": "0-2"}}, "T=0-2: the value is -2"},
		"an odd dim":       {hocket.Binding{Dims: map[string]int64{"T": 5}}, "T=5 is not a multiple of size(tp)=2"},
	} {
		if _, err := m.Load(p, c.b, hocket.LoadOptions{}); err == nil ||
			errors.Is(err, hocket.ErrInput) != (c.b.Dims != nil) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	open, err := hocket.Parse("open.hkt",
		"dim T\ndim P\nmesh tp[P]\nfunc f(%x: f32[T, P]) -> f32[T, P] {\n  return %x\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Load(open, hocket.Binding{}, hocket.LoadOptions{}); err != nil {
		t.Errorf("what shapes are to say: %v", err)
	}
	model, err := m.Load(p, hocket.Binding{Dims: map[string]int64{"T": 6}}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Prepare(t.Context(), map[string]int64{"T": 8}); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), "T=6") {
		t.Errorf("prepared for what no run can have: %v", err)
	}
	if err := model.Prepare(t.Context(), map[string]int64{"T": 6}); err != nil {
		t.Error(err)
	}
	for what, x := range map[string]*hocket.Tensor{
		"another type":   vals(t, ir.BF16, make([]float64, 12), 6, 2),
		"a vector":       vals(t, ir.F32, make([]float64, 12), 12),
		"too few bytes":  {DType: ir.F32, Shape: []int64{6, 2}, Data: make([]byte, 7)},
		"no tensor type": {},
		"a fixed dim":    vals(t, ir.F32, make([]float64, 16), 8, 2),
		"a number":       vals(t, ir.F32, make([]float64, 18), 6, 3),
	} {
		if err := model.Bind("x", x); !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "%x") {
			t.Errorf("bound to %s: %v", what, err)
		}
	}
	if err := model.Bind("x", vals(t, ir.F32, make([]float64, 12), 6, 2)); err != nil {
		t.Error(err)
	}
	if _, err := model.NewDeviceTensor(t.Context(), "x", map[string]int64{"T": -2}); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a tensor of -2 rows: %v", err)
	}
	if _, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Arena: -5}); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), "Arena is -5") {
		t.Errorf("an arena of -5 bytes: %v", err)
	}
	on, err := model.NewDeviceTensor(t.Context(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close()
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Bind":       model.Bind("x", vals(t, ir.F32, make([]float64, 12), 6, 2)),
		"BindDevice": model.BindDevice("x", on),
	} {
		if !errors.Is(err, hocket.ErrClosed) {
			t.Errorf("%s of a closed model: %v", what, err)
		}
	}
}

// TestRefusedEarly checks that wrong options and bindings are refused by the call to which they are passed.
func TestRefusedEarly(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	p, err := hocket.Parse("f.hkt", "dim T = 4\nmesh tp[2]\nfunc f(%x: f32[T/tp, 2], %y: f32[T/tp, 2]) -> f32[T/tp, 2] {\n"+
		"  %z = add %x, %y\n  return %z\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{MaxWaiting: -1}); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("MaxWaiting: -1: %v", err)
	}
	var ds hocket.Diagnostics
	if _, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Certificate: []byte("{")}); !errors.As(err, &ds) ||
		!strings.Contains(err.Error(), "the certificate is rejected") {
		t.Errorf("a broken certificate: %v", err)
	}
	if _, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: "gpu"}); !errors.Is(err, hocket.ErrUnsupported) ||
		!strings.Contains(err.Error(), "see MachineOptions.Name") {
		t.Errorf("machine gpu: %v", err)
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := vals(t, ir.F32, make([]float64, 8), 4, 2)
	for _, c := range []*hocket.Checkpoint{nil, {}} {
		if _, err := model.BindFrom(c, hocket.Rules{}); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("no checkpoint: %v", err)
		}
	}
	if err := model.Bind("wQ", x); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("no such parameter: %v", err)
	}
	for _, dims := range []map[string]int64{{"Q": 1}, {"T": 5}, {"T": -2}} {
		if err := model.Prepare(t.Context(), dims); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("prepared for %v: %v", dims, err)
		}
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{"x": x, "y": x}, Dims: map[string]int64{"T": 6}}
	if _, err := model.Run(t.Context(), args); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), ": Dims sets T=6, but the shapes of the run's tensors set T=4") {
		t.Errorf("dims that the tensors do not have: %v", err)
	}
	args.Dims["T"] = 4
	if _, err := model.Run(t.Context(), args); err != nil {
		t.Error(err)
	}
}

// TestNilContext checks that a call with a nil context.Context panics, and does not block other callers.
func TestNilContext(t *testing.T) {
	c := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	var none context.Context
	func() {
		defer func() { _ = recover() }()
		_ = c.run(none, c.state, c.state)
	}()
	done := make(chan error, 1)
	go func() { done <- c.state.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a tensor is held for ever")
	}
}
