package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/guard"
	"hocket.example/hocket/internal/modeltest"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// doubles is a program with a separate plan for each T.
const doubles = `dim T = 8
mesh tp[2]
func f(%x: f32[T, 16]) -> f32[T, 16] {
  %y = add %x, %x
  return %y
}
`

// fakeModels opens a machine on the fake driver, and loads a model of the program doubles for each of the options.
func fakeModels(t *testing.T, f *fakedriver.GPU, opts ...hocket.LoadOptions) []*hocket.Model {
	t.Helper()
	m := fakeMachine(t, f)
	var models []*hocket.Model
	for _, o := range opts {
		models = append(models, modeltest.Load(t, m, doubles, o))
	}
	return models
}

// fakeMachine opens a machine of hocket's API on the fake driver.
func fakeMachine(t *testing.T, f *fakedriver.GPU) *hocket.Machine {
	t.Helper()
	t.Cleanup(func() {
		if h := f.Holds(); h.Bytes() != 0 {
			t.Errorf("memory is allocated after the machine was closed: %+v", h)
		}
	})
	return modeltest.Open(t, newMachine(system(f), Options{Kernels: f}))
}

// double runs a model of the program doubles with the given number of rows and checks the result.
func double(t *testing.T, m *hocket.Model, rows int64) error {
	t.Helper()
	vals := make([]float64, rows*16)
	for i := range vals {
		vals[i] = float64(i % 1000)
	}
	x, err := hocket.FromFloats(ir.F32, vals, rows, 16)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	if err != nil {
		return err
	}
	for i, v := range r.Out["y"].Floats() {
		if v != 2*vals[i] {
			t.Fatalf("%d rows: element %d is %v, want %v", rows, i, v, 2*vals[i])
		}
	}
	return nil
}

// TestModelCache checks, by the driver's count, that the plans that stay loaded use no more memory than permitted, and
// that they are the most recently used plans.
func TestModelCache(t *testing.T) {
	const bound = 20 << 20
	f := fakedriver.New(t, 2)
	m := fakeModels(t, f, hocket.LoadOptions{Cache: bound})[0]
	for rows := int64(2); rows <= 40; rows += 2 {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
		if h := f.Holds(); h.Bytes() > bound || rows > 20 && h.Bytes() < bound/2 {
			t.Errorf("with %d rows %+v is allocated, the bound is %d", rows, h, bound)
		}
	}
	f.Taken()
	for i, rows := range []int64{40, 38, 36, 38, 2, 38, 36} {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
		if n := f.Taken(); (n > 0) != (rows == 2) {
			t.Errorf("run %d, with %d rows, allocated memory %d times", i, rows, n)
		}
	}
	if err := double(t, m, 100<<10); err != nil { // exceeds the bound alone
		t.Fatal(err)
	}
	if err := double(t, m, 36); err != nil {
		t.Fatal(err)
	}
	if h := f.Holds(); h.Bytes() > bound {
		t.Errorf("at the end %+v is allocated, the bound is %d", h, bound)
	}
}

// TestModelShort checks that the least recently used plans are evicted, only as many as necessary, if a device has no
// memory for another plan.
func TestModelShort(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Limit = 7 << 20
	m := fakeModels(t, f, hocket.LoadOptions{})[0]
	for rows := int64(2); rows <= 20; rows += 2 {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
	}
	f.Taken()
	for i, rows := range []int64{20, 18, 16, 18} {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
		if n := f.Taken(); n > 0 {
			t.Errorf("run %d, with %d rows, allocated memory %d times", i, rows, n)
		}
	}
	if err := double(t, m, 30000); err != nil { // needs 4 of 7 MiB
		t.Fatal(err)
	}
	if h := f.Holds(); h.Device != 6<<20 {
		t.Errorf("%d bytes of a device are allocated; want the new plan and the one used last", h.Device)
	}
}

