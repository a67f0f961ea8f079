package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// counted is a program that adds to its state, which is split over ranks, and that fails if an id is not a row of the
// table.
const counted = `dim T = 4
mesh tp[2]
func count(%ids: i32[2], %table: f32[3, 2], %s: inout f32[T/tp, 2]) -> f32[2, 2] {
  %i = sub (add %ids, %ids), %ids
  %row = embedding %i, %table
  %one: f32[T/tp, 2] = fill value=1
  add %s, %one into %s
  return %row
}
`

func vals(t testing.TB, dt ir.DType, v []float64, shape ...int64) *hocket.Tensor {
	t.Helper()
	x, err := hocket.FromFloats(dt, v, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// counter is a model of the program counted, with the arguments of a run.
type counter struct {
	*hocket.Model
	t     testing.TB
	state *hocket.DeviceTensor
	in    map[string]*hocket.Tensor
}

func newCounter(t testing.TB, m *hocket.Machine) *counter {
	t.Helper()
	return newCounterWith(t, m, hocket.LoadOptions{})
}

func newCounterWith(t testing.TB, m *hocket.Machine, opts hocket.LoadOptions) *counter {
	t.Helper()
	c := &counter{Model: modeltest.Load(t, m, counted, opts), t: t}
	c.in = map[string]*hocket.Tensor{"ids": vals(t, ir.I32, []float64{2, 0}, 2),
		"table": vals(t, ir.F32, []float64{1, 2, 3, 4, 5, 6}, 3, 2)}
	c.state = c.make("s")
	if err := c.state.Write(t.Context(), vals(t, ir.F32, make([]float64, 8), 4, 2)); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *counter) make(name string) *hocket.DeviceTensor {
	c.t.Helper()
	d, err := c.NewDeviceTensor(c.t.Context(), name, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

func (c *counter) run(ctx context.Context, from, to *hocket.DeviceTensor) error {
	a := hocket.Args{In: c.in, DeviceIn: map[string]*hocket.DeviceTensor{"s": from},
		DeviceOut: map[string]*hocket.DeviceTensor{"s": to}}
	r, err := c.Run(ctx, a)
	if err == nil && !slices.Equal(r.Out["row"].Floats(), []float64{5, 6, 1, 2}) {
		return fmt.Errorf("the rows are %v", r.Out["row"].Floats())
	}
	return err
}

// wants checks that all elements of a tensor have the given value.
func (c *counter) wants(d *hocket.DeviceTensor, want float64) {
	c.t.Helper()
	x, err := d.Read(c.t.Context())
	if err != nil {
		c.t.Error(err)
		return
	}
	for _, v := range x.Floats() {
		if v != want {
			c.t.Fatalf("got %v, want %v", x.Floats(), want)
		}
	}
}

// TestDeviceTensorFailed checks that, after a failed run, the tensors that the run writes have no contents, in place or
// not, and those that it only reads are unchanged.
func TestDeviceTensorFailed(t *testing.T) {
	c := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	next := c.make("s")
	if err := c.run(t.Context(), c.state, next); err != nil {
		t.Fatal(err)
	}
	c.wants(c.state, 0)
	c.wants(next, 1)
	good := c.in["ids"]
	c.in["ids"] = vals(t, ir.I32, []float64{1, 3}, 2)
	if err := c.run(t.Context(), c.state, next); err == nil || errors.Is(err, hocket.ErrInput) {
		t.Errorf("with an id that is none: %v", err)
	}
	if _, err := next.Read(t.Context()); !errors.Is(err, hocket.ErrNoContents) {
		t.Errorf("read of what a failed run was to leave: %v", err)
	}
	c.wants(c.state, 0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.in["ids"] = good
	if err := c.run(ended, c.state, c.state); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	c.wants(c.state, 0) // nothing had begun
	c.in["ids"] = vals(t, ir.I32, []float64{1, 3}, 2)
	if err := c.run(t.Context(), c.state, c.state); err == nil {
		t.Error("no error with an id that is none")
	}
	c.in["ids"] = good
	if err := c.run(t.Context(), c.state, c.state); !errors.Is(err, hocket.ErrNoContents) ||
		errors.Is(err, hocket.ErrInput) {
		t.Errorf("a run from what a failed one was to update: %v", err)
	}
	if err := c.state.Write(t.Context(), vals(t, ir.F32, []float64{7, 7, 7, 7, 7, 7, 7, 7}, 4, 2)); err != nil {
		t.Fatal(err)
	}
	if err := c.run(t.Context(), c.state, c.state); err != nil {
		t.Error(err)
	}
	c.wants(c.state, 8)
}

// TestDeviceTensorErrors checks that arguments that do not fit are refused and change nothing, and that the errors say
// what would fit.
func TestDeviceTensorErrors(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	c := newCounter(t, m)
	other := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	rows := c.make("row")
	large, err := c.NewDeviceTensor(t.Context(), "s", map[string]int64{"T": 6})
	if err != nil {
		t.Fatal(err)
	}
	closed := c.make("s")
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Error(err)
	}
	whole := modeltest.Load(t, m, "dim T = 4\nmesh tp[2]\nfunc f(%s: f32[T, 2], %k: f32[T/tp, 2]) -> f32[T, 2] {\n  return %s\n}\n", hocket.LoadOptions{})
	onOne := modeltest.Load(t, m, "dim T = 4\nmesh tp[1]\nfunc f(%s: f32[T, 2]) -> f32[T, 2] {\n  return %s\n}\n",
		hocket.LoadOptions{})
	replicas, err := whole.NewDeviceTensor(t.Context(), "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	four := vals(t, ir.F32, make([]float64, 8), 4, 2)
	if err := replicas.Write(t.Context(), four); err != nil {
		t.Fatal(err)
	}
	type devs = map[string]*hocket.DeviceTensor
	type hosts = map[string]*hocket.Tensor
	in := hosts{"ids": c.in["ids"], "table": c.in["table"]}
	s := devs{"s": c.state}
	for name, x := range map[string]struct {
		model *hocket.Model
		args  hocket.Args
		is    error
		want  string
	}{
		"another layout": {c.Model, hocket.Args{In: in, DeviceIn: devs{"s": replicas}}, hocket.ErrInput,
			"s has on rank 0 a block of shape [2 2] at [0 0], but its device tensor has a block of shape [4 2] at [0 0]"},
		"another layout, turned": {whole, hocket.Args{In: hosts{"k": four}, DeviceIn: devs{"s": c.state}},
			hocket.ErrInput, "create one for s"},
		"another number of ranks": {onOne, hocket.Args{DeviceIn: devs{"s": replicas}}, hocket.ErrInput,
			"on 2 ranks, but the run is on 1"},
		"another shape": {c.Model, hocket.Args{In: in, DeviceIn: s, DeviceOut: devs{"s": large}},
			hocket.ErrInput, "s is f32[4, 2], but its device tensor is f32[6, 2]"},
		"nothing in it": {c.Model, hocket.Args{In: in, DeviceIn: devs{"s": large}}, hocket.ErrNoContents,
			"device tensor for s has no contents: it was never written"},
		"another machine's": {c.Model, hocket.Args{In: in, DeviceIn: devs{"s": other.state}}, hocket.ErrInput,
			"%s belongs to another machine"},
		"nil": {c.Model, hocket.Args{In: in, DeviceIn: devs{"s": nil}}, hocket.ErrInput,
			"%s is nil"},
		"nil to receive": {c.Model, hocket.Args{In: in, DeviceIn: s, DeviceOut: devs{"s": nil}},
			hocket.ErrInput, "%s is nil"},
		"closed": {c.Model, hocket.Args{In: in, DeviceIn: s, DeviceOut: devs{"s": closed}},
			hocket.ErrClosed, "device tensor s f32[4, 2]: it is closed"},
		"given twice": {c.Model,
			hocket.Args{In: hosts{"ids": in["ids"], "table": in["table"], "s": four}, DeviceIn: s}, hocket.ErrInput,
			"s is passed twice"},
		"received twice": {c.Model, hocket.Args{In: in, DeviceIn: s, Out: hosts{"s": four}, DeviceOut: s},
			hocket.ErrInput, "%s has two destinations"},
		"two results in one": {c.Model, hocket.Args{In: in, DeviceIn: s, DeviceOut: devs{"row": rows, "s": rows}},
			hocket.ErrInput, "the same device tensor is passed for results row and s"},
		"no such parameter": {c.Model, hocket.Args{In: in, DeviceIn: devs{"s": c.state, "q": c.state}},
			hocket.ErrInput, "the program has no parameter q"},
		"no such result": {c.Model, hocket.Args{In: in, DeviceIn: s, DeviceOut: devs{"q": rows}},
			hocket.ErrInput, "a device tensor is passed for result q, but the program has no such"},
		"not all": {c.Model, hocket.Args{DeviceIn: s}, hocket.ErrInput,
			"ids is missing; table is missing"},
	} {
		if _, err := x.model.Run(t.Context(), x.args); !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got %v, want %q", name, err, x.want)
		}
	}
	if _, err := c.RunBatch(t.Context(),
		[]hocket.Args{{In: in, DeviceIn: s}, {In: in, DeviceIn: devs{"s": large}}}); err == nil ||
		!strings.Contains(err.Error(), "run 2 of 2") {
		t.Errorf("with an error in the second run: %v", err)
	}
	if _, err := c.NewDeviceTensor(t.Context(), "q", nil); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("for a port that is none: %v", err)
	}
	if _, err := c.NewDeviceTensor(t.Context(), "s", map[string]int64{"T": 5}); err == nil {
		t.Error("no error for dims that the program cannot have")
	}
	if err := c.state.Write(t.Context(), nil); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("nil written: %v", err)
	}
	if err := c.state.Write(t.Context(), vals(t, ir.F32, []float64{1}, 1)); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("another shape written: %v", err)
	}
	if err := c.Explore(t.Context(), []hocket.Args{{In: in, DeviceIn: s}}, hocket.ExploreOptions{Schedules: 1},
		nil); !errors.Is(err, hocket.ErrUnsupported) {
		t.Errorf("explored: %v", err)
	}
	c.wants(c.state, 0)
	if err := errors.Join(closed.Write(t.Context(), four)); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("written when it was closed: %v", err)
	}
	blocks := c.state.Blocks()
	if len(blocks) != 2 || blocks[1].Rank != 1 || !slices.Equal(blocks[1].From, []int64{2, 0}) ||
		!slices.Equal(blocks[1].Shape, []int64{2, 2}) || blocks[0].Pointer == 0 {
		t.Errorf("the blocks are %+v", blocks)
	}
	if got := c.state.String(); got != "f32[4, 2]" || c.state.DType() != ir.F32 ||
		!slices.Equal(c.state.Shape(), []int64{4, 2}) {
		t.Errorf("it is %s", got)
	}
}

