package eval

import (
	"context"
	"slices"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// bind parses, checks and binds a program. It fails the test on any error.
func bind(t testing.TB, src string, b ir.Binding) *ir.Bound {
	t.Helper()
	p, ds := ir.Parse("test.hkt", src)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	in, ds := checker.Check(p)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	bound, ds := ir.Bind(in, b)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	return bound
}

// inputsFor makes inputs for every parameter from a spec such as "ints:1".
func inputsFor(t testing.TB, b *ir.Bound, spec string) map[string]*tensor.Tensor {
	t.Helper()
	sp, err := tensor.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	in, err := Inputs(b, sp)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// evaluate evaluates a program, and fails the test on any error.
func evaluate(t testing.TB, src string, b ir.Binding, spec string) *Result {
	t.Helper()
	bound := bind(t, src, b)
	res, err := Run(context.Background(), bound, inputsFor(t, bound, spec), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// tensorOf returns a tensor with the given type, shape and elements.
func tensorOf(t testing.TB, dt ir.DType, shape []int64, v ...float64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	if tensor.FromFloat64(x.Data, v, dt) != int(x.Len()) {
		t.Fatalf("%d elements for %v", len(v), x)
	}
	return x
}

func floats(x *tensor.Tensor) []float64 {
	out := make([]float64, x.Len())
	tensor.ToFloat64(out, x.Data, x.DType)
	return out
}

// demand checks that the elements of the first output equal want.
func demand(t *testing.T, res *Result, want ...float64) {
	t.Helper()
	if got := floats(res.Outputs[0].Tensor); !slices.Equal(got, want) {
		t.Errorf("%s is %v, want %v", res.Outputs[0].Name, got, want)
	}
}

// refusal evaluates a program that must fail, and returns its diagnostic.
func refusal(t *testing.T, src string, b ir.Binding, opts Options) *ir.Diagnostic {
	t.Helper()
	bound := bind(t, src, b)
	_, err := Run(context.Background(), bound, inputsFor(t, bound, "ints:1"), opts)
	d, ok := err.(*ir.Diagnostic)
	if !ok {
		t.Fatalf("got %v, want a diagnostic", err)
	}
	if !d.Pos.Valid() {
		t.Errorf("no position: %v", d)
	}
	return d
}