// TestModelShortRuns checks that plans are evicted if the host cannot pin more memory, when a plan is loaded or first
// run, and if there is no memory for a graph.
func TestModelShortRuns(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.HostLimit = 12 << 20
	m := fakeModels(t, f, hocket.LoadOptions{}, hocket.LoadOptions{Graph: true})
	for rows := int64(2); rows <= 20; rows += 2 {
		if err := double(t, m[0], rows); err != nil {
			t.Fatal(err)
		}
	}
	if h := f.Holds(); h.Host != 12<<20 || h.Device != 6<<20 {
		t.Errorf("%+v is allocated; want three plans", h)
	}
	if err := m[0].Close(); err != nil {
		t.Fatal(err)
	}
	for _, rows := range []int64{8, 16} {
		if err := double(t, m[1], rows); err != nil {
			t.Fatal(err)
		}
	}
	f.Mu.Lock()
	f.Returns["cuGraphInstantiateWithFlags"] = 2
	f.Mu.Unlock()
	if err := double(t, m[1], 16); err != nil {
		t.Fatal(err) // the other plan is evicted, and this one is loaded again
	}
	if h := f.Holds(); h.Device != 2<<20 {
		t.Errorf("%+v is allocated; want one plan", h)
	}
	if err := double(t, m[1], 16); !errors.Is(err, hocket.ErrOutOfMemory) || !strings.Contains(err.Error(), "cuGraphInstantiateWithFlags") {
		t.Errorf("got %v", err)
	}
}

// TestModelTooLarge checks a plan for which there is not enough memory even if all others are evicted. The error then
// includes advice, and nothing stays allocated.
func TestModelTooLarge(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Limit = 3 << 20
	models := fakeModels(t, f, hocket.LoadOptions{}, hocket.LoadOptions{})
	alone := func(when string, err error, word string) {
		t.Helper()
		if !errors.Is(err, hocket.ErrOutOfMemory) {
			t.Fatalf("%s: got %v", when, err)
		}
		for _, w := range []string{word, "no other plan of this machine is loaded", "smaller dims"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error lacks %q: %v", when, w, err)
			}
		}
		if h := f.Holds(); h.Bytes() != 0 {
			t.Errorf("%s: %+v stays allocated", when, h)
		}
	}
	alone("nothing loaded", double(t, models[0], 100000), "arena of rank 0")
	f.Limit = 5 << 20
	for _, call := range []string{"cuMemCreate", "cuStreamCreateWithPriority", "cuModuleLoadData"} {
		for _, m := range models {
			if err := double(t, m, 8); err != nil {
				t.Fatal(err)
			}
		}
		f.Mu.Lock()
		f.Returns[call] = 2
		f.Mu.Unlock()
		alone(call, double(t, models[0], 24), call)
		f.Mu.Lock()
		delete(f.Returns, call)
		f.Mu.Unlock()
	}
}

// TestModelsShort checks eviction across models if a device has no memory for another plan: the least recently used
// plans of all models are evicted, only as many as necessary.
func TestModelsShort(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Limit = 7 << 20
	models := fakeModels(t, f, hocket.LoadOptions{}, hocket.LoadOptions{}, hocket.LoadOptions{}, hocket.LoadOptions{Arena: 1 << 20})
	for i, c := range []struct {
		model int
		rows  int64
		loads bool
		held  int64 // MiB of a device
	}{
		{0, 8, true, 2}, {1, 8, true, 4}, {2, 8, true, 6},
		{0, 8, false, 6}, {0, 16, true, 6}, {2, 8, false, 6}, {0, 8, false, 6}, // this run evicts a plan of model 1
		{1, 8, true, 6}, {2, 8, false, 6}, {0, 8, false, 6}, // this run evicts the plan of model 0 with 16 rows
		{0, 30000, true, 6}, {0, 8, false, 6}, // this run needs 4 MiB, and evicts two plans
		{1, 8, true, 4}, {0, 8, false, 4}, {2, 8, true, 6}, // evicts that plan
	} {
		f.Taken()
		if err := double(t, models[c.model], c.rows); err != nil {
			t.Fatal(err)
		}
		if n, h := f.Taken(), f.Holds(); (n > 0) != c.loads || h.Device != c.held<<20 {
			t.Errorf("run %d: model %d with %d rows allocated memory %d times, %+v is allocated; want %+v", i, c.model, c.rows, n, h, c)
		}
	}
	before := f.Holds()
	if err := double(t, models[3], 30000); err == nil || errors.Is(err, hocket.ErrOutOfMemory) {
		t.Errorf("an arena beyond LoadOptions.Arena: %v", err)
	}
	if h := f.Holds(); h != before {
		t.Errorf("an arena beyond LoadOptions.Arena: %+v is allocated, before %+v", h, before)
	}
}

