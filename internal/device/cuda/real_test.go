package cuda

import (
	"errors"
	"math"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestRealFault has a kernel write where there is no memory, on a real device:
// the world ends with a fault, and in the next one kernels and products of
// matrices work again.
func TestRealFault(t *testing.T) {
	m := real(t, Options{})
	rtc, err := nvlib.OpenNVRTC()
	if err != nil {
		t.Fatal(err)
	}
	bad, err := rtc.Compile(nvlib.Compilation{Name: "bad.cu", Source: `extern "C" __global__ void bad(int* p) { *p = 1; }`,
		Options: []string{"--gpu-architecture=" + m.sys.gpus[0].arch}})
	if err != nil {
		t.Fatal(err)
	}
	var free int64
	for round := range 3 {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := twice(t, w); got != 6 {
			t.Fatalf("round %d: got %v", round, got)
		}
		s, err := w.Device(0).NewStream(device.StreamOptions{Name: "bad"})
		if err != nil {
			t.Fatal(err)
		}
		st, world := s.(*stream), w.(*world)
		world.mu.Lock()
		err = st.dev.bound(func() error {
			f, err := st.dev.site.gpu.function("bad", bad.Cubin, "bad")
			if err != nil {
				return err
			}
			l := nvlib.NewLaunch(f, nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}, [][]byte{{16, 0, 0, 0, 0, 0, 0, 0}})
			st.worked()
			return world.drv.Launch(l, st.h)
		})
		world.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		err = w.Sync(t.Context())
		var fault *device.Fault
		if !errors.As(err, &fault) || fault.Rank != 0 || nvlib.CUDACode(err) != 700 {
			t.Fatalf("got %v", err)
		}
		t.Log(err)
		if err := w.Close(); err != nil {
			t.Errorf("closing after a fault: %v", err)
		}
		if left := freeMemory(t, m); round == 0 {
			free = left
		} else if left < free-deviceSlab/2 {
			t.Errorf("round %d: %d bytes of device memory were free, now %d are", round, free, left)
		}
	}
}

// freeMemory returns the free memory of the first GPU.
func freeMemory(t *testing.T, m *machine) int64 {
	t.Helper()
	ctx, err := m.sys.gpus[0].context()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.sys.drv.Bind(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.sys.drv.Unbind()
	free, _, err := m.sys.drv.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// TestNoGrowth opens and closes worlds that compute: device memory stays.
func TestNoGrowth(t *testing.T) {
	m := real(t, Options{})
	var free int64
	for round := range 6 {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := twice(t, w); got != 6 {
			t.Fatalf("round %d: got %v", round, got)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if left := freeMemory(t, m); round == 0 {
			free = left
		} else if left < free {
			t.Errorf("round %d: %d bytes of device memory were free, now %d are", round, free, left)
		}
	}
}

// twice computes (1 + 1)·(1 + 1 + 1) by a sum and a product of matrices.
func twice(t *testing.T, w device.World) float32 {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := w.Device(0)
	s, err := d.NewStream(device.StreamOptions{Name: "main"})
	must(err)
	tensor := func(shape ...int64) device.View {
		n := int64(1)
		for _, e := range shape {
			n *= e
		}
		mem, err := d.Alloc(4*n, device.Shared)
		must(err)
		return device.View{Mem: mem, DType: ir.F32, Shape: shape, Strides: rowMajor(shape)}
	}
	run := func(k device.Kernel) {
		t.Helper()
		l, err := d.Prepare(k)
		must(err)
		must(s.Launch(l))
	}
	x, y := tensor(64, 3), tensor(64, 64)
	run(device.Kernel{Op: ir.OpFill, Outs: []device.View{x}, Value: 1})
	run(device.Kernel{Op: ir.OpMatmul, TB: true, Ins: []device.View{x, x}, Outs: []device.View{y}})
	run(device.Kernel{Op: ir.OpAdd, Ins: []device.View{y, y}, Outs: []device.View{y}})
	b := make([]byte, 4*64*64)
	must(s.Download(b, y))
	must(w.Sync(t.Context()))
	bits := uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24
	return math.Float32frombits(bits)
}
