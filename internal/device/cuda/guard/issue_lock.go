package guard

import (
	"hocket.example/hocket/internal/device"
)

// The issue lock separates, over all worlds of the process, two kinds of calls that could deadlock together: issuing
// work whose kernels wait on devices for kernels issued later, and driver calls that may wait for an idle device and
// meanwhile keep others from issuing, such as those for memory, code and graphs. Issuing shares the lock; such driver
// calls hold it exclusively.
//
// Issuing kernels that wait for each other is exclusive too. Another world's work, issued between them, could be ahead
// of one of them in a hardware queue while it waits for work queued after another. Work that was issued completely
// ends by itself, so the lock need not be held until it ends.

// Batch calls issue, which gives work to the world's streams, with nothing
// between the commands that could keep those issued first from ending. A world
// whose kernels wait for each other, which waiting says, also holds the co-residency lock
// until it rests. streams are those of the caller's that the work is between; nil for none.
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

// HoldsIssue reports whether the caller, who holds the world's mutex, also holds the issue lock alone.
func (w *World) HoldsIssue() bool { return w.issueLocked }

// LockIssue locks the issue lock for a caller that has no world.
func (p *Process) LockIssue() (unlock func()) {
	p.issue.Lock()
	return p.issue.Unlock
}

// Issue runs f, which locks the world to issue work. The caller holds the world by Exclusive, and holds it again when
// f has returned or panicked. Meanwhile f has the issue lock.
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

// Exclusive locks the issue lock and the world, for driver calls that need both. The returned function unlocks them.
// Within a batch the issue lock is already held.
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

// lockIssue locks the issue lock, for one whose calls are shown by the world's watch: so it
// is released where one of them does not return. A world that was given up does not get it:
// it has no calls to make, and what others call is theirs.
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

// shareIssue and unshareIssue do likewise for a share of the lock.
func (w *World) shareIssue()   { w.Calls.Hold(w.p.issue.RLocker()) }
func (w *World) unshareIssue() { w.Calls.Release(w.p.issue.RLocker()) }

// Aside runs f, which calls neither the driver nor the world but by its own
// locking, while others go on: compiling takes long. The caller holds the world
// by Exclusive, and does again.
func (w *World) Aside(f func() error) (err error) {
	locked := w.issueLocked
	w.endExclusive()
	defer func() { // also where a call of f's that did not return ends its goroutine: who called unlocks
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
