package cuda

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
)

// nvtxLog opens a fake NVTX library that logs the names of ranges in brackets, and a word for each driver call that
// issues work or concerns profilers.
func nvtxLog(t *testing.T, f *fakedriver.GPU) (log *[]string, open func() (*nvlib.NVTX, error)) {
	log = new([]string)
	f.OnCall = func(name string, _ []uintptr) {
		switch name {
		case "cuProfilerStart", "cuProfilerStop", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch",
			"cuMemcpyAsync":
			*log = append(*log, name)
		}
	}
	return log, func() (*nvlib.NVTX, error) {
		return nvlib.NVTXOn(cabi.Fake("fake libnvToolsExt", map[string]func([]uintptr) uintptr{
			"nvtxRangePushA": func(a []uintptr) uintptr {
				*log = append(*log, "["+cabi.GoString(a[0]))
				return 0
			},
			"nvtxRangePop": func([]uintptr) uintptr {
				*log = append(*log, "]")
				return 0
			},
		}))
	}
}

// TestProfileRange checks that, for each batch after the first, a profiler captures one range that contains all work of
// the batch, and that begins and ends of NVTX ranges match. Without the profiling option no such call is made, and
// without NVTX the work has no names.
func TestProfileRange(t *testing.T) {
	for _, c := range []struct {
		name         string
		opts         hocket.LoadOptions
		nvtx, ranged bool
		want         []string
	}{
		{"by call", hocket.LoadOptions{ProfileRange: true, Trace: true}, true, true,
			[]string{"[%y: f32[T, 16] = add %x, %x (line 4, rank 0)", "[%y: f32[T, 16] = add %x, %x (line 4, rank 1)",
				"[input (line 3, rank 0)"}},
		{"by graph", hocket.LoadOptions{ProfileRange: true, Trace: true, Graph: true}, true, true,
			[]string{"[f as one graph"}},
		{"without NVTX", hocket.LoadOptions{ProfileRange: true, Trace: true}, false, true, nil},
		{"off", hocket.LoadOptions{Trace: true}, true, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakedriver.New(t, 2)
			log, open := nvtxLog(t, f)
			s := system(f)
			if s.NVTX = open; !c.nvtx {
				s.NVTX = func() (*nvlib.NVTX, error) { return nil, &nvlib.LoadError{Library: "NVTX"} }
			}
			model := modeltest.Load(t, modeltest.Open(t, newMachine(s, Options{Kernels: f})), doubles, c.opts)
			if err := double(t, model, 8); err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(*log,
				func(s string) bool { return s[0] != 'c' || strings.HasPrefix(s, "cuProfiler") }) {
				t.Errorf("the first run is profiled: %q", *log)
			}
			*log = nil
			if err := double(t, model, 8); err != nil {
				t.Fatal(err)
			}
			depth, ranges, started := 0, 0, false
			for _, s := range *log {
				switch {
				case s == "cuProfilerStart":
					started = true
					ranges++
				case s == "cuProfilerStop":
					started = false
				case s[0] == '[':
					depth++
				case s == "]":
					depth--
				case started != c.ranged && !c.opts.Graph: // graphs are tried before
					t.Errorf("%s is outside the profiler range", s)
				}
				if depth < 0 || depth > 1 || depth == 1 && !started {
					t.Fatalf("NVTX ranges are not balanced: %q", *log)
				}
			}
			if started || depth != 0 || ranges != map[bool]int{true: 1}[c.ranged] {
				t.Errorf("%d profiler ranges, %d open NVTX ranges: %q", ranges, depth, *log)
			}
			for _, want := range c.want {
				if !slices.Contains(*log, want) {
					t.Errorf("no %q in %q", want, *log)
				}
			}
			if c.want == nil && slices.Contains(*log, "]") {
				t.Errorf("names: %q", *log)
			}
		})
	}
}
