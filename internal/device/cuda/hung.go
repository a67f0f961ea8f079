package cuda

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// A call of the driver that does not return, as when a GPU falls off the bus, holds up the
// goroutine that made it and all that wait for its locks. So Do has a goroutine of its own do
// what uses the world, and its caller watch the call that the world is in. Past a patience the
// GPU is lost and the world given up: callers of Do return, and locks of the process that it
// holds are released. Its own mutex stays locked: lockLive is for who must not wait for that.
// When the call returns after all, its goroutine ends there (see nvlib.Watch).

// hung is what a world has for that.
type hung struct {
	ctx      context.Context // of Open; nil for a dry run
	calls    nvlib.Watch     // of the libraries
	compiles nvlib.Watch     // of kernels
	opening  atomic.Pointer[gpu.GPU]
	closing  atomic.Bool
	abort    atomic.Uintptr // world.abort, for who has no lock

	mu    sync.Mutex
	lost  chan struct{} // closed once the world is given up
	cause atomic.Pointer[error]
}

// why is why the world was given up; nil while it was not.
func (h *hung) why() error {
	if err := h.cause.Load(); err != nil {
		return *err
	}
	return nil
}

const (
	// compilesFor is how long a compiler may take, as a multiple of what other calls may.
	compilesFor = 10
	// watchEvery is how often callers of Do look at the call that the world is in.
	watchEvery = 50 * time.Millisecond
)

// patience is how long the call that the world is in may take.
func (w *world) patience(ctx context.Context) time.Duration {
	switch p := w.m.sys.CallPatience; {
	case ctx.Err() != nil:
		return p.Late
	case w.hung.closing.Load(), w.hung.ctx.Err() != nil:
		return p.Close
	default:
		return p.Call
	}
}

// Do implements device.World.
func (w *world) Do(ctx context.Context, f func()) error {
	if w.hung.lost == nil {
		f()
		return nil
	}
	if err := w.hung.why(); err != nil {
		return err
	}
	var returned bool
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
		returned = true
	}()
	tick := time.NewTimer(watchEvery)
	defer tick.Stop()
	var seen [2]sighting
	for {
		select {
		case <-done:
			switch {
			case panicked != nil:
				panic(panicked)
			case returned:
				return nil
			}
			w.hung.mu.Lock() // who gives the world up may be at it
			defer w.hung.mu.Unlock()
			if w.hung.why() == nil { // f ended the goroutine, as tests do
				runtime.Goexit()
			}
			return w.hung.why()
		case <-w.hung.lost:
			return w.hung.why()
		case now := <-tick.C:
			tick.Reset(watchEvery)
			patience := w.patience(ctx)
			if p, age := seen[0].of(&w.hung.calls, now); age > patience {
				w.giveUp(&w.hung.calls, p, age)
			}
			if patience == w.m.sys.CallPatience.Call {
				patience *= compilesFor
			}
			if p, age := seen[1].of(&w.hung.compiles, now); age > patience {
				w.giveUp(&w.hung.compiles, p, age)
			}
		}
	}
}

// sighting is a call that was seen, and since when.
type sighting struct {
	call  nvlib.Pending
	since time.Time
}

// of returns the call that the owner of w is in, and for how long that has been seen, at least.
func (s *sighting) of(w *nvlib.Watch, now time.Time) (nvlib.Pending, time.Duration) {
	p, ok := w.Pending()
	if !ok {
		*s = sighting{}
		return p, 0
	}
	if p != s.call {
		*s = sighting{p, now}
	}
	return p, now.Sub(s.since)
}

// giveUp gives the world up because of a call, unless that has returned meanwhile.
func (w *world) giveUp(watch *nvlib.Watch, p nvlib.Pending, age time.Duration) {
	h := &w.hung
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why() != nil || !watch.Disown(p) {
		return
	}
	err := fmt.Errorf("%s has not returned for %v", p.Call, age.Round(time.Millisecond))
	if watch == &h.calls {
		err = w.gpuOf(p).Abandon(p.Call, age)
	}
	h.cause.Store(&err)
	w.ended.Store(true)
	if at := h.abort.Load(); at != 0 { // kernels of teams on other GPUs
		cabi.StoreAtomic(at, 1)
	}
	close(h.lost)
	if lent := w.m.sys.Lent; lent.Watch() == &h.calls {
		lent.Lend(nil)
	}
	h.calls.ReleaseAll()
	w.m.sys.coresidency.abandon(w)
}

// gpuOf is the GPU that a call is for, as far as can be told.
func (w *world) gpuOf(p nvlib.Pending) *gpu.GPU {
	if g := w.m.sys.OfContext(p.Context); g != nil {
		return g
	}
	return w.hung.opening.Load()
}

// forgetAbort is called before that word is given back.
func (h *hung) forgetAbort() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.abort.Store(0)
}

// lockLive locks the world's mutex; not if it was given up.
func (w *world) lockLive() bool {
	for began := time.Now(); !w.mu.TryLock(); gpu.Pause(time.Since(began)) {
		if w.hung.why() != nil {
			return false
		}
	}
	return true
}

// compilation is what a compiler's work is called where it does not return.
var compilation = "compiling a kernel by NVRTC"

// compiling is aside for a compiler's work.
func (w *world) compiling(f func() error) error {
	n := w.hung.compiles.Enter(&compilation)
	err := w.aside(f)
	w.hung.compiles.Leave(n)
	return err
}
