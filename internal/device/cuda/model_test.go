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

// doubles has a plan for each T.
const doubles = `dim T = 8
mesh tp[2]
func f(%x: f32[T, 16]) -> f32[T, 16] {
  %y = add %x, %x
  return %y
}
`

// fakeModels opens a machine on the fake for hocket's API, and a model of doubles for
// each options.
func fakeModels(t *testing.T, f *fakedriver.GPU, opts ...hocket.LoadOptions) []*hocket.Model {
	t.Helper()
	m := fakeMachine(t, f)
	var models []*hocket.Model
	for _, o := range opts {
		models = append(models, modeltest.Load(t, m, doubles, o))
	}
	return models
}

// fakeMachine opens a machine on the fake for hocket's API.
func fakeMachine(t *testing.T, f *fakedriver.GPU) *hocket.Machine {
	t.Helper()
	t.Cleanup(func() {
		if h := f.Holds(); h.Bytes() != 0 {
			t.Errorf("a closed machine holds %+v", h)
		}
	})
	return modeltest.Open(t, newMachine(system(f), Options{Kernels: f}))
}

// double runs a model with so many rows and checks what comes out.
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
			t.Fatalf("%d rows: element %d is %v, not %v", rows, i, v, 2*vals[i])
		}
	}
	return nil
}

// TestModelCache: whatever number of plans is asked for, those that stay loaded hold
// no more than the bound, by the driver's own count, and are those used last.
func TestModelCache(t *testing.T) {
	const bound = 20 << 20
	f := fakedriver.New(t, 2)
	m := fakeModels(t, f, hocket.LoadOptions{Cache: bound})[0]
	for rows := int64(2); rows <= 40; rows += 2 {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
		if h := f.Holds(); h.Bytes() > bound || rows > 20 && h.Bytes() < bound/2 {
			t.Errorf("with %d rows %+v is held, the bound is %d", rows, h, bound)
		}
	}
	f.Taken()
	for i, rows := range []int64{40, 38, 36, 38, 2, 38, 36} {
		if err := double(t, m, rows); err != nil {
			t.Fatal(err)
		}
		if n := f.Taken(); (n > 0) != (rows == 2) {
			t.Errorf("%d: a run with %d rows takes memory %d times", i, rows, n)
		}
	}
	if err := double(t, m, 100<<10); err != nil { // more than the bound by itself
		t.Fatal(err)
	}
	if err := double(t, m, 36); err != nil {
		t.Fatal(err)
	}
	if h := f.Holds(); h.Bytes() > bound {
		t.Errorf("in the end %+v is held, the bound is %d", h, bound)
	}
}

// TestModelShort: where a device has no memory for one more plan, those used least
// recently go, as many as it takes.
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
			t.Errorf("%d: a run with %d rows takes memory %d times", i, rows, n)
		}
	}
	if err := double(t, m, 30000); err != nil { // takes 4 MiB of 7
		t.Fatal(err)
	}
	if h := f.Holds(); h.Device != 6<<20 {
		t.Errorf("%d bytes of a device are held: want the new plan and the one used last", h.Device)
	}
}

// TestModelShortRuns: so they do where the host cannot pin more memory, when a plan is
// loaded or first run, and where a graph finds none.
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
		t.Errorf("%+v is held: want three plans", h)
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
		t.Fatal(err) // the other plan goes, and this one is loaded anew
	}
	if h := f.Holds(); h.Device != 2<<20 {
		t.Errorf("%+v is held: want one plan", h)
	}
	if err := double(t, m[1], 16); !errors.Is(err, hocket.ErrOutOfMemory) || !strings.Contains(err.Error(), "cuGraphInstantiateWithFlags") {
		t.Errorf("got %v", err)
	}
}

// TestModelTooLarge: a plan for which there is no memory, whatever is unloaded, is an
// error that says what helps, and nothing of it stays.
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
				t.Errorf("%s: %q is not said: %v", when, w, err)
			}
		}
		if h := f.Holds(); h.Bytes() != 0 {
			t.Errorf("%s: %+v stays", when, h)
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

// TestModelsShort: where a device has no memory for one more plan, those of all models
// go, the one used least recently first, and only as many as it takes.
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
		{0, 8, false, 6}, {0, 16, true, 6}, {2, 8, false, 6}, {0, 8, false, 6}, // in the place of 1's
		{1, 8, true, 6}, {2, 8, false, 6}, {0, 8, false, 6}, // in that of 0's with 16 rows
		{0, 30000, true, 6}, {0, 8, false, 6}, // takes 4, of two others
		{1, 8, true, 4}, {0, 8, false, 4}, {2, 8, true, 6}, // in its place
	} {
		f.Taken()
		if err := double(t, models[c.model], c.rows); err != nil {
			t.Fatal(err)
		}
		if n, h := f.Taken(), f.Holds(); (n > 0) != c.loads || h.Device != c.held<<20 {
			t.Errorf("%d: model %d with %d rows takes memory %d times, %+v is held; want %+v", i, c.model, c.rows, n, h, c)
		}
	}
	before := f.Holds()
	if err := double(t, models[3], 30000); err == nil || errors.Is(err, hocket.ErrOutOfMemory) {
		t.Errorf("an arena beyond LoadOptions.Arena: %v", err)
	}
	if h := f.Holds(); h != before {
		t.Errorf("an arena beyond LoadOptions.Arena: %+v is held, before %+v", h, before)
	}
}

// products has a plan for each T, with two products worth a trial.
const products = `dim T = 512
mesh tp[1]
func f(%x: bf16[T, 512], %w: bf16[512, 512]) -> bf16[T, 512] {
  %h = linear %x, %w
  %y = linear %h, %w
  return %y
}
`

// TestModelTrial: where there is no memory to time algorithms in, plans that rest make
// room, if what they hold is enough; else the first guess is taken, for as long as the
// process lasts, and reports say so.
func TestModelTrial(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name    string
		rows    int64 // of the plan that rests, 128 bytes each
		limit   int64
		Want    int // algorithm
		guesses int
		kept    bool // the plan that rests
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
				t.Errorf("the plan that rests is kept: %t", kept)
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

// sums takes T KiB times 4, whatever comes in or goes out.
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

// TestRealModelsShort: plans of two models that do not fit on a GPU together take turns
// there, whose driver has the memory of one back when it is unloaded.
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
			t.Errorf("%d: %d plans are unloaded, want %d", i, n, want)
		}
		small()
	}
	if err := prepare(0, 2*total); !errors.Is(err, hocket.ErrOutOfMemory) || unloaded() > 0 {
		t.Errorf("larger than the whole memory: %v", err)
	}
	if err := prepare(0, total/1000*998); !errors.Is(err, hocket.ErrOutOfMemory) || !strings.Contains(err.Error(), "no other plan of this machine is loaded") {
		t.Errorf("got %v", err)
	}
	if n := unloaded(); n < 3 {
		t.Errorf("%d plans were unloaded", n)
	}
	small()
}

// TestTurnTakesTooLong: a run ends with its own context also where it waits for another
// world, whose kernels do not come to an end.
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
	if !other.Enter(nil) { // it does not rest
		t.Fatal("the lock cannot be taken")
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
