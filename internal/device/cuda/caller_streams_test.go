package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/capi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// stateful is a program with two inout tensors, its state. It updates both, of which one is split over the ranks and
// one is replicated, and returns the first, split and whole.
const stateful = `dim T = 4
mesh tp[2]
func step(%x: i32[T/tp, 2], %w: i32[2], %s: inout i32[T/tp, 2], %n: inout i32[2]) -> (i32[T/tp, 2], i32[T, 2]) {
  %y = sub %x, %s
  %m = add %n, %w
  %z: i32[T, 2] = all_gather %y, over=tp, axis=0
  copy %y into %s
  copy %m into %n
  return %y, %z
}
`

// caller stands for a library that shares the process with hocket, and has its own streams and memory, on a fake driver
// with Queues.
type caller struct {
	*testing.T
	f       *fakedriver.GPU
	sys     *process.Shared
	m       *hocket.Machine
	model   *hocket.Model
	streams []uintptr
	in, out map[string]map[int]uintptr
	state   map[string]map[int]uintptr
	want    struct{ s, n []int32 } // the expected state
}

// newCaller loads the program stateful, whose state is in the caller's memory, and binds its weight.
func newCaller(t *testing.T, opts hocket.LoadOptions) *caller {
	t.Helper()
	c := &caller{T: t, f: fakedriver.New(t, 2)}
	c.f.Queue()
	c.sys = system(c.f)
	c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: c.f}))
	c.model = modeltest.Load(t, c.m, stateful, opts)
	c.in = map[string]map[int]uintptr{"x": c.block(4)}
	c.out = map[string]map[int]uintptr{"y": c.block(4), "z": c.block(8)}
	c.state = map[string]map[int]uintptr{"s": c.block(4), "n": c.block(2)}
	c.want.s, c.want.n = make([]int32, 8), make([]int32, 2)
	w, err := hocket.FromFloats(ir.I32, []float64{3, 5}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.model.Bind("w", w); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"s", "n"} {
		d, err := c.model.DeviceTensorAt(t.Context(), name, nil, c.state[name])
		if err != nil {
			t.Fatal(err)
		}
		if err := c.model.BindDevice(name, d); err != nil {
			t.Fatal(err)
		}
	}
	c.makeStreams()
	return c
}

// makeStreams creates a stream of the caller on each GPU.
func (c *caller) makeStreams() {
	for _, g := range c.sys.GPUs {
		c.on(g.Bound, func() error {
			s, err := c.sys.Driver.NewStream(0)
			c.streams = append(c.streams, uintptr(s))
			return err
		})
	}
	c.Cleanup(func() {
		for i, s := range c.streams {
			c.on(c.sys.GPUs[i].Bound, func() error { return c.sys.Driver.DestroyStream(nvlib.Stream(s)) })
		}
	})
}

func (c *caller) on(bound func(func() error) error, f func() error) {
	c.Helper()
	if err := bound(f); err != nil && c.f.Dead == 0 {
		c.Fatal(err)
	}
}

// block allocates the given number of words on each rank.
func (c *caller) block(words int) map[int]uintptr {
	at := map[int]uintptr{}
	for r, g := range c.sys.GPUs {
		c.on(g.Bound, func() error {
			p, err := c.sys.Driver.HostAlloc(int64(4 * words))
			at[r] = uintptr(p)
			for i := range words {
				cabi.Store(at[r]+uintptr(4*i), int32(0))
			}
			return err
		})
		c.Cleanup(func() { c.on(g.Bound, func() error { return c.sys.Driver.HostFree(nvlib.Ptr(at[r])) }) })
	}
	return at
}

// ints returns n words of memory.
func ints(at uintptr, n int) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = cabi.Load[int32](at + uintptr(4*i))
	}
	return all
}

// give writes x to the input of the next execution.
func (c *caller) give(x []int32) {
	c.f.Mu.Lock()
	defer c.f.Mu.Unlock()
	for i, v := range x {
		cabi.Store(c.in["x"][i/4]+uintptr(4*(i%4)), v)
	}
}

// enqueue enqueues an execution.
func (c *caller) enqueue() error {
	return c.model.Enqueue(c.Context(), hocket.EnqueueArgs{Streams: c.streams, In: c.in, Out: c.out})
}

