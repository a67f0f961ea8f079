package hocket_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestCloseBeside checks that runs, loads, and allocations and uses of device tensors that a closing machine aborts
// return ErrClosed, and not the error of a context, unless the caller's context has ended.
func TestCloseBeside(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for i := range rounds {
		m, err := hocket.Open(context.WithoutCancel(t.Context()), hocket.MachineOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := newCounter(t, m)
		x, err := c.state.Read(t.Context())
		kept := c.make("s")
		if err == nil {
			err = kept.Write(t.Context(), x)
		}
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		until := func(what string, do func() error) {
			all.Go(func() {
				for {
					if err := do(); err != nil {
						if !errors.Is(err, hocket.ErrClosed) || errors.Is(err, context.Canceled) {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
				}
			})
		}
		free := context.WithoutCancel(t.Context())
		until("run", func() error { return c.run(free, c.state, c.state) })
		until("run of others", func() error { _, err := c.Run(free, hocket.Args{In: c.given(x)}); return err })
		until("write", func() error { return kept.Write(free, x) })
		until("read", func() error { _, err := kept.Read(free); return err })
		until("make", func() error {
			d, err := c.NewDeviceTensor(free, "s", nil)
			if err != nil {
				return err
			}
			return d.Close()
		})
		nothing := func([]hocket.DeviceBlock) error { return nil }
		until("view", func() error { return kept.View(free, nothing) })
		until("fill", func() error { return kept.Fill(free, nothing) })
		rows := int64(0)
		until("prepare", func() error { rows += 2; return c.Prepare(free, map[string]int64{"T": rows}) })
		time.Sleep(time.Duration(i*40) * time.Microsecond)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	}
	c := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.run(ended, c.state, c.state); !errors.Is(err, context.Canceled) || errors.Is(err, hocket.ErrClosed) {
		t.Errorf("a context that ended: %v", err)
	}
}

// TestCloseAmidPlanning checks that closing a machine does not wait for the planning of a large program if no caller
// waits for the plan.
func TestCloseAmidPlanning(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	model := modeltest.Load(t, m, "func f(%x: f32[2]) -> f32[2] {\n  %y = alloc f32[2]\n  for %i in 0..500000 { copy %x into %y }\n  return %y\n}\n", hocket.LoadOptions{Logger: j.logger()})
	if err := model.Prepare(newImpatient(t), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if j.count("stopped waiting", "while f was planned: context canceled") != 1 {
		t.Errorf("logged\n%s", &j.all)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	in := []hocket.Args{{In: map[string]*hocket.Tensor{"x": vals(t, ir.F32, []float64{1, 2}, 2)}}}
	if err := model.Explore(ended, in, hocket.ExploreOptions{Schedules: 1}, nil); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "planned") {
		t.Errorf("explored: %v", err)
	}
}

// TestCloseAmidFill checks that Fill returns the error of the caller's function even if the machine is closed
// meanwhile, and that Close waits for the function.
func TestCloseAmidFill(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := newCounter(t, m)
	closed := make(chan error)
	err = c.state.Fill(context.WithoutCancel(t.Context()), func([]hocket.DeviceBlock) error {
		go func() { closed <- m.Close() }()
		for !errors.Is(c.Prepare(t.Context(), nil), hocket.ErrClosed) {
			time.Sleep(time.Millisecond)
		}
		return context.Canceled
	})
	if err != context.Canceled {
		t.Errorf("got %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestOpenEnds checks that, after the context that was passed to Open has ended, calls of the machine return ErrClosed
// and not a context error, because the contexts of these calls have not ended. Open fails if its context has ended.
func TestOpenEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := newCounter(t, m)
	cancel()
	p, err := hocket.Parse("f.hkt", "func f(%x: f32[2]) -> f32[2] {\n  return %x\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, rerr := c.state.Read(t.Context())
		_, lerr := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
		_, serr := c.NewDeviceTensor(t.Context(), "s", nil)
		for what, err := range map[string]error{
			"run":     c.runs(hocket.Args{In: c.in, DeviceIn: map[string]*hocket.DeviceTensor{"s": c.state}}),
			"prepare": c.Prepare(t.Context(), nil), "read": rerr, "load": lerr, "state": serr,
		} {
			if !errors.Is(err, hocket.ErrClosed) || errors.Is(err, context.Canceled) ||
				!strings.Contains(err.Error(), "the context of hocket.Open has ended") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := hocket.Open(ctx, hocket.MachineOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("opened with a context that has ended: %v", err)
	}
	late, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	if _, err := hocket.Open(late, hocket.MachineOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opened after the deadline: %v", err)
	}
}

// TestClosedModel checks that the errors of a closed model's methods name its function.
func TestClosedModel(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	c := newCounter(t, m)
	if err := c.BindDevice("s", c.state); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.BindState(t.Context(), nil)
	for what, err := range map[string]error{"run": c.run(t.Context(), c.state, c.state), "state": err} {
		if !errors.Is(err, hocket.ErrClosed) || !strings.Contains(err.Error(), "the model of count is closed") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// given returns the arguments of a run whose state is in host memory.
func (c *counter) given(s *hocket.Tensor) map[string]*hocket.Tensor {
	return map[string]*hocket.Tensor{"ids": c.in["ids"], "table": c.in["table"], "s": s}
}

// TestLostContentsOfClosed checks that a device tensor whose contents were lost because its machine was closed is
// reported as closed.
func TestLostContentsOfClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model := modeltest.Load(t, m, "func f(%s: inout f32[2]) -> f32[2] {\n  %y = relu %s\n  return %y\n}\n",
		hocket.LoadOptions{})
	s, err := model.NewDeviceTensor(t.Context(), "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context()); !errors.Is(err, hocket.ErrNoContents) || errors.Is(err, hocket.ErrClosed) {
		t.Errorf("of a machine that is open: %v", err)
	}
	cancel()
	if _, err := s.Read(t.Context()); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("after the end of the machine's context: %v", err)
	}
}
