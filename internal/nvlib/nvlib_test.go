package nvlib

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// recorded is a fake library that records its calls and returns set answers.
type recorded struct {
	calls   map[string][][]uintptr
	answers map[string]func(args []uintptr) uintptr
}

func (r *recorded) library(names map[string]*cabi.Func) *cabi.Library {
	r.calls = map[string][][]uintptr{}
	fakes := map[string]func([]uintptr) uintptr{}
	for name := range names {
		fakes[name] = func(args []uintptr) uintptr {
			r.calls[name] = append(r.calls[name], slices.Clone(args))
			if f := r.answers[name]; f != nil {
				return f(args)
			}
			return 0
		}
	}
	return cabi.Fake("libfake", fakes)
}

// last returns the arguments of the most recent call.
func (r *recorded) last(t *testing.T, name string) []uintptr {
	t.Helper()
	c := r.calls[name]
	if len(c) == 0 {
		t.Fatalf("%s was not called", name)
	}
	return c[len(c)-1]
}

func fakeDriver(t *testing.T, answers map[string]func([]uintptr) uintptr) (*Driver, *recorded) {
	t.Helper()
	r := &recorded{answers: answers}
	all := (&driverFuncs{}).table()
	for k, v := range (&driverFuncs{}).optional() {
		all[k] = v
	}
	d, err := DriverOn(r.library(all))
	if err != nil {
		t.Fatal(err)
	}
	return d, r
}

func text(s string) func([]uintptr) uintptr {
	c := cabi.NewCStrings([]string{s})
	return func(args []uintptr) uintptr {
		cabi.Store(args[1], cabi.Load[uintptr](c.Addr()))
		return 0
	}
}

// shortage is an error that, like package device, queries errors whether there was too little memory.
type shortage struct{ error }

func (shortage) OutOfMemory() {}

func TestDriverErrors(t *testing.T) {
	d, _ := fakeDriver(t, map[string]func([]uintptr) uintptr{
		"cuMemCreate":      func([]uintptr) uintptr { return 0xdead_0000_0000_0002 }, // the upper bits are undefined
		"cuGetErrorName":   text("CUDA_ERROR_OUT_OF_MEMORY"),
		"cuGetErrorString": text("out of memory"),
		"cuStreamQuery":    func([]uintptr) uintptr { return CUDANotReady },
		"cuEventQuery":     func([]uintptr) uintptr { return 700 },
	})
	_, err := d.CreateMem(0, 1<<20, true)
	if CUDACode(err) != CUDAOutOfMemory ||
		!strings.Contains(err.Error(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY, out of memory (2)") {
		t.Errorf("got %v", err)
	}
	if !errors.Is(fmt.Errorf("more: %w", err), shortage{}) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v must match ErrOutOfMemory", err)
	}
	if err := (&Error{Library: "NCCL", Code: CUDAOutOfMemory}); errors.Is(err, shortage{}) {
		t.Errorf("%v must not match ErrOutOfMemory", err)
	}
	if idle, err := d.StreamIdle(1); idle || err != nil {
		t.Errorf("a busy stream: %v, %v", idle, err)
	}
	if done, err := d.EventDone(1); done || CUDACode(err) != 700 {
		t.Errorf("a failed event: %v, %v", done, err)
	}
}

