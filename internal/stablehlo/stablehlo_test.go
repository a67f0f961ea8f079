package stablehlo

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// program reads a program from testdata.
func program(t *testing.T, file string) *graph.Graph {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	g, err := Read(file, string(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// numbers returns fractions of both signs as values of inputs; they depend on the seed.
func numbers(n, seed int) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = float64((i*7+seed*5)%17-8) / 8
	}
	return list
}

// ran evaluates a graph, and checks that the program that is made from the graph has the same results.
func ran(t *testing.T, g *graph.Graph, inputs ...[]float64) [][]float64 {
	t.Helper()
	given := map[*graph.Value]*graph.Tensor{}
	for i, v := range g.Inputs {
		x := &graph.Tensor{DType: v.DType, Shape: v.Shape, Elems: inputs[i]}
		given[v] = x.As(v.DType)
	}
	want, err := graph.Eval(g, given)
	if err != nil {
		t.Fatal(err)
	}
	m, err := modelprogram.Make("test", g, modelprogram.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, ds := ir.Bind(m.Info, ir.Binding{})
	if ds.HasErrors() {
		t.Fatalf("%v\n%s", ds, m.Text)
	}
	in := map[string]*tensor.Tensor{}
	for _, p := range m.Params {
		src := p.Constant
		for v, x := range given {
			if p.Input && v.Name == p.Name {
				src = x
			}
		}
		dt, _ := ir.ParseDType(string(p.DType))
		x, err := tensor.New(dt, p.Shape)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range src.Elems {
			x.SetFloat64(int64(i), e)
		}
		in[p.Name] = x
	}
	res, err := eval.Run(t.Context(), b, in, eval.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Text)
	}
	var out [][]float64
	for i, o := range res.Outputs {
		list := make([]float64, o.Tensor.Len())
		for j := range list {
			list[j] = o.Tensor.Float64(int64(j))
		}
		near(t, "the program's result", list, want[i].Elems)
		out = append(out, list)
	}
	return out
}

// near checks that numbers equal the expected numbers within the rounding error of f32.
func near(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i, x := range got {
		if !(math.Abs(x-want[i]) <= 2e-5*math.Max(1, math.Abs(want[i]))) && !(math.IsNaN(x) && math.IsNaN(want[i])) &&
			x != want[i] {
			t.Fatalf("%s: element %d is %g, want %g\n%v\n%v", what, i, x, want[i], got, want)
		}
	}
}

// each returns n numbers, which f computes.
func each(n int, f func(i int) float64) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = f(i)
	}
	return list
}

// TestRefusals checks the line, the operation and the cause in errors.
func TestRefusals(t *testing.T) {
	body := func(ops string) string {
		return "func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<i32>) -> tensor<4xf32> {\n" + ops +
			"\nreturn %arg0 : tensor<4xf32>\n}\n"
	}
	for _, c := range []struct {
		text string
		is   error
		says string
	}{
		{body("%0 = stablehlo.fft %arg0, type = FFT, length = [4] : (tensor<4xf32>) -> tensor<4xf32>"), ErrUnsupported,
			"t:2: stablehlo.fft"},
		{body("%0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>"), ErrMalformed, "t:2: stablehlo.add"},
		{body("%0 = stablehlo.add %arg0, %missing : tensor<4xf32>"), ErrMalformed, "there is no %missing"},
		{body("%0 = stablehlo.add %arg0, %arg0 : tensor<5xf32>"), ErrMalformed,
			"the result is of type tensor<4xf32>, not tensor<5xf32>"},
		{body("%0 = stablehlo.slice %arg0 [2:5] : (tensor<4xf32>) -> tensor<3xf32>"), ErrMalformed,
			"2:5:1 is no range"},
		{body("%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<3xf32>"), ErrMalformed, "are not of its shape"},
		{body("%0 = stablehlo.constant dense<\"0x00\"> : tensor<3xf32>"), ErrMalformed, "has 1 bytes"},
		{body("%0 = call @f(%arg0) : (tensor<4xf32>) -> tensor<4xf32>"), ErrMalformed, "there is no function f"},
		{body("%0 = call @main(%arg0, %arg1) : (tensor<4xf32>, tensor<i32>) -> tensor<4xf32>"), ErrUnsupported,
			"100 deep"},
		{body("%0 = stablehlo.while(%i = %arg1) : tensor<i32>\n cond {\n %c = stablehlo.compare LT, %i, %i, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n stablehlo.return %c : tensor<i1>\n} do {\n stablehlo.return %i : tensor<i32>\n}"),
			ErrUnsupported, "how often it runs depends on the input"},
		{body("%0 = stablehlo.constant dense<true> : tensor<i1>\n%1 = stablehlo.while(%i = %arg1) : tensor<i32>\n cond {\n stablehlo.return %0 : tensor<i1>\n} do {\n stablehlo.return %i : tensor<i32>\n}"),
			ErrUnsupported, "131072 operations"},
		{body("%0 = stablehlo.not %arg1 : tensor<i32>"), ErrUnsupported, "of the bits of tensor<i32>"},
		{body("%0 = stablehlo.custom_call @cholesky(%arg0) : (tensor<4xf32>) -> tensor<4xf32>"), ErrUnsupported,
			"target @cholesky"},
		{"module {\n}", ErrMalformed, "no function main"},
		{"module {\n func.func @main(%a: tensor<4xui8>) -> tensor<4xui8> {\n return %a : tensor<4xui8>\n}\n}",
			ErrUnsupported, "tensor<4xui8>"},
		{"module {\n func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{\"x\"}]>}) -> tensor<4xf32> {\n return %a : tensor<4xf32>\n}\n}", ErrMalformed, "there is no mesh @m"},
		{body(strings.Repeat("{", 1000)), ErrMalformed, "want"},
		{body("%0 = stablehlo.add %arg0, %arg0 {a = " + strings.Repeat("[", 1000) + "} : tensor<4xf32>"), ErrMalformed,
			"deep"},
		{body("%0 = stablehlo.custom_call @x(%arg0) {a = #foo<" + strings.Repeat("<", 1000) + "} : tensor<4xf32>"),
			ErrMalformed, "deep"},
		{body("%0 = stablehlo.iota dim = 0 : tensor<999999999999xi32>"), ErrUnsupported, "too many elements"},
		{body("%0 = stablehlo.constant dense<0.0> : tensor<9999999999999x9999999999xf32>"), ErrMalformed, "too large"},
	} {
		_, err := Read("t", c.text, Options{})
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, want %v with %q", c.text[:min(len(c.text), 200)], err, c.is, c.says)
		}
	}
}

// FuzzRead checks that any text gives either a graph or an error.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.mlir"))
	if err != nil || len(files) == 0 {
		f.Fatal("there are no programs to begin with")
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 {
			return
		}
		g, err := Read("f", text, Options{})
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v", err)
		}
		if err == nil && len(g.Outputs) != len(g.OutputLayouts) {
			t.Error("results without layouts")
		}
	})
}
