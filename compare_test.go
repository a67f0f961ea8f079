package hocket_test

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestUnbounded checks that the message of an undecided comparison does not read like agreement. The values of 32
// layers of unscaled weights grow until no error bound in bf16 is left.
func TestUnbounded(t *testing.T) {
	_, _, c := ran32(t, "ints:0", hocket.LoadOptions{})
	if c.Verdict != hocket.Undecided || !strings.HasPrefix(c.String(), "undecided against model") {
		t.Errorf("got %+v: %s", c, c)
	}
}

// ran32 runs 32 layers of unscaled weights once, and compares the run with its reference.
func ran32(t *testing.T, inputs string, o hocket.LoadOptions) (*hocket.Model, hocket.Args, hocket.Comparison) {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	model, err := m.Load(parseFile(t, "examples/model_32.hkt"), hocket.Binding{}, o)
	if err != nil {
		t.Fatal(err)
	}
	in, err := model.RandomInputs(inputs)
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
	return model, args, ref.Compare(rep)
}

// TestConfirmed checks that the second comparison can refute the first or make it undecided, but cannot strengthen it.
func TestConfirmed(t *testing.T) {
	all := []hocket.Agreement{hocket.Exact, hocket.Within, hocket.Undecided, hocket.Differs}
	for i, first := range all {
		for k, second := range all {
			want := first
			if k >= 2 && k > i {
				want = second
			}
			got := hocket.Comparison{Verdict: first,
				Against: "f"}.Confirmed(hocket.Comparison{Verdict: second, Against: "f"})
			if got.Verdict != want || (got.Err() != nil) != (want == hocket.Differs) {
				t.Errorf("%v, then %v: %v", first, second, got.Verdict)
			}
			weaker := hocket.Comparison{Verdict: first}.Weakest(hocket.Comparison{Verdict: second})
			if weaker.Verdict != all[max(i, k)] {
				t.Errorf("the weakest of %v and %v is %v", first, second, weaker.Verdict)
			}
		}
	}
	var none hocket.Comparison
	if none.Verdict != hocket.Undecided {
		t.Errorf("a comparison that was not made is %v", none.Verdict)
	}
}

// TestSeveralResults checks that the weakest verdict of all results counts, and that, if the results are Within, the
// one closest to its error bound is shown.
func TestSeveralResults(t *testing.T) {
	ref, rep := referenceOf(t, `func f(%x: f32[8]) -> (f32[8], f32[8], f32[8]) {
  %c = copy %x
  %g = gelu %x
  %s = silu %x
  return %c, %g, %s
}`, "rand:1")
	g := rep.Out["g"]
	near := g.Floats()
	near[3] += near[3] * 0x1p-22
	var err error
	if rep.Out["g"], err = hocket.FromFloats(g.DType, near, g.Shape...); err != nil {
		t.Fatal(err)
	}
	c := ref.Compare(rep)
	if c.Verdict != hocket.Within || !strings.HasPrefix(c.String(), "%g matches f within rounding (largest error ") {
		t.Errorf("%v: %s", c.Verdict, c)
	}
	near[3] *= 2
	if rep.Out["s"], err = hocket.FromFloats(g.DType, near, g.Shape...); err != nil {
		t.Fatal(err)
	}
	if c := ref.Compare(rep); c.Verdict != hocket.Differs || !errors.Is(c.Err(), hocket.ErrDiffers) ||
		!strings.Contains(c.String(), "%s: differs") {
		t.Errorf("%v: %s", c.Verdict, c)
	}
}

// referenceOf runs a program once on the CPU without a proof, and evaluates its reference.
func referenceOf(t *testing.T, src, inputs string) (*hocket.Reference, *hocket.Report) {
	t.Helper()
	model, args := modelOf(t, src, inputs)
	rep, err := model.Run(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := model.Reference(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	return ref, rep
}

func modelOf(t *testing.T, src, inputs string) (*hocket.Model, hocket.Args) {
	t.Helper()
	p, err := hocket.Parse("p.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{NoProve: true})
	if err != nil {
		t.Fatal(err)
	}
	in, err := model.RandomInputs(inputs)
	if err != nil {
		t.Fatal(err)
	}
	return model, hocket.Args{In: in}
}

// TestTextOrder checks that the reference of a program that is not proved is computed in text order, one statement
// after another on each rank. A proved program may need streams that run concurrently.
func TestTextOrder(t *testing.T) {
	const head = "mesh tp[2]\n\nfunc f(%x: f32[4/tp]) -> f32[4/tp] {\n"
	for name, c := range map[string]struct {
		body    string
		factor  float64 // each result is the input times this factor; 0 if there is no reference
		missing string  // why
	}{
		"the last write counts": {`  %s = stream
  %y = alloc f32[2]
  on %s { scale %x, by=2 into %y }
  scale %x, by=3 into %y
  return %y`, 3, ""},
		"on another stream": {`  %s = stream
  %y = alloc f32[2]
  scale %x, by=3 into %y
  on %s { scale %x, by=2 into %y }
  return %y`, 2, ""},
		"workers": {`  %y = alloc f32[2]
  for %i in 0..4 stream(2) { scale %x, by=5 into %y }
  return %y`, 5, ""},
		"an event recorded too early": {`  %s = stream
  %e = event
  %y = alloc f32[2]
  on %s { record %e }
  on %s { scale %x, by=2 into %y }
  wait %e
  %z = add %y, %y
  %b = alloc f32[2]
  copy %z into %b
  return %b`, 4, ""},
		"proved, side by side": {`  %s = stream
  %c = counter
  wait %c >= 1
  on %s { signal %c at tp[1 - rank(tp)] }
  wait %s
  return %x`, 1, ""},
		"not proved, and side by side": {`  %s = stream
  %c = counter
  %y = alloc f32[2]
  wait %c >= 1
  on %s {
    signal %c at tp[1 - rank(tp)]
    copy %x into %y
  }
  return %y`, 0, "deadlock"},
		"a put that nothing orders": {`  %a = alloc f32[2] symmetric
  %y = alloc f32[2]
  put %x into %a at tp[1 - rank(tp)]
  copy %a into %y
  return %y`, 0, "may run at the same time"},
		"a refined function": {`  %s = stream
  %y = alloc f32[2]
  on %s { scale %x, by=2 into %y }
  scale %x, by=3 into %y
  return %y
}

func g(%x: f32[4/tp]) -> f32[4/tp] refines f {
  %y = scale %x, by=3
  return %y`, 3, ""},
	} {
		model, args := modelOf(t, head+c.body+"\n}\n", "ints:1")
		ref, err := model.Reference(t.Context(), args)
		if c.factor == 0 {
			if !errors.Is(err, hocket.ErrNoReference) || !strings.Contains(err.Error(), c.missing) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := args.In["x"].Floats()
		for i := range want {
			want[i] *= c.factor
		}
		result, err := hocket.FromFloats(args.In["x"].DType, want, 4)
		if err != nil {
			t.Fatal(err)
		}
		rep := &hocket.Report{OutNames: []string{"y"}, Out: map[string]*hocket.Tensor{"y": result}}
		if cmp := ref.Compare(rep); cmp.Verdict != hocket.Exact {
			t.Errorf("%s: %s", name, cmp)
		}
	}
}
