package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestFake runs the device test suite on the fake driver.
func TestFake(t *testing.T) {
	t.Parallel()
	open := func(gpus int, graphs string) func(t *testing.T) device.Machine {
		return func(t *testing.T) device.Machine {
			f := fakedriver.New(t, gpus)
			f.Plain = true
			return newMachine(system(f), Options{Kernels: f, RanksPerGPU: 4 / gpus, Graphs: graphs})
		}
	}
	t.Run("shared", func(t *testing.T) { devicetest.Run(t, open(1, "")) })
	t.Run("apart", func(t *testing.T) { devicetest.RunOrders(t, open(4, formOne)) })
	t.Run("graph for each", func(t *testing.T) { devicetest.RunOrders(t, open(2, formEach)) })
}

// real returns a machine with this host's GPUs, or skips the test if there are none.
func real(t testing.TB, opts Options) *machine {
	t.Helper()
	if opts.Kernels == nil && opts.Cache == nil {
		opts.Kernels, opts.Cache = farmed()
	}
	m, err := New(opts)
	have := 0
	if err == nil {
		have = len(m.(*machine).sys.GPUs)
		if m.(*machine).sys.Multicast {
			t.Fatalf("%s is on: tests use no NVLink multicast", doctor.MulticastVariable)
		}
	}
	devicetest.NeedGPUs(t, have, 1, err)
	return m.(*machine)
}

// openAll opens a world of all GPUs of this host, of which there must be at least two. The teams of the world time out
// after 4 s.
func openAll(t testing.TB) device.World {
	t.Helper()
	m := real(t, Options{TeamTimeout: 4 * time.Second})
	n := len(m.sys.GPUs)
	devicetest.NeedGPUs(t, n, 2, nil)
	w, err := m.Open(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestDevice(t *testing.T) {
	real(t, Options{})
	for _, ranks := range []int{1, 4} {
		t.Run(fmt.Sprint("ranks-per-gpu", ranks), func(t *testing.T) {
			devicetest.RunBeside(t, func(t *testing.T) device.Machine {
				return real(t, Options{RanksPerGPU: ranks})
			})
		})
	}
	t.Run("graph for each", func(t *testing.T) {
		devicetest.RunOrders(t, func(t *testing.T) device.Machine {
			m := real(t, Options{RanksPerGPU: 2, Graphs: formEach})
			devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
			if why := m.sys.ApartNow(m.sys.GPUs[0], m.sys.GPUs[1]); why != nil {
				t.Skip("flags need GPUs with peer access: ", why)
			}
			return m
		})
	})
}

func TestOutOfMemory(t *testing.T) {
	f := fakedriver.New(t, 1)
	w, err := newMachine(system(f), Options{}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Device(0).Alloc(100<<30, device.Shared)
	if err == nil || !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "out of memory: 107374182400 bytes") {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoDevice(t *testing.T) {
	f := fakedriver.New(t, 0)
	drv, err := nvlib.DriverOn(cabi.Fake("fake", f.Calls()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.New(drv, nil); !errors.Is(err, gpu.ErrNoDevice) {
		t.Errorf("got %v", err)
	}
}

// TestNoMapping checks the error for a GPU without virtual memory management: it names the GPU and how to exclude it.
func TestNoMapping(t *testing.T) {
	f := fakedriver.New(t, 2)
	table := f.Calls()
	ask := table["cuDeviceGetAttribute"]
	table["cuDeviceGetAttribute"] = func(a []uintptr) uintptr {
		if a[1] == uintptr(nvlib.VirtualMemoryManagement) && a[2] == 1 {
			return fakedriver.Set(a[0], int32(0))
		}
		return ask(a)
	}
	drv, err := nvlib.DriverOn(cabi.Fake("fake", table))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.New(drv, nil); err == nil || !strings.Contains(err.Error(), "GPU 1, fake, lacks") || !strings.Contains(err.Error(), "exclude the GPU with CUDA_VISIBLE_DEVICES") {
		t.Errorf("got %v", err)
	}
}

// TestLaterCompiler checks that the error for code that the driver rejects includes advice.
func TestLaterCompiler(t *testing.T) {
	f := fakedriver.New(t, 1)
	w := openFake(t, f, Options{})
	f.Returns["cuModuleLoadData"] = nvlib.CUDAInvalidImage
	mem, err := w.Device(0).Alloc(64, device.Private)
	mustOf(t)(err)
	_, err = w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{words(mem, 0, 16)}, Outs: []device.View{words(mem, 0, 16)}})
	if nvlib.CUDACode(err) != nvlib.CUDAInvalidImage || !strings.Contains(err.Error(), "HOCKET_LIBNVRTC") {
		t.Errorf("got %v", err)
	}
}

// TestWaysOut checks that errors of a driver or GPU that is not ready include advice.
func TestWaysOut(t *testing.T) {
	for code, way := range gpu.WaysOut {
		f := fakedriver.New(t, 1)
		m := newMachine(system(f), Options{Kernels: f})
		f.Returns["cuDevicePrimaryCtxRetain"] = uintptr(code)
		if _, err := m.Open(t.Context(), 1); nvlib.CUDACode(err) != code || !strings.Contains(err.Error(), "GPU 0, fake") || !strings.Contains(err.Error(), way) {
			t.Errorf("%d: got %v", code, err)
		}
	}
}

// TestPoison fills ranges of odd sizes and offsets with poison, and checks every byte within and around them.
func TestPoison(t *testing.T) {
	f := fakedriver.New(t, 1)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := w.Device(0).Alloc(21, device.Shared)
	if err != nil {
		t.Fatal(err)
	}
	b := cabi.Bytes(uintptr(mem.(*memory).addr), 24)
	for lo := range int64(9) {
		for n := range int64(24) {
			clear(b)
			mem.Poison(lo, n)
			for i := range int64(24) {
				want := byte(0)
				if i >= lo && i < min(lo+n, 21) {
					want = []byte{0xff, 0x7f}[i%2]
				}
				if b[i] != want {
					t.Fatalf("[%d, %d): byte %d is %#x", lo, lo+n, i, b[i])
				}
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// mustOf returns a function that fails the test if its argument is an error.
func mustOf(t testing.TB) func(error) {
	return func(err error) {
		if err != nil {
			t.Helper() // not called on success, because it is slow compared with what benchmarks measure
			t.Fatal(err)
		}
	}
}

// streamed opens a world with a stream of the given name on every rank.
func streamed(t testing.TB, m device.Machine, ranks int, name string) (device.World, []device.Stream) {
	t.Helper()
	must := mustOf(t)
	w, err := m.Open(t.Context(), ranks)
	must(err)
	streams := make([]device.Stream, ranks)
	for r := range streams {
		streams[r], err = w.Device(r).NewStream(device.StreamOptions{Name: name})
		must(err)
	}
	return w, streams
}
