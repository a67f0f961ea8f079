package guard

import (
	"hocket.example/hocket/internal/device"
)

// The issue lock separates two kinds of calls, over all worlds of the process, that could deadlock together. One kind
// issues work whose kernels wait on devices for kernels issued later. The other kind are driver calls that may wait for
// an idle device and block issuing meanwhile, such as those for memory, code and graphs. Issuing holds the lock shared;
// such driver calls hold it exclusively.
//
// A batch with kernels that wait for each other holds the lock exclusively, too. Otherwise another world's work could
// be issued between two such kernels. That work could precede one kernel in a hardware queue while it waits for work
// that is queued after the other kernel. Work that was issued completely ends without further calls, so the lock is
// released when issuing ends.

// Batch calls the function issue, which issues work to the world's streams. While it runs, no driver call is made that
// could wait for the work issued first. The function waiting reports whether kernels of the world wait for each other.
// If they do, the world also holds the co-residency lock until it is idle. The streams are the caller's streams that
// order the work; nil if none do.
func (w *World) Batch(streams []uintptr, waiting func() bool, issue func() error) error {
	if err := w.GivenUp(); err != nil {
		return &device.Aborted{Cause: err}
	}
	enter, leave := w.shareIssue, w.unshareIssue
	if waiting() {
		if !w.Enter(streams) {
			w.host.Mu.Lock()
			defer w.host.Mu.Unlock()
			return w.host.Err()
		}
		defer w.Leave()
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

// Issuing reports whether a batch is in progress.
func (w *World) Issuing() bool { return w.issuing.Load() > 0 }

// Alone runs f while it holds the issue lock exclusively.
func (w *World) Alone(f func()) {
	w.lockIssue()
	defer w.unlockIssue()
	f()
}

// HoldsIssue reports whether the caller, which holds the world's mutex, also holds the issue lock exclusively.
func (w *World) HoldsIssue() bool { return w.issueLocked }

// LockIssue locks the issue lock exclusively for a caller that has no world.
func (p *Process) LockIssue() (unlock func()) {
	p.issue.Lock()
	return p.issue.Unlock
}

// Issue runs f, which locks the world's mutex itself to issue work. The caller has called Exclusive. Issue unlocks the
// mutex while f runs, and keeps the issue lock. The mutex is locked again when f has returned or panicked.
func (w *World) Issue(f func() error) error {
	locked := w.issueLocked
	w.issueLocked = false
	w.issuing.Add(1)
	w.host.Mu.Unlock()
	defer func() {
		w.host.Mu.Lock()
		w.issuing.Add(-1)
		w.issueLocked = locked
	}()
	return f()
}

// Exclusive locks the issue lock and the world's mutex, for driver calls that need both. The returned function unlocks
// them. If a batch is in progress, the issue lock is already held.
func (w *World) Exclusive() (unlock func()) {
	locked := w.issuing.Load() == 0
	if locked {
		w.lockIssue()
	}
	w.host.Mu.Lock()
	w.issueLocked = locked
	return w.endExclusive
}

func (w *World) endExclusive() {
	locked := w.issueLocked
	w.issueLocked = false
	w.host.Mu.Unlock()
	if locked {
		w.unlockIssue()
	}
}

// lockIssue locks the issue lock exclusively. The world's watch knows of the lock, and releases it if a driver call
// does not return. A world that was given up does not get the lock, because it makes no more calls.
func (w *World) lockIssue() {
	if w.Calls.Hold(&w.p.issue) {
		w.p.System.Lent.Lend(&w.Calls)
	}
}

func (w *World) unlockIssue() {
	if w.p.System.Lent.Watch() == &w.Calls {
		w.p.System.Lent.Lend(nil)
	}
	w.Calls.Release(&w.p.issue)
}

// shareIssue and unshareIssue lock and unlock the issue lock as a shared lock, in the same way.
func (w *World) shareIssue()   { w.Calls.Hold(w.p.issue.RLocker()) }
func (w *World) unshareIssue() { w.Calls.Release(w.p.issue.RLocker()) }

// Aside runs f without the issue lock and the world's mutex, so that other goroutines can use the world during a long
// operation such as a compilation. The function f calls neither the driver nor the world unless it locks them itself.
// The caller has called Exclusive. When Aside returns, the locks are held again.
func (w *World) Aside(f func() error) (err error) {
	locked := w.issueLocked
	w.endExclusive()
	defer func() { // deferred, because the caller unlocks even if a hung call of f ends the goroutine
		if locked {
			w.lockIssue()
		}
		w.host.Mu.Lock()
		w.issueLocked = locked
		if err == nil {
			err = w.host.Err()
		}
	}()
	return f()
}