func TestDriverArguments(t *testing.T) {
	var rect []byte
	var access []int32
	d, r := fakeDriver(t, map[string]func([]uintptr) uintptr{
		"cuDeviceTotalMem_v2": func(a []uintptr) uintptr { cabi.Store(a[0], uint64(150<<30)); return 0 },
		"cuMemcpy2DAsync_v2":  func(a []uintptr) uintptr { rect = slices.Clone(cabi.Bytes(a[0], 128)); return 0 },
		"cuMemSetAccess": func(a []uintptr) uintptr {
			for i := range 3 * a[3] {
				access = append(access, cabi.Load[int32](a[2]+4*i))
			}
			return 0
		},
		"cuDeviceGetName": func(a []uintptr) uintptr { copy(cabi.Bytes(a[0], 128), "NVIDIA H200\x00junk"); return 0 },
	})
	if n, err := d.DeviceMemory(3); err != nil || n != 150<<30 || r.last(t, "cuDeviceTotalMem_v2")[1] != 3 {
		t.Errorf("%d, %v", n, err)
	}
	if name, _ := d.DeviceName(0); name != "NVIDIA H200" {
		t.Errorf("the name is %q", name)
	}
	if err := d.CopyRect(Rect{Dst: 0x1000, Src: 0x2000, DstPitch: 64, SrcPitch: 32, Width: 20, Height: 5},
		9); err != nil {
		t.Fatal(err)
	}
	word := func(i int) (v uint64) {
		for k := range 8 {
			v |= uint64(rect[8*i+k]) << (8 * k)
		}
		return v
	}
	want := map[int]uint64{2: 4, 4: 0x2000, 6: 32, 9: 4, 11: 0x1000, 13: 64, 14: 20, 15: 5}
	for i := range 16 {
		if word(i) != want[i] {
			t.Errorf("word %d of the rectangle is %#x, want %#x", i, word(i), want[i])
		}
	}
	if err := d.SetAccess(0x4000, 1<<21, []Device{0, 2}); err != nil ||
		!slices.Equal(access, []int32{1, 0, 3, 1, 2, 3}) {
		t.Errorf("access %v, %v", access, err)
	}
}

func TestLaunchArguments(t *testing.T) {
	d, r := fakeDriver(t, nil)
	params := [][]byte{{1, 2, 3, 4}, {5, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 40)}
	params[2][39] = 9
	l := NewLaunch(77, Shape{Grid: [3]uint32{2, 3, 4}, Block: [3]uint32{32, 1, 1}, Shared: 1024}, params)
	defer l.Free()
	if err := d.Launch(l, 55); err != nil {
		t.Fatal(err)
	}
	got := r.last(t, "cuLaunchKernel")
	if !slices.Equal(got[:9], []uintptr{77, 2, 3, 4, 32, 1, 1, 1024, 55}) || got[10] != 0 {
		t.Errorf("arguments %v", got)
	}
	for i, p := range params {
		at := cabi.Load[uintptr](got[9] + uintptr(8*i))
		if !slices.Equal(cabi.Bytes(at, len(p)), p) || at%8 != 0 {
			t.Errorf("parameter %d at %#x is %v", i, at, cabi.Bytes(at, len(p)))
		}
	}
	if l.Blocks() != 24 {
		t.Errorf("%d blocks", l.Blocks())
	}
	if allocs := testing.AllocsPerRun(100, func() { _ = d.Launch(l, 55) }); allocs > 3 { // those of the recorder
		t.Errorf("%v allocations a launch", allocs)
	}
}

// TestEarlyLaunchArguments checks the layout of CUlaunchConfig: the grid, the block and the shared memory are words of
// 4 bytes, the stream is at byte 32, the attributes are at 40 and their number at 48. In an attribute, the value is 8
// bytes after the number.
func TestEarlyLaunchArguments(t *testing.T) {
	d, r := fakeDriver(t, nil)
	param := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	l := d.NewEarlyLaunch(77, Shape{Grid: [3]uint32{2, 3, 4}, Block: [3]uint32{32, 5, 6}, Shared: 1024},
		[][]byte{param})
	defer l.Free()
	if err := d.LaunchEarly(l, 55); err != nil {
		t.Fatal(err)
	}
	got := r.last(t, "cuLaunchKernelEx")
	if at := cabi.Load[uintptr](got[2]); got[1] != 77 || got[3] != 0 || !slices.Equal(cabi.Bytes(at, 8), param) {
		t.Errorf("arguments %v", got)
	}
	c := got[0]
	if w := cabi.Load[[7]uint32](c); w != [7]uint32{2, 3, 4, 32, 5, 6, 1024} || cabi.Load[uint64](c+32) != 55 ||
		cabi.Load[uint32](c+48) != 1 {
		t.Errorf("shape %v, stream %d, %d attributes", w, cabi.Load[uint64](c+32), cabi.Load[uint32](c+48))
	}
	if a := cabi.Load[uintptr](c + 40); cabi.Load[uint32](a) != 6 || cabi.Load[uint32](a+8) != 1 {
		t.Errorf("attribute %d is %d", cabi.Load[uint32](a), cabi.Load[uint32](a+8))
	}
	if err := d.Launch(l, 56); err != nil {
		t.Fatal(err)
	}
	if got := r.last(t, "cuLaunchKernel"); !slices.Equal(got[:9], []uintptr{77, 2, 3, 4, 32, 5, 6, 1024, 56}) {
		t.Errorf("in an ordinary launch its arguments are %v", got)
	}
}

