package ir_test

import (
	"slices"
	"testing"

	"hocket.example/hocket/ir/checker"
)

// TestOpenDims checks that dims of called functions and of meshes are listed, and those of other functions are not.
func TestOpenDims(t *testing.T) {
	info, ds := checker.Read("f.hkt", `dim T = 4
dim P
mesh tp[P]
func other(%x: f32[Z]) -> f32[Z] {
  return %x
}
func g(%x: f32[T, K]) -> f32[T, K] {
  %y = relu %x
  return %y
}
func f(%x: f32[T, K], %w: f32[8]) -> f32[T, K] {
  %y = call g %x
  return %y
}
`)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	p := info.Prog
	for _, c := range []struct {
		known map[string]bool
		want  []string
	}{{nil, []string{"K", "P", "T"}}, {map[string]bool{"T": true, "P": true}, []string{"K"}}} {
		if got := p.OpenDims(p.Func("f"), c.known); !slices.Equal(got, c.want) {
			t.Errorf("%v are open, want %v", got, c.want)
		}
	}
	if !p.Func("f").HasDims() {
		t.Error("f has dims")
	}
}