// wait synchronizes the caller's streams, as a caller would.
func (c *caller) wait() {
	c.Helper()
	for i, s := range c.streams {
		c.on(c.sys.GPUs[i].Bound, func() error { return c.sys.Driver.SyncStream(nvlib.Stream(s)) })
	}
}

// run enqueues an execution with input x, waits for it, and compares the results.
func (c *caller) run(x []int32) {
	c.Helper()
	c.give(x)
	if err := c.enqueue(); err != nil {
		c.Fatal(err)
	}
	c.wait()
	c.ran(x)
}

// step updates the expected state for an execution with input x.
func (c *caller) step(x []int32) {
	for i := range x {
		c.want.s[i] = x[i] - c.want.s[i]
	}
	c.want.n[0], c.want.n[1] = c.want.n[0]+3, c.want.n[1]+5
}

// ran follows an execution with input x: it updates the expected state, and compares the actual state and results with
// the expected ones.
func (c *caller) ran(x []int32) {
	c.Helper()
	c.step(x)
	for r := range 2 {
		mine := c.want.s[4*r : 4*r+4]
		for what, got := range map[string]struct{ is, want []int32 }{
			"y": {ints(c.out["y"][r], 4), mine}, "z": {ints(c.out["z"][r], 8), c.want.s},
			"s": {ints(c.state["s"][r], 4), mine}, "n": {ints(c.state["n"][r], 2), c.want.n},
		} {
			if !slices.Equal(got.is, got.want) {
				c.Fatalf("rank %d: %s is %v, want %v", r, what, got.is, got.want)
			}
		}
	}
}

// TestEnqueue checks the order of enqueued executions, with and without graphs. Enqueued executions begin after earlier
// work on the caller's streams, and end before the caller's later work. Enqueue does not wait on the host.
func TestEnqueue(t *testing.T) {
	for name, o := range map[string]hocket.LoadOptions{"eager": {}, "graph": {Graph: true}} {
		t.Run(name, func(t *testing.T) {
			c := newCaller(t, o)
			x := []int32{1, 2, 3, 4, 5, 6, 7, 8}
			for range 3 { // the first executions prepare what later ones reuse
				c.run(x)
			}
			var open atomic.Bool
			for _, s := range c.streams {
				c.f.GiveGuest(s, open.Load)
			}
			before := ints(c.out["z"][1], 8)
			for range 2 { // both calls return before the first execution begins
				if err := c.enqueue(); err != nil {
					t.Fatal(err)
				}
			}
			if now := ints(c.out["z"][1], 8); !slices.Equal(now, before) {
				t.Fatalf("an execution began before its stream reached it: z was %v, and is %v", before, now)
			}
			open.Store(true)
			c.wait()
			c.step(x) // the second execution has overwritten the results of the first, so they are not compared
			c.ran(x)
			if err := c.model.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEnqueuedState checks that methods of device tensors, and calls of Run, are ordered after enqueued executions.
func TestEnqueuedState(t *testing.T) {
	c := newCaller(t, hocket.LoadOptions{})
	x := []int32{8, 7, 6, 5, 4, 3, 2, 1}
	c.run(x)
	var open atomic.Bool
	for _, s := range c.streams {
		c.f.GiveGuest(s, open.Load)
	}
	if err := c.enqueue(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in, err := hocket.FromFloats(ir.I32, asFloats(x), 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": in}}); !errors.Is(err,
		context.Canceled) {
		t.Fatalf("Run with a cancelled context, after an enqueued execution: %v", err)
	}
	open.Store(true)
	r, err := c.model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": in}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range x { // the effect of two executions
		c.want.s[i] = x[i] - (x[i] - c.want.s[i])
	}
	if got := r.Out["z"].Floats(); !slices.Equal(got, asFloats(c.want.s)) {
		t.Errorf("Run after an enqueued execution returned %v, want %v", got, c.want.s)
	}
	if got := ints(c.state["n"][0], 2); !slices.Equal(got, []int32{9, 15}) {
		t.Errorf("the counter is %v after three executions", got)
	}
}

func asFloats(v []int32) (all []float64) {
	for _, x := range v {
		all = append(all, float64(x))
	}
	return all
}

// TestEnqueueWrong checks that invalid arguments are refused with an error that names them, and that nothing is
// executed.
func TestEnqueueWrong(t *testing.T) {
	c := newCaller(t, hocket.LoadOptions{})
	c.f.Guests.Foreign, c.f.Guests.Off = map[uintptr]bool{0x1230: true}, map[uintptr]int{0x4560: 1}
	for want, change := range map[string]func(a *hocket.EnqueueArgs){
		"1 streams were passed for 2 ranks": func(a *hocket.EnqueueArgs) { a.Streams = a.Streams[:1] },
		"no parameter q":                    func(a *hocket.EnqueueArgs) { a.In["q"] = a.In["x"] },
		"no result q":                       func(a *hocket.EnqueueArgs) { a.Out["q"] = a.Out["y"] },
		"result z has no destination on the devices": func(a *hocket.EnqueueArgs) {
			delete(a.Out, "z")
		},
		"x: no address is passed for the block of rank 1": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: a.In["x"][0]}
		},
		"is passed for rank 7, but this process has no block": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: 64, 1: 64, 7: 64}
		},
		"not a multiple of 4": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: a.In["x"][0] + 2, 1: a.In["x"][1]}
		},
		"x is missing": func(a *hocket.EnqueueArgs) { delete(a.In, "x") },
		"address 0x1230 is not memory of a GPU": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: 0x1230, 1: a.In["x"][1]}
		},
		"is on GPU 1, but rank 0 is on GPU 0": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: 0x4560, 1: a.In["x"][1]}
		},
	} {
		a := hocket.EnqueueArgs{Streams: c.streams, In: maps.Clone(c.in), Out: maps.Clone(c.out)}
		change(&a)
		err := c.model.Enqueue(t.Context(), a)
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	c.f.Guests.Off[0x4560] = 1
	if _, err := c.model.DeviceTensorAt(t.Context(), "s", nil, map[int]uintptr{0: 20}); !errors.Is(err,
		hocket.ErrInput) {
		t.Errorf("a device tensor at an address that is no multiple of 16: %v", err)
	}
	off := map[int]uintptr{0: 0x4560, 1: c.state["s"][1]}
	if _, err := c.model.DeviceTensorAt(t.Context(), "s", nil, off); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a device tensor on another GPU: %v", err)
	}
	x := []int32{1, 1, 1, 1, 1, 1, 1, 1}
	c.run(x)
}