// products is a program with a separate plan for each T. Its two products are large enough to time algorithms.
const products = `dim T = 512
mesh tp[1]
func f(%x: bf16[T, 512], %w: bf16[512, 512]) -> bf16[T, 512] {
  %h = linear %x, %w
  %y = linear %h, %w
  return %y
}
`

// TestModelTrial checks what happens if there is no memory for timing algorithms. Idle plans are evicted if that frees
// enough memory. Otherwise the first suggested algorithm is used for the rest of the process, and reports mention this.
func TestModelTrial(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name    string
		rows    int64 // rows of the idle plan, of 128 bytes each
		limit   int64
		Want    int // the expected algorithm
		guesses int
		kept    bool // whether the idle plan stays loaded
	}{
		{"enough", 500_000, 0, 2, 0, true},
		{"when the other goes", 500_000, 70 * mib, 2, 0, false},
		{"not then either", 200_000, 38 * mib, 1, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakedriver.New(t, 1)
			f.Limit = c.limit
			f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}}
			m := fakeMachine(t, f)
			load := func(text string) *hocket.Model { return modeltest.Load(t, m, text, hocket.LoadOptions{}) }
			multiply := func(model *hocket.Model, rows int64, want, guesses int) {
				t.Helper()
				in := map[string]*hocket.Tensor{}
				for name, n := range map[string]int64{"x": rows, "w": 512} {
					var err error
					if in[name], err = hocket.NewTensor(ir.BF16, n, 512); err != nil {
						t.Fatal(err)
					}
				}
				if err := model.Prepare(t.Context(), map[string]int64{"T": rows}); err != nil {
					t.Fatal(err)
				}
				f.LT.Runs = nil
				r, err := model.Run(t.Context(), hocket.Args{In: in})
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Guesses) != guesses || guesses == 1 && r.Guesses[0] != fmt.Sprintf("%dx512x512 bf16", rows) {
					t.Errorf("%d rows: guesses are %q, want %d", rows, r.Guesses, guesses)
				}
				if len(f.LT.Runs) != 2 || f.LT.Runs[0].Algo != want || f.LT.Runs[1].Algo != want {
					t.Errorf("%d rows: ran %+v, want algorithm %d", rows, f.LT.Runs, want)
				}
			}
			rests, model := load(strings.Replace(doubles, "tp[2]", "tp[1]", 1)), load(products)
			if err := rests.Prepare(t.Context(), map[string]int64{"T": c.rows}); err != nil {
				t.Fatal(err)
			}
			multiply(model, 512, c.Want, c.guesses)
			f.Taken()
			if err := rests.Prepare(t.Context(), map[string]int64{"T": c.rows}); err != nil {
				t.Fatal(err)
			}
			if kept := f.Taken() == 0; kept != c.kept {
				t.Errorf("the idle plan stays loaded: %t", kept)
			}
			if err := rests.Close(); err != nil {
				t.Fatal(err)
			}
			multiply(load(products), 512, c.Want, c.guesses)
			f.Limit = 0
			multiply(model, 1024, 2, 0)
		})
	}
}

