package cuda

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// product512 prepares y = x·wᵀ with 512×512 matrices, and returns the launch.
func product512(t *testing.T, w device.World, dt ir.DType) device.Launch {
	t.Helper()
	return productOf(t, w, dt, 512)
}

func productOf(t *testing.T, w device.World, dt ir.DType, n int64) device.Launch {
	t.Helper()
	return linearOf(t, w, device.Linear{}, dt, []int64{n, n}, []int64{n, n})
}

// linearOf prepares a linear with operands of the given shapes.
func linearOf(t *testing.T, w device.World, op device.Linear, dt ir.DType, shapes ...[]int64) device.Launch {
	t.Helper()
	l, err := tryLinear(t, w, op, dt, shapes...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tryLinear is like linearOf, but returns an error if the linear is refused.
func tryLinear(t *testing.T, w device.World, op device.Linear, dt ir.DType, shapes ...[]int64) (device.Launch, error) {
	t.Helper()
	d := w.Device(0)
	view := func(shape ...int64) device.View {
		v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
		mem, err := d.Alloc(v.Elements()*dt.Size(), device.Shared)
		if err != nil {
			t.Fatal(err)
		}
		v.Mem = mem
		return v
	}
	k := device.Kernel{Op: op}
	for _, shape := range shapes {
		k.Ins = append(k.Ins, view(shape...))
	}
	k.Outs = []device.View{view(shapes[0][0], shapes[1][0])}
	return d.Prepare(k)
}

func openFake(t *testing.T, f *fakedriver.GPU, opts Options) device.World {
	t.Helper()
	opts.Kernels = f
	w, err := newMachine(system(f), opts).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// chosen returns the number of the algorithm that a launch runs.
func chosen(t *testing.T, w device.World, f *fakedriver.GPU, l device.Launch) int {
	t.Helper()
	s, err := w.Device(0).NewStream(device.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.LT.Runs = nil
	if err := s.Launch(l); err != nil {
		t.Fatal(err)
	}
	if len(f.LT.Runs) != 1 {
		t.Fatalf("a launch ran %d products", len(f.LT.Runs))
	}
	return f.LT.Runs[0].Algo
}

func TestPick(t *testing.T) {
	for _, c := range []struct {
		name  string
		costs []float32
		Want  int
	}{
		{"the fastest", []float32{3, 1, 2}, 2},
		{"the first, of nearly equal ones", []float32{1, 0.995, 2}, 1},
		{"one", []float32{1}, 1},
		{"some do not run", []float32{3, -1, 2, -1}, 3},
		{"short ones", []float32{0.003, 0.002, 0.0015}, 3},
		{"long ones, of which three are tried", []float32{20, 30, 18, 1}, 3},
		{"one that is too long to try others", []float32{40, 1}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakedriver.New(t, 1)
			f.LT = &fakedriver.LT{T: t, Costs: c.costs}
			w := openFake(t, f, Options{})
			l := product512(t, w, ir.BF16)
			out := l.(*launch).steps[0].(gemmLaunch).Launch.Problem.Out
			for _, r := range f.LT.Runs {
				if r.Out == uintptr(out) {
					t.Error("timing algorithms wrote memory of the program")
				}
			}
			if spent := f.LT.Now; spent > 8*max(gemm.TrialMs, c.costs[0]) {
				t.Errorf("timing algorithms took %v ms", spent)
			}
			if got := chosen(t, w, f, l); got != c.Want {
				t.Errorf("picked algorithm %d, want %d", got, c.Want)
			}
			if second := product512(t, w, ir.BF16); chosen(t, w, f, second) != c.Want || f.LT.Asked != 1 {
				t.Errorf("after preparing the same product again: %d requests for algorithms", f.LT.Asked)
			}
			if product512(t, w, ir.F16); f.LT.Asked != 2 {
				t.Errorf("after preparing another product: %d requests for algorithms", f.LT.Asked)
			}
		})
	}
}

// TestPickBias checks that the fastest algorithm is selected for a product with a bias, except algorithms whose results
// have other bits than those of the first suggestion.
func TestPickBias(t *testing.T) {
	for _, c := range []struct {
		name string
		dt   ir.DType
		late int
		Want int
	}{
		{"all add it in time", ir.BF16, 0, 2},
		{"the fastest adds it late", ir.BF16, 2, 3},
		{"the first alone differs", ir.F16, 1, 1},
		{"f32, which is not rounded again", ir.F32, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakedriver.New(t, 1)
			f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}, Late: c.late}
			w := openFake(t, f, Options{})
			l := linearOf(t, w, device.Linear{}, c.dt, []int64{512, 512}, []int64{512, 512}, []int64{512})
			if got := chosen(t, w, f, l); got != c.Want {
				t.Errorf("picked algorithm %d, want %d", got, c.Want)
			}
		})
	}
}

