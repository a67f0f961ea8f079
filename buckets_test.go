package hocket_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// TestBuckets runs many sizes by two plans, with the results that each size alone has.
func TestBuckets(t *testing.T) {
	m, model := loadDoubling(t, hocket.LoadOptions{Buckets: map[string][]int64{"T": {32, 64}}})
	r := rand.New(rand.NewPCG(3, 4))
	for k := range 60 {
		if err := doubled(t, model, 1+r.Int64N(64), float64(k)); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats().Plans; s.Misses != 2 || s.Hits != 58 {
		t.Errorf("%+v, want two plans", s)
	}
	if err := doubled(t, model, 100, 1); err != nil { // beyond all buckets
		t.Error(err)
	}
	in, err := hocket.FromFloats(ir.F32, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	out, err := hocket.NewTensor(ir.F32, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{"x": in}, Out: map[string]*hocket.Tensor{"y": out}}
	if _, err := model.Run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	wantFloats(t, out.Floats(), 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)
	if args.Out["y"], err = hocket.NewTensor(ir.F32, 32, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := model.Run(t.Context(), args); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a result of another size: %v", err)
	}
}
