package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestBox checks that reading a box, that is a rectangular part, of a weight that consists of several tensors gives the
// same elements as reading the whole weight, and zeros outside the box.
func TestBox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	var all []tensor.Named
	for l := range 3 {
		for i, rows := range []int64{4, 6} {
			x, err := tensor.New(ir.F32, []int64{rows, 5})
			if err != nil {
				t.Fatal(err)
			}
			for k := range x.Len() {
				x.SetFloat64(k, float64(1+100*l+10*i)+float64(k))
			}
			all = append(all, tensor.Named{Name: fmt.Sprintf("l.%d.%c", l, 'a'+i), Tensor: x})
		}
	}
	if err := tensor.WriteSafetensorsFile(path, all, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, r := range []Rule{
		{From: []string{"l.*.a", "l.*.b"}},
		{From: []string{"l.*.a", "l.*.b"}, Transpose: true, Axis: 1},
		{From: []string{"l.0.a", "l.1.b"}, Lo: 1, Hi: 4},
		{From: []string{"l.2.b"}, Transpose: true, Axis: 1, Lo: 2, Hi: 5},
		{From: []string{"l.*.b"}, Axis: 1, Lo: 1, Hi: 3, Cast: true},
	} {
		to := ir.F32
		if r.Cast {
			to = ir.F64
		}
		w, err := c.Plan(r, to)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := w.Read(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			lo, n := make([]int64, len(w.Shape)), make([]int64, len(w.Shape))
			for d, extent := range w.Shape {
				lo[d] = rng.Int64N(extent)
				n[d] = rng.Int64N(extent - lo[d] + 1)
			}
			got, err := w.Read(lo, n)
			if err != nil {
				t.Fatalf("%+v, box %v at %v: %v", r, n, lo, err)
			}
			for k := range whole.Len() {
				inside, at := true, k
				for d := len(w.Shape) - 1; d >= 0; d-- {
					i := at % w.Shape[d]
					at /= w.Shape[d]
					inside = inside && i >= lo[d] && i < lo[d]+n[d]
				}
				want := 0.0
				if inside {
					want = whole.Float64(k)
				}
				if got.Float64(k) != want {
					t.Fatalf("%+v, box %v at %v: element %d is %v, want %v", r, n, lo, k, got.Float64(k), want)
				}
			}
		}
	}
}