// TestEnqueueCaptured checks that an execution enqueued while the caller's stream is captured becomes part of the
// caller's graph. Each launch of the caller's graph runs the execution, in order, and the plan of the execution stays
// loaded. The fake driver checks that no thread makes a call that a capture forbids.
func TestEnqueueCaptured(t *testing.T) {
	for name, o := range map[string]hocket.LoadOptions{"eager": {}, "graph": {Graph: true}} {
		t.Run(name, func(t *testing.T) { captured(t, o) })
	}
}

func captured(t *testing.T, o hocket.LoadOptions) {
	c := &caller{T: t, f: fakedriver.New(t, 1)}
	c.f.Queue()
	c.sys = system(c.f)
	c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: c.f}))
	o.Cache = 1 // room for one plan only
	c.model = modeltest.Load(t, c.m, strings.Replace(stateful, "tp[2]", "tp[1]", 1), o)
	x, w, y, z := c.block(8)[0], c.block(2)[0], c.block(8)[0], c.block(8)[0]
	s, n := c.block(8)[0], c.block(2)[0]
	at := func(p uintptr) map[int]uintptr { return map[int]uintptr{0: p} }
	for name, p := range map[string]uintptr{"s": s, "n": n} {
		d, err := c.model.DeviceTensorAt(t.Context(), name, nil, at(p))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.model.BindDevice(name, d); err != nil {
			t.Fatal(err)
		}
	}
	var stream uintptr
	gpu := c.sys.GPUs[0]
	c.on(gpu.Bound, func() error {
		h, err := c.sys.Driver.NewStream(0)
		stream = uintptr(h)
		return err
	})
	defer c.on(gpu.Bound, func() error { return c.sys.Driver.DestroyStream(nvlib.Stream(stream)) })
	enqueue := func() error {
		return c.model.Enqueue(t.Context(), hocket.EnqueueArgs{Streams: []uintptr{stream},
			In:  map[string]map[int]uintptr{"x": at(x), "w": at(w)},
			Out: map[string]map[int]uintptr{"y": at(y), "z": at(z)}})
	}
	c.f.BeginGuest(stream)
	if err := enqueue(); !errors.Is(err, hocket.ErrCapturing) {
		t.Fatalf("the first execution of a plan within a capture: %v", err)
	}
	c.f.EndGuest(stream)
	c.f.Mu.Lock()
	for i := range uintptr(8) {
		cabi.Store(x+4*i, int32(i))
	}
	cabi.Store(w, int32(1))
	c.f.Mu.Unlock()
	runs := 0
	for range 2 { // the second time, a program with a graph records its own graph
		if err := enqueue(); err != nil {
			t.Fatal(err)
		}
		runs++
	}
	c.f.BeginGuest(stream)
	doubled := func() { // work of the caller between the executions
		for i := range uintptr(8) {
			cabi.Store(x+4*i, 2*cabi.Load[int32](x+4*i))
		}
	}
	for range 2 {
		if err := enqueue(); err != nil {
			t.Fatal(err)
		}
		c.f.Mu.Lock()
		c.f.Queues.Give(stream, fakedriver.Task{Do: doubled})
		c.f.Mu.Unlock()
	}
	work := c.f.EndGuest(stream)
	if c.f.Guests.Added != 2 {
		t.Errorf("%d graphs were added to the capture, want 2", c.f.Guests.Added)
	}
	if err := c.model.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, in := make([]int32, 8), []int32{0, 1, 2, 3, 4, 5, 6, 7}
	step := func() {
		for i := range kept {
			kept[i] = in[i] - kept[i]
		}
	}
	step()
	step()
	for range 3 {
		c.f.LaunchGuest(work, stream)
		for range 2 {
			step()
			runs++
			for i := range in {
				in[i] *= 2
			}
		}
	}
	c.on(gpu.Bound, func() error { return c.sys.Driver.SyncStream(nvlib.Stream(stream)) })
	if got := ints(z, 8); !slices.Equal(got, kept) {
		t.Errorf("after %d executions the result is %v, want %v", runs, got, kept)
	}
	if got := ints(n, 2); !slices.Equal(got, []int32{int32(runs), 0}) {
		t.Errorf("after %d executions the counter is %v", runs, got)
	}
	// A later plan for other dims does not evict the plan whose execution was captured.
	if err := c.model.Prepare(t.Context(), map[string]int64{"T": 6}); err != nil {
		t.Fatal(err)
	}
	if plans := c.m.Stats().Plans.Plans; plans != 2 {
		t.Errorf("%d plans are loaded; the captured one must stay", plans)
	}
	if err := enqueue(); err != nil {
		t.Fatal(err)
	}
	step()
	if err := c.model.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ints(s, 8); !slices.Equal(got, kept) {
		t.Errorf("after the graph an execution returns %v, want %v", got, kept)
	}
}

