package hocket_test

import (
	"runtime"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestAttentionReadsLengths checks that attention on the CPU copies only the keys and values at positions below the
// sequence lengths. The heads of the cache are not contiguous, so attention copies the rows that it reads to memory
// that the run allocates.
func TestAttentionReadsLengths(t *testing.T) {
	const keys, d, length = 1 << 17, 8, 3
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "dim S = 131072\nmesh tp[1]\nfunc f(%q: f32[1, 1, 2, 8], %n: i32[1], %k: inout f32[1, S, 2, 8], "+
		"%v: inout f32[1, S, 2, 8]) -> f32[1, 1, 2, 8] {\n  %y = attention %q, %k, %v, %n\n  return %y\n}\n",
		hocket.LoadOptions{})
	state, err := model.BindState(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// All scores are 0, so the result is the mean of the values that the query sees.
	err = state["v"].Fill(t.Context(), func(blocks []hocket.DeviceBlock) error {
		v := hocket.Tensor{DType: ir.F32, Shape: []int64{keys, 2 * d}, Data: blocks[0].Host}
		for row := range int64(length) {
			copy(v.Data[row*2*d*4:][:2*d*4], vals(t, ir.F32, slices.Repeat([]float64{float64(row)}, 2*d), 2*d).Data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*hocket.Tensor{"q": vals(t, ir.F32, slices.Repeat([]float64{1}, 2*d), 1, 1, 2, d),
		"n": vals(t, ir.I32, []float64{length}, 1)}
	run := func() {
		rep, err := model.Run(t.Context(), hocket.Args{In: in})
		if err != nil {
			t.Fatal(err)
		}
		for _, y := range rep.Out["y"].Floats() {
			if y != 1 { // the mean of 0, 1 and 2
				t.Fatalf("%v", rep.Out["y"].Floats())
			}
		}
	}
	run() // loads the plan
	runtime.GC()
	runtime.GC() // frees the scratch memory of the run
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > keys*d*4/2 {
		t.Errorf("a run allocates %d bytes, and the keys of one head are %d", n, keys*d*4)
	}
}
