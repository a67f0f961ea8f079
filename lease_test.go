package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// soon returns a context.Context that ends after some milliseconds. With the clock of synctest it ends when all other
// goroutines wait.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// impatient is a context.Context whose deadline passes as soon as a goroutine waits for its end.
type impatient struct {
	context.Context
	once  sync.Once
	ended chan struct{}
}

func newImpatient(t *testing.T) context.Context {
	return &impatient{Context: t.Context(), ended: make(chan struct{})}
}

func (c *impatient) Done() <-chan struct{} {
	c.once.Do(func() { close(c.ended) })
	return c.ended
}

func (c *impatient) Err() error {
	select {
	case <-c.ended:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestCancelledKeeps checks that a run whose context has ended before the run begins leaves the plan loaded for the
// next run.
func TestCancelledKeeps(t *testing.T) {
	cm, m := tightly(t, 3)
	model := summed(t, m, 1)
	if err := sum(t.Context(), model, 2); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sum(ended, model, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := sum(t.Context(), model, 2); err != nil {
		t.Error(err)
	}
	if got := cm.ranksOpened(); !slices.Equal(got, []int{1}) {
		t.Errorf("loads %v", got)
	}
}

// TestTurns checks that a caller waits for another caller's run until its own context ends, that weights can be bound
// meanwhile, that Close waits for the run, and that calls after Close fail.
func TestTurns(t *testing.T) { synctest.Test(t, testTurns) }

func testTurns(t *testing.T) {
	cm, m := tightly(t, 3)
	model := summed(t, m, 1)
	cm.hold[1] = make(chan struct{})
	ran := make(chan error)
	go func() { ran <- sum(t.Context(), model, 2) }()
	<-cm.held
	for what, err := range map[string]error{
		"the same plan": sum(soon(t), model, 2), "another": sum(soon(t), model, 3),
		"loading one": model.Prepare(soon(t), map[string]int64{"T": 4}),
	} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for other runs or loads") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	x, err := hocket.NewTensor(ir.F32, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(model.Bind("x", x), model.Bind("x", nil)); err != nil {
		t.Error(err)
	}
	closed := make(chan error)
	go func() { closed <- model.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed amid a run: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(cm.hold[1])
	if err := errors.Join(<-ran, <-closed, model.Close()); err != nil {
		t.Error(err)
	}
	if err := sum(t.Context(), model, 2); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestLoadGoesOn checks that a load continues after the context of the caller that started it has ended, and that the
// next call uses its result.
func TestLoadGoesOn(t *testing.T) { synctest.Test(t, testLoadGoesOn) }

func testLoadGoesOn(t *testing.T) {
	for _, what := range []string{"run", "prepare", "close"} {
		cm, m := tightly(t, 3)
		model := summed(t, m, 1)
		cm.shut = make(chan struct{})
		err := model.Prepare(soon(t), map[string]int64{"T": 2})
		if what == "run" {
			err = errors.Join(err, sum(soon(t), model, 2))
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "continues in the background") {
			t.Errorf("got %v", err)
		}
		next := make(chan error)
		go func() {
			switch what {
			case "run":
				next <- sum(t.Context(), model, 2)
			case "prepare":
				next <- model.Prepare(t.Context(), map[string]int64{"T": 2})
			case "close":
				next <- model.Close()
			}
		}()
		close(cm.shut)
		if err := <-next; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := cm.ranksOpened(); !slices.Equal(got, []int{1}) {
			t.Errorf("%s: loads %v", what, got)
		}
	}
}

// TestPlanGoesOn checks that NewDeviceTensor stops waiting for the planning of a large program when its context ends,
// and that the next call uses the finished plan.
func TestPlanGoesOn(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})),
		"func f(%x: f32[2]) -> f32[2] {\n  %y = alloc f32[2]\n  for %i in 0..100000 { copy %x into %y }\n  return %y\n}\n", hocket.LoadOptions{})
	if _, err := model.NewDeviceTensor(newImpatient(t), "x", nil); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "continues in the background") {
		t.Errorf("got %v", err)
	}
	if _, err := model.NewDeviceTensor(newImpatient(t), "x", nil); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "waiting for other runs or loads") {
		t.Errorf("meanwhile: %v", err)
	}
	d, err := model.NewDeviceTensor(t.Context(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	var again *hocket.DeviceTensor
	allocs := testing.AllocsPerRun(1, func() { again, err = model.NewDeviceTensor(t.Context(), "y", nil) })
	// planning again would allocate at least once for each trip of the loop
	if err != nil || again == d || allocs > 10000 {
		t.Errorf("again: %v, %v allocations", err, allocs)
	}
}

// TestLoadMakesRoom checks that a load that continues in the background also unloads idle plans if memory is short.
func TestLoadMakesRoom(t *testing.T) { synctest.Test(t, testLoadMakesRoom) }

func testLoadMakesRoom(t *testing.T) {
	cm, m := tightly(t, 1)
	var log strings.Builder
	one, two := summedWith(t, m, 1, hocket.LoadOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}),
		summed(t, m, 2)
	if err := sum(t.Context(), two, 2); err != nil {
		t.Fatal(err)
	}
	cm.shut = make(chan struct{})
	if err := one.Prepare(soon(t), map[string]int64{"T": 2}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(cm.shut)
	if err := sum(t.Context(), one, 2); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "stopped waiting") {
		t.Errorf("it failed: %s", &log)
	}
}

// TestLoadPanics checks that the panic of a load continues in the goroutine of the caller that waits for the load, and
// that the machine stays usable.
func TestLoadPanics(t *testing.T) { synctest.Test(t, testLoadPanics) }

func testLoadPanics(t *testing.T) {
	cm, m := tightly(t, 3)
	model := summed(t, m, 1)
	cm.breaks = true
	func() {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "it breaks") ||
				!strings.Contains(fmt.Sprint(p), "plan_cache_run_test.go") {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = model.Prepare(t.Context(), nil)
	}()
	cm.shut = make(chan struct{})
	if err := model.Prepare(soon(t), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(cm.shut)
	if err := model.Close(); err != nil { // waits for the load, which panics
		t.Error(err)
	}
	cm.breaks = false
	if err := sum(t.Context(), summed(t, m, 2), 2); err != nil {
		t.Error(err)
	}
}

// TestLateDeadline checks that a deadline that passes just after a successful run does not affect the next run, and
// that a deadline that passes during a run leaves the plan loaded, unless runs have no grace.
func TestLateDeadline(t *testing.T) {
	for what, grace := range map[string]time.Duration{"a grace": time.Minute, "none": -1} {
		cm, m := tightly(t, 3)
		model := summedWith(t, m, 1, hocket.LoadOptions{Grace: grace})
		random := rand.New(rand.NewPCG(1, 2))
		late := 0
		for i := range longtest.Of(5000, 20000) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(60))*time.Microsecond)
			first := sum(ctx, model, 4)
			next := sum(t.Context(), model, 4)
			cancel()
			if next != nil {
				t.Fatalf("%s, time %d: first %v, then without a deadline %v", what, i, first, next)
			}
			if first != nil && !errors.Is(first, context.DeadlineExceeded) {
				t.Fatalf("%s, time %d: %v", what, i, first)
			}
			if first != nil && errors.Is(first, hocket.ErrLate) {
				late++
			}
		}
		loads := len(cm.ranksOpened())
		t.Logf("%s: %d runs succeeded after their deadlines, %d loads", what, late, loads)
		if grace > 0 && (loads != 1 || late == 0) || grace < 0 && loads == 1 {
			t.Errorf("%s: %d runs succeeded after their deadlines, %d loads", what, late, loads)
		}
	}
}
