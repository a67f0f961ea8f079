package grad_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// halves runs the two parts of a program's gradient one after the other, and compares their outputs with those of the
// whole gradient. The gradient of a scalar result is 1 in the whole, and a factor of the gradients of the two parts.
// halves returns the parts.
func halves(t testing.TB, src string, opts grad.Options, seed uint64) *grad.Parts {
	t.Helper()
	in, ds := checker.Read("test.hkt", src)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	parts, err := grad.Split(in, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	whole := read(t, gradient(t, src, opts))
	given := inputs(t, whole, seed)
	want := outputs(t, whole, given)
	forward, backward := read(t, parts.Forward), read(t, parts.Backward)
	got := outputs(t, forward, given)
	args := map[string]*tensor.Tensor{}
	results := ir.OutputNames(forward.Func)
	if len(parts.Takes) != len(backward.Func.Params) {
		t.Fatalf("%d parameters, and %d are said\n%s", len(backward.Func.Params), len(parts.Takes), parts.Backward)
	}
	for i, take := range parts.Takes {
		name := backward.Func.Params[i].Name
		switch take.Of {
		case grad.OfInput:
			args[name] = given[forward.Func.Params[take.Index].Name]
		case grad.OfOutput:
			args[name] = got[results[take.Index]]
		case grad.OfGradient:
			args[name] = given["d"+results[take.Index]]
			if args[name] == nil { // of a scalar
				one, err := tensor.New(ir.F64, nil)
				if err != nil {
					t.Fatal(err)
				}
				one.SetFloat64(0, 1)
				args[name] = one
			}
		}
	}
	maps.Copy(got, outputs(t, backward, args))
	for name, x := range want {
		y := got[name]
		if y == nil {
			t.Fatalf("there is no %s\n%s%s", name, parts.Forward, parts.Backward)
		}
		if !slices.Equal(x.Data, y.Data) {
			t.Fatalf("%s differs\n%s%s", name, parts.Forward, parts.Backward)
		}
	}
	return parts
}

// TestSplit checks that the two parts of a gradient return the same bits as the whole.
func TestSplit(t *testing.T) {
	for _, c := range programCases {
		src := strings.ReplaceAll(c.src, "[N]", "[2]")
		for _, keep := range keeps {
			halves(t, src, grad.Options{Keep: keep}, 3)
		}
	}
	for _, c := range localCases {
		halves(t, c.src, grad.Options{}, 3)
	}
	for seed := uint64(1); seed < uint64(longtest.Of(60, 1000)); seed++ {
		halves(t, randomProgram(seed, 1+int(seed%2), 2), grad.Options{Keep: keeps[seed%3]}, seed)
	}
}

// TestSplitKeeps checks that the backward program repeats no part of the forward pass except views; products are kept.
// If only inputs are kept, the backward program computes the whole forward pass again.
func TestSplitKeeps(t *testing.T) {
	src, err := os.ReadFile("../../examples/llama_layer.hkt")
	if err != nil {
		t.Fatal(err)
	}
	f64 := strings.ReplaceAll(string(src), "f32", "f64")
	count := func(text, op string) int { return strings.Count(text, "= "+op+" ") }
	all := halves(t, f64, grad.Options{}, 1)
	if n := count(all.Backward, "linear") + count(all.Backward, "attention"); n != 0 {
		t.Errorf("%d products again\n%s", n, all.Backward)
	}
	loop := halves(t, strings.ReplaceAll(programCases[0].src, "[N]", "[2]"), grad.Options{}, 1)
	if n := count(loop.Backward, "linear") + count(loop.Backward, "gelu"); n != 0 || !strings.Contains(loop.Forward, ".k\n}") {
		t.Errorf("%d operations of the loop again\n%s%s", n, loop.Forward, loop.Backward)
	}
	inputs := halves(t, f64, grad.Options{Keep: grad.KeepInputs}, 1)
	if !strings.Contains(inputs.Forward, "return %y\n") || count(inputs.Backward, "linear") == 0 {
		t.Errorf("more than the result is kept:\n%s", inputs.Forward)
	}
	shared := halves(t, "func f(%x: f64[4]) -> (f64[4], f64[4], f64[]) {\n  %y = exp %x\n"+
		"  %s = sum (mul %y, %y), axis=0\n  return %y, %y, %s\n}",
		grad.Options{}, 1)
	if !strings.Contains(shared.Forward, "return %y, %y, %s, %y.k") {
		t.Error(fmt.Sprint(shared.Forward, shared.Takes))
	}
}

// TestLSEFollowsAttention checks that each attention_lse directly follows the attention of the same queries and keys, so
// that GPUs compute both in one kernel, that there is one for each gradient of attention, and that its result is used.
func TestLSEFollowsAttention(t *testing.T) {
	src, err := os.ReadFile("../../examples/llama_layer.hkt")
	if err != nil {
		t.Fatal(err)
	}
	sources := []string{string(src)}
	for _, c := range programCases {
		if strings.Contains(c.src, "attention") {
			sources = append(sources, strings.ReplaceAll(c.src, "[N]", "[2]"))
		}
	}
	if len(sources) < 2 {
		t.Fatal("no program of programCases has attention")
	}
	pair := regexp.MustCompile(`= attention (%\S+), (%\S+), [^\n]*\n *` +
		`%(\S+?)(: [^=\n]*)? = attention_lse (%\S+), (%[^\s,]+)`)
	for _, src := range sources {
		info, ds := checker.Read("test.hkt", src)
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		for _, opts := range []grad.Options{{}, {Keep: grad.KeepInputs}, {Keep: grad.KeepAuto},
			{Keep: grad.KeepAuto, Budget: 1500}} {
			text, err := grad.Of(info, opts)
			if e, ok := errors.AsType[*grad.BudgetError](err); ok {
				opts.Budget = e.Least
				text, err = grad.Of(info, opts)
			}
			if err != nil {
				t.Fatal(err)
			}
			all := pair.FindAllStringSubmatch(text, -1)
			n := strings.Count(text, "= attention_dq ")
			if len(all) != n || strings.Count(text, "= attention_lse ") != n || n == 0 {
				t.Errorf("%v: %d attentions followed by attention_lse, for %d gradients\n%s", opts, len(all), n, text)
			}
			for _, m := range all {
				if m[1] != m[5] || m[2] != m[6] || strings.Count(text, "%"+m[3]) < 2 {
					t.Errorf("%v: %s\n%s", opts, m[0], text)
				}
			}
		}
	}
}
