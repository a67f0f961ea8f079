package cuda

import (
	"fmt"
	"math"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/modeltest"
)

// TestReserved compares the device memory that a loaded plan uses, as the driver counts it, with the amount that the
// plan's report states, within the granularity of memory. Ten thousand runs of the plan allocate no more, and unloading
// the plan frees everything.
func TestReserved(t *testing.T) {
	m := real(t, Options{})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	used := func() (bytes []int64) {
		t.Helper()
		for _, g := range m.sys.GPUs[:2] {
			if err := g.Bound(func() error {
				free, all, err := m.sys.Driver.MemInfo()
				bytes = append(bytes, all-free)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		return bytes
	}
	reserved(t, m, false, 4096, 10_000, used)
	reserved(t, m, true, 4096, 10_000, used)
}

// TestReservedFake is TestReserved on the fake driver.
func TestReservedFake(t *testing.T) {
	f := fakedriver.New(t, 2)
	m := newMachine(system(f), Options{Kernels: f})
	used := func() (bytes []int64) {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		for _, g := range m.sys.GPUs {
			bytes = append(bytes, f.Reach.Mapped(int32(g.Device)))
		}
		return bytes
	}
	reserved(t, m, false, 64, 20, used)
	reserved(t, m, true, 64, 20, used)
}

// reserved runs a layer with the given number of rows on two GPUs, the given number of times. The function used returns
// the memory in use on each GPU.
func reserved(t *testing.T, m *machine, graph bool, rows int64, runs int, used func() []int64) {
	machine := modeltest.Open(t, m)
	var model *hocket.Model
	load := func() {
		model = modeltest.Load(t, machine, `dim T = 1
mesh tp[2]
func layer(%x: bf16[T, 256], %u: bf16[256, 256/tp], %v: bf16[256/tp, 256]) -> bf16[T, 256] {
  %h = matmul %x, %u
  %a = relu %h
  %y: bf16[T, 256] = matmul %a, %v
  return %y
}`, hocket.LoadOptions{Graph: graph, Cache: math.MaxInt64})
	}
	unload := func() {
		t.Helper()
		if err := model.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run := func(rows int64, times int) {
		t.Helper()
		on := map[string]*hocket.DeviceTensor{}
		for _, name := range []string{"x", "u", "v", "y"} {
			d, err := model.NewDeviceTensor(t.Context(), name, map[string]int64{"T": rows})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			if on[name] = d; name == "y" {
				continue
			}
			x, err := hocket.NewTensor(d.DType(), d.Shape()...)
			if err == nil {
				err = d.Write(t.Context(), x)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		args := hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"x": on["x"], "u": on["u"], "v": on["v"]},
			DeviceOut: map[string]*hocket.DeviceTensor{"y": on["y"]}}
		for range times {
			if _, err := model.Run(t.Context(), args); err != nil {
				t.Fatal(err)
			}
		}
	}
	load()
	run(rows, 3) // this allocates contexts, kernels and the memory that libraries allocate once
	unload()
	before := used()
	load()
	run(rows, 3)
	loaded, held := used(), machine.Stats().Plans
	const grain = 2 << 20 // granularity of device memory
	for i := range loaded {
		took := loaded[i] - before[i]
		if over := took - held.Device; over < -grain || over > grain {
			t.Errorf("GPU %d, graph %v: the plan uses %d bytes by the driver's account, %d by the report", i, graph, took,
				held.Device)
		}
	}
	t.Logf("graph %v: before %v, loaded %v, reported %d", graph, before, loaded, held.Device)
	run(rows, runs)
	if after := used(); fmt.Sprint(after) != fmt.Sprint(loaded) {
		t.Errorf("graph %v: %v bytes in use before %d runs, %v after", graph, loaded, runs, after)
	}
	unload()
	for i, now := range used() {
		if now > before[i] {
			t.Errorf("GPU %d, graph %v: %d bytes in use before loading the plan, %d after unloading it", i, graph, before[i], now)
		}
	}
}
