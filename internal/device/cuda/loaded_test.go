package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestKernelsAreLoaded: nothing is left for the first launch to bring to the
// device, which then would stop what runs there.
func TestKernelsAreLoaded(t *testing.T) {
	m := real(t, Options{})
	w, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mem, err := w.Device(0).Alloc(1<<16, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{64, 32}, Strides: []int64{32, 1}}
	u := v
	u.Off = 1 << 15
	for _, op := range []ir.Op{ir.OpNeg, ir.OpSoftmax} {
		if _, err := w.Device(0).Prepare(device.Kernel{Op: device.OpOf(op, ir.Attrs{Axes: []int{1}}), Ins: []device.View{v}, Outs: []device.View{u}}); err != nil {
			t.Fatal(err)
		}
	}
	d := w.Device(0).(*dev)
	if err := d.bound(func() error {
		for name, f := range d.site.gpu.Funcs {
			switch loaded, ok, err := m.sys.Driver.FunctionLoaded(f); {
			case err != nil:
				return err
			case !ok:
				t.Skip("this driver does not tell whether a kernel is loaded")
			case !loaded:
				t.Errorf("kernel %s is not on the device", name)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSharedMemory: of launches of one kernel, the one that wants the most shared
// memory says how much is allowed, in whatever order they are made.
func TestSharedMemory(t *testing.T) {
	f := fakedriver.New(t, 1)
	g := system(f).GPUs[0]
	for _, c := range []struct {
		kernel nvlib.Function
		bytes  uint32
		calls  int // of the driver, so far
	}{{1, gpu.DefaultShared, 0}, {1, 96 << 10, 1}, {1, 64 << 10, 1}, {1, 128 << 10, 2}, {2, 64 << 10, 3}, {2, 64 << 10, 3}} {
		if err := g.AllowShared(c.kernel, c.bytes); err != nil {
			t.Fatal(err)
		}
		if got := f.Called["cuFuncSetAttribute"]; got != c.calls {
			t.Errorf("after %d bytes for kernel %d: %d calls, want %d", c.bytes, c.kernel, got, c.calls)
		}
	}
}
