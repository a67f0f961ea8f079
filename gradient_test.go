package hocket_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestGradientOptions checks that names that do not exist, and options that have no effect in combination, are refused.
func TestGradientOptions(t *testing.T) {
	p, err := hocket.Parse("f.hkt", "dim T = 4\nfunc f(%x: f32[T]) -> f32[] {\n  %e = exp %x\n"+
		"  %s = sum (mul %e, %e), axis=0\n  return %s\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	dims := map[string]int64{"T": 8}
	for _, o := range []hocket.GradientOptions{
		{}, {Keep: "all"}, {Keep: "inputs"}, {Keep: "auto", Budget: 64, Dims: dims}, {Func: "f"},
	} {
		if _, err := p.Gradient(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := p.GradientParts(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	refused := func(o hocket.GradientOptions, is func(error) bool) {
		t.Helper()
		if _, err := p.Gradient(o); err == nil || !is(err) {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := p.GradientParts(o); err == nil || !is(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []hocket.GradientOptions{
		{Keep: "auto", Budget: -5}, {Budget: 64}, {Keep: "inputs", Budget: 64}, {Keep: "auto", Dims: dims},
	} {
		refused(o, func(err error) bool { return errors.Is(err, hocket.ErrInput) })
	}
	for _, o := range []hocket.GradientOptions{{Keep: "nonsense"}, {Func: "g"}, {Keep: "auto", Budget: 64, Func: "g"}} {
		refused(o, func(err error) bool { return errors.As(err, new(*hocket.GradientNameError)) })
	}
}

// TestGradientPositions checks that lines in errors about a gradient's program refer to the text of that program, and
// that its name says so.
func TestGradientPositions(t *testing.T) {
	p, err := hocket.Parse("f.hkt", "dim T = 4\nmesh tp[2]\nfunc f(%x: f32[T/tp]) -> f32[T/tp] {\n  %e = exp %x\n  return %e\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Gradient(hocket.GradientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(g, hocket.Binding{Dims: map[string]int64{"T": 3}}, hocket.LoadOptions{})
	if err == nil {
		_, err = model.RandomInputs("rand:1")
	}
	var ds hocket.Diagnostics
	if !errors.As(err, &ds) {
		t.Fatalf("T=3 on 2 ranks: %v", err)
	}
	line := strings.Split(g.String(), "\n")[ds[0].Pos.Line-1]
	if at := fmt.Sprintf("f.hkt (gradient):%d:", ds[0].Pos.Line); !strings.Contains(err.Error(), at) || !strings.HasPrefix(line, "func f_grad(") {
		t.Errorf("%v\nlacks %q, or line %q is not the signature", err, at, line)
	}
}
