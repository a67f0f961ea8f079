package hocket_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestScaledProducts checks random linears with scales against arithmetic in f64. The scales have all forms, inputs
// have 8 or 16 bits, extents need not be multiples of a block, and operands may be split over ranks.
func TestScaledProducts(t *testing.T) {
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 55))
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i := range longtest.Of(40, 5000) {
		if !oneScaledProduct(t, m, rng) {
			t.Fatalf("case %d", i)
		}
	}
}

// scaledCase describes one linear: its extents, how it is split over ranks, and the number of dimensions of its scales.
type scaledCase struct {
	m, n, k, ranks int64
	split          string // "rows", "columns" or "sums"
	sx, sw         int
	x, out         ir.DType
}

func (c scaledCase) text() string {
	over := map[string]string{c.split: "/tp"}
	sums := over["sums"] // scales of blocks are split like their tensors
	sx := []string{"", "M" + over["rows"], "M" + over["rows"] + ", ceildiv(K, 128)" + sums}[c.sx]
	sw := []string{"", "N" + over["columns"], "ceildiv(N, 128)" + over["columns"] + ", ceildiv(K, 128)" + sums}[c.sw]
	fast := ""
	if c.sx < 2 && c.sw < 2 && c.m%2 == 0 && c.x.IsFloat8() {
		fast = ", fast_accum=true"
	}
	return fmt.Sprintf("dim M = %d\ndim N = %d\ndim K = %d\nmesh tp[%d]\nfunc f(%%x: %s[M%s, K%s], %%w: f8e4m3[N%s, K%s], %%sx: f32[%s], %%sw: f32[%s]) -> %s[M, N] {\n"+
		"  %%y: %s[M, N] = linear %%x, %%w, %%sx, %%sw%s\n  return %%y\n}\n", c.m, c.n, c.k, c.ranks, c.x, over["rows"], sums, over["columns"], sums,
		sx, sw, c.out, c.out, fast)
}

// at returns the index of the scale of element (i, j) of a matrix with k columns, for scales with the given number of
// dimensions.
func (c scaledCase) at(dims int, rows, i, j int64) int64 {
	return [3]int64{0, i, i/rows*((c.k+127)/128) + j/128}[dims]
}