// TestPickDuel checks that an algorithm is not selected only because the first one was slow for a moment: the two are
// compared again alternately.
func TestPickDuel(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{1, 1.2}, Cold: 2 + gemm.TrialRounds}
	w := openFake(t, f, Options{})
	if got := chosen(t, w, f, product512(t, w, ir.BF16)); got != 1 || f.LT.Cold != 0 {
		t.Errorf("picked algorithm %d, %d slow runs left", got, f.LT.Cold)
	}
}

// TestPickKept checks that a process uses the saved choice of another process.
func TestPickKept(t *testing.T) {
	dir := t.TempDir()
	run := func(want, asked, checked int, opts Options, change func(*fakedriver.LT)) {
		t.Helper()
		f := fakedriver.New(t, 1)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
		if change != nil {
			change(f.LT)
		}
		opts.Cache = kernels.CacheIn(dir, nil)
		w := openFake(t, f, opts)
		l := product512(t, w, ir.BF16)
		if len(f.LT.Runs) == 0 {
			t.Error("the algorithm was not run at preparation")
		}
		if got := chosen(t, w, f, l); got != want || f.LT.Asked != asked || f.LT.Checked != checked {
			t.Errorf("picked algorithm %d, %d requests, %d checks; want %d, %d, %d", got, f.LT.Asked,
				f.LT.Checked, want, asked, checked)
		}
	}
	run(2, 1, 0, Options{}, nil)
	slower := func(l *fakedriver.LT) { l.Costs = []float32{1, 2, 3} }
	run(2, 0, 1, Options{}, slower) // not measured again
	run(1, 1, 0, Options{FixedProducts: true}, nil)
	run(1, 1, 1, Options{}, func(l *fakedriver.LT) { l.Refuse = true; slower(l) })
	run(1, 0, 1, Options{}, nil) // this process uses the choice of the previous one
	notes, err := filepath.Glob(filepath.Join(dir, "*.note"))
	if err != nil || len(notes) != 1 {
		t.Fatalf("saved choices: %v, %v", notes, err)
	}
	b, err := os.ReadFile(notes[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"empty": nil, "cut short": b[:len(b)-1],
		"changed": append(b[:len(b)-1:len(b)-1], b[len(b)-1]+1), "foreign": []byte("something else")} {
		if err := os.WriteFile(notes[0], bad, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { run(2, 1, 0, Options{}, nil) })
	}
}

func TestPickFixed(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{FixedProducts: true})
	if got := chosen(t, w, f, product512(t, w, ir.BF16)); got != 1 {
		t.Errorf("picked algorithm %d", got)
	}
	if len(f.LT.Schemes) != 1 || f.LT.Schemes[0] != 0 {
		t.Errorf("reduction schemes %v allow split sums", f.LT.Schemes)
	}
}

// TestPickSMs checks that a product that is limited to some multiprocessors has a separate choice of algorithm, which
// is timed and run before the first launch. A limit to all multiprocessors is no limit.
func TestPickSMs(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{})
	const all = 132
	w.(*world).sites[0].gpu.SMs = all
	for i, c := range []struct {
		sms   int
		asked int // number of requests so far
		told  []int32
	}{
		{0, 1, nil},
		{all, 1, nil},
		{all + 1, 1, nil},
		{all - 1, 2, []int32{all - 1}},
		{all - 1, 2, []int32{all - 1}},
		{1, 3, []int32{1}},
	} {
		f.LT.SMs, f.LT.Runs = nil, nil
		asked := f.LT.Asked
		l := linearOf(t, w, device.Linear{Product: device.Product{SMs: c.sms}}, ir.BF16, []int64{512, 512},
			[]int64{512, 512})
		if f.LT.Asked != c.asked || !slices.Equal(f.LT.SMs, c.told) || (len(f.LT.Runs) > 0) != (f.LT.Asked > asked) {
			t.Errorf("case %d, %d SMs: %d requests, for SMs %v, %d runs; want %d, %v", i, c.sms, f.LT.Asked, f.LT.SMs,
				len(f.LT.Runs), c.asked, c.told)
		}
		if got := chosen(t, w, f, l); got != 2 {
			t.Errorf("case %d: picked algorithm %d, want 2", i, got)
		}
	}
}

