package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestScaled checks that 8-bit tensors with scales become weights of wider types: whole tensors, transposed tensors,
// selected rows and stacked layers. If the weight has 8 bits too, the tensor and its scales are unchanged.
func TestScaled(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	const rows, cols = 130, 300
	random := func(dt ir.DType, shape ...int64) *tensor.Tensor {
		x, err := tensor.New(dt, shape)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.Len() {
			x.SetFloat64(i, rng.Float64()*4+0.25)
		}
		return x
	}
	for _, c := range []struct {
		name, scale string
		shape       []int64
		at          func(i, j int64) int64
	}{
		{"squares", "_scale_inv", []int64{2, 3}, func(i, j int64) int64 { return i/128*3 + j/128 }},
		{"rows", "_scale", []int64{rows, 1}, func(i, _ int64) int64 { return i }},
		{"one", "_scale", []int64{}, func(_, _ int64) int64 { return 0 }},
	} {
		var list []tensor.Named
		w, s := map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{}
		for _, layer := range []string{"l.0.w", "l.1.w"} {
			w[layer], s[layer] = random(ir.F8E4M3, rows, cols), random(ir.F32, c.shape...)
			list = append(list, tensor.Named{Name: layer, Tensor: w[layer]}, tensor.Named{Name: layer + c.scale, Tensor: s[layer]})
		}
		path := filepath.Join(t.TempDir(), "a.safetensors")
		if err := tensor.WriteSafetensorsFile(path, list, nil); err != nil {
			t.Fatal(err)
		}
		from, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		read := func(r Rule, dt ir.DType) *tensor.Tensor {
			t.Helper()
			plan, err := from.Plan(r, dt)
			if err != nil {
				t.Fatal(err)
			}
			got, err := plan.Read(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.DType != dt || got.String() != plan.String() {
				t.Fatalf("got %s, planned %s", got, plan)
			}
			return got
		}
		value := func(layer string, i, j int64) float64 {
			return tensor.Round(ir.BF16, w[layer].Float64(i*cols+j)*s[layer].Float64(c.at(i, j)))
		}
		whole, turned := read(Rule{From: []string{"l.1.w"}}, ir.BF16), read(Rule{From: []string{"l.0.w"}, Transpose: true}, ir.BF16)
		cut, stacked := read(Rule{From: []string{"l.0.w"}, Lo: 127, Hi: 130}, ir.BF16), read(Rule{From: []string{"l.*.w"}}, ir.BF16)
		kept := read(Rule{From: []string{"l.0.w"}}, ir.F8E4M3)
		for _, r := range []Rule{{From: []string{"l.*.w"}}, {From: []string{"l.*.w"}, Transpose: true, Axis: 1, Lo: 120, Hi: 130}} {
			plan, err := from.Plan(r, ir.BF16)
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"l.0.w", "l.1.w", "l.0.w" + c.scale, "l.1.w" + c.scale}; !slices.Equal(plan.Names, want) {
				t.Errorf("names %v, want %v", plan.Names, want)
			}
			lo, n := []int64{1, 100, 4}, []int64{1, plan.Shape[1] - 105, plan.Shape[2] - 4}
			part, err := plan.Read(lo, n) // zeros outside the box
			if err != nil {
				t.Fatal(err)
			}
			got, err := tensor.Slice(part, lo, n)
			if err != nil {
				t.Fatal(err)
			}
			want, err := tensor.Slice(read(r, ir.BF16), lo, n)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Data, want.Data) {
				t.Errorf("%s: the box of %v differs", c.name, r)
			}
		}
		for i := range int64(rows) {
			for j := range int64(cols) {
				at := i*cols + j
				if whole.Float64(at) != value("l.1.w", i, j) || turned.Float64(j*rows+i) != value("l.0.w", i, j) ||
					i >= 127 && cut.Float64((i-127)*cols+j) != value("l.0.w", i, j) ||
					stacked.Float64(at) != value("l.0.w", i, j) || stacked.Float64(rows*cols+at) != value("l.1.w", i, j) ||
					kept.Float64(at) != w["l.0.w"].Float64(at) {
					t.Fatalf("%s: element [%d, %d] differs", c.name, i, j)
				}
			}
		}
	}
	bad := filepath.Join(t.TempDir(), "b.safetensors")
	list := []tensor.Named{{Name: "w", Tensor: random(ir.F8E4M3, rows, cols)}, {Name: "w_scale_inv", Tensor: random(ir.F32, 3, 2)},
		{Name: "v", Tensor: random(ir.F8E4M3, 4)}}
	if err := tensor.WriteSafetensorsFile(bad, list, nil); err != nil {
		t.Fatal(err)
	}
	from, err := Open(bad)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	plan, err := from.Plan(Rule{From: []string{"w"}}, ir.BF16)
	if err == nil {
		_, err = plan.Read(nil, nil)
	}
	if err == nil || !strings.Contains(err.Error(), `"w_scale_inv" cannot be the scales of "w": f32[3, 2] does not fit f8e4m3[130, 300]`) {
		t.Errorf("scales of another shape: %v", err)
	}
	for _, cast := range []bool{false, true} {
		if _, err := from.Plan(Rule{From: []string{"w"}, Cast: cast}, ir.I32); err == nil || !strings.Contains(err.Error(), "floating") {
			t.Errorf("scaled values as integers: %v", err)
		}
	}
	if _, err := from.Plan(Rule{From: []string{"v"}}, ir.BF16); err == nil || !strings.Contains(err.Error(), "its rule must cast it") {
		t.Errorf("no scales: %v", err)
	}
}
