package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestDeviceTensorsOnFake uses device tensors at random, call by call and by graph, on two
// GPUs, on two that do not reach each other and on one that ranks share. All memory is back
// in the end.
func TestDeviceTensorsOnFake(t *testing.T) {
	count := 150
	if testing.Short() {
		count = 40
	}
	for i, c := range []struct {
		gpus  int
		apart func(a, b int32) bool
	}{{2, some()}, {2, all}, {1, some()}} {
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d GPUs, case %d, graph %v", c.gpus, i, graph), func(t *testing.T) {
				f := newFake(t, c.gpus)
				f.reach.apart = c.apart
				t.Cleanup(func() {
					if h := f.holds(); h.Bytes() != 0 {
						t.Errorf("a closed machine holds %+v", h)
					}
				})
				m := modeltest.Open(t, newMachine(f.system(), Options{Kernels: f, RanksPerGPU: 2}))
				modeltest.DeviceTensors(t, m, hocket.LoadOptions{Graph: graph}, uint64(i), count)
			})
		}
	}
}

// TestDeviceTensorsOnGPU is the same on real ones, of which ranks may share one.
func TestDeviceTensorsOnGPU(t *testing.T) {
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
			m := modeltest.Open(t, real(t, Options{RanksPerGPU: 2}))
			modeltest.DeviceTensors(t, m, hocket.LoadOptions{Graph: graph}, 9, 400)
		})
	}
}

// TestDeviceTensorShort: where memory is short once in a read, of whatever call that asks for
// it, the read says so; the next one, and other tensors, are as they were.
func TestDeviceTensorShort(t *testing.T) {
	tensorOf := func(rows int64) *hocket.Tensor {
		x, err := hocket.FromFloats(ir.F32, slices.Repeat([]float64{3}, int(rows)*16), rows, 16)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	f := newFake(t, 2)
	model := fakeModels(t, f, hocket.LoadOptions{})[0]
	make := func(rows int64) *hocket.DeviceTensor {
		d, err := model.NewDeviceTensor(t.Context(), "x", map[string]int64{"T": rows})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const many = 1 << 16
	small, big := make(8), make(many)
	if err := small.Write(t.Context(), tensorOf(8)); err != nil {
		t.Fatal(err)
	}
	// A run leaves it: nothing was staged for its way before.
	if _, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": tensorOf(many)}, DeviceOut: map[string]*hocket.DeviceTensor{"y": big}}); err != nil {
		t.Fatal(err)
	}
	f.failure = nvlib.CUDAOutOfMemory
	failed := false
	f.mu.Lock()
	f.nth = func(call string) bool {
		first := call == "cuMemHostAlloc" && !failed
		failed = failed || first
		return first
	}
	f.mu.Unlock()
	if _, err := big.Read(t.Context()); !errors.Is(err, hocket.ErrOutOfMemory) || !failed {
		t.Errorf("a read that memory is short for: %v", err)
	}
	f.mu.Lock()
	f.nth = nil
	f.mu.Unlock()
	for name, d := range map[string]*hocket.DeviceTensor{"again": big, "another": small} {
		x, err := d.Read(t.Context())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := 3.0
		if d == big {
			want = 6
		}
		if v := x.Floats(); slices.Min(v) != want || slices.Max(v) != want {
			t.Errorf("%s: from %v to %v, want %v", name, slices.Min(v), slices.Max(v), want)
		}
	}
}
