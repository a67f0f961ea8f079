package layers_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/layers"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

const stacked = `dim T = 4
mesh tp[2]
func f(%x: f32[T, 8], %w: f32[3, 8/tp, 8], %v: f32[3, 8, 8/tp], %n: f32[3, 8]) -> f32[T/tp, 8] {
  %a = gelu %x
  %y = for %l in 0..3 carry %h = %a {
    %r = rms_norm %h, %n[%l], eps=1e-5
    %u = linear %r, %w[%l]
    %d: f32[T, 8] = linear (silu %u), %v[%l]
    %s = add %h, %d
    yield %s
  }
  %z = mul %y, %a
  return %z
}
`

// TestChain evaluates the layers of functions one after another, each on the results of the
// previous ones, and compares with the evaluation of the whole function, bit by bit.
func TestChain(t *testing.T) {
	long := "func f(%x: f32[4, 4], %w: f32[4, 4]) -> f32[4, 4] {\n  %y0 = linear %x, %w\n"
	for i := range 40 {
		long += fmt.Sprintf("  %%a%d = tanh (scale %%y%d, by=0.5)\n  %%y%d = add %%a%d, %%y%d\n", i, i, i+1, i,
			max(i-2, 0))
	}
	long += "  return %y40\n}\n"
	for _, c := range []struct {
		name, text string
		layers     int // at least
		programs   int
	}{
		{"stacked", stacked, 5, 3},
		{"variable elsewhere", strings.Replace(stacked, "    %s = add %h, %d\n",
			"    %e = scale %d, by=%l\n    %s = add %h, %e\n", 1), 5, 5},
		{"long", long, 5, 0},
		{"state", `func f(%x: f32[4], %s: inout f32[3, 4], %n: inout f32[4]) -> f32[4] {
  %a = add %x, %x
  %y = for %l in 0..3 carry %h = %a {
    %row = select %s, axis=0, index=%l
    %t = add %h, %h
    copy %t into %row
    %u = mul %t, %x
    yield %u
  }
  copy %y into %n
  %z = add %y, %x
  return %z
}
`, 5, 3},
		{"call, let and several values", `dim T = 4
mesh tp[2]
func twice(%x: f32[T/tp, 2]) -> f32[T/tp, 2] {
  %y = add %x, %x
  return %y
}
func f(%x: f32[T/tp, 2], %w: f32[2, 2]) -> (f32[T/tp, 2], f32[T, 2]) {
  %a = call twice %x
  %b = linear %a, %w
  %p, %q = for %i in 1..4 carry %c = %a, %d = %b {
    %e = call twice %c
    %g = mul %e, %d
    yield %g, %e
  }
  %r = mul %p, %b
  return %r, %q
}
`, 5, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			bound := bind(t, c.text)
			in := map[string]*tensor.Tensor{}
			for _, p := range bound.Func.Params {
				shape, err := bound.GlobalShape(p.Type, bound.Env(0, nil))
				if err != nil {
					t.Fatal(err)
				}
				x, err := tensor.New(p.Type.DType, shape)
				if err == nil {
					err = tensor.Fill(x, p.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 3})
				}
				if err != nil {
					t.Fatal(err)
				}
				in[p.Name] = x
			}
			want := evaluate(t, bound, in)
			list := layers.Split(bound, layers.Most)
			if len(list) < c.layers {
				t.Fatalf("%d layers, want at least %d", len(list), c.layers)
			}
			programs := map[*ir.Program]bool{}
			for _, l := range list {
				programs[l.Program] = true
			}
			if c.programs > 0 && len(programs) != c.programs {
				t.Errorf("%d programs, want %d", len(programs), c.programs)
			}
			values := chain(t, list, in,
				func(l layers.Layer, b *ir.Bound, args map[string]*tensor.Tensor) []*eval.Output {
					whole := evaluate(t, b, args)
					inParts(t, l, b, args, whole)
					return whole
				})
			names := returned(bound)
			for _, p := range bound.Func.Params {
				if p.Inout {
					names = append(names, p.Name)
				}
			}
			for i, o := range want {
				if got := values[names[i]]; !bytes.Equal(got.Data, o.Tensor.Data) {
					t.Errorf("%s: the layers compute %v, the function %v", o.Name, got, o.Tensor)
				}
			}
		})
	}
}

