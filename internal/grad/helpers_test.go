package grad_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// read parses, checks and binds a program. It fails the test on any error.
func read(t testing.TB, src string) *ir.Bound {
	t.Helper()
	in, ds := checker.Read("test.hkt", src)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	b, ds := ir.Bind(in, ir.Binding{})
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	return b
}

// gradient returns the text of a program's gradient.
func gradient(t testing.TB, src string, opts grad.Options) string {
	t.Helper()
	in, ds := checker.Read("test.hkt", src)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	text, err := grad.Of(in, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return text
}

// outputs evaluates a program and returns its outputs, keyed by name.
func outputs(t testing.TB, b *ir.Bound, in map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	own := map[string]*tensor.Tensor{}
	for _, p := range b.Func.Params {
		own[p.Name] = in[p.Name]
	}
	res, err := eval.Run(context.Background(), b, own, eval.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, b.Info.Prog)
	}
	out := map[string]*tensor.Tensor{}
	for _, o := range res.Outputs {
		out[o.Name] = o.Tensor
	}
	return out
}

// inputs returns random inputs for a program. Numbers have magnitudes between 0.1 and 1, and are positive if the
// parameter's name begins with "p", so that the steps of differences do not cross a kink at 0.
func inputs(t testing.TB, b *ir.Bound, seed uint64) map[string]*tensor.Tensor {
	t.Helper()
	in, err := eval.Inputs(b, tensor.Spec{Kind: tensor.SpecInts, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 53))
	for _, p := range b.Func.Params {
		x := in[p.Name]
		if p.Type.DType.IsInt() {
			for i := range x.Len() {
				x.SetInt64(i, r.Int64N(3)) // with repetitions
			}
			continue
		}
		for i := range x.Len() {
			v := 0.1 + 0.9*r.Float64()
			if r.IntN(2) == 0 && !strings.HasPrefix(p.Name, "p") {
				v = -v
			}
			x.SetFloat64(i, v)
		}
	}
	return in
}

// loss returns the sum of the scalar results, and of the products of the other results with their gradients, which are
// among the inputs.
func loss(out, in map[string]*tensor.Tensor, results []string) float64 {
	sum := 0.0
	for _, name := range results {
		y := out[name]
		if y.DType.IsInt() {
			continue
		}
		dy := in["d"+name]
		for i := range y.Len() {
			if dy == nil {
				sum += y.Float64(i)
			} else {
				sum += y.Float64(i) * dy.Float64(i)
			}
		}
	}
	return sum
}

// differences compares the gradients of a program of f64 with central differences of its results, for at most the given
// number of elements of each parameter. It returns the number of elements that it examined, and the number of those for
// which differences with two step sizes do not agree, so that they cannot be compared.
func differences(t testing.TB, src string, opts grad.Options, seed uint64, elements int) (looked, kinks int) {
	t.Helper()
	text := gradient(t, src, opts)
	f, g := read(t, src), read(t, text)
	in := inputs(t, g, seed)
	got, want := outputs(t, g, in), outputs(t, f, in)
	results := ir.OutputNames(f.Func)
	for _, name := range results {
		for i := range want[name].Len() {
			if a, b := got[name].Float64(i), want[name].Float64(i); a != b && !(math.IsNaN(a) && math.IsNaN(b)) {
				t.Fatalf("%%%s[%d] is %v, and %v without gradients\n%s", name, i, a, b, text)
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 54))
	var found []difference
	largest := 0.0
	for _, p := range f.Func.Params {
		dx := got["d"+p.Name]
		if dx == nil {
			continue
		}
		x := in[p.Name]
		if !slices.Equal(dx.Shape, x.Shape) {
			t.Fatalf("the gradient of %%%s has shape %v, and not %v\n%s", p.Name, dx.Shape, x.Shape, text)
		}
		for k := range min(x.Len(), int64(elements)) {
			i := k
			if x.Len() > int64(elements) {
				i = r.Int64N(x.Len())
			}
			at := x.Float64(i)
			central := func(h float64) float64 { // the error is h⁴/30 times the fifth derivative
				step := func(d float64) float64 {
					x.SetFloat64(i, at+d)
					return loss(outputs(t, f, in), in, results)
				}
				return (8*(step(h)-step(-h)) - (step(2*h) - step(-2*h))) / (12 * h)
			}
			d := difference{p.Name, i, dx.Float64(i), central(1.0 / (1 << 10)), central(1.0 / (1 << 11))}
			x.SetFloat64(i, at)
			largest = max(largest, math.Abs(d.want))
			found = append(found, d)
		}
	}
	allowed, kinks := 1e-6*max(largest, 1e-3), 0
	for _, d := range found {
		switch {
		case math.Abs(d.want-d.finer) > allowed/10: // a step crosses a kink
			kinks++
		case !(math.Abs(d.got-d.finer) <= allowed):
			t.Fatalf("seed %d: %%d%s[%d] is %g, and differences give %g, where gradients are up to %g\n%s\n%s",
				seed, d.param, d.at, d.got, d.finer, largest, src, text)
		}
	}
	return len(found), kinks
}

// difference holds the computed gradient of an element, and the estimates by differences with two step sizes.
type difference struct {
	param            string
	at               int64
	got, want, finer float64
}

// agrees proves the gradient of a program, lowers it by each strategy, runs it on the CPU machine, and compares the
// results with those of the program's text, for each mesh.
func agrees(t testing.TB, src string, opts hocket.GradientOptions, strategies ...string) {
	t.Helper()
	p, err := hocket.Parse("test.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Gradient(opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	ctx := context.Background()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, s := range strategies {
		v, err := hocket.Check(q, hocket.Binding{}, hocket.CheckOptions{Strategy: s})
		if s != "sequential" && err == nil && strings.Contains(v.Diagnostics.Error(), "applies to no collective") {
			continue
		}
		if err != nil || v.Kind != hocket.Proved {
			t.Fatalf("%s: %v, %v: %v\n%s", s, v.Kind, err, v.Diagnostics, q)
		}
		model, err := m.Load(q, hocket.Binding{}, hocket.LoadOptions{Strategy: s})
		if err != nil {
			t.Fatalf("%s: %v\n%s", s, err, q)
		}
		in, err := model.RandomInputs("rand:7")
		if err != nil {
			t.Fatal(err)
		}
		args := hocket.Args{In: in}
		ref, err := model.Reference(ctx, args)
		if err != nil {
			t.Fatalf("%s: %v\n%s", s, err, q)
		}
		rep, err := model.Run(ctx, args)
		if err != nil {
			t.Fatalf("%s: %v\n%s", s, err, q)
		}
		if err := ref.Compare(rep).Err(); err != nil {
			t.Fatalf("%s: %v\n%s", s, err, q)
		}
	}
}
