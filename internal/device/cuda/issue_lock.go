package cuda

import (
	"sync"

	"hocket.example/hocket/internal/device"
)

// issueLock keeps apart two things, over all worlds of the process, that could deadlock
// together: issuing work whose kernels wait on devices for kernels issued later, and driver
// calls that may wait until a device rests and meanwhile keep others from issuing, such as
// those for memory, code and graphs. Issuing shares the lock; such calls hold it alone. So
// does issuing kernels that wait for each other: another world's work between them might
// stand before one of them in a hardware queue, and wait for what stands behind another.
// Work that was issued whole ends by itself, so nobody needs to wait for it.
type issueLock struct{ mu sync.RWMutex }

// Batch calls issue, which gives work to the world's streams, with nothing
// between the commands that could keep those issued first from ending. A world
// with teams, or with graphs that flags join, also holds the co-residency lock until it
// rests.
func (w *world) Batch(issue func() error) error { return w.batch(nil, issue) }

// batch is Batch for work between that of streams of the caller's; nil for none.
func (w *world) batch(streams []uintptr, issue func() error) error {
	if err := w.hung.why(); err != nil {
		return &device.Aborted{Cause: err}
	}
	enter, leave := w.shareIssue, w.unshareIssue
	if c := &w.m.sys.coresidency; needsCoresidency(w) {
		if !c.enter(w, streams) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.err()
		}
		defer c.leave(w)
		enter, leave = w.lockIssue, w.unlockIssue
	}
	enter()
	w.issuing.Add(1)
	defer func() {
		w.issuing.Add(-1)
		leave()
	}()
	return issue()
}

// exclusive locks the issue lock and the world, for driver calls that need both. The function
// that it returns unlocks them. Within a batch the issue lock is held already.
func (w *world) exclusive() (unlock func()) {
	locked := w.issuing.Load() == 0
	if locked {
		w.lockIssue()
	}
	w.mu.Lock()
	w.issueLocked = locked
	return w.endExclusive
}

func (w *world) endExclusive() {
	locked := w.issueLocked
	w.issueLocked = false
	w.mu.Unlock()
	if locked {
		w.unlockIssue()
	}
}

// lockIssue locks the issue lock, for one whose calls are shown by the world's watch: so it
// is released where one of them does not return.
func (w *world) lockIssue() {
	w.hung.calls.Hold(&w.m.sys.issueLock.mu)
	w.m.sys.Lent.Lend(&w.hung.calls)
}

func (w *world) unlockIssue() {
	if w.m.sys.Lent.Watch() == &w.hung.calls {
		w.m.sys.Lent.Lend(nil)
	}
	w.hung.calls.Release(&w.m.sys.issueLock.mu)
}

// shareIssue and unshareIssue do likewise for a share of the lock.
func (w *world) shareIssue()   { w.hung.calls.Hold(w.m.sys.issueLock.mu.RLocker()) }
func (w *world) unshareIssue() { w.hung.calls.Release(w.m.sys.issueLock.mu.RLocker()) }

// aside runs f, which calls neither the driver nor the world but by its own
// locking, while others go on: compiling takes long. The caller holds the world
// by exclusive, and does again.
func (w *world) aside(f func() error) (err error) {
	locked := w.issueLocked
	w.endExclusive()
	defer func() { // also where a call of f's that did not return ends its goroutine: who called unlocks
		if locked {
			w.lockIssue()
		}
		w.mu.Lock()
		w.issueLocked = locked
		if err == nil {
			err = w.err()
		}
	}()
	return f()
}
