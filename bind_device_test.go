package hocket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// journal collects the lines that a model logs.
type journal struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all.Write(b)
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// count returns the number of lines that contain all of the words.
func (j *journal) count(words ...string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
next:
	for line := range strings.Lines(j.all.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue next
			}
		}
		n++
	}
	return n
}

// resident returns a counter whose state is bound to its device tensor, and the journal of its model.
func resident(t *testing.T, m *hocket.Machine) (*counter, *journal) {
	t.Helper()
	j := &journal{}
	c := newCounterWith(t, m, hocket.LoadOptions{Logger: j.logger()})
	if n := j.count("plan loaded"); n != 0 {
		t.Errorf("making and writing a tensor has loaded %d plans", n)
	}
	if err := c.BindDevice("s", c.state); err != nil {
		t.Fatal(err)
	}
	return c, j
}

// TestBindDevice checks that single runs and batches work in the bound tensor, unless the arguments contain another
// tensor. Each tensor has its own plan, which is unloaded when the tensor is closed.
func TestBindDevice(t *testing.T) {
	c, j := resident(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	if err := c.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	bare := hocket.Args{In: c.in}
	run := func(batch ...hocket.Args) []*hocket.Report {
		t.Helper()
		reports, err := c.RunBatch(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		return reports
	}
	if r := run(bare)[0]; r.Out["s"] != nil || r.Out["row"] == nil {
		t.Errorf("the results are %v", r.Out)
	}
	run(bare, bare, bare)
	c.wants(c.state, 4)
	if n, all := j.count("plan loaded", "residents=[s]"), j.count("plan loaded"); n != 1 || all != 1 {
		t.Errorf("%d plans were loaded, %d of them work in the tensor", all, n)
	}

	zeros := vals(t, ir.F32, make([]float64, 8), 4, 2)
	given := hocket.Args{In: map[string]*hocket.Tensor{"ids": c.in["ids"], "table": c.in["table"], "s": zeros}}
	if got := run(given)[0].Out["s"].Floats(); got[0] != 1 {
		t.Errorf("a run that is given the state leaves %v", got)
	}
	into := vals(t, ir.F32, make([]float64, 8), 4, 2)
	run(hocket.Args{In: c.in, Out: map[string]*hocket.Tensor{"s": into}})
	if got := into.Floats(); got[7] != 5 {
		t.Errorf("received %v", got)
	}
	other := c.make("s")
	run(hocket.Args{In: c.in, DeviceOut: map[string]*hocket.DeviceTensor{"s": other}}, bare)
	c.wants(other, 5)
	c.wants(c.state, 5)
	if n, all := j.count("plan loaded", "residents=[s]"), j.count("plan loaded"); n != 1 || all != 2 {
		t.Errorf("%d plans were loaded, %d of them work in the tensor: want one more, that copies", all, n)
	}

	// Bind the two tensors alternately; each has its own plan.
	for i := range 3 {
		for _, d := range []*hocket.DeviceTensor{c.state, other} {
			if err := c.BindDevice("s", d); err != nil {
				t.Fatal(err)
			}
			run(bare)
			c.wants(d, float64(6+i))
		}
	}
	if n := j.count("plan loaded", "residents=[s]"); n != 2 {
		t.Errorf("%d plans work in two tensors", n)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if n := j.count("plan unloaded", "is closed"); n != 1 {
		t.Errorf("%d plans went with the tensor that they work in", n)
	}
	for what, err := range map[string]error{"prepared": c.Prepare(t.Context(), nil), "run": c.runs(bare)} {
		if !errors.Is(err, hocket.ErrClosed) {
			t.Errorf("%s with a tensor that is closed: %v", what, err)
		}
	}

	// Bind replaces the binding of BindDevice, and vice versa.
	if err := c.Bind("s", zeros); err != nil {
		t.Fatal(err)
	}
	if got := run(bare)[0].Out["s"].Floats(); got[0] != 1 {
		t.Errorf("bound to the host's: %v", got)
	}
	if err := c.BindDevice("s", c.state); err != nil {
		t.Fatal(err)
	}
	run(bare)
	c.wants(c.state, 9)
	if err := c.BindDevice("s", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.runs(bare); !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "s is missing") {
		t.Errorf("bound to nothing: %v", err)
	}
	c.wants(c.state, 9)
}

func (c *counter) runs(a hocket.Args) error {
	_, err := c.Run(c.t.Context(), a)
	return err
}

// TestBindDevicePrepared checks that runs use the plans that were prepared for the bound tensor and for another number
// of rows.
func TestBindDevicePrepared(t *testing.T) {
	c, j := resident(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	for _, rows := range []int64{4, 8} {
		if err := c.Prepare(t.Context(), map[string]int64{"T": rows}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.runs(hocket.Args{In: c.in}); err != nil {
		t.Fatal(err)
	}
	eight := vals(t, ir.F32, make([]float64, 16), 8, 2)
	if err := c.runs(hocket.Args{In: c.given(eight)}); err != nil {
		t.Fatal(err)
	}
	if n := j.count("plan loaded"); n != 2 {
		t.Errorf("%d plans were loaded, want the two that were prepared", n)
	}
	if err := c.Prepare(t.Context(), map[string]int64{"T": 5}); err == nil {
		t.Error("prepared for dims that the program cannot have")
	}
	c.wants(c.state, 1)
}

// TestBindDeviceFails checks that BindDevice refuses unsuitable tensors, and that a failed run leaves the bound tensor
// without contents until it is written again.
func TestBindDeviceFails(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	c, j := resident(t, m)
	foreign := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	if err := c.BindDevice("q", c.state); err == nil {
		t.Error("no error for a parameter that is none")
	}
	for what, d := range map[string]*hocket.DeviceTensor{"another machine's": foreign.state, "that nobody made": {}} {
		if err := c.BindDevice("s", d); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("one %s: %v", what, err)
		}
	}
	bare := hocket.Args{In: c.in}
	if err := c.runs(bare); err != nil {
		t.Fatal(err)
	}
	bad := hocket.Args{In: map[string]*hocket.Tensor{"ids": vals(t, ir.I32, []float64{0, 9}, 2),
		"table": c.in["table"]}}
	if err := c.runs(bad); err == nil || errors.Is(err, hocket.ErrInput) {
		t.Fatalf("an id that is none of the table's: %v", err)
	}
	if err := c.runs(bare); !errors.Is(err, hocket.ErrNoContents) || errors.Is(err, hocket.ErrInput) {
		t.Errorf("behind a run that failed: %v", err)
	}
	if err := c.state.Write(t.Context(), vals(t, ir.F32, make([]float64, 8), 4, 2)); err != nil {
		t.Fatal(err)
	}
	if err := c.runs(bare); err != nil {
		t.Fatal(err)
	}
	c.wants(c.state, 1)
	if n := j.count("plan loaded", "residents=[s]"); n != 2 {
		t.Errorf("loaded %d times, want once more behind the failure", n)
	}
	if err := c.Explore(t.Context(), []hocket.Args{bare}, hocket.ExploreOptions{Schedules: 1}, nil); !errors.Is(err,
		hocket.ErrUnsupported) {
		t.Errorf("explored: %v", err)
	}
	large, err := c.NewDeviceTensor(t.Context(), "s", map[string]int64{"T": 6})
	if err == nil {
		err = large.Write(t.Context(), vals(t, ir.F32, make([]float64, 12), 6, 2))
	}
	if err == nil {
		err = c.BindDevice("s", large)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.runs(bare); err != nil { // the bound tensor determines the number of rows
		t.Fatal(err)
	}
	c.wants(large, 1)

	// The run refuses tensors with another layout, and leaves them unchanged.
	alone := modeltest.Load(t, m, "dim T = 4\nmesh tp[1]\nfunc f(%s: inout f32[T, 2]) {\n  add %s, %s into %s\n}\n",
		hocket.LoadOptions{})
	if err := alone.BindDevice("s", c.make("ids")); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("of another shape: %v", err)
	}
	if err := alone.BindDevice("s", c.state); err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Run(t.Context(), hocket.Args{}); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("on more ranks: %v", err)
	}
	lone, err := alone.NewDeviceTensor(t.Context(), "s", map[string]int64{"T": 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.BindDevice("s", lone); err != nil {
		t.Fatal(err)
	}
	if err := c.runs(bare); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("on fewer ranks: %v", err)
	}
	c.wants(c.state, 1)
}

// TestBindDeviceCopies checks that runs copy the tensor, with the same results, if a plan cannot work in it.
func TestBindDeviceCopies(t *testing.T) {
	for name, p := range map[string]struct {
		src  string
		with string // residents
	}{
		"computes, copies":    {"%y = add %s, %s\n  copy %y into %s", "[s]"},
		"gathers":             {"%g: f32[T, 2] = all_gather %s, over=tp, axis=0\n  add %s, %s into %s", "[]"},
		"gathers what is new": {"add %s, %s into %s\n  %g: f32[T, 2] = all_gather %s, over=tp, axis=0", "[]"},
		"receives": {"%b: f32[T, 2] = fill value=1\n  reduce_scatter %b into %s, over=tp, axis=0, op=sum",
			"[]"},
		"is not updated": {"%y = add %s, %s", "[s]"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []cpu.Mode{cpu.Concurrent, cpu.Scheduled} {
				j := &journal{}
				m := modeltest.Open(t, cpu.New(cpu.Options{Mode: mode}))
				model := modeltest.Load(t, m,
					fmt.Sprintf("dim T = 4\nmesh tp[2]\nfunc f(%%s: inout f32[T/tp, 2]) {\n  %s\n}\n", p.src),
					hocket.LoadOptions{Logger: j.logger()})
				d, err := model.NewDeviceTensor(t.Context(), "s", nil)
				if err == nil {
					err = d.Write(t.Context(), vals(t, ir.F32, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2))
				}
				if err == nil {
					err = model.BindDevice("s", d)
				}
				if err == nil {
					_, err = model.RunBatch(t.Context(), make([]hocket.Args, 3))
				}
				if err != nil {
					t.Fatal(err)
				}
				got, err := d.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range got.Floats() {
					want := 8 * float64(i+1)
					switch name {
					case "receives":
						want = 2
					case "is not updated":
						want = float64(i + 1)
					}
					if v != want {
						t.Fatalf("got %v", got.Floats())
					}
				}
				if n := j.count("plan loaded", "residents="+p.with); n != 1 {
					t.Errorf("%v: works in place %d times:\n%s", mode, n, j.all.String())
				}
			}
		})
	}
}

// slow is a machine whose loads, if armed is set, wait just before they end.
type slow struct {
	device.Machine
	armed      bool
	came, goOn chan struct{}
}

type slowWorld struct {
	device.World
	m *slow
}

func (m *slow) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	if err == nil && m.armed {
		w = &slowWorld{w, m}
	}
	return w, err
}

func (w *slowWorld) Sync(ctx context.Context) error {
	if w.m.armed {
		w.m.armed = false
		close(w.m.came)
		<-w.m.goOn
	}
	return w.World.Sync(ctx)
}

// TestBindDeviceLoadGoesOn checks that closing a tensor waits for a load of a plan that works in it, even if no caller
// waits for the load, and then unloads the plan.
func TestBindDeviceLoadGoesOn(t *testing.T) { synctest.Test(t, testBindDeviceLoadGoesOn) }

func testBindDeviceLoadGoesOn(t *testing.T) {
	sm := &slow{Machine: cpu.New(cpu.Options{}), came: make(chan struct{}), goOn: make(chan struct{})}
	c, j := resident(t, modeltest.Open(t, sm))
	sm.armed = true
	if err := c.Prepare(soon(t), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	<-sm.came
	closed := make(chan error)
	go func() { closed <- c.state.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed under a load: %v", err)
		close(sm.goOn)
	case <-time.After(20 * time.Millisecond):
		close(sm.goOn)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if err := c.BindDevice("s", c.make("s")); err != nil { // waits for the load
		t.Fatal(err)
	}
	if loaded, gone := j.count("plan loaded"), j.count("plan unloaded", "is closed"); loaded != 1 || gone != 1 {
		t.Errorf("%d plans were loaded, %d went with the tensor", loaded, gone)
	}
}

// TestBindDeviceTwice checks that, if two parameters are bound to one tensor, runs use the prepared plan and copy the
// tensor.
func TestBindDeviceTwice(t *testing.T) {
	j := &journal{}
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})),
		"func f(%a: f32[3], %b: f32[3]) -> f32[3] {\n  %y = add %a, %b\n  return %y\n}\n",
		hocket.LoadOptions{Logger: j.logger()})
	d, err := model.NewDeviceTensor(t.Context(), "a", nil)
	if err == nil {
		err = d.Write(t.Context(), vals(t, ir.F32, []float64{1, 2, 3}, 3))
	}
	if err := errors.Join(err, model.BindDevice("a", d), model.BindDevice("b", d),
		model.Prepare(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	r, err := model.Run(t.Context(), hocket.Args{})
	if err != nil || r.Out["y"].Floats()[2] != 6 {
		t.Errorf("%v, %v", r, err)
	}
	if n := j.count("plan loaded"); n != 1 {
		t.Errorf("%d plans were loaded", n)
	}
}