// TestEnqueueForOtherLanguages tests Enqueue through package capi, which is the basis of libhocket's C interface.
func TestEnqueueForOtherLanguages(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.Queue()
	c := &caller{T: t, f: f, sys: system(f)}
	device.Register(device.Kind{Name: t.Name(), Open: func(*procs.World) (device.Machine, error) {
		return newMachine(c.sys, Options{Kernels: f}), nil
	}})
	l := capi.New()
	m, _, err := l.Open(t.Context(), fmt.Sprintf(`{"machine": %q, "alone": true}`, t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(m); err != nil {
			t.Error(err)
		}
	}()
	model, err := l.Load(m, strings.Replace(stateful, "tp[2]", "tp[1]", 1), "")
	if err != nil {
		t.Fatal(err)
	}
	block := func(name string, shape ...int64) capi.Placed {
		n := 1
		for _, e := range shape {
			n *= int(e)
		}
		return capi.Placed{Name: name, DType: "i32", Shape: shape, Address: c.block(n)[0]}
	}
	x, w, y, z := block("x", 6, 2), block("w", 2), block("y", 6, 2), block("z", 6, 2)
	s, n := block("s", 6, 2), block("n", 2)
	const dims = `{"T": 6}`
	wait := func(ticket int64, err error) error {
		if err != nil {
			return err
		}
		over, err := l.Wait(ticket, time.Minute)
		if !over {
			t.Fatal("the enqueued execution has not ended within a minute")
		}
		return err
	}
	for _, b := range []capi.Placed{s, n} {
		if err := l.BindDevice(model, nil, b, dims); err != nil {
			t.Fatal(err)
		}
	}
	if err := wait(l.Prepare(model, dims)); err != nil {
		t.Fatal(err)
	}
	f.Mu.Lock()
	for i := range uintptr(12) {
		cabi.Store(x.Address+4*i, int32(i))
	}
	cabi.Store(w.Address, int32(2))
	f.Mu.Unlock()
	own, here, elsewhere := goroutine(), 0, []string(nil)
	f.Mu.Lock()
	f.OnCall = func(name string, _ []uintptr) {
		if goroutine() == own {
			here++
		} else {
			elsewhere = append(elsewhere, name)
		}
	}
	f.Mu.Unlock()
	began := time.Now()
	laps.Start()
	form, err := l.Form(model, []capi.Placed{x, w}, []capi.Placed{y, z}, dims)
	if err != nil {
		t.Fatal(err)
	}
	at := func(list ...capi.Placed) (addresses []uintptr) {
		for _, p := range list {
			addresses = append(addresses, p.Address)
		}
		return addresses
	}
	for range 3 {
		if err := l.Enqueue(form, 0, at(x, w, y, z), ""); err != nil {
			t.Fatal(err)
		}
	}
	f.Mu.Lock()
	f.OnCall = nil
	f.Mu.Unlock()
	if here == 0 || len(elsewhere) > 0 {
		t.Errorf("the calling goroutine makes %d calls of the driver, and other goroutines make %q", here, elsewhere)
	}
	checkPhases(t, laps.Stop(), 3, time.Since(began))
	for want, in := range map[string][]capi.Placed{
		"x is i32[6, 3], want i32[6, 2]": {
			{Name: "x", DType: "i32", Shape: []int64{6, 3}, Address: x.Address}, w},
		"x is f32[6, 2], want i32[6, 2]": {{Name: "x", DType: "f32", Shape: x.Shape, Address: x.Address}, w},
		"rank 1 has no block":            {{Name: "x", Rank: 1, DType: "i32", Shape: x.Shape, Address: x.Address}, w},
		"x is given twice":               {x, x},
		"no parameter q":                 {x, w, {Name: "q"}},
	} {
		_, err := l.Form(model, in, []capi.Placed{y, z}, dims)
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if err := l.Enqueue(form, 0, at(x, w, y), ""); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("three addresses for four blocks: %v", err)
	}
	if err := wait(l.Sync(model)); err != nil {
		t.Fatal(err)
	}
	if got := ints(z.Address, 12); !slices.Equal(got, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
		t.Errorf("after three executions the result is %v", got)
	}
	if names, err := l.Lendable(model, dims); err != nil || names != `["y","z"]` {
		t.Errorf("lendable: %s, %v", names, err)
	}
	if got := ints(n.Address, 2); !slices.Equal(got, []int32{6, 0}) {
		t.Errorf("after three executions the counter is %v", got)
	}
	lent := append(at(x, w, y), 0)
	if err := l.Enqueue(form, 0, lent, ""); err != nil {
		t.Fatal(err)
	}
	if err := wait(l.Sync(model)); err != nil {
		t.Fatal(err)
	}
	if got := ints(lent[3], 12); slices.Equal(got, ints(z.Address, 12)) {
		t.Errorf("the fourth execution returned the lent result of the third: %v", got)
	}
	if err := l.BindDevice(model, nil, capi.Placed{Name: "n"}, dims); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(model); err != nil {
		t.Fatal(err)
	}
	if err := l.Enqueue(form, 0, at(x, w, y, z), ""); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("a run of a model that was closed: %v", err)
	}
	if err := l.Close(form); err != nil {
		t.Error(err)
	}
}

