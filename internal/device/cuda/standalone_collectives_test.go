package cuda

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/relocate"
	"hocket.example/hocket/internal/nvlib"
)

// guestCalls issues a world's standalone collectives to streams of the caller. Before each collective, its stream has
// work that ends when the test permits it.
type guestCalls struct {
	*testing.T
	f       *fakedriver.GPU
	drv     *nvlib.Driver
	bound   func(func() error) error
	streams map[string]uintptr
	ctx     nvlib.Context // of the GPU
	do      func(stream uintptr) error
	ready   map[string]bool // by name: whether the work before the call may end
	did     []string
}

func (g *guestCalls) in(do func() error) {
	g.Helper()
	if err := g.bound(do); err != nil {
		g.Fatal(err)
	}
}

func (g *guestCalls) call(name, stream string) error {
	g.Helper()
	s := g.streams[stream]
	if err := g.do(s); err != nil {
		return err
	}
	g.f.Mu.Lock()
	defer g.f.Mu.Unlock()
	g.f.Queues.Give(s, fakedriver.Task{Ready: func() bool { return g.ready[name] },
		Do: func() { g.did = append(g.did, name) }})
	return nil
}

func (g *guestCalls) must(name, stream string) {
	g.Helper()
	if err := g.call(name, stream); err != nil {
		g.Fatal(name, err)
	}
}

// wants lets the work before a call end, and checks which calls have ended.
func (g *guestCalls) wants(open string, want ...string) {
	g.Helper()
	g.f.Mu.Lock()
	defer g.f.Mu.Unlock()
	if open != "" {
		g.ready[open] = true
	}
	g.f.Queues.Advance()
	if !slices.Equal(g.did, want) {
		g.Errorf("after %s was released: calls %v have ended, want %v", open, g.did, want)
	}
}

// fork makes a stream join the capture that contains another stream.
func (g *guestCalls) fork(from, to string) {
	g.Helper()
	g.in(func() error {
		e, err := g.drv.NewEvent(false)
		if err != nil {
			return err
		}
		defer g.drv.DestroyEvent(e)
		if err := g.drv.Record(e, nvlib.Stream(g.streams[from])); err != nil {
			return err
		}
		return g.drv.WaitEvent(nvlib.Stream(g.streams[to]), e)
	})
}

// onGuests runs a test twice: with calls that launch a kernel, and with calls that copy.
func onGuests(t *testing.T, test func(g *guestCalls)) {
	for _, what := range []string{"Do", "Copy"} {
		t.Run(what, func(t *testing.T) {
			f := fakedriver.New(t, 1)
			f.Queue()
			sys := system(f)
			opened, err := newMachine(sys, Options{Kernels: f}).Open(t.Context(), 1)
			mustOf(t)(err)
			w := opened.(*world)
			defer w.Close()
			c, err := w.OpenCalls()
			mustOf(t)(err)
			g := &guestCalls{T: t, f: f, drv: w.drv, ctx: w.first().site.ctx, bound: sys.GPUs[0].Bound,
				streams: map[string]uintptr{"default": 0},
				ready:   map[string]bool{}}
			for _, name := range []string{"a", "b", "c", "d"} {
				g.in(func() error {
					s, err := w.drv.NewStream(0)
					g.streams[name] = uintptr(s)
					return err
				})
			}
			if what == "Do" {
				k := nvlib.NewLaunch(nvlib.Function(f.Load(func(uintptr) {})),
					nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}, [][]byte{make([]byte, 8)})
				defer k.Free()
				x := &call{calls: c.(*calls), launch: &launch{name: "nothing"},
					kernels: relocate.Find([]*nvlib.Launch{k}, nil)}
				g.do = func(s uintptr) error { return x.Do(s) }
			} else {
				m, err := w.Device(0).Alloc(512, device.Private)
				mustOf(t)(err)
				at := uintptr(m.(*memory).addr)
				g.do = func(s uintptr) error { return c.Copy(s, at, at+256, 16) }
			}
			test(g)
			mustOf(t)(c.Close())
			for _, s := range g.streams {
				if s != 0 {
					g.in(func() error { return w.drv.DestroyStream(nvlib.Stream(s)) })
				}
			}
		})
	}
}

