package bench

import (
	"slices"
	"strings"
	"testing"
)

// TestScaledLayers: layers of 8-bit operands give the products of their operands, with scales of every form, and other
// numbers do not pass for these.
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
					o.SetFloat64(i, o.Float64(i)*1.5) // as where a scale is another's
				}
			}
			if err := compare(want, out); err == nil {
				t.Errorf("%s with scales of each %s: half as much again passes", k.name, scales)
			}
		}
	}
	if bf16, one := agGEMM.wire(Shape{8192, 1, 8192}, 2, 100), agGEMM.in("block").wire(Shape{8192, 1, 8192}, 2, 100); one != bf16/2 {
		t.Errorf("8 bits take %g µs of the wire, 16 take %g", one, bf16)
	}
}

// TestScaledOptions: what has no such products says so.
func TestScaledOptions(t *testing.T) {
	list := benches()
	i := slices.IndexFunc(list, func(b bench) bool { return b.name == "allreduce" })
	if err := (&Options{Scales: "row"}).check(&list[i]); err == nil || !strings.Contains(err.Error(), "8-bit") {
		t.Error(err)
	}
}
