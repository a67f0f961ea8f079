package hocket_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// quantizedLayers computes testdata/layers.pt2, three layers x + down(silu(up(x))), in f64 with operands that are
// quantized to f8e4m3. xRows and wRows say whether each row of the operand has a scale; otherwise the operand has one.
type quantizedLayers struct{ xRows, wRows bool }

// round8 rounds a matrix with the given number of columns to multiples of its scales.
func round8(x []float64, cols int, rows bool) []float64 {
	out := make([]float64, len(x))
	per := len(x)
	if rows {
		per = cols
	}
	for at := 0; at < len(x); at += per {
		most := 0.0
		for _, v := range x[at : at+per] {
			most = max(most, math.Abs(v))
		}
		scale := max(most/448, 1e-12)
		for i, v := range x[at : at+per] {
			v /= scale
			if v != 0 { // 4 significant bits, or multiples of the smallest positive number
				unit := math.Ldexp(1, max(math.Ilogb(v)-3, -9))
				v = math.RoundToEven(v/unit) * unit
			}
			out[at+i] = v * scale
		}
	}
	return out
}

// linear multiplies x, with k columns, by the rows of w.
func (q quantizedLayers) linear(x, w []float64, k int) []float64 {
	x, w = round8(x, k, q.xRows), round8(w, k, q.wRows)
	n := len(w) / k
	out := make([]float64, len(x)/k*n)
	for i := range out {
		for j := range k {
			out[i] += x[i/n*k+j] * w[i%n*k+j]
		}
	}
	return out
}

// weight returns a weight as python/tests/pt2.py defines it.
func weight(layer, nameLen int) []float64 {
	w := make([]float64, 32)
	for i := range w {
		w[i] = float64((7*i+3*layer+nameLen)%11-5) / 8
	}
	return w
}

func (q quantizedLayers) forward(x []float64) []float64 {
	for layer := range 3 {
		h := q.linear(x, weight(layer, len("layers.0.up.weight")), 4)
		for i, v := range h {
			h[i] = v / (1 + math.Exp(-v))
		}
		next := make([]float64, len(x))
		for i, v := range q.linear(h, weight(layer, len("layers.0.down.weight")), 8) {
			next[i] = x[i] + v
		}
		x = next
	}
	return x
}

// TestQuantizedExport checks that an imported model whose weights are quantized computes products of the quantized
// operands, on one rank and on two.
func TestQuantizedExport(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		form  string
		ranks int
	}{{"fp8-row", 1}, {"fp8-row", 2}, {"fp8-tensor", 1}, {"fp8-tensor", 2}, {"fp8-block", 1}} {
		var plan map[string]string
		if c.ranks > 1 {
			plan = map[string]string{"up": "colwise", "down": "rowwise"}
		}
		e, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Ranks: c.ranks, Quantize: c.form, Plan: plan})
		if err != nil {
			t.Fatal(err)
		}
		model, err := m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Bind(t.Context(), model); err != nil {
			t.Fatal(err)
		}
		x, err := hocket.NewTensor(ir.F32, 2, 4)
		if err != nil {
			t.Fatal(err)
		}
		vals := []float64{0.5, -1.25, 0.75, 2, -0.375, 1.5, -3, 0.625}
		for i, v := range vals {
			(*tensor.Tensor)(x).SetFloat64(int64(i), v)
		}
		rep, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		if err != nil {
			t.Fatal(err)
		}
		// The model returns its result times a state: the sum of all results so far, which starts as ones. A square of
		// 128 by 128 elements contains a whole weight, and 128 elements contain a whole row.
		hidden := quantizedLayers{c.form != "fp8-tensor", c.form == "fp8-row"}.forward(vals)
		for i, h := range hidden {
			if got := (*tensor.Tensor)(rep.Out["out0"]).Float64(int64(i)); math.Abs(got-h*(1+h)) > 1e-5*(1+h*h) {
				t.Errorf("%s on %d ranks: element %d is %g, want %g", c.form, c.ranks, i, got, h*(1+h))
			}
		}
		if err := errors.Join(model.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestQuantizeRefuse checks the errors for unknown values of Quantize, and for models without a weight that can be
// quantized.
func TestQuantizeRefuse(t *testing.T) {
	_, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Quantize: "fp4"})
	if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), `quantize is "fp4"; it can be fp8-tensor, fp8-row, fp8-block`) {
		t.Error(err)
	}
	// If it is split over two ranks, no weight has whole blocks of 128 on each rank.
	_, err = hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Quantize: "fp8-block", Ranks: 2,
		Plan: map[string]string{"up": "colwise", "down": "rowwise"}})
	if !errors.Is(err, hocket.ErrUnsupported) || !strings.Contains(err.Error(), "layers.0.up.weight") ||
		!strings.Contains(err.Error(), "fp8-row") {
		t.Error(err)
	}
}