// TestEnqueuedFault checks that a fault in an enqueued execution is returned by a later call, with its rank and status.
func TestEnqueuedFault(t *testing.T) {
	c := newCaller(t, hocket.LoadOptions{})
	x := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	c.run(x)
	if err := c.model.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.enqueue(); err != nil {
		t.Fatal(err)
	}
	c.f.Mu.Lock()
	c.f.Returns["cuStreamQuery"] = 700 // CUDA_ERROR_ILLEGAL_ADDRESS
	c.f.Mu.Unlock()
	err := c.model.Sync(t.Context())
	if err == nil || !strings.Contains(err.Error(), "rank 0") || !strings.Contains(err.Error(), "700") {
		t.Errorf("the fault of an enqueued run: %v", err)
	}
	c.f.Mu.Lock()
	delete(c.f.Returns, "cuStreamQuery")
	c.f.Dead = 700
	c.f.Mu.Unlock()
}

// TestEnqueueHangs checks that waits for a driver call that never returns end soon after their deadline.
func TestEnqueueHangs(t *testing.T) {
	calls := []string{"cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel", "cuStreamQuery",
		"cuPointerGetAttribute"}
	sideBySide(t, len(calls), calls, strings.Clone, func(t *testing.T, call string) {
		c := newCaller(t, hocket.LoadOptions{Grace: -1})
		c.sys.CallPatience = haste
		c.f.Haunted = true
		x := []int32{1, 2, 3, 4, 5, 6, 7, 8}
		c.run(x)
		if err := c.model.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := c.f.Block(call)
		defer func() {
			c.f.Die()
			release()
			c.f.Abandon()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := c.model.Enqueue(ctx, hocket.EnqueueArgs{Streams: c.streams, In: c.in, Out: c.out})
		if err == nil {
			err = c.model.Sync(ctx)
		}
		if err := hungOr([]error{err}); err != nil {
			t.Errorf("unexpected error: %v", err)
		}
		if err == nil {
			t.Error("want an error, got none")
		}
		_ = c.m.Close() // it may report the lost GPU
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("enqueueing, waiting and closing take %v", took)
		}
	})
}