// TestFillAndView checks that no conflicting use of a tensor executes while the caller's function works on its blocks,
// that an error or panic of the function passed to Fill leaves the tensor without contents, and that closed tensors are
// refused.
func TestFillAndView(t *testing.T) {
	c := newCounter(t, modeltest.Open(t, cpu.New(cpu.Options{})))
	ones := func(blocks []hocket.DeviceBlock) error {
		for _, b := range blocks {
			copy(b.Host, vals(t, ir.F32, []float64{1, 1, 1, 1}, 4).Data)
		}
		return nil
	}
	// A run waits for Fill, and Fill waits for a run.
	filling, ran := make(chan struct{}), make(chan error)
	go func() {
		<-filling
		ran <- c.run(t.Context(), c.state, c.state)
	}()
	err := c.state.Fill(t.Context(), func(b []hocket.DeviceBlock) error {
		close(filling)
		select {
		case err := <-ran:
			t.Errorf("a run did not wait for who fills: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		return ones(b)
	})
	if err := errors.Join(err, <-ran); err != nil {
		t.Fatal(err)
	}
	c.wants(c.state, 2)
	// Readers continue during a View; writers wait.
	err = c.state.View(t.Context(), func([]hocket.DeviceBlock) error {
		c.wants(c.state, 2)
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := c.state.Fill(short, ones); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("filled while it is viewed: %v", err)
		}
		return errors.New("seen")
	})
	if err == nil || err.Error() != "seen" {
		t.Errorf("the error of who views: %v", err)
	}
	c.wants(c.state, 2)
	holdsNothing := func(what string) {
		t.Helper()
		if _, err := c.state.Read(t.Context()); !errors.Is(err, hocket.ErrNoContents) {
			t.Errorf("%s: read: %v", what, err)
		}
		if err := c.state.View(t.Context(), ones); !errors.Is(err, hocket.ErrNoContents) ||
			!strings.Contains(err.Error(), "fill it") {
			t.Errorf("%s: viewed: %v", what, err)
		}
	}
	if err := c.state.Fill(t.Context(), func([]hocket.DeviceBlock) error { return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the error of who fills: %v", err)
	}
	holdsNothing("after an error")
	if err := c.state.Fill(t.Context(), ones); err != nil {
		t.Fatal(err)
	}
	c.wants(c.state, 1)
	func() {
		defer func() { _ = recover() }()
		_ = c.state.Fill(t.Context(), func([]hocket.DeviceBlock) error { panic("a user's") })
	}()
	holdsNothing("after a panic")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	never := func([]hocket.DeviceBlock) error { t.Error("called"); return nil }
	if err := c.state.Fill(ended, never); !errors.Is(err, context.Canceled) {
		t.Errorf("filled when the context had ended: %v", err)
	}
	if err := c.state.Fill(t.Context(), nil); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("filled by nobody: %v", err)
	}
	if err := c.state.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.state.Fill(t.Context(), never); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("filled when closed: %v", err)
	}
	if err := c.state.View(t.Context(), never); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("viewed when closed: %v", err)
	}
}

