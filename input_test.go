package hocket_test

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// TestInputErrors checks that every error about the tensors of a run wraps ErrInput, so that a server can report it to
// its client, and that the model stays usable.
func TestInputErrors(t *testing.T) {
	cm, m := tightly(t, 2)
	model := summed(t, m, 2)
	sharded, err := hocket.Parse("s.hkt",
		"dim T = 8\nmesh tp[2]\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = all_gather %x, over=tp, axis=0\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	split, err := m.Load(sharded, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(dt ir.DType, shape ...int64) *hocket.Tensor {
		x, err := hocket.NewTensor(dt, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	short := tensor(ir.F32, 4, 2)
	short.Data = short.Data[:8]
	type tensors = map[string]*hocket.Tensor
	for _, c := range []struct {
		model *hocket.Model
		args  hocket.Args
		says  string
		runs  bool // a run refuses the arguments, but Reference accepts them
	}{
		{model, hocket.Args{}, "x", false},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F32, 4, 3)}}, "x", false},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F16, 4, 2)}}, "x", false},
		{model, hocket.Args{In: tensors{"x": short}}, "x", false},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F32, 4, 2), "z": short}}, "z", false},
		{model, hocket.Args{In: tensors{"x": nil}}, "%x is nil", false},
		{split, hocket.Args{In: tensors{"x": tensor(ir.F32, 7)}}, "7", false},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F32, 4, 2)}, Out: tensors{"z": short}}, "the program has no result %z",
			true},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F32, 4, 2)}, Out: tensors{"y": short}}, "the destination of result %y",
			true},
		{model, hocket.Args{In: tensors{"x": tensor(ir.F32, 4, 2)}, Out: tensors{"y": tensor(ir.F32, 2, 4)}},
			"f32[2, 4]", true},
	} {
		if _, err := c.model.Run(t.Context(), c.args); !errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: got %v", c.args, err)
		}
		if _, err := c.model.Reference(t.Context(), c.args); !errors.Is(err, hocket.ErrInput) && !c.runs {
			t.Errorf("%v: the reference says %v", c.args, err)
		}
	}
	if err := sum(t.Context(), model, 4); err != nil {
		t.Error(err)
	}
	if got := cm.ranksOpened(); len(got) > 2 {
		t.Errorf("wrong inputs cost loads: %v", got)
	}
}