// sums is a program that needs memory in proportion to T, 4 tensors of T KiB, but has no inputs and a small result.
const sums = `dim T = 8
mesh tp[1]
func f() -> f32[16] {
  %z: f32[T, 1024] = fill value=1
  %s = sum %z, axis=1
  %m = max %s, axis=0
  %y = broadcast %m, shape=(16)
  return %y
}
`

// TestRealModelsShort checks that plans of two models that do not fit on a GPU together evict each other, and that the
// memory of an evicted plan is returned to the driver.
func TestRealModelsShort(t *testing.T) {
	gpus := real(t, Options{})
	m := modeltest.Open(t, gpus)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	unloaded := func() int {
		n := strings.Count(log.String(), "plan unloaded")
		log.Reset()
		return n
	}
	var models []*hocket.Model
	for range 2 {
		models = append(models, modeltest.Load(t, m, sums, hocket.LoadOptions{Cache: 1 << 50, Logger: logger}))
	}
	total := gpus.sys.GPUs[0].Memory
	prepare := func(model int, bytes int64) error {
		return models[model].Prepare(t.Context(), map[string]int64{"T": bytes / 4096})
	}
	small := func() {
		t.Helper()
		for _, model := range models {
			r, err := model.Run(t.Context(), hocket.Args{})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Out["y"].Floats() {
				if v != 1024 {
					t.Fatalf("got %v, want 1024", v)
				}
			}
		}
	}
	for i, model := range []int{0, 1, 0, 0, 1} {
		if err := prepare(model, total*6/10); err != nil {
			t.Fatal(err)
		}
		if n, want := unloaded(), []int{0, 1, 1, 0, 1}[i]; n < want || n > 2*want {
			t.Errorf("step %d: %d plans were evicted, want %d", i, n, want)
		}
		small()
	}
	if err := prepare(0, 2*total); !errors.Is(err, hocket.ErrOutOfMemory) || unloaded() > 0 {
		t.Errorf("a plan larger than the GPU's memory: %v", err)
	}
	if err := prepare(0, total/1000*998); !errors.Is(err, hocket.ErrOutOfMemory) || !strings.Contains(err.Error(), "no other plan of this machine is loaded") {
		t.Errorf("got %v", err)
	}
	if n := unloaded(); n < 3 {
		t.Errorf("%d plans were evicted, want none", n)
	}
	small()
}

// TestTurnTakesTooLong checks that a run ends when its context does, even while it waits for another world whose
// kernels do not end.
func TestTurnTakesTooLong(t *testing.T) {
	must := mustOf(t)
	l := &life{text: livesSum, gpus: 2, nccl: true}
	_, m := l.begin(t)
	device.Register(device.Kind{Name: t.Name(), Open: func(*procs.World) (device.Machine, error) { return m, nil }})
	machine, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: t.Name()})
	must(err)
	p, err := hocket.Parse("test.hkt", l.text)
	must(err)
	model, err := machine.Load(p, hocket.Binding{}, hocket.LoadOptions{Algorithm: ncclName, Grace: time.Millisecond})
	must(err)
	in, err := model.RandomInputs("ints:1")
	must(err)
	_, err = model.Run(t.Context(), hocket.Args{In: in})
	must(err)
	other := m.sys.Locks.New(guard.Host{Mu: new(sync.Mutex)})
	if !other.Enter(nil) { // the other world is not idle
		t.Fatal("the other world cannot take the lock")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	giveUp := time.AfterFunc(3*time.Second, func() { other.End(); other.Leave() })
	if _, err := model.Run(ctx, hocket.Args{In: in}); !errors.Is(err, context.DeadlineExceeded) || !giveUp.Stop() {
		t.Errorf("got %v", err)
	}
	other.Leave()
	other.Forget()
	must(errors.Join(model.Close(), machine.Close()))
}
