package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// example returns the text of an example program.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// loadText loads a program and creates inputs of zeros.
func loadText(t *testing.T, m device.Machine, name, text string, opts exec.Options) (*exec.Program, map[string]*tensor.Tensor) {
	t.Helper()
	p, err := unitOf(t, name, text, "").Plan(ir.Binding{Dims: small[name]})
	if err != nil {
		t.Fatal(err)
	}
	prog, err := exec.Load(t.Context(), m, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*tensor.Tensor{}
	for _, io := range p.Inputs {
		if in[io.Name], err = tensor.New(io.DType, io.Shape); err != nil {
			t.Fatal(err)
		}
	}
	return prog, in
}

// TestHeld compares the amount of memory that a program reports as allocated with what the driver has allocated: after
// loading, after runs with and without graphs, and after closing, when both are zero.
func TestHeld(t *testing.T) {
	for _, c := range []struct {
		name        string
		gpus, ranks int
		graph       bool
	}{{"mlp.hkt", 4, 1, false}, {"mlp.hkt", 2, 2, true}, {"ag_linear_exchange.hkt", 4, 1, true}, {"moe.hkt", 1, 8, false}} {
		f := fakedriver.New(t, c.gpus)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Need: 5 << 20}
		m := newMachine(system(f), Options{Kernels: f, RanksPerGPU: c.ranks})
		prog, in := loadText(t, m, c.name, example(t, c.name), exec.Options{Graph: c.graph})
		same := func(when string) device.Held {
			t.Helper()
			told, held := prog.Held(), f.Holds()
			if told != held {
				t.Errorf("%s on %d GPUs, %s: reported %+v, allocated %+v", c.name, c.gpus, when, told, held)
			}
			return told
		}
		if h := same("loaded"); h.Device == 0 || h.Device >= gpu.DeviceSlab {
			t.Errorf("%s: a small program holds %d bytes of a device", c.name, h.Device)
		}
		f.Taken()
		for run := range 3 {
			if _, err := prog.Run(t.Context(), in); err != nil && !isMismatch(err) {
				t.Fatal(err)
			}
			same("run")
			if n := f.Taken(); n > 0 && run == 0 {
				t.Errorf("%s: the first run allocated device memory %d times", c.name, n)
			}
		}
		if len(f.LT.Runs) == 0 {
			t.Errorf("%s: cuBLASLt was not called", c.name)
		}
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
		if h := same("closed"); h.Bytes() != 0 {
			t.Errorf("%s: %d bytes are reported after closing", c.name, h.Bytes())
		}
	}
}

// isMismatch reports whether err says that copies of a result differ, which can happen because products of the fake
// compute nothing.
func isMismatch(err error) bool {
	var m *fault.MismatchError
	return errors.As(err, &m)
}

// TestRegions checks the sizes of a heap's regions: the first is small, and each further one is twice as large, up to a
// limit (slab). An allocation beyond this limit has a region of its own size.
func TestRegions(t *testing.T) {
	const mib = 1 << 20
	f := fakedriver.New(t, 1)
	w := openFake(t, f, Options{})
	h := w.(*world).sites[0].heaps[device.Private]
	for i, c := range []struct{ ask, region int64 }{
		{1, 2 * mib}, {mib, 0}, {2 * mib, 4 * mib}, {20 * mib, 32 * mib}, {12*mib + 1, 16 * mib}, {13 * mib, 32 * mib},
		{65*mib + 1, 66 * mib}, {60 * mib, 64 * mib}, {1, 0},
	} {
		before := h.Held()
		if _, err := w.Device(0).Alloc(c.ask, device.Private); err != nil {
			t.Fatal(err)
		}
		if got := h.Held() - before; got != c.region {
			t.Errorf("allocation %d of %d bytes added a region of %d bytes, want %d", i, c.ask, got, c.region)
		}
	}
	if told, held := w.(*world).Held(), f.Holds(); told != held {
		t.Errorf("reported %+v, allocated %+v", told, held)
	}
}

