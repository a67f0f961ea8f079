package cuda

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// faultVariable is an environment variable with the fault that a child process of TestRealFault causes.
const faultVariable = "HOCKET_TEST_FAULT"

// realFaults are kernels that fail, each with the status that results.
var realFaults = map[string]struct {
	source string
	code   int
}{
	"address": {`extern "C" __global__ void bad(int* p) { *p = 1; }`, 700},
	"trap":    {`extern "C" __global__ void bad(int* p) { __trap(); }`, 719},
}

// TestRealFault makes kernels fail on a real device, each in a child process. The child process cannot use the device
// again; other processes can.
func TestRealFault(t *testing.T) {
	m := real(t, Options{})
	if name := os.Getenv(faultVariable); name != "" {
		endDevice(t, m, name)
		return
	}
	for name := range realFaults {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestRealFault$", "-test.v")
			child.Env = append(os.Environ(), faultVariable+"="+name)
			out, err := child.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestRealFault") {
				t.Fatalf("the child: %v\n%s", err, out)
			}
			t.Logf("%s", out)
			w, err := m.Open(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if got := twice(t, w); got != 6 {
				t.Errorf("after a fault in another process: got %v", got)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// endDevice makes the first GPU unusable (lost) for this process.
func endDevice(t *testing.T, m *machine, name string) {
	w, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := twice(t, w); got != 6 {
		t.Fatalf("before the fault: got %v", got)
	}
	fail := realFaults[name]
	launchBad(t, w.(*world), fail.source)
	err = w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 0 || nvlib.CUDACode(err) != fail.code {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
	began := time.Now()
	if err := w.Close(); err != nil {
		t.Errorf("closing after a fault: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("closing after a fault took %v", took)
	}
	_, err = m.Open(t.Context(), 1)
	isLost(t, err, "GPU 0, "+m.sys.GPUs[0].Name, "rank 0, stream ")
	if nvlib.CUDACode(err) != fail.code {
		t.Errorf("opening after a fault: %v", err)
	}
	t.Log(err)
}

// launchBad launches a kernel called "bad" on rank 0, with an address at which no memory is mapped.
func launchBad(t *testing.T, w *world, source string) {
	t.Helper()
	rtc, err := nvlib.OpenNVRTC()
	if err != nil {
		t.Fatal(err)
	}
	bad, err := rtc.Compile(nvlib.Compilation{Name: "bad.cu", Source: source,
		Options: []string{"--gpu-architecture=" + w.sites[0].gpu.Arch}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Device(0).NewStream(device.StreamOptions{Name: "bad"})
	if err != nil {
		t.Fatal(err)
	}
	st := s.(*stream)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := st.dev.bound(func() error {
		f, err := st.dev.site.gpu.Function("bad", bad.Cubin, "bad")
		if err != nil {
			return err
		}
		l := nvlib.NewLaunch(f, nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}, [][]byte{{16, 0, 0, 0, 0, 0, 0, 0}})
		st.worked()
		return w.drv.Launch(l, st.h)
	}); err != nil {
		t.Fatal(err)
	}
}

// freeMemory returns the free memory of the first GPU.
func freeMemory(t *testing.T, m *machine) int64 {
	t.Helper()
	ctx, err := m.sys.GPUs[0].Context()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.sys.Driver.Bind(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.sys.Driver.Unbind()
	free, _, err := m.sys.Driver.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// TestNoGrowth repeatedly opens and closes worlds that compute, and checks that device memory use does not grow.
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
			t.Errorf("round %d: %d bytes of device memory were free, now %d bytes are", round, free, left)
		}
	}
}

// twice computes (1 + 1)·(1 + 1 + 1) with sums and a product of matrices.
func twice(t *testing.T, w device.World) float32 {
	t.Helper()
	must := mustOf(t)
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
		return device.View{Mem: mem, DType: ir.F32, Shape: shape, Strides: strided.RowMajor(shape)}
	}
	run := func(k device.Kernel) {
		t.Helper()
		l, err := d.Prepare(k)
		must(err)
		must(s.Launch(l))
	}
	x, y := tensor(64, 3), tensor(64, 64)
	run(device.Kernel{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(1)}, Outs: []device.View{x}})
	run(device.Kernel{Op: device.Matmul{TB: true}, Ins: []device.View{x, x}, Outs: []device.View{y}})
	run(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{y, y}, Outs: []device.View{y}})
	b := make([]byte, 4*64*64)
	must(s.Download(b, y))
	must(w.Sync(t.Context()))
	bits := uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24
	return math.Float32frombits(bits)
}

// TestRealOutOfMemory allocates until a device has no memory left. The error reports the free memory, the allocations
// can be freed, and the world continues.
func TestRealOutOfMemory(t *testing.T) {
	m := real(t, Options{})
	g := m.sys.GPUs[0]
	free := func() int64 {
		t.Helper()
		c, err := g.Context()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.sys.Driver.Bind(c); err != nil {
			t.Fatal(err)
		}
		defer m.sys.Driver.Unbind()
		n, _, err := m.sys.Driver.MemInfo()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	_ = free() // this creates the context, whose memory stays allocated
	before := free()
	w, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []device.MemKind{device.Private, device.Shared} {
		var taken []device.Memory
		for err == nil && len(taken) < 10 {
			var mem device.Memory
			if mem, err = w.Device(0).Alloc(g.Memory/5, kind); err == nil {
				taken = append(taken, mem)
			}
		}
		if len(taken) == 10 || !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "free on GPU 0") {
			t.Fatalf("after %d pieces of %d bytes: %v", len(taken), g.Memory/5, err)
		}
		t.Log(err)
		err = nil
		for _, mem := range taken {
			err = errors.Join(err, mem.Free())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := twice(t, w); got != 6 {
		t.Errorf("the program returns %v, want 6", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if after := free(); after < before-(256<<20) { // loaded code stays allocated
		t.Errorf("%d bytes were free before, %d bytes are free after", before, after)
	}
}

// TestRealFlagTimeout lets the graph of one GPU wait for that of another GPU for longer than the time limit. The run
// ends with an error that names the waiting rank, no GPU is lost, and the next world works.
func TestRealFlagTimeout(t *testing.T) {
	m := real(t, Options{Graphs: formEach, TeamTimeout: 20 * time.Millisecond})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	must := mustOf(t)
	w, s := streamed(t, m, 2, "main")
	c, err := w.Device(1).NewCounters(1)
	must(err)
	const side = 8192
	mem, err := w.Device(0).Alloc(2*side*side*2, device.Shared)
	must(err)
	x := device.View{Mem: mem, DType: ir.BF16, Shape: []int64{side, side}, Strides: []int64{side, 1}}
	y := x
	y.Off = 2 * side * side
	product, err := w.Device(0).Prepare(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, x}, Outs: []device.View{y}})
	must(err)
	g, err := w.Capture(func() error {
		var errs []error
		for range 100 { // about 140 ms
			errs = append(errs, s[0].Launch(product))
		}
		return errors.Join(append(errs, s[0].Signal(c, 0, 1), s[1].Begin(33), s[1].WaitCounter(c, 0, 1), s[1].End(33))...)
	})
	must(err)
	must(g.Launch(t.Context()))
	err = w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 1 || !strings.Contains(err.Error(), "gave up waiting for a flag") {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
	must(w.Close())
	w, err = real(t, Options{}).Open(t.Context(), 2)
	must(err)
	if got := twice(t, w); got != 6 {
		t.Errorf("in the next world the program returns %v, want 6", got)
	}
	must(w.Close())
}
