package tensor

import (
	"bytes"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

func fill(t *testing.T, dt ir.DType, name string, spec string, shape ...int64) *Tensor {
	t.Helper()
	x, err := New(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := Fill(x, name, s); err != nil {
		t.Fatal(err)
	}
	return x
}

func floats(x *Tensor) []float64 {
	v := make([]float64, x.Len())
	ToFloat64(v, x.Data, x.DType)
	return v
}

// TestFillGolden compares the generator with values that another program computed from its description. If the test
// fails, correct the generator, never the values.
func TestFillGolden(t *testing.T) {
	for _, c := range []struct {
		dt         ir.DType
		name, spec string
		want       []float64
	}{
		{ir.F32, "x", "ints:0", []float64{-1, 0, 0, -1, 0, 0, 1, -1}},
		{ir.BF16, "w1", "ints:7", []float64{-1, 0, 0, 0, 1, 1, 0, 0}},
		{ir.I64, "größe", "ints:18446744073709551615", []float64{-1, -1, 0, 1, 1, 1, 0, 0}},
		{ir.F32, "x", "rand:0", []float64{-0.4280322790145874, 0.29660606384277344, -0.15506106615066528,
			-0.7053378820419312}},
		{ir.F16, "x", "rand:0", []float64{-0.42822265625, 0.29638671875, -0.1552734375, -0.70556640625}},
		{ir.BF16, "x", "rand:0", []float64{-0.4296875, 0.29296875, -0.15625, -0.70703125}},
		{ir.F64, "w1", "rand:7", []float64{-0.716567474289605, -0.12872314134425333, 0.18388722366094967,
			0.16411703769595887}},
		{ir.I32, "x", "rand:0", []float64{-4, 2, -2, -6, 0, -1, 4, -4}},
		{ir.I64, "größe", "rand:18446744073709551615", []float64{-5, -6, -2, 4, 6, 4, 1, -1}},
		{ir.F32, "x", "arange", []float64{0, 1, 2}},
		{ir.F16, "x", "zeros", []float64{0, 0}},
	} {
		if got := floats(fill(t, c.dt, c.name, c.spec, int64(len(c.want)))); !slices.Equal(got, c.want) {
			t.Errorf("%s %s %s = %v, want %v", c.dt, c.name, c.spec, got, c.want)
		}
	}
}

// TestFillShapes checks that values depend on the index and not on the shape, and that empty
// tensors are accepted.
func TestFillShapes(t *testing.T) {
	a, b := fill(t, ir.F32, "x", "rand:3", 3, 5, 7), fill(t, ir.F32, "x", "rand:3", 105)
	if !slices.Equal(a.Data, b.Data) {
		t.Error("the shape changes the values")
	}
	if fill(t, ir.F32, "x", "rand:3", 3, 0, 7).Len() != 0 {
		t.Error("an empty tensor has elements")
	}
	for _, other := range []*Tensor{fill(t, ir.F32, "y", "rand:3", 105), fill(t, ir.F32, "x", "rand:4", 105)} {
		if slices.Equal(a.Data, other.Data) {
			t.Error("the name or the seed does not change the values")
		}
	}
}

// TestFillAscending checks that the first element of each row is random, that each further element is larger by one,
// and that elements beyond the bound are -1.
func TestFillAscending(t *testing.T) {
	draw := func(below int64, shape ...int64) []float64 {
		t.Helper()
		x, err := New(ir.I32, shape)
		if err == nil {
			err = Fill(x, "at", Spec{Kind: SpecInts, Seed: 5, Below: below, Ascending: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		return floats(x)
	}
	firsts := map[float64]int{}
	got := draw(8, 300, 3)
	for i := 0; i < len(got); i += 3 {
		firsts[got[i]]++
		if got[i] < 0 || got[i] > 5 || got[i+1] != got[i]+1 || got[i+2] != got[i]+2 {
			t.Fatalf("row %d is %v", i/3, got[i:i+3])
		}
	}
	for first := range 6 {
		// 50 such elements are expected; the limits are more than 3.8 standard deviations away
		if n := firsts[float64(first)]; n < 25 || n > 75 {
			t.Errorf("%d of 300 rows begin with %d, want 25 to 75", n, first)
		}
	}
	for _, c := range []struct {
		below int64
		shape []int64
		want  []float64
	}{
		{3, []int64{2, 5}, []float64{0, 1, 2, -1, -1, 0, 1, 2, -1, -1}},
		{4, []int64{4}, []float64{0, 1, 2, 3}},
		{1, nil, []float64{0}},
	} {
		if got := draw(c.below, c.shape...); !slices.Equal(got, c.want) {
			t.Errorf("below %d, shape %v: %v, want %v", c.below, c.shape, got, c.want)
		}
	}
}

// TestFillDistribution checks the range, mean and variance of random values in every type.
func TestFillDistribution(t *testing.T) {
	const n = 1 << 14
	for _, dt := range ir.DTypes() {
		half := math.Nextafter(0, 1) // the mean is half a step below 0, because the largest value is one step below 1
		if dt.IsFloat8() {
			half = map[ir.DType]float64{ir.F8E4M3: 0x1p-5, ir.F8E5M2: 0x1p-4}[dt]
		}
		for _, c := range []struct {
			spec               string
			lo, hi, mean, vari float64
		}{
			{"ints:1", -1, 1, 0, 2. / 3},
			{"rand:1", -1, math.Nextafter(1, 0), -half, 1. / 3},
		} {
			if dt.IsInt() && c.spec == "rand:1" {
				c.lo, c.hi, c.mean, c.vari = -8, 7, -0.5, 255./12
			}
			var sum, sq float64
			for _, v := range floats(fill(t, dt, "x", c.spec, n)) {
				if v < c.lo || v > c.hi {
					t.Fatalf("%s %s: %g is out of range", dt, c.spec, v)
				}
				sum += v
				sq += (v - c.mean) * (v - c.mean)
			}
			// Allow five standard errors. The variance of the squares is below E[v⁴] ≤ 8²·var.
			if d := math.Abs(sum/n - c.mean); d > 5*math.Sqrt(c.vari/n) {
				t.Errorf("%s %s: the mean is off by %g", dt, c.spec, d)
			}
			if d := math.Abs(sq/n-c.vari) / c.vari; d > 0.05 {
				t.Errorf("%s %s: the relative error of the variance is %g", dt, c.spec, d)
			}
		}
	}
}

func TestFillFromFiles(t *testing.T) {
	dir := t.TempDir()
	st, npy := filepath.Join(dir, "in.safetensors"), filepath.Join(dir, "in.npy")
	x := fill(t, ir.F32, "x", "rand:1", 3, 5)
	if err := WriteSafetensorsFile(st, []Named{{"x", x}, {"other", fill(t, ir.BF16, "x", "ints:1", 3, 5)}},
		nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteNpyFile(npy, x); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, spec string }{{"x", st}, {"y", st + "#x"}, {"z", npy}} {
		if got := fill(t, ir.F32, c.name, c.spec, 3, 5); !slices.Equal(got.Data, x.Data) {
			t.Errorf("%s: the elements differ from those written", c.spec)
		}
	}
	for _, c := range []struct {
		dt    ir.DType
		shape []int64
		spec  string
		want  []string
	}{
		{ir.BF16, []int64{3, 5}, st, []string{"in.safetensors", `"x"`, "f32[3, 5]", "want bf16[3, 5]"}},
		{ir.F32, []int64{5, 3}, npy, []string{"in.npy", "f32[3, 5]", "want f32[5, 3]"}},
		{ir.F32, []int64{3, 5}, st + "#nope", []string{"in.safetensors", `no tensor "nope"`, `"x", "other"`}},
		{ir.F32, []int64{3, 5}, filepath.Join(dir, "no.npy"), []string{"no.npy"}},
		{ir.F32, []int64{3, 5}, filepath.Join(dir, "no.safetensors"), []string{"no.safetensors"}},
	} {
		y, _ := New(c.dt, c.shape)
		s, _ := ParseSpec(c.spec)
		mentions(t, c.spec, Fill(y, "x", s), c.want...)
	}
	y, _ := New(ir.F32, nil)
	mentions(t, "kind", Fill(y, "x", Spec{Kind: 99}), "invalid")
	mentions(t, "no data", Fill(&Tensor{DType: ir.F32}, "x", Spec{}), "want 4")
}

// mentions fails the test unless err mentions each string in want.
func mentions(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %q does not mention %q", what, err, w)
		}
	}
}

func TestParseSpec(t *testing.T) {
	for s, want := range map[string]Spec{
		"ints:0": {}, "rand:18446744073709551615": {Kind: SpecRand, Seed: math.MaxUint64}, "zeros": {Kind: SpecZeros},
		"arange": {Kind: SpecArange},
		"a.npy":  {Kind: SpecNpy, File: "a.npy"}, "./rand:1.npy": {Kind: SpecNpy, File: "./rand:1.npy"},
		"d/a.safetensors":     {Kind: SpecSafetensors, File: "d/a.safetensors"},
		"a.safetensors#b#c":   {Kind: SpecSafetensors, File: "a.safetensors", Name: "b#c"},
		"a#b.safetensors#c":   {Kind: SpecSafetensors, File: "a#b.safetensors", Name: "c"},
		"a.safetensors#../..": {Kind: SpecSafetensors, File: "a.safetensors", Name: "../.."},
		"a.safetensors#b.npy": {Kind: SpecSafetensors, File: "a.safetensors", Name: "b.npy"},
		"a.safetensors.npy":   {Kind: SpecNpy, File: "a.safetensors.npy"},
	} {
		got, err := ParseSpec(s)
		if err != nil || got != want {
			t.Errorf("ParseSpec(%q) = %+v, %v; want %+v", s, got, err, want)
		}
		if got.String() != s {
			t.Errorf("%+v prints as %q, want %q", got, got, s)
		}
	}
	for _, s := range []string{"", "rand", "rand:", "rand:-1", "rand:1.5", "rand:0x10", "ints:18446744073709551616",
		"ints: 1", "Zeros", "ones", "a.safetensors#", "a.npz", "a\x00.npy", "rand:1.npy"} {
		_, err := ParseSpec(s)
		mentions(t, s, err, "input spec")
	}
}

func FuzzSpec(f *testing.F) {
	for _, s := range []string{"rand:1", "ints:0", "zeros", "arange", "a.safetensors#w", "a.npy", "a.safetensors"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := ParseSpec(s)
		if err != nil {
			return
		}
		again, err := ParseSpec(spec.String())
		if err != nil || again != spec {
			t.Fatalf("%q is parsed as %+v, which is printed as %q and parsed as %+v, %v", s, spec, spec, again, err)
		}
	})
}

// TestFillLarge checks that several goroutines produce the same elements as one goroutine.
func TestFillLarge(t *testing.T) {
	for _, dt := range []ir.DType{ir.BF16, ir.F32, ir.I64} {
		for _, kind := range []SpecKind{SpecInts, SpecRand, SpecArange} {
			var filled [2]*Tensor
			for i, procs := range []int{1, 5} {
				was := runtime.GOMAXPROCS(procs)
				x, err := New(dt, []int64{3, 700_001})
				if err == nil {
					err = Fill(x, "x", Spec{Kind: kind, Seed: 7})
				}
				runtime.GOMAXPROCS(was)
				if err != nil {
					t.Fatal(err)
				}
				filled[i] = x
			}
			if !bytes.Equal(filled[0].Data, filled[1].Data) {
				t.Errorf("%s, kind %v: parallel and sequential elements differ", dt, kind)
			}
		}
	}
}
