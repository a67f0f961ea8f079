package hocket

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/world"
)

// TestCallPlace checks that the place of a call is the position of the function and the line of Go code that called
// this package, and that the line is looked up once.
func TestCallPlace(t *testing.T) {
	p, err := Parse("place.hkt", "mesh d[1]\n\nfunc f(%x: f32[2]) -> f32[2] { return %x }")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(t.Context(), MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, Binding{}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (string, string) { return model.fn.call(t.Context()) }
	for range 2 {
		if call, place := ask(); call != "f" || !strings.HasPrefix(place, "place.hkt:3, ") ||
			!strings.Contains(place, ".go:") {
			t.Errorf("%q at %q", call, place)
		}
	}
	if n := testing.AllocsPerRun(100, func() { ask() }); n > 4 {
		t.Errorf("%v allocations of a call that is known", n)
	}
	if call, place := model.fn.call(world.WithCall(t.Context(), "g(x)", "train.py:7")); call+place != "g(x)train.py:7" {
		t.Errorf("%q at %q", call, place)
	}
}

func BenchmarkCallPlace(b *testing.B) {
	p, err := Parse("place.hkt", "mesh d[1]\nfunc f(%x: f32[2]) -> f32[2] { return %x }")
	if err != nil {
		b.Fatal(err)
	}
	m, err := Open(b.Context(), MachineOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, Binding{}, LoadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		model.fn.call(b.Context())
	}
}
