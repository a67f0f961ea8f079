// Package guard has the locks of a process's worlds, and watches the driver calls that are made under them. An
// operation on a world is passed to World.Do as a whole. Within it, World.Batch issues a batch of work, and driver
// calls that may wait for a device are made under World.Exclusive. Thereby worlds do not deadlock each other
// (issue_lock.go, coresidency.go), and a call that never returns blocks only its own world (hung.go).
package guard

import (
	"cmp"
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
// holds are released. Its own mutex stays locked: LockLive is for who must not wait for that.
// When the call returns after all, its goroutine ends there (see nvlib.Watch).

// Process holds the locks that the worlds of a process share.
type Process struct {
	System      *gpu.System
	issue       sync.RWMutex // see issue_lock.go
	coresidency coresidency
}

// World guards one world.
type World struct {
	// Calls shows the calls of libraries that the world is in, Opening is the GPU that it opens meanwhile.
	Calls   nvlib.Watch
	Opening atomic.Pointer[gpu.GPU]

	p     *Process
	host  Host
	ended atomic.Bool

	issuing atomic.Int32 // batches under way
	// issueLocked is set while the owner of the world's mutex also holds the issue lock alone.
	issueLocked bool

	opened   context.Context // of Open; nil for a dry run
	compiles nvlib.Watch     // of kernels
	closing  atomic.Bool
	abort    atomic.Uintptr

	workers workers // none for a dry run

	mu    sync.Mutex
	lost  chan struct{} // closed once the world is given up; nil for a dry run
	cause atomic.Pointer[error]
}

// Host provides the world that is guarded.
type Host struct {
	Mu    *sync.Mutex  // guards its state
	Err   func() error // why it has ended; nil while it lives. The caller holds Mu
	Rests func() bool  // reports whether nothing of it is known to run. The caller holds Mu
}

// New returns a guard for a world. Its driver calls are not watched before Open, because a dry run makes none.
func (p *Process) New(h Host) *World { return &World{p: p, host: h} }

// Open starts to watch the world's driver calls. ctx is the context with which the world is opened.
func (w *World) Open(ctx context.Context) {
	w.opened, w.lost = ctx, make(chan struct{})
	w.workers.next, w.workers.over = make(chan func()), make(chan struct{})
}

// End records that the world has ended. It also ends the world's worker goroutines.
func (w *World) End() {
	if w.ended.CompareAndSwap(false, true) && w.workers.over != nil {
		close(w.workers.over)
	}
}

// Ended reports whether the world has ended.
func (w *World) Ended() bool { return w.ended.Load() }

// Closing records that the world is about to be closed. Driver calls then have a shorter time limit.
func (w *World) Closing() { w.closing.Store(true) }

// Forget releases the co-residency lock that a closed world holds.
func (w *World) Forget() { w.p.coresidency.forget(w) }

// AbortBy has a word of host memory set to 1 where the world is given up, or none where that is 0.
func (w *World) AbortBy(word uintptr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abort.Store(word)
}

// GivenUp returns the reason why the world was given up, or nil if it was not.
func (w *World) GivenUp() error {
	if err := w.cause.Load(); err != nil {
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

// patience returns the time limit of the world's current driver call.
func (w *World) patience(ctx context.Context) time.Duration {
	switch p := w.p.System.CallPatience; {
	case ctx.Err() != nil:
		return p.Late
	case w.closing.Load(), w.opened.Err() != nil:
		return p.Close
	default:
		return p.Call
	}
}

// Do implements device.World.
func (w *World) Do(ctx context.Context, f func()) error {
	if w.lost == nil {
		f()
		return nil
	}
	if err := w.GivenUp(); err != nil {
		return err
	}
	var returned bool
	var panicked any
	done := make(chan struct{})
	w.workers.do(func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
		returned = true
	})
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
			w.mu.Lock() // who gives the world up may be at it
			defer w.mu.Unlock()
			if w.GivenUp() == nil { // f ended the goroutine, as tests do
				runtime.Goexit()
			}
			return w.GivenUp()
		case <-w.lost:
			return w.GivenUp()
		case now := <-tick.C:
			tick.Reset(watchEvery)
			patience := w.patience(ctx)
			if p, age := seen[0].of(&w.Calls, now); age > patience {
				w.giveUp(&w.Calls, p, age)
			}
			if patience == w.p.System.CallPatience.Call {
				patience *= compilesFor
			}
			if p, age := seen[1].of(&w.compiles, now); age > patience {
				w.giveUp(&w.compiles, p, age)
			}
		}
	}
}

// sighting records a driver call in progress and the time at which it was first seen.
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

// giveUp gives the world up because of a driver call, unless that call has returned meanwhile.
func (w *World) giveUp(watch *nvlib.Watch, p nvlib.Pending, age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.GivenUp() != nil || !watch.Disown(p) {
		return
	}
	err := fmt.Errorf("%s has not returned for %v", p.Call, age.Round(time.Millisecond))
	if watch == &w.Calls {
		err = w.gpuOf(p).Abandon(p.Call, age)
	}
	w.cause.Store(&err)
	w.End()
	if at := w.abort.Load(); at != 0 { // kernels of teams on other GPUs
		cabi.StoreAtomic(at, 1)
	}
	close(w.lost)
	if lent := w.p.System.Lent; lent.Watch() == &w.Calls {
		lent.Lend(nil)
	}
	w.Calls.ReleaseAll()
	w.p.coresidency.abandon(w)
}

// gpuOf is the GPU that a call is for, as far as can be told; never nil.
func (w *World) gpuOf(p nvlib.Pending) *gpu.GPU {
	return cmp.Or(w.p.System.OfContext(p.Context), w.Opening.Load(), w.p.System.GPUs[0])
}

// LockLive locks the world's mutex. It returns false, without the lock, if the world was given up.
func (w *World) LockLive() bool {
	for began := time.Now(); !w.host.Mu.TryLock(); gpu.Pause(time.Since(began)) {
		if w.GivenUp() != nil {
			return false
		}
	}
	return true
}

// compilation is what a compiler's work is called where it does not return.
var compilation = "compiling a kernel by NVRTC"

// Compiling does the same as Aside, for the work of a compiler.
func (w *World) Compiling(f func() error) error {
	n := w.compiles.Enter(&compilation)
	err := w.Aside(f)
	w.compiles.Leave(n)
	return err
}