// goroutine returns a text that identifies the calling goroutine.
func goroutine() string {
	name, _, _ := strings.Cut(string(debug.Stack()), "[")
	return name
}

// checkPhases checks the phases that were measured in the given number of calls of Enqueue, which together lasted for
// the time took.
func checkPhases(t *testing.T, phases []laps.Phase, calls int, took time.Duration) {
	t.Helper()
	var names []string
	sum := 0.0
	for _, p := range phases {
		names = append(names, p.Name)
		sum += p.Median
		if p.Calls != calls || p.Median <= 0 {
			t.Errorf("phase %q has %d calls, and a median of %v µs, want %d calls", p.Name, p.Calls, p.Median, calls)
		}
	}
	for _, want := range []string{"blocks", "checks", "locks", "issue of compute", "leases ended"} {
		if !slices.Contains(names, want) {
			t.Errorf("the phases %q lack %q", names, want)
		}
	}
	if total := float64(took.Nanoseconds()) / 1e3; sum > total {
		t.Errorf("the phases of one call take %v µs, and all %d calls %v µs", sum, calls, total)
	}
}

// TestEnqueueHereHangs checks that a world is abandoned if a driver call of an enqueued run never returns in the
// goroutine of its caller.
func TestEnqueueHereHangs(t *testing.T) {
	c := newCaller(t, hocket.LoadOptions{Grace: -1})
	c.sys.CallPatience = gpu.Patience{Call: 100 * time.Millisecond, Late: time.Minute, Close: time.Second}
	c.f.Haunted = true
	c.run([]int32{1, 2, 3, 4, 5, 6, 7, 8})
	if err := c.model.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	release := c.f.Block("cuLaunchKernel")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := c.model.Enqueue(device.Here(t.Context()), hocket.EnqueueArgs{Streams: c.streams, In: c.in, Out: c.out})
		t.Errorf("Enqueue has returned: %v", err)
	}()
	lost := func() error {
		for _, g := range c.sys.GPUs {
			if l := g.Lost.Load(); l != nil {
				return l
			}
		}
		return nil
	}
	for began := time.Now(); lost() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("no GPU is lost a minute after the call began")
		}
	}
	if text := lost().Error(); !strings.Contains(text, "cuLaunchKernel: the call has not returned for") {
		t.Errorf("the GPU is lost for another reason: %s", text)
	}
	select {
	case <-ended:
		t.Error("the caller's goroutine has ended before the call")
	default:
	}
	c.f.Die()
	release()
	<-ended
	c.f.Abandon()
	if err := c.model.Sync(t.Context()); err == nil {
		t.Error("Sync of the abandoned world: want an error, got none")
	}
	_ = c.m.Close() // the error may be that the GPU is lost
}

// window copies a block of a row-major tensor from whole, the tensor, to block; if into is set, it copies from block to
// whole. size is the number of bytes of an element.
func window(whole, block []byte, size int, shape, lo, extent []int64, into bool) {
	rows, last := 1, len(shape)-1
	if last < 0 {
		shape, lo, extent, last = []int64{1}, []int64{0}, []int64{1}, 0
	}
	for _, e := range extent[:last] {
		rows *= int(e)
	}
	n := int(extent[last]) * size
	for r := range rows {
		at, rest := lo[last], int64(r)
		for d, step := last-1, shape[last]; d >= 0; d-- {
			at += (lo[d] + rest%extent[d]) * step
			rest /= extent[d]
			step *= shape[d]
		}
		w, b := whole[int(at)*size:][:n], block[r*n:][:n]
		if into {
			copy(w, b)
		} else {
			copy(b, w)
		}
	}
}

