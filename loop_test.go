package hocket_test

import (
	"context"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestLoopCarries checks a loop that carries two values, which are swapped and added like Fibonacci numbers and scaled
// by a weight of each iteration. The lowered text contains the loop once.
func TestLoopCarries(t *testing.T) {
	p, err := hocket.Parse("fib.hkt", `dim L = 10
mesh tp[2]
func fib(%x: f32[4/tp], %y: f32[4], %w: f32[L, 4/tp]) -> (f32[4], f32[4/tp]) {
  %p, %q = for %l in 0..L carry %a = %x, %b = %y {
    %wl = select %w, axis=0, index=%l
    %c = add %b, %a
    %d = mul %c, %wl
    yield %b, %d
  }
  return %p, %q
}
`)
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	for _, trips := range []int64{0, 1, 10} {
		model, err := m.Load(p, hocket.Binding{Dims: map[string]int64{"L": trips}}, hocket.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		weights := make([]float64, 4*trips)
		a, b := []float64{0, 1, 2, 3}, []float64{1, 1, 0, -1}
		x, _ := hocket.FromFloats(ir.F32, a, 4)
		y, _ := hocket.FromFloats(ir.F32, b, 4)
		for i := range weights {
			weights[i] = float64(1 + i%2)
		}
		for l := range int(trips) {
			next := make([]float64, 4)
			for i := range next {
				next[i] = (a[i] + b[i]) * weights[4*l+i]
			}
			a, b = b, next
		}
		w, _ := hocket.FromFloats(ir.F32, weights, trips, 4)
		rep, err := model.Run(context.Background(), hocket.Args{In: map[string]*hocket.Tensor{"x": x, "y": y, "w": w}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range a {
			if got := [2]float64{rep.Out["p"].Floats()[i], rep.Out["q"].Floats()[i]}; got != [2]float64{a[i], b[i]} {
				t.Errorf("%d iterations: element %d is %v, want %v", trips, i, got, [2]float64{a[i], b[i]})
			}
		}
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	}
	low, err := p.Lower(hocket.LowerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := low.Program.IR().String(); strings.Count(text, "for %l in 0..L carry %a = %x.g, %b = %y") != 1 && strings.Count(text, "carry %a = %x, %b = %y") != 1 {
		t.Errorf("the lowered text lacks the loop:\n%s", text)
	}
}

// TestLoopOverlaps checks that a layer in a loop is overlapped as outside of loops, that the program is proved, and
// that its results match the reference.
func TestLoopOverlaps(t *testing.T) {
	p := parseFile(t, "examples/model_32.hkt")
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	var want []byte
	for _, s := range []string{"sequential", "chunked(3)", "exchange", "exchange(2)", "ahead"} {
		model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		in, err := model.RandomInputs("ints:3")
		if err != nil {
			t.Fatal(err)
		}
		rep, err := model.Run(context.Background(), hocket.Args{In: in})
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		if want == nil {
			want = rep.Out["x31"].Data
		}
		if rep.Proof != hocket.Proved {
			t.Errorf("%s: %s", s, rep.Unproved)
		}
		lines, err := model.Overlapped(nil)
		if err != nil || s != "sequential" && len(lines) != 2 {
			t.Errorf("%s: %v, %v", s, lines, err)
		}
		if string(rep.Out["x31"].Data) != string(want) {
			// bits must be equal, because sums are in the order of ranks and chunks consist of rows
			t.Errorf("%s differs from sequential", s)
		}
	}
}

// TestLoopRefusals checks that invalid loops with carried values are refused at their position.
func TestLoopRefusals(t *testing.T) {
	for body, want := range map[string]string{
		"%y = for %i in 0..2 carry %h = %x {\n    %z = neg %h\n  }":                               "must end with yield",
		"%y = for %i in 0..2 carry %h = %x {\n    yield %h, %h\n  }":                              "carries 1 value, but yield has 2 operands",
		"for %i in 0..2 carry %h = %x {\n    yield %h\n  }\n  %y = neg %x":                        "carries 1 values but has 0 result names",
		"%y = for %i in 0..2 {\n    %z = neg %x\n  }":                                             "carries 0 values but has 1 result names",
		"%y = for %i in 0..2 stream(2) carry %h = %x {\n    yield %h\n  }":                        "cannot use stream",
		"%b = alloc f32[4]\n  %y = for %i in 0..2 carry %h = %b {\n    yield %h\n  }":             "can carry only values, but %b is a buffer",
		"%y = for %i in 0..2 carry %h = %x {\n    %z = slice %h, axis=0, 0..2\n    yield %z\n  }": "differs from that of",
		"yield %x\n  %y = neg %x":                                               "last statement of a loop that carries",
		"for %i in 0..2 {\n    yield %x\n  }\n  %y = neg %x":                    "last statement of a loop that carries",
		"%y = for %i in 0..2 carry %h = %x {\n    yield %h\n  }\n  %z = neg %h": "%h",
	} {
		_, err := hocket.Parse("loop.hkt", "func f(%x: f32[4]) -> f32[4] {\n  "+body+"\n  return %y\n}\n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", body, err, want)
		}
	}
}
