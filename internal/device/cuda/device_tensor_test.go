package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// byDriver accesses device tensors as another library would: by driver calls, with its own streams and memory.
type byDriver struct{ m *machine }

func (o byDriver) Put(b hocket.DeviceBlock, data []byte) error {
	return o.copy(b, func(host []byte) { copy(host, data) }, true, len(data))
}

func (o byDriver) Get(b hocket.DeviceBlock, data []byte) error {
	return o.copy(b, func(host []byte) { copy(data, host) }, false, len(data))
}

// copy copies n bytes from host memory to a block, or back. The argument use is called with the host memory: before a
// copy to the block, to fill it, or after a copy back, to read it.
func (o byDriver) copy(b hocket.DeviceBlock, use func([]byte), put bool, n int) error {
	if b.Host != nil {
		return errors.New("a GPU's memory is said to be the host's")
	}
	gpus := o.m.sys.GPUs
	drv := o.m.sys.Driver
	return gpus[b.Rank%len(gpus)].Bound(func() error {
		host, err := drv.HostAlloc(int64(n))
		if err != nil {
			return err
		}
		defer drv.HostFree(host)
		s, err := drv.NewStream(0)
		if err != nil {
			return err
		}
		defer drv.DestroyStream(s)
		dst, src := host, nvlib.Ptr(b.Pointer)
		if put {
			use(cabi.Bytes(uintptr(host), n))
			dst, src = src, dst
		}
		if err := drv.Copy(dst, src, int64(n), s, new([4]uintptr)); err != nil {
			return err
		}
		if err := drv.SyncStream(s); err != nil {
			return err
		}
		if !put {
			use(cabi.Bytes(uintptr(host), n))
		}
		return nil
	})
}

// TestDeviceTensorsOnFake makes random operations on device tensors, without and with graphs. It does so on two GPUs,
// on two GPUs without peer access, and on one GPU that ranks share. In the end all memory must be freed.
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
				f := fakedriver.New(t, c.gpus)
				f.Reach.Apart = c.apart
				t.Cleanup(func() {
					if h := f.Holds(); h.Bytes() != 0 {
						t.Errorf("memory is allocated after the machine was closed: %+v", h)
					}
				})
				gpus := newMachine(system(f), Options{Kernels: f, RanksPerGPU: 2})
				modeltest.DeviceTensors(t, modeltest.Open(t, gpus), hocket.LoadOptions{Graph: graph}, byDriver{gpus}, uint64(i), count)
			})
		}
	}
}

// TestDeviceTensorsOnGPU is TestDeviceTensorsOnFake on real GPUs, on which several ranks may share one.
func TestDeviceTensorsOnGPU(t *testing.T) {
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
			gpus := real(t, Options{RanksPerGPU: 2})
			modeltest.DeviceTensors(t, modeltest.Open(t, gpus), hocket.LoadOptions{Graph: graph}, byDriver{gpus}, 9, 400)
		})
	}
}

