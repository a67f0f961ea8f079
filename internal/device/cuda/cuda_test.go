package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// goKernel computes a problem in float64.
func goKernel(p kernels.Problem) (func(), error) {
	var f func(x []float64) float64
	switch {
	case p.Red == ir.Sum || p.Red == ir.Avg:
		f = func(x []float64) (s float64) {
			for _, v := range x {
				s += v
			}
			return s
		}
	case p.Red != ir.NoRed:
		return nil, fmt.Errorf("%w: the fake adds only", device.ErrUnsupported)
	case p.Op == ir.OpAdd:
		f = func(x []float64) float64 { return x[0] + x[1] }
	case p.Op == ir.OpSub:
		f = func(x []float64) float64 { return x[0] - x[1] }
	case p.Op == ir.OpScale:
		f = func(x []float64) float64 { return x[0] * p.Value }
	case p.Op == ir.OpNeg:
		f = func(x []float64) float64 { return -x[0] }
	case p.Op == ir.OpCopy:
		f = func(x []float64) float64 { return x[0] }
	case p.Op == ir.OpFill:
		f = func([]float64) float64 { return p.Value }
	default:
		return nil, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, p.Op)
	}
	if p.Red == ir.Avg {
		sum := f
		f = func(x []float64) float64 { return sum(x) / float64(len(x)) }
	}
	dt, size := p.Out.DType, int(p.Out.DType.Size())
	out := addresses(p.Out)
	var ins [][]uintptr
	for i := range p.Ins {
		ins = append(ins, addresses(p.Ins[i]))
	}
	return func() {
		x, one := make([]float64, len(ins)), make([]float64, 1)
		for i := range out {
			for j := range ins {
				tensor.ToFloat64(one, cabi.Bytes(ins[j][i], size), dt)
				x[j] = one[0]
			}
			one[0] = f(x)
			if dt == ir.I32 { // wraps
				one[0] = float64(int32(int64(one[0])))
			}
			tensor.FromFloat64(cabi.Bytes(out[i], size), one, dt)
		}
	}, nil
}

// TestFake runs the suite on a driver in Go: host logic without a GPU.
func TestFake(t *testing.T) {
	for _, gpus := range []int{1, 4} {
		t.Run(fmt.Sprint("gpus", gpus), func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) device.Machine {
				f := newFake(t, gpus)
				return newMachine(f.system(), Options{Kernels: f, RanksPerGPU: 4 / gpus})
			})
		})
	}
}

// real returns the machine of this host's GPUs, or skips the test.
func real(t testing.TB, opts Options) *machine {
	t.Helper()
	m, err := New(opts)
	have := 0
	if err == nil {
		have = len(m.(*machine).sys.gpus)
	}
	devicetest.NeedGPUs(t, have, 1, err)
	return m.(*machine)
}

func TestDevice(t *testing.T) {
	real(t, Options{})
	for _, ranks := range []int{1, 4} {
		t.Run(fmt.Sprint("ranks-per-gpu", ranks), func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) device.Machine {
				return real(t, Options{RanksPerGPU: ranks})
			})
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	f := newFake(t, 1)
	w, err := newMachine(f.system(), Options{}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Device(0).Alloc(100<<30, device.Shared)
	if err == nil || nvlib.CUDACode(err) != nvlib.CUDAOutOfMemory || !strings.Contains(err.Error(), "out of memory: 107374182400 bytes") {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestDeviceFault has the device fail while work is under way: the world ends,
// what it had is not given back piece by piece, and another one works.
func TestDeviceFault(t *testing.T) {
	f := newFake(t, 2)
	m := newMachine(f.system(), Options{Kernels: f})
	w, err := m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Device(1).NewStream(device.StreamOptions{Name: "main"})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := w.Device(1).Alloc(64, device.Shared)
	if err != nil {
		t.Fatal(err)
	}
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
	for _, err := range []error{s.Begin(5), s.Upload(v, make([]byte, 64))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.mu.Lock()
	f.fail["cuStreamQuery"] = 700
	f.mu.Unlock()
	err = w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 1 || fault.Stream != "main" || fault.ID != 5 || nvlib.CUDACode(err) != 700 || !errors.Is(err, device.ErrAborted) {
		t.Fatalf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	delete(f.fail, "cuStreamQuery")
	for kind := range f.live { // a reset context takes all with it
		f.live[kind] = 0
	}
	f.mu.Unlock()
	if w, err = m.Open(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Sync(t.Context()), w.Close()); err != nil {
		t.Error(err)
	}
}

func TestNoDevice(t *testing.T) {
	f := newFake(t, 0)
	drv, err := nvlib.DriverOn(cabi.Fake("fake", f.calls()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSystem(drv, nil); !errors.Is(err, errNoDevice) {
		t.Errorf("got %v", err)
	}
}
