package hocket_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

const bindSource = `dim P = 2
dim T = 6
mesh tp[P]
func first(%a: f32[T]) -> f32[T] {
  return %a
}
func last(%x: bf16[T/tp, K], %n: inout i64[3]) -> bf16[T/tp, K] {
  return %x
}
`

func TestBind(t *testing.T) {
	p, err := hocket.Parse("bind.hkt", bindSource)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := p.Bind(hocket.Binding{Ranks: 3, Defines: map[string]string{"K": "T*size(tp)"}})
	if err != nil {
		t.Fatal(err)
	}
	want := &hocket.Signature{Func: "last", Ranks: 3, Dims: map[string]int64{"P": 3, "T": 6, "K": 18},
		In: []hocket.Port{
			{Name: "x", DType: ir.BF16, Shape: []int64{6, 18}}, {Name: "n", DType: ir.I64, Shape: []int64{3}},
		}}
	if !reflect.DeepEqual(sig, want) {
		t.Errorf("%+v, want %+v", sig, want)
	}
	if sig, err := p.Bind(hocket.Binding{Func: "first", Dims: map[string]int64{"T": 5}}); err != nil ||
		sig.Func != "first" || sig.In[0].Shape[0] != 5 {
		t.Errorf("%+v, %v", sig, err)
	}
	for _, b := range []hocket.Binding{
		{},
		{Func: "none"},
		{Dims: map[string]int64{"Q": 1}},
		{Dims: map[string]int64{"K": 1, "T": 5}},
		{Dims: map[string]int64{"K": 1}, Defines: map[string]string{"K": "1"}},
		{Dims: map[string]int64{"K": 1 << 40, "T": 1 << 40}},
	} {
		var ds hocket.Diagnostics
		if sig, err := p.Bind(b); !errors.As(err, &ds) {
			t.Errorf("%+v: %+v, %v, want diagnostics", b, sig, err)
		}
	}
}

// A dim that is defined is not taken from the shape of an argument.
func TestDefinedDimsOfAModel(t *testing.T) {
	p, err := hocket.Parse("bind.hkt", bindSource)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, hocket.Binding{Func: "first", Defines: map[string]string{"T": "P+3"}}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	five, _ := hocket.FromFloats(ir.F32, []float64{1, 2, 3, 4, 5}, 5)
	rep, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"a": five}})
	if err != nil || !maps.Equal(rep.Dims, map[string]int64{"P": 2, "T": 5}) {
		t.Errorf("%v, %v", rep, err)
	}
	six, _ := hocket.NewTensor(ir.F32, 6)
	if _, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"a": six}}); !errors.Is(err,
		hocket.ErrInput) {
		t.Errorf("%v, want wrong inputs", err)
	}
}

func TestNamesOfOptions(t *testing.T) {
	p, err := hocket.Parse("layer.hkt", `mesh tp[2]
func f(%x: f32[T/tp, K], %w: f32[N/tp, K]) -> (f32[T, N/tp], f32[K, K]) {
  %g: f32[K, K] = matmul %x, %x, ta=true
  %y = linear %x, %w
  return %y, %g
}
`)
	if err != nil {
		t.Fatal(err)
	}
	dims := hocket.Binding{Dims: map[string]int64{"T": 4, "K": 3, "N": 2}}
	for _, s := range hocket.Strategies() {
		for _, pass := range hocket.Passes() {
			l, err := p.Lower(hocket.LowerOptions{Strategy: s, StopAfter: pass, Binding: dims})
			if err != nil || l.Stages[len(l.Stages)-1].Pass != pass {
				t.Errorf("%s, %s: %v", s, pass, err)
			}
		}
	}
}

// TestLoadKeepsBinding checks that a model keeps its dims if the caller changes the maps that were passed to Load.
func TestLoadKeepsBinding(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	p, err := hocket.Parse("f.hkt", "dim T = 2\ndim U = 2\nfunc f(%x: f32[T, U]) -> f32[T, U] {\n  %y = add %x, %x\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	b := hocket.Binding{Dims: map[string]int64{"T": 4}, Defines: map[string]string{"U": "T"}}
	model, err := m.Load(p, b, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Dims["T"], b.Defines["U"] = 8, "T + 1"
	in, err := model.Inputs(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := in[0].Shape; got[0] != 4 || got[1] != 4 {
		t.Errorf("loaded with T=4 and U of T, it takes %v", got)
	}
}
