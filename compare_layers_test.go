package hocket_test

import (
	"context"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestCompareLayers checks that layers can be compared one by one where the error bounds of bf16 leave the whole model,
// 32 layers of unscaled weights, undecided.
func TestCompareLayers(t *testing.T) {
	model, args, whole := ran32(t, "rand:1", hocket.LoadOptions{Strategy: "exchange"})
	list, err := model.CompareLayers(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	if whole.Verdict != hocket.Undecided || len(list) < 32 {
		t.Fatalf("%s; %d layers", whole, len(list))
	}
	c := whole.ByLayers(list)
	worst, ok := c.WorstLayer()
	if c.Verdict != hocket.Within || !ok || worst.Line == 0 || worst.Measured[0].Quotient() > 0x1p-6 {
		t.Errorf("%s: %s, of layers %v", c.Verdict, c, list)
	}
	if c.Measured[0] != whole.Measured[0] || c.Measured[0].Largest == 0 {
		t.Errorf("the errors are %v, and without layers %v", c.Measured, whole.Measured)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := model.CompareLayers(ctx, args); err == nil {
		t.Error("layers are compared though the context has ended")
	}
	if _, err := model.CompareLayers(t.Context(), hocket.Args{}); err == nil {
		t.Error("layers are compared without arguments")
	}
}

// TestByLayers checks that the verdict on a model becomes Differs if a layer differs, and stays Undecided if a layer is
// undecided.
func TestByLayers(t *testing.T) {
	all := []hocket.Agreement{hocket.Exact, hocket.Within, hocket.Undecided, hocket.Differs}
	layer := func(a hocket.Agreement) hocket.LayerComparison {
		return hocket.LayerComparison{Name: "%h, %l=1", Line: 7,
			Comparison: hocket.Comparison{Verdict: a, Detail: "why"}}
	}
	want := map[hocket.Agreement][4]hocket.Agreement{ // by the weakest layer
		hocket.Exact:     {hocket.Exact, hocket.Exact, hocket.Exact, hocket.Differs},
		hocket.Within:    {hocket.Within, hocket.Within, hocket.Within, hocket.Differs},
		hocket.Undecided: {hocket.Within, hocket.Within, hocket.Undecided, hocket.Differs},
		hocket.Differs:   {hocket.Differs, hocket.Differs, hocket.Differs, hocket.Differs},
	}
	for _, whole := range all {
		for i, weakest := range all {
			c := hocket.Comparison{Verdict: whole, Against: "f"}.ByLayers(
				[]hocket.LayerComparison{layer(hocket.Exact), layer(weakest)})
			if c.Verdict != want[whole][i] {
				t.Errorf("%v, with a layer that is %v: %v", whole, weakest, c.Verdict)
			}
			if weakest == hocket.Differs && whole != hocket.Differs &&
				!strings.Contains(c.Err().Error(), "layer %h, %l=1 (line 7): why") {
				t.Error(c.Err())
			}
		}
		if c := (hocket.Comparison{Verdict: whole}).ByLayers(nil); c.Verdict != whole {
			t.Errorf("%v, without layers: %v", whole, c.Verdict)
		}
	}
}