func oneScaledProduct(t *testing.T, m *hocket.Machine, rng *rand.Rand) bool {
	c := scaledCase{m: 1 + rng.Int64N(40), n: 1 + rng.Int64N(160), k: rng.Int64N(400), ranks: 1 + rng.Int64N(2), sx: rng.IntN(3), sw: rng.IntN(3),
		split: []string{"rows", "columns", "sums"}[rng.IntN(3)], out: []ir.DType{ir.BF16, ir.F16, ir.F32}[rng.IntN(3)],
		x: []ir.DType{ir.F8E4M3, ir.F8E4M3, ir.BF16, ir.F16}[rng.IntN(4)]}
	switch c.split { // split dimensions are divisible by the ranks, and each block is on one rank
	case "rows":
		c.m *= c.ranks
	case "columns":
		if c.n *= c.ranks; c.sw == 2 {
			c.n = 128 * c.ranks
		}
	case "sums":
		if c.k *= c.ranks; c.sx == 2 || c.sw == 2 {
			c.k = 128 * c.ranks * rng.Int64N(3)
		}
	}
	p, err := hocket.Parse("case.hkt", c.text())
	if err != nil {
		t.Error(err)
		return false
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Errorf("%v\n%s", err, c.text())
		return false
	}
	defer model.Close()
	blocks := func(n int64) int64 { return (n + 127) / 128 }
	in := map[string]*hocket.Tensor{}
	draw := func(name string, dt ir.DType, next func() float64, shape ...int64) []float64 {
		x, err := hocket.NewTensor(dt, shape...)
		if err != nil {
			t.Fatal(err)
		}
		in[name] = x
		vals := make([]float64, (*tensor.Tensor)(x).Len())
		for i := range vals {
			(*tensor.Tensor)(x).SetFloat64(int64(i), next())
			vals[i] = (*tensor.Tensor)(x).Float64(int64(i))
		}
		return vals
	}
	positive := func() float64 { return math.Exp(rng.NormFloat64()) / 16 }
	x := draw("x", c.x, rng.NormFloat64, c.m, c.k)
	w := draw("w", ir.F8E4M3, rng.NormFloat64, c.n, c.k)
	sx := draw("sx", ir.F32, positive, [][]int64{{}, {c.m}, {c.m, blocks(c.k)}}[c.sx]...)
	sw := draw("sw", ir.F32, positive, [][]int64{{}, {c.n}, {blocks(c.n), blocks(c.k)}}[c.sw]...)
	rep, err := model.Run(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Errorf("%v\n%s", err, c.text())
		return false
	}
	y := (*tensor.Tensor)(rep.Out["y"])
	unit := map[ir.DType]float64{ir.BF16: 0x1p-8, ir.F16: 0x1p-11, ir.F32: 0x1p-24}[c.out]
	for i := range c.m {
		for j := range c.n {
			sum, size := 0.0, 0.0
			for k := range c.k {
				term := x[i*c.k+k] * sx[c.at(c.sx, 1, i, k)] * w[j*c.k+k] * sw[c.at(c.sw, 128, j, k)]
				sum, size = sum+term, size+math.Abs(term)
			}
			// Each rank's partial sum is rounded to the type of the result, and so is the sum of the partial sums.
			if got := y.Float64(i*c.n + j); math.Abs(got-sum) > 2*unit*size+float64(c.k+8)*0x1p-23*size+0x1p-24 {
				t.Errorf("y[%d, %d] is %g, not %g, of\n%s", i, j, got, sum, c.text())
				return false
			}
		}
	}
	ref, err := model.Reference(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Errorf("%v\n%s", err, c.text())
		return false
	}
	if got := ref.Compare(rep); got.Verdict != hocket.Exact && got.Verdict != hocket.Within {
		t.Errorf("%v: %s\n%s", got.Verdict, got.Detail, c.text())
		return false
	}
	return true
}

