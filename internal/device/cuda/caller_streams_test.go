package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
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
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// stateful updates what it keeps, split over ranks and as a copy on each, and returns what all ranks have.
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

// caller is a library that shares the process: streams and memory of its own on a fake with queues.
type caller struct {
	*testing.T
	f       *fakedriver.GPU
	sys     *process.Shared
	m       *hocket.Machine
	model   *hocket.Model
	streams []uintptr
	in, out map[string]map[int]uintptr
	state   map[string]map[int]uintptr
	want    struct{ s, n []int32 } // the state, by arithmetic of the test's
}

// newCaller loads stateful, with its state in the caller's memory and a bound weight.
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

// makeStreams makes a stream of the caller's on each GPU.
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

// block is memory for so many words on each rank.
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

// ints are what is at an address.
func ints(at uintptr, n int) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = cabi.Load[int32](at + uintptr(4*i))
	}
	return all
}

// give puts x where the next run takes it.
func (c *caller) give(x []int32) {
	c.f.Mu.Lock()
	defer c.f.Mu.Unlock()
	for i, v := range x {
		cabi.Store(c.in["x"][i/4]+uintptr(4*(i%4)), v)
	}
}

// enqueue enqueues a run.
func (c *caller) enqueue() error {
	return c.model.Enqueue(c.Context(), hocket.EnqueueArgs{Streams: c.streams, In: c.in, Out: c.out})
}

// wait waits as the caller does: for its own streams.
func (c *caller) wait() {
	c.Helper()
	for i, s := range c.streams {
		c.on(c.sys.GPUs[i].Bound, func() error { return c.sys.Driver.SyncStream(nvlib.Stream(s)) })
	}
}

// run enqueues a run of x, waits for it and compares.
func (c *caller) run(x []int32) {
	c.Helper()
	c.give(x)
	if err := c.enqueue(); err != nil {
		c.Fatal(err)
	}
	c.wait()
	c.ran(x)
}

// step notes a run of x.
func (c *caller) step(x []int32) {
	for i := range x {
		c.want.s[i] = x[i] - c.want.s[i]
	}
	c.want.n[0], c.want.n[1] = c.want.n[0]+3, c.want.n[1]+5
}

// ran notes a run of x, and compares what is there with it.
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
				c.Fatalf("rank %d: %s is %v, not %v", r, what, got.is, got.want)
			}
		}
	}
}

// TestEnqueue: runs come behind what the caller's streams were given, what these are given later comes behind the
// runs, and nobody waits on the host, by graph or not.
func TestEnqueue(t *testing.T) {
	for name, o := range map[string]hocket.LoadOptions{"eager": {}, "graph": {Graph: true}} {
		t.Run(name, func(t *testing.T) {
			c := newCaller(t, o)
			x := []int32{1, 2, 3, 4, 5, 6, 7, 8}
			for range 3 { // what is made ready is ready then
				c.run(x)
			}
			var open atomic.Bool
			for _, s := range c.streams {
				c.f.GiveGuest(s, open.Load)
			}
			before := ints(c.out["z"][1], 8)
			for range 2 { // both return before the first has begun
				if err := c.enqueue(); err != nil {
					t.Fatal(err)
				}
			}
			if now := ints(c.out["z"][1], 8); !slices.Equal(now, before) {
				t.Fatalf("a run has begun before its stream came to it: %v was there, now %v", before, now)
			}
			open.Store(true)
			c.wait()
			c.step(x) // the first of the two, whose results the second's have overwritten
			c.ran(x)
			if err := c.model.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEnqueuedState: methods of device tensors, and runs that are waited for, come behind enqueued runs.
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
		t.Fatalf("a run whose context has ended, behind one that is enqueued: %v", err)
	}
	open.Store(true)
	r, err := c.model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": in}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range x { // twice
		c.want.s[i] = x[i] - (x[i] - c.want.s[i])
	}
	if got := r.Out["z"].Floats(); !slices.Equal(got, asFloats(c.want.s)) {
		t.Errorf("the run behind gave %v, not %v", got, c.want.s)
	}
	if got := ints(c.state["n"][0], 2); !slices.Equal(got, []int32{9, 15}) {
		t.Errorf("three runs have counted to %v", got)
	}
}

func asFloats(v []int32) (all []float64) {
	for _, x := range v {
		all = append(all, float64(x))
	}
	return all
}

// TestEnqueueWrong: what a run cannot be given is an error that names it, and nothing runs.
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
		"rank 7 has no block": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: 64, 1: 64, 7: 64}
		},
		"not a multiple of 4": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: a.In["x"][0] + 2, 1: a.In["x"][1]}
		},
		"x is missing": func(a *hocket.EnqueueArgs) { delete(a.In, "x") },
		"address 0x1230 is not memory of a GPU": func(a *hocket.EnqueueArgs) {
			a.In["x"] = map[int]uintptr{0: 0x1230, 1: a.In["x"][1]}
		},
		"is on GPU 1, and rank 0 is on GPU 0": func(a *hocket.EnqueueArgs) {
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
		t.Errorf("a device tensor at no multiple of 16: %v", err)
	}
	off := map[int]uintptr{0: 0x4560, 1: c.state["s"][1]}
	if _, err := c.model.DeviceTensorAt(t.Context(), "s", nil, off); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a device tensor on another GPU: %v", err)
	}
	x := []int32{1, 1, 1, 1, 1, 1, 1, 1}
	c.run(x)
}