// TestEnqueueExamples checks that every example returns the same bits from Enqueue, with blocks in the caller's memory,
// as from Run.
func TestEnqueueExamples(t *testing.T) {
	list, err := filepath.Glob("../../../examples/*.hkt")
	if err != nil || len(list) < 11 {
		t.Fatalf("examples %v, %v", list, err)
	}
	for i, path := range list {
		if testing.Short() && i%4 > 0 {
			continue
		}
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			f := fakedriver.New(t, 4)
			f.Queue()
			c := &caller{T: t, f: f, sys: system(f)}
			c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: f, RanksPerGPU: 4}))
			p, err := hocket.Parse(name, example(t, name))
			if err != nil {
				t.Fatal(err)
			}
			var model *hocket.Model
			var ins, outs []hocket.Layout
			for _, strategy := range []string{"exchange", "sequential"} { // other strategies, if they apply
				model, err = c.m.Load(p, hocket.Binding{Dims: small[name]},
					hocket.LoadOptions{Strategy: strategy, Graph: i%2 > 0})
				if err == nil {
					ins, outs, err = model.Layouts(t.Context(), nil, nil)
				}
				if err == nil {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			place := func(layouts []hocket.Layout) (at map[string]map[int]uintptr,
				each func(func(l *hocket.Layout, b *hocket.Block, mem []byte))) {
				at = map[string]map[int]uintptr{}
				for _, l := range layouts {
					at[l.Name] = map[int]uintptr{}
					for _, b := range l.Blocks {
						n := int64(l.DType.Size())
						for _, e := range b.Shape {
							n *= e
						}
						gpu := c.sys.GPUs[b.Rank%4]
						c.on(gpu.Bound, func() error {
							mem, err := c.sys.Driver.HostAlloc(max(n, 4))
							at[l.Name][b.Rank] = uintptr(mem)
							return err
						})
						c.Cleanup(func() {
							c.on(gpu.Bound,
								func() error { return c.sys.Driver.HostFree(nvlib.Ptr(at[l.Name][b.Rank])) })
						})
					}
				}
				return at, func(f func(l *hocket.Layout, b *hocket.Block, mem []byte)) {
					for i := range layouts {
						for k := range layouts[i].Blocks {
							b := &layouts[i].Blocks[k]
							n := layouts[i].DType.Size()
							for _, e := range b.Shape {
								n *= e
							}
							f(&layouts[i], b, cabi.Bytes(at[layouts[i].Name][b.Rank], int(n)))
						}
					}
				}
			}
			in, eachIn := place(ins)
			out, eachOut := place(outs)
			ranks := 0
			for _, l := range append(ins, outs...) {
				for _, b := range l.Blocks {
					ranks = max(ranks, b.Rank+1)
				}
			}
			for seed := range 3 {
				args, err := model.RandomInputs(fmt.Sprint("ints:", seed))
				if err != nil {
					t.Fatal(err)
				}
				want, err := model.Run(t.Context(), hocket.Args{In: args})
				if err != nil {
					t.Fatal(err)
				}
				f.Mu.Lock()
				eachIn(func(l *hocket.Layout, b *hocket.Block, mem []byte) {
					window(args[l.Name].Data, mem, int(l.DType.Size()), l.Shape, b.Lo, b.Shape, false)
				})
				f.Mu.Unlock()
				a := hocket.EnqueueArgs{Streams: make([]uintptr, ranks), In: in, Out: out} // the default streams of the GPUs
				if err := model.Enqueue(t.Context(), a); err != nil {
					t.Fatal(err)
				}
				if err := model.Sync(t.Context()); err != nil {
					t.Fatal(err)
				}
				eachOut(func(l *hocket.Layout, b *hocket.Block, mem []byte) {
					w := make([]byte, len(mem))
					window(want.Out[l.Name].Data, w, int(l.DType.Size()), l.Shape, b.Lo, b.Shape, false)
					if !bytes.Equal(mem, w) {
						t.Errorf("seed %d, rank %d: %s differs between Enqueue and Run", seed, b.Rank, l.Name)
					}
				})
			}
		})
	}
}
