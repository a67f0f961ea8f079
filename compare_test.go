package hocket_test

import (
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestUnbounded has 32 layers of unscaled weights grow until bf16 holds nothing
// of them: that nothing contradicts the result must not read like agreement.
func TestUnbounded(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(parseFile(t, "examples/model_32.hkt"), hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := model.RandomInputs("ints:0")
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{In: in}
	rep, err := model.Run(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := model.Reference(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	c := ref.Compare(rep)
	if c.Verdict != hocket.Undecided || !strings.HasPrefix(c.String(), "not told apart from model") {
		t.Errorf("got %+v: %s", c, c)
	}
}