// TestPickSmall checks that algorithms of very small products are not timed.
func TestPickSmall(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{})
	l := productOf(t, w, ir.BF16, 256)
	if len(f.LT.Runs) != 1 {
		t.Errorf("%d runs before the first launch", len(f.LT.Runs))
	}
	if got := chosen(t, w, f, l); got != 1 {
		t.Errorf("picked algorithm %d", got)
	}
}

// TestPickWithoutMemory checks that the first suggestion is used if there is no memory for timing others.
func TestPickWithoutMemory(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{})
	w.(*world).devices[0].site.heaps[device.Private] = gpu.NewHeap(1, 1, 1, none{})
	if got := chosen(t, w, f, product512(t, w, ir.BF16)); got != 1 {
		t.Errorf("picked algorithm %d", got)
	}
}

// TestPickPart checks which algorithm is selected for a matrix product if memory is too small to time it. Preparation
// runs a part of the product once on each GPU, so that its code is loaded, unless there is no memory even for that.
func TestPickPart(t *testing.T) {
	for _, c := range []struct {
		mib  int64
		runs int
	}{{4, 1}, {1, 0}} {
		f := fakedriver.New(t, 1)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
		w := openFake(t, f, Options{})
		site := w.(*world).devices[0].site
		site.heaps[device.Private] = gpu.NewHeap(1, 1, 1,
			&smallSource{from: site.heaps[device.Private].From, most: c.mib << 20})
		l := productOf(t, w, ir.BF16, 2048)
		if n := len(f.LT.Runs); n != c.runs {
			t.Errorf("%d MiB: %d runs before the first launch, want %d", c.mib, n, c.runs)
		}
		if got := chosen(t, w, f, l); got != 1 {
			t.Errorf("%d MiB: picked algorithm %d", c.mib, got)
		}
		if list := w.Guesses(); len(list) != 1 {
			t.Errorf("%d MiB: unmeasured products %q, want one", c.mib, list)
		}
	}
}

// TestPickTrialFails checks that an error while timing algorithms is returned, unless it is a lack of memory.
func TestPickTrialFails(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{})
	for _, code := range []uintptr{1, nvlib.CUDAOutOfMemory} {
		fails := code != nvlib.CUDAOutOfMemory
		f.Returns["cuStreamCreateWithPriority"] = code
		l, err := tryLinear(t, w, device.Linear{}, ir.BF16, []int64{512, 512}, []int64{512, 512})
		if (err != nil) != fails || fails && !strings.Contains(err.Error(), "cuStreamCreateWithPriority") {
			t.Errorf("%d: %v", code, err)
		}
		if l != nil {
			l.Release()
		}
	}
	small := func() error { // one suggestion, which is run once before the first launch
		l, err := tryLinear(t, w, device.Linear{}, ir.BF16, []int64{256, 256}, []int64{256, 256})
		if l != nil {
			l.Release()
		}
		return err
	}
	f.Returns["cuStreamCreateWithPriority"] = 1
	if err := small(); err == nil {
		t.Error("a product that could not be run once is prepared")
	}
	delete(f.Returns, "cuStreamCreateWithPriority")
	before := len(f.LT.Runs)
	if err := small(); err != nil || len(f.LT.Runs) != before+1 {
		t.Errorf("%v; %d runs after the fault was fixed, want 1", err, len(f.LT.Runs)-before)
	}
}

// smallSource is a source for heaps that allocates regions of at most the number of bytes most.
type smallSource struct {
	from gpu.Source
	most int64
}

func (s *smallSource) Reserve(most, least int64) (*gpu.Region, error) {
	if least > s.most {
		return nil, device.ErrOutOfMemory
	}
	return s.from.Reserve(min(most, s.most), least)
}
func (s *smallSource) Release(r *gpu.Region) error { return s.from.Release(r) }

// none is a source for heaps that has no memory.
type none struct{}

func (none) Reserve(int64, int64) (*gpu.Region, error) { return nil, device.ErrOutOfMemory }
func (none) Release(*gpu.Region) error                 { return nil }