// TestCallsOrder checks that a call waits for the previous call, on whatever stream, since both use the team's flags. A
// captured call waits for earlier calls of its graph, and for no call outside it.
func TestCallsOrder(t *testing.T) {
	onGuests(t, func(g *guestCalls) {
		g.must("1 on a", "a")
		g.must("2 on a", "a")
		g.must("3 on b", "b")
		g.must("4 on a", "a")
		g.must("5 on default", "default")
		g.ready["2 on a"], g.ready["3 on b"], g.ready["5 on default"] = true, true, true
		g.wants("")
		g.wants("1 on a", "1 on a", "2 on a", "3 on b")
		g.wants("4 on a", "1 on a", "2 on a", "3 on b", "4 on a", "5 on default")

		g.did = nil
		g.must("6 on b", "b") // this call is pending while a graph is captured
		g.f.BeginGuest(g.streams["a"])
		g.must("7 captured", "a")
		g.fork("a", "c")
		g.must("8 captured", "a")
		g.must("9 captured", "c")
		g.must("10 on default", "default") // this call waits for call 6, not for captured calls
		g.must("11 captured", "a")
		g.ready["10 on default"] = true
		g.wants("")
		g.wants("6 on b", "6 on b", "10 on default")
		work := g.f.EndGuest(g.streams["a"])
		g.did = nil
		g.f.LaunchGuest(work, g.streams["b"])
		g.ready["11 captured"] = true
		g.wants("7 captured", "7 captured")
		g.wants("8 captured", "7 captured", "8 captured")
		g.wants("9 captured", "7 captured", "8 captured", "9 captured", "11 captured")
	})
}

// TestCallsOrderWhileCaptured checks the error for a call that would have to wait for an earlier call, if a capture of
// the earlier call's stream has begun since.
func TestCallsOrderWhileCaptured(t *testing.T) {
	onGuests(t, func(g *guestCalls) {
		g.must("1 on a", "a")
		g.must("2 on b", "b")
		g.f.BeginGuest(g.streams["b"])
		if err := g.call("3 on a", "a"); err == nil || !strings.Contains(err.Error(), "a capture has begun") {
			t.Errorf("on another stream during the capture: %v", err)
		}
		g.must("4 captured", "b")
		g.f.EndGuest(g.streams["b"])
		g.must("5 on a", "a")
		g.ready["5 on a"] = true
		g.wants("1 on a", "1 on a")
		g.wants("2 on b", "1 on a", "2 on b", "5 on a")
	})
}

// TestCallsKeepContext checks that a call leaves the context of the caller's thread as it was, also if it fails, and
// that it makes no call to change a context that is current already.
func TestCallsKeepContext(t *testing.T) {
	onGuests(t, func(g *guestCalls) {
		const other = nvlib.Context(99)
		var did []string
		on := func(c nvlib.Context, do func() error) (left nvlib.Context, err error) {
			if err := g.drv.Bind(c); err != nil {
				g.Fatal(err)
			}
			defer g.drv.Unbind()
			g.f.Nth = func(call string) bool { did = append(did, call); return false }
			err = do()
			g.f.Nth = nil
			g.f.Calls()["cuCtxGetCurrent"]([]uintptr{uintptr(unsafe.Pointer(&left))})
			return left, err
		}
		call := func() error { return g.do(0) }
		if left, err := on(other, call); left != other || err != nil {
			g.Errorf("on a thread with another context: context %d is left, %v", left, err)
		}
		changes := func(call string) bool { return call == "cuCtxSetCurrent" }
		if !slices.ContainsFunc(did, changes) {
			g.Errorf("a call on a thread with another context did %v", did)
		}
		did = nil
		if left, err := on(g.ctx, call); left != g.ctx || err != nil {
			g.Errorf("on a thread with the context of the GPU: context %d is left, %v", left, err)
		}
		if len(did) != 2 || slices.ContainsFunc(did, changes) {
			g.Errorf("a call with the context of the GPU did %v", did)
		}
		g.must("1 on b", "b")
		g.f.BeginGuest(g.streams["b"])
		if left, err := on(other, call); left != other || err == nil {
			g.Errorf("a call that fails: context %d is left, %v", left, err)
		}
		g.f.EndGuest(g.streams["b"])
		g.wants("1 on b", "1 on b")
	})
}

// TestCallsOrderInCaptures checks calls in two graphs that are captured concurrently.
func TestCallsOrderInCaptures(t *testing.T) {
	onGuests(t, func(g *guestCalls) {
		g.f.BeginGuest(g.streams["a"])
		g.fork("a", "b")
		g.f.BeginGuest(g.streams["c"])
		g.fork("c", "d")
		g.must("1 of first", "a")
		g.must("1 of second", "c")
		g.must("2 of first", "b")
		g.must("2 of second", "d")
		first, second := g.f.EndGuest(g.streams["a"]), g.f.EndGuest(g.streams["c"])
		g.ready["2 of first"], g.ready["2 of second"] = true, true
		g.f.LaunchGuest(first, g.streams["a"])
		g.f.LaunchGuest(second, g.streams["c"])
		g.wants("")
		g.wants("1 of second", "1 of second", "2 of second")
		g.wants("1 of first", "1 of second", "2 of second", "1 of first", "2 of first")
	})
}