// TestEnqueueCaptured: a run that is enqueued while the caller's stream is captured becomes part of the caller's
// graph. It runs in its place at every launch of that graph, and its plan stays loaded. The fake driver checks that no
// call is made that a capture forbids to other threads.
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
	o.Cache = 1 // room for no plan but the last
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
		t.Fatalf("a first run within a capture: %v", err)
	}
	c.f.EndGuest(stream)
	c.f.Mu.Lock()
	for i := range uintptr(8) {
		cabi.Store(x+4*i, int32(i))
	}
	cabi.Store(w, int32(1))
	c.f.Mu.Unlock()
	runs := 0
	for range 2 { // the second records the program's own graph, where it has one
		if err := enqueue(); err != nil {
			t.Fatal(err)
		}
		runs++
	}
	c.f.BeginGuest(stream)
	doubled := func() { // the caller's own, between the runs
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
		t.Errorf("%d graphs were put into the capture, not 2", c.f.Guests.Added)
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
		t.Errorf("after %d runs the result is %v, not %v", runs, got, kept)
	}
	if got := ints(n, 2); !slices.Equal(got, []int32{int32(runs), 0}) {
		t.Errorf("%d runs have counted to %v", runs, got)
	}
	// A plan for other dims does not push the captured one out.
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
		t.Errorf("a run behind the graph leaves %v, not %v", got, kept)
	}
}

// TestEnqueueForOtherLanguages: what package capi offers, which libhocket gives a C interface.
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
			t.Fatal("it is not over within a minute")
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
	for range 3 {
		if err := l.Enqueue(model, 0, []capi.Placed{x, w}, []capi.Placed{y, z}, dims); err != nil {
			t.Fatal(err)
		}
	}
	for want, in := range map[string][]capi.Placed{
		"x is i32[6, 3], want i32[6, 2]": {
			{Name: "x", DType: "i32", Shape: []int64{6, 3}, Address: x.Address}, w},
		"x is f32[6, 2], want i32[6, 2]": {{Name: "x", DType: "f32", Shape: x.Shape, Address: x.Address}, w},
		"rank 1 has no block":            {{Name: "x", Rank: 1, DType: "i32", Shape: x.Shape, Address: x.Address}, w},
		"x is given twice":               {x, x},
		"no parameter q":                 {x, w, {Name: "q"}},
	} {
		err := l.Enqueue(model, 0, in, []capi.Placed{y, z}, dims)
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if err := wait(l.Sync(model)); err != nil {
		t.Fatal(err)
	}
	if got := ints(z.Address, 12); !slices.Equal(got, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
		t.Errorf("after three runs the result is %v", got)
	}
	if names, err := l.Lendable(model, dims); err != nil || names != `["y","z"]` {
		t.Errorf("lendable: %s, %v", names, err)
	}
	if got := ints(n.Address, 2); !slices.Equal(got, []int32{6, 0}) {
		t.Errorf("three runs have counted to %v", got)
	}
	lent := []capi.Placed{y, {Name: "z", DType: "i32", Shape: z.Shape}}
	if err := l.Enqueue(model, 0, []capi.Placed{x, w}, lent, dims); err != nil {
		t.Fatal(err)
	}
	if err := wait(l.Sync(model)); err != nil {
		t.Fatal(err)
	}
	if got := ints(lent[1].Address, 12); slices.Equal(got, ints(z.Address, 12)) {
		t.Errorf("the fourth run has lent what the third gave: %v", got)
	}
	if err := l.BindDevice(model, nil, capi.Placed{Name: "n"}, dims); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(model); err != nil {
		t.Fatal(err)
	}
}

// TestEnqueuedFault: a fault within an enqueued run is the error of a later call, which names its place.
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

// TestEnqueueHangs: a call of the driver that never returns ends what waits for it soon after its deadline.
func TestEnqueueHangs(t *testing.T) {
	for _, call := range []string{"cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel",
		"cuStreamQuery",
		"cuPointerGetAttribute"} {
		t.Run(call, func(t *testing.T) {
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
				t.Errorf("an error of another kind: %v", err)
			}
			if err == nil {
				t.Error("there is no error")
			}
			_ = c.m.Close() // its error tells of the loss, or nothing
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("enqueueing, waiting and closing take %v", took)
			}
		})
	}
}

// window copies a block of a row-major tensor of elements of some bytes: out of whole, or into it.
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

// TestEnqueueExamples: every example gives the same bits enqueued, from and to blocks in the caller's memory, as in a
// run that is waited for.
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
			for _, strategy := range []string{"exchange", "sequential"} { // where that does not apply
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
				a := hocket.EnqueueArgs{Streams: make([]uintptr, ranks), In: in, Out: out} // the default streams
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
						t.Errorf("run %d, rank %d: %s is not what a run that is waited for gives", seed, b.Rank, l.Name)
					}
				})
			}
		})
	}
}