// TestWorkspaces checks that products on two streams use separate workspaces. A workspace has the size that the
// launches need that were announced for its stream, or the largest possible size if none were announced.
func TestWorkspaces(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Need: 1 << 20}
	w := openFake(t, f, Options{})
	small := product512(t, w, ir.BF16)
	f.LT.Need = 3 << 20
	large := product512(t, w, ir.F16)
	var used []uintptr
	for _, c := range []struct {
		told []device.Launch
		Want int64
	}{{[]device.Launch{small, large, small}, 3 << 20}, {[]device.Launch{small}, 1 << 20}, {nil, gemm.WorkspaceBytes}} {
		s, err := w.Device(0).NewStream(device.StreamOptions{})
		if err == nil {
			err = s.PrepareLaunches(c.told)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.LT.Runs = nil
		clear(f.Called)
		for range 2 {
			if err := s.Launch(small); err != nil {
				t.Fatal(err)
			}
		}
		if f.Called["cuMemCreate"] > 0 && c.told != nil {
			t.Error("a launch that was announced to the stream allocates memory")
		}
		if f.LT.Runs[0].Work != f.LT.Runs[1].Work {
			t.Error("a stream uses two workspaces")
		}
		if m := s.(*stream).workspace; m.bytes != c.Want || uintptr(m.addr) != f.LT.Runs[0].Work ||
			slices.Contains(used, f.LT.Runs[0].Work) {
			t.Errorf("%d launches announced: the workspace has %d bytes at %#x, want %d bytes and another address than %#x",
				len(c.told), m.bytes, m.addr, c.Want, used)
		}
		if err := s.Launch(large); err != nil {
			t.Fatal(err)
		}
		if m := s.(*stream).workspace; m.bytes < 3<<20 || uintptr(m.addr) != f.LT.Runs[2].Work {
			t.Errorf("the workspace of a larger product has %d bytes at %#x, but the product runs with %#x", m.bytes, m.addr,
				f.LT.Runs[2].Work)
		}
		used = append(used, f.LT.Runs[0].Work)
	}
}

// TestPickRelu checks that a product with a relu uses the same algorithm as without a relu, or is refused.
func TestPickRelu(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
	w := openFake(t, f, Options{})
	k := w.Device(0).(*dev)
	prepare := func() (*gemm.Launch, error) {
		const n = 512
		return prepareGemm(k, gemm.Problem{DType: ir.BF16, Out: 1 << 20, A: 2 << 20, B: 3 << 20, Batch: 1, M: n, N: n,
			K: n, Om: n, On: 1, Am: n, Ak: 1, Bk: 1, Bn: n, Relu: true})
	}
	st, err := prepare()
	if err != nil || st == nil {
		t.Fatal(st, err)
	}
	if last := f.LT.Runs[len(f.LT.Runs)-1]; last.Algo != 2 || f.LT.Asked != 1 || f.LT.Checked != 1 {
		t.Errorf("ran algorithm %d last, %d requests, %d checks", last.Algo, f.LT.Asked, f.LT.Checked)
	}
	st.Free()
	runs := len(f.LT.Runs)
	f.LT.Refuse = true
	if st, err := prepare(); err != nil || st != nil {
		t.Errorf("a relu that the algorithm does not support: %v, %v", st, err)
	}
	if len(f.LT.Runs) != runs {
		t.Error("the algorithm was run again")
	}
}

// TestPickOverMemory checks that operands that overlap in memory are not refused because timing, which uses separate
// memory for each operand, would need more memory than the GPU has.
func TestPickOverMemory(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		f := fakedriver.New(t, 1)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1}}
		w := openFake(t, f, Options{FixedProducts: fixed})
		w.(*world).sites[0].gpu.Memory = 48 << 20
		const n = 2048
		mem, err := w.Device(0).Alloc(2*2*n*n, device.Private)
		mustOf(t)(err)
		x := device.View{Mem: mem, DType: ir.BF16, Shape: []int64{n, n}, Strides: []int64{n, 1}}
		y := x
		y.Off = 2 * n * n
		l, err := w.Device(0).Prepare(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, x},
			Outs: []device.View{y}})
		mustOf(t)(err)
		if got := chosen(t, w, f, l); got != 1 {
			t.Errorf("picked algorithm %d", got)
		}
	}
}
