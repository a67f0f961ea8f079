package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestKernelsAreLoaded checks that all kernels are loaded to the device before the first launch, because loading
// synchronizes with running work.
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
				t.Skip("this driver does not report whether a kernel is loaded")
			case !loaded:
				t.Errorf("kernel %s is not loaded", name)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSharedMemory checks that a kernel is permitted as much dynamic shared memory as any of its launches needs, in
// whatever order the launches are prepared.
func TestSharedMemory(t *testing.T) {
	f := fakedriver.New(t, 1)
	g := system(f).GPUs[0]
	for _, c := range []struct {
		kernel nvlib.Function
		bytes  uint32
		calls  int // total number of driver calls
	}{{1, gpu.DefaultShared, 0}, {1, 96 << 10, 1}, {1, 64 << 10, 1}, {1, 128 << 10, 2}, {2, 64 << 10, 3}, {2, 64 << 10, 3}} {
		if err := g.AllowShared(c.kernel, c.bytes); err != nil {
			t.Fatal(err)
		}
		if got := f.Called["cuFuncSetAttribute"]; got != c.calls {
			t.Errorf("after a launch of %d bytes of kernel %d: %d calls, want %d", c.bytes, c.kernel, got, c.calls)
		}
	}
}
