// Package guard implements the locks between the worlds of a process, and monitors the driver calls that are made under
// them. An operation on a world is passed to World.Do as a whole. Within the operation, World.Batch issues a batch of
// work, and driver calls that may wait for a device are made under World.Exclusive. With these rules worlds do not
// deadlock each other (issue_lock.go, coresidency.go), and a call that never returns blocks only the world that made it
// (hung.go).
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
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// A driver call may never return, for example if a GPU falls off the bus. Such a call blocks the goroutine that made
// it, and all goroutines that wait for locks of that goroutine. Therefore Do runs an operation in a separate goroutine,
// and the caller of Do monitors the world's driver call in progress. If the call exceeds its time limit, the GPU is
// lost and the world is abandoned: callers of Do return, and locks of the process that the world holds are released. The
// world's mutex stays locked; LockLive is for goroutines that must not wait for it. If the call returns later, its
// goroutine exits (see nvlib.Watch).

type Process struct {
	System      *gpu.System
	issue       sync.RWMutex // see issue_lock.go
	coresidency coresidency
}

// World guards one world.
type World struct {
	// Calls records the world's library call in progress. Opening is the GPU that is being opened for the world.
	Calls   nvlib.Watch
	Opening atomic.Pointer[gpu.GPU]

	p     *Process
	host  Host
	ended atomic.Bool

	issuing atomic.Int32 // batches in progress
	// issueLocked is set while the owner of the world's mutex also holds the issue lock exclusively.
	issueLocked bool

	opened   context.Context // the context passed to Open; nil for a dry run
	compiles nvlib.Watch     // compilations in progress
	closing  atomic.Bool
	abort    atomic.Uintptr

	workers workers   // unused in a dry run
	watched sync.Once // starts watch

	mu    sync.Mutex
	lost  chan struct{} // this channel is closed when the world is abandoned; nil for a dry run
	cause atomic.Pointer[error]
}

// Host gives package guard access to the world that it guards.
type Host struct {
	Mu    *sync.Mutex  // guards its state
	Err   func() error // returns the reason why the world has ended; nil if it has not. The caller holds Mu
	Rests func() bool  // reports whether no work of the world is known to run. The caller holds Mu
}

// New returns a guard for a world. Driver calls are not monitored before Open is called, because a dry run makes none.
func (p *Process) New(h Host) *World { return &World{p: p, host: h} }

// Open starts to monitor the world's driver calls. The context ctx is the one with which the world is opened.
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

// Closing records that the world is about to be closed. From then on, driver calls have a shorter time limit.
func (w *World) Closing() { w.closing.Store(true) }

// Forget releases the co-residency lock that a closed world holds.
func (w *World) Forget() { w.p.coresidency.forget(w) }

// AbortBy sets the address of the word in host memory that is set to 1 when the world is abandoned; 0 for none.
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
	// compilesFor is the time limit of a compilation, as a multiple of that of a driver call.
	compilesFor = 10
	// watchEvery is the interval at which callers of Do check the world's driver call in progress.
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

// Do runs f as the method Do of device.World specifies.
func (w *World) Do(ctx context.Context, f func()) error {
	if w.lost == nil {
		f()
		return nil
	}
	if err := w.GivenUp(); err != nil {
		return err
	}
	if device.IsHere(ctx) {
		w.watched.Do(func() { go w.watch() })
		f()
		return nil
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
			w.mu.Lock() // giveUp may be in progress
			defer w.mu.Unlock()
			if w.GivenUp() == nil { // f called runtime.Goexit, as a failing test does
				runtime.Goexit()
			}
			return w.GivenUp()
		case <-w.lost:
			return w.GivenUp()
		case now := <-tick.C:
			tick.Reset(watchEvery)
			w.check(&seen, w.patience(ctx), now)
		}
	}
}

// check gives the world up if its driver call or compilation in progress has taken longer than patience.
func (w *World) check(seen *[2]sighting, patience time.Duration, now time.Time) {
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

// watchHereEvery is the interval at which watch checks the world's driver call in progress.
const watchHereEvery = time.Second

// watch checks the world's driver call in progress until the world ends. It is for functions that Do calls in the
// goroutines of its callers, which nothing else observes. The caller of such a function stays blocked if a driver call
// does not return, but other worlds get the locks that it holds.
func (w *World) watch() {
	tick := time.NewTicker(watchHereEvery)
	defer tick.Stop()
	var seen [2]sighting
	for {
		select {
		case <-w.workers.over:
			return
		case now := <-tick.C:
			w.check(&seen, w.patience(context.Background()), now)
		}
	}
}

// sighting records a driver call in progress and the time at which it was first seen.
type sighting struct {
	call  nvlib.Pending
	since time.Time
}

// of returns the world's call in progress, and for how long at least it has been in progress.
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

// giveUp gives the world up because a driver call takes too long, unless that call has returned meanwhile.
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
	if at := w.abort.Load(); at != 0 { // this stops kernels of teams on other GPUs
		cabi.StoreAtomic(at, 1)
	}
	close(w.lost)
	if lent := w.p.System.Lent; lent.Watch() == &w.Calls {
		lent.Lend(nil)
	}
	w.Calls.ReleaseAll()
	w.p.coresidency.abandon(w)
}

// gpuOf returns the GPU for which a driver call was made, as far as is known; never nil.
func (w *World) gpuOf(p nvlib.Pending) *gpu.GPU {
	return cmp.Or(w.p.System.OfContext(p.Context), w.Opening.Load(), w.p.System.GPUs[0])
}

// LockLive locks the world's mutex. LockLive returns false, without the lock, if the world was given up.
func (w *World) LockLive() bool {
	for began := time.Now(); !w.host.Mu.TryLock(); gpu.Pause(time.Since(began)) {
		if w.GivenUp() != nil {
			return false
		}
	}
	return true
}

// compilation is the name by which error messages call a compilation.
var compilation = "compiling a kernel by NVRTC"

// Compiling is like Aside, for functions that compile.
func (w *World) Compiling(f func() error) error {
	n := w.compiles.Enter(&compilation)
	err := w.Aside(f)
	w.compiles.Leave(n)
	return err
}
