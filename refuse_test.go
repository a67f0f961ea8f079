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

// TestRefusals: what could never run is refused where it is said, with a word on why.
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
		if _, err := m.Load(p, c.b, hocket.LoadOptions{}); err == nil || errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), c.want) {
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
}

// TestNilContext: a nil context is the caller's mistake, and holds up nobody else.
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