// inParts cuts a layer into single statements and compares their results with the layer's.
func inParts(t *testing.T, l layers.Layer, b *ir.Bound, in map[string]*tensor.Tensor, want []*eval.Output) {
	t.Helper()
	unrolled, err := layers.Unrolled(b)
	if err != nil {
		t.Fatalf("%s: %v", l.Name, err)
	}
	args := map[string]*tensor.Tensor{}
	for i, p := range unrolled.Func.Params {
		args[p.Name] = in[b.Func.Params[i].Name]
	}
	list := layers.Split(unrolled, 1)
	if len(list) == 0 {
		return
	}
	values := chain(t, list, args, func(_ layers.Layer, b *ir.Bound, args map[string]*tensor.Tensor) []*eval.Output {
		return evaluate(t, b, args)
	})
	for i, name := range returned(unrolled) {
		if !bytes.Equal(values[name].Data, want[i].Tensor.Data) {
			t.Errorf("%s: its parts compute a different %s than the layer", l.Name, name)
		}
	}
}

// returned lists the names that a function returns.
func returned(b *ir.Bound) []string {
	var names []string
	for _, a := range b.Func.Body.Stmts[len(b.Func.Body.Stmts)-1].Args {
		names = append(names, a.Name)
	}
	return names
}

// chain evaluates the layers one after another with the function do, and returns all values.
func chain(t *testing.T, list []layers.Layer, in map[string]*tensor.Tensor,
	do func(layers.Layer, *ir.Bound, map[string]*tensor.Tensor) []*eval.Output,
) map[string]*tensor.Tensor {
	t.Helper()
	values := map[string]*tensor.Tensor{}
	for name, x := range in {
		c := *x
		c.Data = slices.Clone(x.Data)
		values[name] = &c
	}
	for _, l := range list {
		info, ds := checker.Check(l.Program)
		if ds.HasErrors() {
			t.Fatalf("%s: %v\n%s", l.Name, ds, l.Program)
		}
		b, ds := ir.Bind(info, ir.Binding{})
		if ds.HasErrors() {
			t.Fatalf("%s: %v", l.Name, ds)
		}
		if _, ds := checker.Read("layer", l.Program.String()); ds.HasErrors() {
			t.Errorf("%s: its text cannot be read: %v\n%s", l.Name, ds, l.Program)
		}
		args := map[string]*tensor.Tensor{}
		row := func(in layers.Input) *tensor.Tensor {
			x := values[in.Value]
			if in.Row < 0 {
				return x
			}
			each := int64(len(x.Data)) / x.Shape[0]
			return &tensor.Tensor{DType: x.DType, Shape: append([]int64{1}, x.Shape[1:]...),
				Data: x.Data[in.Row*each : (in.Row+1)*each]}
		}
		for i, p := range b.Func.Params {
			args[p.Name] = row(l.In[i])
		}
		out := do(l, b, args)
		for i, name := range l.Out {
			values[name] = out[i].Tensor
		}
		out = out[len(l.Out):]
		for _, in := range l.In {
			if in.Inout {
				copy(row(in).Data, out[0].Tensor.Data)
				out = out[1:]
			}
		}
	}
	return values
}

func bind(t *testing.T, text string) *ir.Bound {
	t.Helper()
	info, ds := checker.Read("f.hkt", text)
	if ds.HasErrors() {
		t.Fatalf("%v\n%s", ds, text)
	}
	b, ds := ir.Bind(info, ir.Binding{})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	return b
}

func evaluate(t *testing.T, b *ir.Bound, in map[string]*tensor.Tensor) []*eval.Output {
	t.Helper()
	res, err := eval.Run(t.Context(), b, in, eval.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, b.Info.Prog)
	}
	return res.Outputs
}

// TestWhole checks that a function is not cut within the range in which a stream or a buffer is
// used.
func TestWhole(t *testing.T) {
	for _, text := range []string{
		"func f(%x: f32[4]) -> f32[4] {\n  %y = add %x, %x\n  return %y\n}\n",
		`func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %b = alloc f32[4]
  on %s { wait main }
  for %i in 0..2 {
    on %s { copy %x into %b }
  }
  wait %s
  return %b
}
`,
	} {
		if list := layers.Split(bind(t, text), 1); list != nil {
			t.Errorf("%d layers of\n%s", len(list), text)
		}
	}
}
