package checker

import (
	"hocket.example/hocket/ir"
	"strings"
	"testing"
)

// TestLocalShapesAreNamed checks that, if one shape is that of a rank's part and the other that of the whole tensor,
// the error states this.
func TestLocalShapesAreNamed(t *testing.T) {
	const head = "dim HKV = 4\ndim D = 16\nmesh tp[2]\n\n"
	for _, test := range []struct{ name, text, want string }{
		{"the part where the whole is wanted", "func f(%x: f32[D, HKV/tp], %w: f32[D, HKV]) -> f32[D, D] {\n" +
			"  %y = alloc f32[D, D]\n  linear %x, %w into %y\n  %z: f32[D, D] = claim %y\n  return %z\n}\n",
			"floordiv(HKV, size(tp))=2 (each rank's part) is not HKV=4 (the whole)"},
		{"the whole where the part is wanted", "func f(%x: f32[HKV, D]) -> f32[HKV, D/tp] {\n" +
			"  %b = alloc f32[HKV, D]\n  copy %x into %b\n  %y: f32[HKV, D/tp] = claim %b\n  return %y\n}\n",
			"D=16 (the whole) is not floordiv(D, size(tp))=8 (each rank's part)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, ds := ir.Parse("local.hkt", head+test.text)
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			info, ds := Check(p)
			if !ds.HasErrors() {
				_, ds = ir.Bind(info, ir.Binding{})
			}
			if !strings.Contains(ds.Error(), test.want) {
				t.Errorf("%v\nwant %q in it", ds, test.want)
			}
		})
	}
}

// TestNumbersStayAsWritten checks that fmt prints exponents in the usual form, and prints numbers without a change of
// value.
func TestNumbersStayAsWritten(t *testing.T) {
	for in, want := range map[string]string{"1e-5": "1e-5", "1e-05": "1e-5", "2.5e-10": "2.5e-10", "1e+06": "1e6",
		"1e30": "1e30", "0.1": "0.1", "-1e-7": "-1e-7"} {
		text := "func f(%x: f32[4]) -> f32[4] {\n  %y = scale %x, by=" + in + "\n  return %y\n}\n"
		got, ds := ir.Format("n.hkt", text)
		if ds.HasErrors() || !strings.Contains(got, "by="+want+"\n") {
			t.Errorf("by=%s: %v\n%s\nwant by=%s", in, ds, got, want)
		}
	}
}

// TestReshapeAroundOnes checks that dimensions of extent 1 do not prevent a split dimension from remaining split.
func TestReshapeAroundOnes(t *testing.T) {
	for _, test := range []struct{ from, shape, to string }{
		{"T/tp, D", "1, T, D", "1, T/tp, D"},
		{"1, T/tp, D", "T, D", "T/tp, D"},
		{"1, T/tp, D", "1, 1, T * D", "1, 1, T * D/tp"},
		{"T/tp, D", "T, 1, D", "T/tp, 1, D"},
	} {
		text := "dim T = 8\ndim D = 4\nmesh tp[4]\nfunc f(%x: f32[" + test.from + "]) -> f32[" + test.to + "] {\n" +
			"  %y = reshape %x, shape=(" + test.shape + ")\n  return %y\n}\n"
		p, ds := ir.Parse("ones.hkt", text)
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		info, ds := Check(p)
		if ds.HasErrors() || !info.Explicit() {
			t.Errorf("[%s] as (%s): needs a reshard, or is refused: %v", test.from, test.shape, ds)
		}
	}
}
