package bench

import (
	"slices"
	"strings"
	"testing"
)

// TestScaledLayers checks that layers of 8-bit operands compute the product of their operands with every kind of
// scales, and that wrong elements are detected.
func TestScaledLayers(t *testing.T) {
	for _, scales := range FP8 {
		for _, k := range []*layerKind{agGEMM, gemmRS, gemmAG} {
			k = k.in(scales)
			want, out := run(t, k, Shape{24, 256, 256}, 2, "exchange")
			if err := compare(want, out); err != nil {
				t.Errorf("%s with scales of each %s: %v", k.name, scales, err)
			}
			for _, o := range out {
				for i := range o.Len() {
					o.SetFloat64(i, o.Float64(i)*1.5) // as if an element had the wrong scale
				}
			}
			if err := compare(want, out); err == nil {
				t.Errorf("%s with scales of each %s: results that are 1.5 times too large are accepted", k.name, scales)
			}
		}
	}
	if bf16, one := agGEMM.wire(Shape{8192, 1, 8192}, 2, 100), agGEMM.in("block").wire(Shape{8192, 1, 8192}, 2, 100); one != bf16/2 {
		t.Errorf("8-bit operands need %g µs on the wire, bf16 operands %g", one, bf16)
	}
}

// TestScaledOptions checks that benchmarks without 8-bit GEMMs refuse the option.
func TestScaledOptions(t *testing.T) {
	list := benches()
	i := slices.IndexFunc(list, func(b bench) bool { return b.name == "allreduce" })
	if err := (&Options{Scales: "row"}).check(&list[i]); err == nil || !strings.Contains(err.Error(), "8-bit") {
		t.Error(err)
	}
}