// TestFloat8Refused checks that the errors for arithmetic with 8-bit types name a remedy.
func TestFloat8Refused(t *testing.T) {
	const head = "dim N = 256\nmesh tp[2]\nfunc f(%x: f8e4m3[N, N], %s: f32[N, 2], %b: bf16[N, N], %t: f32[2, 2/tp]) -> f32[] {\n  %y = "
	for text, want := range map[string]string{
		"add %x, %x":                     "add is not defined for the type f8e4m3",
		"linear %x, %x":                  "give linear the scales",
		"linear %x, %x, %s":              "give linear the scales of both",
		"sum %x, axis=0":                 "sum is not defined for the type f8e4m3",
		"linear %b, %b, %s, %t":          "must be f8e4m3 or f8e5m2",
		"linear %x, %x, %b, %t":          "scales must be f32",
		"quantize %x, %s":                "already",
		"scales %b, block=(2, 128)":      "this block= is not possible",
		"linear %x, %x, %s, %t, %t":      "2 to 4 operands",
		"all_reduce %x, over=tp, op=sum": "all_reduce is not defined for the type f8e4m3",
		"scales %x":                      "scales is not defined for the type f8e4m3",
		"cast %x":                        "has no target type",

		"linear %b, %b, fast_accum=true":         "needs 8-bit operands",
		"linear %x, %x, %s, %t, fast_accum=true": "cannot be combined with scales of blocks",
		"embedding %b, %x":                       "embedding is not defined for the type f8e4m3",
		"rms_norm %x, %x":                        "rms_norm is not defined for the type f8e4m3",
		"attention %x, %x, %x":                   "attention is not defined for the type f8e4m3",
	} {
		_, err := hocket.Parse("case.hkt", head+text+"\n  return %y\n}\n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFloat8Strategies checks that every strategy gives the same bits as the sequential program, because error bounds
// of 8-bit values are too wide to find wrong values.
func TestFloat8Strategies(t *testing.T) {
	const source = `dim T = 128
dim H = 256
dim F = 512
mesh tp[RANKS]
func f(
  %x: bf16[T/tp, H],
  %w1: f8e4m3[F/tp, H],
  %s1: f32[ceildiv(F, 128)/tp, ceildiv(H, 128)],
  %w2: f8e4m3[H, F/tp],
  %s2: f32[ceildiv(H, 128), ceildiv(F, 128)/tp],
) -> (OUT[T/tp, H], OUT[T, H]) {
  %sx = scales %x, block=(1, 128)
  %qx: FP8[T/tp, H] = quantize %x, %sx
  %h: OUT[T, F/tp] = linear %qx, %w1, %sx, %s1
  %g = gelu %h
  %sg = scales %g, block=(1, 128)
  %qg: FP8[T, F/tp] = quantize %g, %sg
  %y: OUT[T, H] partial(tp, sum) = linear %qg, %w2, %sg, %s2
  %z: OUT[T, H] = linear %qg, %w2, %sg, %s2
  return %y, %z
}
`
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		ranks    string
		fp8, out ir.DType
	}{{"2", ir.F8E4M3, ir.BF16}, {"4", ir.F8E4M3, ir.BF16}, {"2", ir.F8E5M2, ir.F32}, {"4", ir.F8E5M2, ir.F16}} {
		text := strings.NewReplacer("RANKS", c.ranks, "FP8", c.fp8.String(), "OUT", c.out.String()).Replace(source)
		p, err := hocket.Parse("mlp.hkt", text)
		if err != nil {
			t.Fatal(err)
		}
		var want *hocket.Report
		for _, strategy := range []string{"sequential", "chunked(2)", "chunked(4)", "exchange", "exchange(2)", "ahead"} {
			model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: strategy})
			if err != nil {
				t.Fatal(err)
			}
			in, err := model.RandomInputs("rand:5")
			if err != nil {
				t.Fatal(err)
			}
			rep, err := model.Run(t.Context(), hocket.Args{In: in})
			if err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = rep
			}
			for name, y := range rep.Out {
				if !slices.Equal(y.Data, want.Out[name].Data) {
					t.Errorf("%s ranks, %s, %s, %s: %%%s has other bits than in sequence", c.ranks, c.fp8, c.out, strategy, name)
				}
			}
		}
	}
}

// TestScalesOfAnyMaximum checks that the attribute max of scales must be a positive f32 number, and that machine and
// reference divide by the same number.
func TestScalesOfAnyMaximum(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const text = "func f(%%x: %s[8, 256]) -> f32[8, 2] {\n  %%s = scales %%x, block=(1, 128), max=%s\n  return %%s\n}\n"
	for _, most := range []string{"0", "-1", "inf", "1e-50"} {
		if _, err := hocket.Parse("f.hkt", fmt.Sprintf(text, "f32", most)); err == nil {
			t.Errorf("max=%s is accepted", most)
		}
	}
	for _, most := range []string{"0.1", "448", "0.30000001"} {
		for _, dt := range []string{"f32", "bf16", "f64"} {
			p, err := hocket.Parse("f.hkt", fmt.Sprintf(text, dt, most))
			if err != nil {
				t.Fatal(err)
			}
			model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			in, err := model.RandomInputs("rand:3")
			if err != nil {
				t.Fatal(err)
			}
			c, err := model.Compare(t.Context(), hocket.Args{In: in})
			if err != nil || c.Verdict != hocket.Exact && c.Verdict != hocket.Within {
				t.Errorf("%s, max=%s: %v, %v", dt, most, c, err)
			}
		}
	}
}