// TestDeviceTensorDiffers checks that Read reports copies of a block that differ after a run.
func TestDeviceTensorDiffers(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), `mesh tp[2]
func f(%x: inout f32[3]) {
  %r = alloc f32[3]
  fill into %r, value=rank(tp)
  add %x, %r into %x
}
`, hocket.LoadOptions{NoProve: true})
	d, err := model.NewDeviceTensor(t.Context(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	a := hocket.Args{In: map[string]*hocket.Tensor{"x": vals(t, ir.F32, []float64{1, 2, 3}, 3)},
		DeviceOut: map[string]*hocket.DeviceTensor{"x": d}}
	if _, err := model.Run(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	var differ *hocket.MismatchError
	if _, err := d.Read(t.Context()); !errors.As(err, &differ) || differ.Count != 3 || differ.ValueB != 2 {
		t.Errorf("got %v", err)
	}
}

// TestMismatchProved checks that the error about ranks whose copies differ says whether the plan was proved.
func TestMismatchProved(t *testing.T) {
	const src = "mesh tp[2]\nfunc f() -> f32[3] {\n  %y = alloc f32[3]\n  fill into %y, value=rank(tp)\n  return %y\n}\n"
	for _, proved := range []bool{true, false} {
		model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), src, hocket.LoadOptions{NoProve: !proved})
		_, err := model.Run(t.Context(), hocket.Args{})
		for what, err := range map[string]error{"run": err,
			"explored": model.Explore(t.Context(), make([]hocket.Args, 1), hocket.ExploreOptions{Schedules: 1}, nil)} {
			var differ *hocket.MismatchError
			if !errors.As(err, &differ) || differ.Proved != proved {
				t.Errorf("%s, proved %v: %v", what, proved, err)
			}
		}
	}
}