// TestRegionsAlike checks that devices with the same requests have the same layout of memory in regions.
func TestRegionsAlike(t *testing.T) {
	f := fakedriver.New(t, 3)
	w, _ := streamed(t, newMachine(system(f), Options{Kernels: f}), 3, "main")
	for _, bytes := range []int64{5, 3 << 20, 300, 40 << 20, 70 << 20, 1 << 20, 9 << 20} {
		var at []*memory
		for r := range 3 {
			m, err := w.Device(r).Alloc(bytes, device.Shared)
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, m.(*memory))
		}
		for _, m := range at[1:] {
			a, b := at[0].dev.site.heaps[device.Shared].RegionOf(at[0].addr), m.dev.site.heaps[device.Shared].RegionOf(m.addr)
			if a.Bytes != b.Bytes || at[0].addr-a.Addr != m.addr-b.Addr {
				t.Errorf("%d bytes are at offset %d in a region of %d bytes, and at offset %d in a region of %d bytes", bytes, at[0].addr-a.Addr, a.Bytes, m.addr-b.Addr, b.Bytes)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// fourProducts is a program in which each rank computes products on four streams.
const fourProducts = `mesh tp[2]
func f(%x: bf16[64, 16], %w: bf16[16, 16]) -> bf16[64, 16] {
  %y = alloc bf16[64, 16]
  for %i in 0..8 stream(4) {
    %xi = chunk %x, axis=0, %i of 8
    %yi = chunk %y, axis=0, %i of 8
    linear %xi, %w into %yi
  }
  return %y
}
`

// TestFirstRunTakesNoMemory checks that loading a program allocates all memory, with and without graphs. The first
// execution must not map memory: mapping waits for running kernels, which may wait for work that has not been issued.
func TestFirstRunTakesNoMemory(t *testing.T) {
	for _, graph := range []bool{false, true} {
		f := fakedriver.New(t, 2)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Need: 20 << 20}
		prog, in := loadText(t, newMachine(system(f), Options{Kernels: f}), "four", fourProducts, exec.Options{Graph: graph})
		for run := range 3 {
			f.LT.Runs = nil
			clear(f.Called)
			if _, err := prog.Run(t.Context(), in); err != nil && !isMismatch(err) {
				t.Fatal(err)
			}
			for _, call := range []string{"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"} {
				if n := f.Called[call]; n > 0 && (run != 1 || !graph) { // the second run records the graph
					t.Errorf("graph %v, run %d: %s was called %d times", graph, run, call, n)
				}
			}
			at := map[uintptr]bool{}
			for _, r := range f.LT.Runs {
				at[r.Work] = true
			}
			if run == 0 && (len(f.LT.Runs) != 2*8 || len(at) != 2*4) {
				t.Errorf("graph %v: %d products in %d workspaces", graph, len(f.LT.Runs), len(at))
			}
		}
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFaultsAreReadWithoutMemory checks that Sync reads the faults that kernels report without allocating. An
// allocation could fail for lack of memory, or wait for devices that wait for another world.
func TestFaultsAreReadWithoutMemory(t *testing.T) {
	must := mustOf(t)
	f := fakedriver.New(t, 1)
	w, s := streamed(t, newMachine(system(f), Options{Kernels: f}), 1, "main")
	d := w.Device(0)
	mem, err := d.Alloc(4096, device.Private)
	must(err)
	view := func(off int64, dt ir.DType, shape ...int64) device.View {
		return device.View{Mem: mem, Off: off, DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
	}
	ids := view(0, ir.I32, 2)
	l, err := d.Prepare(device.Kernel{Op: device.Embedding{Rows: 4}, Ins: []device.View{ids, view(256, ir.F32, 4, 4)}, Outs: []device.View{view(1024, ir.F32, 2, 4)}})
	must(err)
	must(s[0].Upload(ids, make([]byte, 8)))
	for pinned := w.(*world).sites[0].heaps[device.Pinned]; len(pinned.Regions[0].Free) > 0; {
		_, err := pinned.Alloc(pinned.Regions[0].Free[0].Bytes)
		must(err)
	}
	must(s[0].Launch(l))
	f.HostLimit = 1
	must(w.Sync(t.Context()))
	l.Release()
	must(w.Close())
}