func TestMissingSymbolsInOneError(t *testing.T) {
	names := (&driverFuncs{}).table()
	delete(names, "cuMemMap")
	delete(names, "cuGraphLaunch")
	_, err := DriverOn((&recorded{}).library(names))
	var load *LoadError
	var missing *cabi.MissingError
	if !errors.As(err, &load) || !errors.As(err, &missing) ||
		!slices.Equal(missing.Names, []string{"cuGraphLaunch", "cuMemMap"}) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"libcuda", "too old", "HOCKET_LIBCUDA"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestMissingLibrary(t *testing.T) {
	t.Setenv("HOCKET_LIBNCCL", "/none/libnccl.so.9")
	_, err := wantNCCL.load((&ncclFuncs{}).table(), nil)
	var load *LoadError
	if !errors.As(err, &load) {
		t.Fatalf("got %v", err)
	}
	if cabi.Callable && (!strings.Contains(err.Error(), "/none/libnccl.so.9") ||
		!strings.Contains(err.Error(), "pip install")) {
		t.Errorf("got %v", err)
	}
}

func TestSearchOrder(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"} {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	none := func(string) string { return "" }
	got := wantCuBLASLt.names(none, []string{root})[:4]
	want := []string{"libcublasLt.so.13", "libcublasLt.so.12", root + "/nvidia/cu13/lib/libcublasLt.so.13",
		root + "/nvidia/cublas/lib/libcublasLt.so.12"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	set := func(name string) string { return map[string]string{"HOCKET_LIBCUBLASLT": "/my/lib.so"}[name] }
	if got := wantCuBLASLt.names(set, []string{root}); !slices.Equal(got, []string{"/my/lib.so"}) {
		t.Errorf("got %v", got)
	}
}

func TestCompile(t *testing.T) {
	log, cubin := "line 3: error: what\x00", []byte{0x7f, 'E', 'L', 'F', 0}
	status := uintptr(0)
	lowered := cabi.NewCStrings([]string{"_Z3addIfEv", "NVRTC_ERROR_COMPILATION"})
	var options []string
	answers := map[string]func([]uintptr) uintptr{
		"nvrtcCompileProgram": func(a []uintptr) uintptr {
			options = nil
			for i := range a[1] {
				options = append(options, cabi.GoString(cabi.Load[uintptr](a[2]+8*i)))
			}
			return status
		},
		"nvrtcCreateProgram":     func(a []uintptr) uintptr { cabi.Store(a[0], uintptr(42)); return 0 },
		"nvrtcGetProgramLogSize": func(a []uintptr) uintptr { cabi.Store(a[1], uint64(len(log))); return 0 },
		"nvrtcGetProgramLog":     func(a []uintptr) uintptr { copy(cabi.Bytes(a[1], len(log)), log); return 0 },
		"nvrtcGetCUBINSize":      func(a []uintptr) uintptr { cabi.Store(a[1], uint64(len(cubin))); return 0 },
		"nvrtcGetCUBIN":          func(a []uintptr) uintptr { copy(cabi.Bytes(a[1], len(cubin)), cubin); return 0 },
		"nvrtcGetErrorString":    func([]uintptr) uintptr { return cabi.Load[uintptr](lowered.Addr() + 8) },
		"nvrtcGetLoweredName": func(a []uintptr) uintptr {
			cabi.Store(a[2], cabi.Load[uintptr](lowered.Addr()))
			return 0
		},
	}
	r := &recorded{answers: answers}
	n, err := NVRTCOn(r.library((&nvrtcFuncs{}).table()))
	if err != nil {
		t.Fatal(err)
	}
	job := Compilation{Name: "a.cu", Source: "…", Headers: []Header{{"h", "x"}}, Options: []string{"-one", "-two"},
		Kernels: []string{"add<float>"}}
	got, err := n.Compile(job)
	if err != nil || !slices.Equal(got.Cubin, cubin) || got.Symbols["add<float>"] != "_Z3addIfEv" ||
		!slices.Equal(options, job.Options) {
		t.Errorf("got %+v, %v, options %v", got, err, options)
	}
	status = 6
	_, err = n.Compile(job)
	var ce *CompileError
	if !errors.As(err, &ce) || !strings.Contains(err.Error(), "a.cu") || !strings.Contains(err.Error(), "line 3") ||
		Code(err, "NVRTC") != 6 {
		t.Errorf("got %v", err)
	}
	if destroyed := len(r.calls["nvrtcDestroyProgram"]); destroyed != 2 {
		t.Errorf("%d of 2 programs were freed", destroyed)
	}
}

func TestProductArguments(t *testing.T) {
	r := &recorded{}
	c, err := CuBLASLtOn(r.library((&cublasFuncs{}).table()))
	if err != nil {
		t.Fatal(err)
	}
	for _, wide := range []bool{false, true} {
		p := NewProduct(1, 2, 3, 4, 5, 0x100, 0x200, 0x300, LtAlgo{7, 8}, wide)
		if err := c.Multiply(p, 0x9000, 4096, 6); err != nil {
			t.Fatal(err)
		}
		a := r.last(t, "cublasLtMatmul")
		if a[0] != 1 || a[1] != 2 || !slices.Equal(a[3:7], []uintptr{0x100, 3, 0x200, 4}) ||
			!slices.Equal(a[8:12], []uintptr{0x300, 5, 0x300, 5}) || !slices.Equal(a[13:], []uintptr{0x9000, 4096, 6}) {
			t.Errorf("arguments %v", a)
		}
		if one := cabi.Load[float32](a[2]); !wide && one != 1 {
			t.Errorf("alpha is %v", one)
		}
		if one := cabi.Load[float64](a[2]); wide && one != 1 {
			t.Errorf("alpha is %v", one)
		}
		if cabi.Load[LtAlgo](a[12]) != (LtAlgo{7, 8}) {
			t.Error("the product has the wrong algorithm")
		}
		p.Free()
	}
}

func TestTeamByValue(t *testing.T) {
	r := &recorded{}
	n, err := NCCLOn(r.library((&ncclFuncs{}).table()))
	if err != nil {
		t.Fatal(err)
	}
	var id UniqueID
	id[0], id[127] = 1, 2
	if err := n.InitRank(0x50, 4, id, 3); err != nil {
		t.Fatal(err)
	}
	a := r.last(t, "ncclCommInitRank")
	if len(a) == 22 && (a[0] != 0x50 || a[1] != 4 || a[2] != 3 || a[6] != 1 || a[21] != 2<<56) {
		t.Errorf("arguments %v", a)
	}
}

// TestLoad loads the installed libraries. If REQUIRE_GPUS is set, all libraries must be installed.
func TestLoad(t *testing.T) {
	gpus, _ := strconv.Atoi(os.Getenv("REQUIRE_GPUS"))
	need := gpus > 0
	type library interface{ Loaded() Loaded }
	open := map[string]func() (library, error){
		"driver":   func() (library, error) { return OpenDriver() },
		"nvrtc":    func() (library, error) { return OpenNVRTC() },
		"cublasLt": func() (library, error) { return OpenCuBLASLt() },
		"nccl":     func() (library, error) { return OpenNCCL(false) },
		"nvml":     func() (library, error) { return OpenNVML() },
	}
	for name, f := range open {
		t.Run(name, func(t *testing.T) {
			switch l, err := f(); {
			case err != nil && need:
				t.Fatal(err)
			case err != nil:
				t.Skip(err)
			default:
				t.Logf("%+v", l.Loaded())
			}
		})
	}
}

// TestRefusal checks that Refusal returns NVML's reason for a connection that does not work, and nothing for others.
func TestRefusal(t *testing.T) {
	ways := map[[3]uintptr]int32{{1, 2, 1}: 3, {1, 3, 0}: 4, {1, 4, 1}: 6}
	zero := func([]uintptr) uintptr { return 0 }
	n, err := NVMLOn(cabi.Fake("fake libnvidia-ml", map[string]func([]uintptr) uintptr{
		"nvmlInit_v2": zero, "nvmlShutdown": zero, "nvmlErrorString": zero, "nvmlSystemGetDriverVersion": zero,
		"nvmlDeviceGetNvLinkState": zero,
		"nvmlDeviceGetHandleByPciBusId_v2": func(a []uintptr) uintptr {
			id := cabi.GoString(a[0])
			cabi.Store(a[1], uintptr(id[0]-'0'))
			return uintptr(len(id) - 1) // an error for longer ids
		},
		"nvmlDeviceGetP2PStatus": func(a []uintptr) uintptr {
			cabi.Store(a[3], ways[[3]uintptr{a[0], a[1], a[2]}])
			return 0
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for peer, want := range map[string]string{"2": "the GPUs are under different I/O hubs",
		"3": "a registry key of the driver disables peer access", "4": "", "5": "", "unknown": ""} {
		if got := n.Refusal("1", peer); got != want {
			t.Errorf("device %s: %q, want %q", peer, got, want)
		}
	}
}

// TestKeep checks that Keep restores the context of a thread of C, whatever context Bind left, even if the thread had
// none. If the driver cannot return the current context, the context stays.
func TestKeep(t *testing.T) {
	current, code := Context(3), uintptr(0)
	d, _ := fakeDriver(t, map[string]func([]uintptr) uintptr{
		"cuCtxGetCurrent": func(a []uintptr) uintptr { cabi.Store(a[0], current); return code },
		"cuCtxSetCurrent": func(a []uintptr) uintptr { current = Context(a[0]); return 0 },
	})
	for _, c := range []struct {
		own  Context
		code uintptr
		want Context
	}{{3, 0, 3}, {0, 0, 0}, {3, 4, 5}} {
		current, code = c.own, c.code
		restore := d.Keep()
		if err := d.Bind(5); err != nil {
			t.Fatal(err)
		}
		d.Unbind()
		restore()
		if current != c.want {
			t.Errorf("context %d, status %d: %d is left", c.own, c.code, current)
		}
	}
}

// TestVisit checks that Visit makes a context current and restores the thread's own one, also after an error or a
// panic, with one call of the driver if both are the same. If the driver cannot return the current context, the
// context of Visit stays.
func TestVisit(t *testing.T) {
	current, code, calls := Context(0), uintptr(0), ""
	d, _ := fakeDriver(t, map[string]func([]uintptr) uintptr{
		"cuCtxGetCurrent": func(a []uintptr) uintptr { calls += "get "; cabi.Store(a[0], current); return code },
		"cuCtxSetCurrent": func(a []uintptr) uintptr {
			calls += fmt.Sprintf("set %d ", a[0])
			current = Context(a[0])
			return 0
		},
	})
	for _, c := range []struct {
		own    Context
		code   uintptr
		failed bool
		calls  string
		want   Context
	}{
		{5, 0, false, "get ", 5},
		{3, 0, false, "get set 5 set 3 ", 3},
		{0, 0, false, "get set 5 set 0 ", 0},
		{5, 0, true, "get set 5 ", 5},
		{3, 4, false, "get set 5 ", 5},
	} {
		current, code, calls = c.own, c.code, ""
		var want error
		if c.failed {
			want = errors.New("failed")
		}
		if err := d.Visit(5, func() error {
			if current != 5 {
				t.Errorf("%+v: context %d is current", c, current)
			}
			return want
		}); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
		if current != c.want || calls != c.calls {
			t.Errorf("%+v: calls %s, and context %d is left", c, calls, current)
		}
	}
	current, code = 3, 0
	func() {
		defer func() { _ = recover() }()
		_ = d.Visit(5, func() error { panic("a fault") })
	}()
	if current != 3 {
		t.Errorf("after a panic context %d is current", current)
	}
	d, _ = fakeDriver(t, map[string]func([]uintptr) uintptr{
		"cuCtxGetCurrent": func(a []uintptr) uintptr { cabi.Store(a[0], Context(3)); return 0 },
		"cuCtxSetCurrent": func([]uintptr) uintptr { return 201 },
	})
	if err := d.Visit(5, func() error { return nil }); CUDACode(err) != 201 {
		t.Errorf("got %v", err)
	}
}