// TestDeviceTensorsBeside checks that no update is lost, and that no reader sees a partial update, if two models update
// one tensor while others read it. A caller that waits for the tensor stops waiting when its context ends.
func TestDeviceTensorsBeside(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	one, two := newCounter(t, m), newCounter(t, m)
	const each = 50
	var all sync.WaitGroup
	for _, c := range []*counter{one, two} {
		all.Go(func() {
			for range each {
				if err := c.run(t.Context(), one.state, one.state); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for last := 0.0; last < 2*each && !t.Failed(); {
				x, err := one.state.Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				v := x.Floats()
				if slices.Max(v) != slices.Min(v) || v[0] < last {
					t.Errorf("read %v after %v", v, last)
				}
				last = v[0]
			}
		})
		all.Go(func() {
			to := c.make("s")
			for range each {
				if err := c.run(t.Context(), one.state, to); err != nil {
					t.Error(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Microsecond)
				if _, err := one.state.Read(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				cancel()
			}
			if err := to.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	one.wants(one.state, 2*each)
}

// TestDeviceTensorShort checks that idle plans are unloaded if memory is short for a tensor, that the allocation fails
// only if no idle plan is left, and that nothing is allocated at the end.
func TestDeviceTensorShort(t *testing.T) {
	cm, m := tightly(t, 1)
	model := summed(t, m, 2)
	if err := model.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := model.NewDeviceTensor(t.Context(), "x", nil); err != nil {
		t.Fatal(err)
	}
	if got := cm.ranksOpened(); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("worlds of %v ranks were opened, want the plan's and the tensor's", got)
	}
	if err := model.Prepare(t.Context(), nil); !errors.Is(err, hocket.ErrOutOfMemory) {
		t.Errorf("prepared beside the tensor: %v", err)
	}
}

// TestDeviceTensorTooLarge checks that a tensor that exceeds the whole memory gives ErrOutOfMemory, and that no plan is
// unloaded and no other tensor is closed for it.
func TestDeviceTensorTooLarge(t *testing.T) {
	c, j := resident(t, modeltest.Open(t, cpu.New(cpu.Options{Memory: 1 << 20})))
	if err := c.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	large := map[string]int64{"T": 1 << 20}
	if _, err := c.NewDeviceTensor(t.Context(), "s", large); !errors.Is(err, hocket.ErrOutOfMemory) {
		t.Errorf("made: %v", err)
	}
	if err := c.Prepare(t.Context(), large); !errors.Is(err, hocket.ErrOutOfMemory) {
		t.Errorf("prepared: %v", err)
	}
	if n := j.count("plan unloaded"); n != 0 {
		t.Errorf("%d plans were given up", n)
	}
	c.wants(c.state, 0)
	if err := c.runs(hocket.Args{In: c.in}); err != nil {
		t.Error(err)
	}
}

// TestDeviceTensorsEnd checks that device tensors stay usable after their model is closed, but not after their machine
// is closed.
func TestDeviceTensorsEnd(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := newCounter(t, m)
	another := newCounter(t, m)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := another.run(t.Context(), c.state, another.state); err != nil {
		t.Error(err)
	}
	c.wants(c.state, 0)
	another.wants(another.state, 1)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.state.Read(t.Context()); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("read when the machine is closed: %v", err)
	}
	if err := c.state.Close(); err != nil {
		t.Error(err)
	}
	if _, err := another.NewDeviceTensor(t.Context(), "s", nil); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("made when the machine is closed: %v", err)
	}
}

// shortLate is a machine whose worlds, if armed is set, report a shortage of memory once, at the end of a run.
type shortLate struct {
	device.Machine
	armed bool
}

type shortLateWorld struct {
	device.World
	m *shortLate
}

func (m *shortLate) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return &shortLateWorld{w, m}, err
}

func (w *shortLateWorld) Device(rank int) device.Device { return w.World.Device(rank) }

func (w *shortLateWorld) Sync(ctx context.Context) error {
	err := w.World.Sync(ctx)
	if w.m.armed {
		w.m.armed = false
		return fmt.Errorf("a launch: %w", device.ErrOutOfMemory)
	}
	return err
}

// TestSpoiled checks that a run for which memory was short is repeated once memory has been freed. A run that updates
// arguments in place, in host memory or on the devices, is not repeated: their contents are lost, and the error says so
// and why.
func TestSpoiled(t *testing.T) {
	for name, inPlace := range map[string]bool{"host, in place": true, "devices, in place": true, "host": false,
		"devices": false, "both": false} {
		t.Run(name, func(t *testing.T) {
			sm := &shortLate{Machine: cpu.New(cpu.Options{})}
			m := modeltest.Open(t, sm)
			model := modeltest.Load(t, m,
				"dim T = 8\nmesh tp[2]\nfunc f(%x: inout f32[T/tp, 2]) {\n add %x, %x into %x\n}\n",
				hocket.LoadOptions{})
			if err := summed(t, m, 2).Prepare(t.Context(), nil); err != nil { // to make room of
				t.Fatal(err)
			}
			ones := vals(t, ir.F32, slices.Repeat([]float64{1}, 16), 8, 2)
			var on [2]*hocket.DeviceTensor
			for i := range on {
				var err error
				if on[i], err = model.NewDeviceTensor(t.Context(), "x", nil); err == nil {
					err = on[i].Write(t.Context(), ones)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			host := func(x *hocket.Tensor) map[string]*hocket.Tensor { return map[string]*hocket.Tensor{"x": x} }
			devs := func(i int) map[string]*hocket.DeviceTensor {
				return map[string]*hocket.DeviceTensor{"x": on[i]}
			}
			twos := vals(t, ir.F32, make([]float64, 16), 8, 2)
			a := map[string]hocket.Args{
				"host, in place":    {In: host(ones), Out: host(ones)},
				"devices, in place": {DeviceIn: devs(0), DeviceOut: devs(0)},
				"host":              {In: host(ones), Out: host(twos)},
				"devices":           {DeviceIn: devs(0), DeviceOut: devs(1)},
				"both":              {In: host(ones), DeviceOut: devs(1)},
			}[name]
			if err := model.Prepare(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			sm.armed = true
			_, err := model.Run(t.Context(), a)
			if inPlace {
				if !errors.Is(err, hocket.ErrOutOfMemory) || errors.Is(err, hocket.ErrInput) ||
					!strings.Contains(err.Error(), "undefined contents") {
					t.Errorf("got %v", err)
				}
				return
			}
			if a.DeviceOut != nil && err == nil {
				twos, err = on[1].Read(t.Context())
			}
			if err != nil || slices.Min(twos.Floats()) != 2 || slices.Max(twos.Floats()) != 2 {
				t.Errorf("got %v, %v", err, twos)
			}
		})
	}
}

// TestDeviceTensorKept checks that a tensor stays usable after the context of NewDeviceTensor has ended, that a tensor
// of another type is refused, and that a nil tensor receives no result.
func TestDeviceTensorKept(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	ints := modeltest.Load(t, m, "dim T = 4\nmesh tp[2]\nfunc f(%s: i32[T/tp, 2]) -> i32[T/tp, 2] {\n  %y = add %s, %s\n  return %y\n}\n", hocket.LoadOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	d, err := ints.NewDeviceTensor(ctx, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	time.Sleep(time.Millisecond)
	if err := d.Write(t.Context(), vals(t, ir.I32, make([]float64, 8), 4, 2)); err != nil {
		t.Error(err)
	}
	c := newCounter(t, m)
	if err := c.run(t.Context(), d, d); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("of another type: %v", err)
	}
	if err := c.run(t.Context(), &hocket.DeviceTensor{}, c.state); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("one that nobody made: %v", err)
	}
	s := map[string]*hocket.DeviceTensor{"s": c.state}
	r, err := c.Run(t.Context(), hocket.Args{In: c.in, DeviceIn: s, DeviceOut: s,
		Out: map[string]*hocket.Tensor{"row": nil, "s": nil}})
	if err != nil || r.Out["row"] == nil {
		t.Errorf("nil to receive: %v", err)
	}
}

// TestDeviceTensorTurn checks that a run that waits for a tensor does not delay other runs of the model that do not use
// the tensor.
func TestDeviceTensorTurn(t *testing.T) {
	cm, m := tightly(t, 9)
	a, b := summed(t, m, 2), summed(t, m, 2)
	ones := vals(t, ir.F32, slices.Repeat([]float64{1}, 16), 8, 2)
	var on []*hocket.DeviceTensor
	for _, model := range []*hocket.Model{a, b} {
		d, err := model.NewDeviceTensor(t.Context(), "x", nil)
		if err == nil {
			err = d.Write(t.Context(), ones)
		}
		if err != nil {
			t.Fatal(err)
		}
		on = append(on, d)
	}
	hold := make(chan struct{})
	cm.hold[2] = hold
	done := make(chan error, 3)
	run := func(model *hocket.Model, d *hocket.DeviceTensor) {
		_, err := model.Run(context.WithoutCancel(t.Context()),
			hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"x": d},
				DeviceOut: map[string]*hocket.DeviceTensor{"y": d}})
		done <- err
	}
	go run(a, on[0])
	<-cm.held // it stays in its run
	go run(b, on[0])
	time.Sleep(10 * time.Millisecond) // it waits for the tensor
	go run(b, on[1])
	select {
	case <-cm.held:
	case <-time.After(10 * time.Second):
		t.Error("a run waits for another that waits for a tensor")
	}
	close(hold)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