// TestDeviceTensorShort checks reads of device tensors in which one call that allocates memory fails, for each such
// call. The read returns an error. Later reads, and other tensors, are not affected.
func TestDeviceTensorShort(t *testing.T) {
	tensorOf := func(rows int64) *hocket.Tensor {
		x, err := hocket.FromFloats(ir.F32, slices.Repeat([]float64{3}, int(rows)*16), rows, 16)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	f := fakedriver.New(t, 2)
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
	// The result of the first execution, for which no staging memory is kept for a later read.
	if _, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": tensorOf(many)}, DeviceOut: map[string]*hocket.DeviceTensor{"y": big}}); err != nil {
		t.Fatal(err)
	}
	f.Failure = nvlib.CUDAOutOfMemory
	failed := false
	f.Mu.Lock()
	f.Nth = func(call string) bool {
		first := call == "cuMemHostAlloc" && !failed
		failed = failed || first
		return first
	}
	f.Mu.Unlock()
	if _, err := big.Read(t.Context()); !errors.Is(err, hocket.ErrOutOfMemory) || !failed {
		t.Errorf("a read without enough memory: %v", err)
	}
	f.Mu.Lock()
	f.Nth = nil
	f.Mu.Unlock()
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

// TestBindStateOnFake checks that BindState fills memory that was used before with zeros, for every element type, and
// that it allocates no pinned host memory for a copy of the state.
func TestBindStateOnFake(t *testing.T) {
	f := fakedriver.New(t, 2)
	m := modeltest.Open(t, newMachine(system(f), Options{Kernels: f}))
	text := "mesh tp[2]\nfunc f(%x: f32[2]"
	for _, dt := range ir.DTypes() {
		text += fmt.Sprintf(", %%%s: inout %s[6/tp, 7]", dt, dt)
	}
	model := modeltest.Load(t, m, text+") -> f32[2] {\n  return %x\n}\n", hocket.LoadOptions{})
	for _, dt := range ir.DTypes() {
		used, err := model.NewDeviceTensor(t.Context(), dt.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ones, err := hocket.FromFloats(dt, slices.Repeat([]float64{1}, 42), 6, 7)
		if err == nil {
			err = errors.Join(used.Write(t.Context(), ones), used.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pinned := 0
	f.Mu.Lock()
	f.Nth = func(call string) bool {
		if call == "cuMemHostAlloc" {
			pinned++
		}
		return false
	}
	f.Mu.Unlock()
	state, err := model.BindState(t.Context(), nil)
	if err != nil || len(state) != len(ir.DTypes()) || pinned > 0 {
		t.Fatalf("%d tensors, %v, %d allocations of pinned memory", len(state), err, pinned)
	}
	for name, d := range state {
		x, err := d.Read(t.Context())
		if err != nil || !bytes.Equal(x.Data, make([]byte, len(x.Data))) {
			t.Errorf("%s: %v, %v", name, x.Data, err)
		}
	}
}

// TestBoundGraphOnFake checks that an execution with graphs updates a bound tensor only once, although whole executions
// are used to time the forms of a graph.
func TestBoundGraphOnFake(t *testing.T) {
	f := fakedriver.New(t, 2)
	testBoundGraph(t, modeltest.Open(t, newMachine(system(f), Options{Kernels: f})), 2, 1)
}

// TestBoundGraphOnGPU is TestBoundGraphOnFake on real GPUs.
func TestBoundGraphOnGPU(t *testing.T) {
	gpus := real(t, Options{})
	ranks, trials := len(gpus.sys.GPUs), 0 // on one GPU a graph has only one form
	if ranks > 1 {
		trials = 1
	}
	testBoundGraph(t, modeltest.Open(t, gpus), ranks, trials)
}

func testBoundGraph(t *testing.T, m *hocket.Machine, ranks, trials int) {
	t.Helper()
	log := &bytes.Buffer{}
	text := fmt.Sprintf("mesh tp[%d]\nfunc f(%%x: i32[24/tp, 2], %%s: inout i32[24/tp, 2]) -> i32[24, 2] {\n  add %%s, %%x into %%s\n  %%g: i32[24, 2] = all_gather %%x, over=tp, axis=0\n  return %%g\n}\n", ranks)
	opts := hocket.LoadOptions{Graph: true, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	model := modeltest.Load(t, m, text, opts)
	tensorOf := func(v float64) *hocket.Tensor {
		x, err := hocket.FromFloats(ir.I32, slices.Repeat([]float64{v}, 48), 24, 2)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	d, err := model.NewDeviceTensor(t.Context(), "s", nil)
	if err == nil {
		err = d.Write(t.Context(), tensorOf(1000))
	}
	if err == nil {
		err = model.BindDevice("s", d)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := 1000.0
	for i := range 6 {
		v := float64(i + 1)
		want += v
		r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": tensorOf(v)}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s := got.Floats(); slices.Min(s) != want || slices.Max(s) != want || r.Out["g"].Floats()[47] != v {
			t.Fatalf("after run %d: %v, want %v; g is %v", i, s, want, r.Out["g"].Floats())
		}
	}
	for word, want := range map[string]int{"residents=[s]": 1, "forms of the graph": trials} {
		if n := strings.Count(log.String(), word); n != want {
			t.Errorf("%d times %q in the log, want %d:\n%s", n, word, want, log)
		}
	}
}
