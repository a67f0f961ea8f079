package guard

import (
	"context"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/device/cuda/gpu"
)

// coresidency is the co-residency lock: it admits one world whose kernels wait for each other on devices. Such kernels
// of one world fit on the devices together (see Room in package cuda). Kernels of two worlds might not: each could then
// wait for a kernel that the other world's kernels keep from starting. Graphs joined by flags have the same problem:
// their waits, and the kernels that raise the flags, need multiprocessors that the teams of another world may occupy.
// Therefore only one world with teams or such graphs uses the devices at a time. That world holds the lock from its
// first batch until its devices are idle, or until it has ended and its kernels have stopped. Batches of two worlds
// that are ordered by the same streams of the caller need not wait for each other, because the streams order them.
type coresidency struct {
	mu      sync.Mutex
	holder  *World    // nil if no world holds the lock
	batches int       // of the holder, in progress
	streams []uintptr // the caller's streams that order all work of the holder; nil if none do
	entered uint64    // number of batches of all worlds that have begun since the process started
}

func (c *coresidency) try(w *World, streams []uintptr) bool {
	h, entered, busy, ahead := c.waitedFor(w, streams)
	if busy || h != nil && !ahead && !h.restsNow() {
		return false
	}
	return c.take(w, h, entered, streams)
}

// waitedFor returns the other world that holds the lock, or nil, and the number of batches that have begun. The result
// busy reports whether a batch of that world is in progress. The result ahead reports whether the same streams order
// all work of that world before the new work.
func (c *coresidency) waitedFor(w *World, streams []uintptr) (h *World, entered uint64, busy, ahead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w || c.holder == nil {
		return nil, c.entered, false, false
	}
	return c.holder, c.entered, c.batches > 0, streams != nil && slices.Equal(c.streams, streams)
}

// take gives the lock to w if possible, and reports whether it did. It gives the lock if no world holds it, if w holds
// it, or if h still holds it and no batch has begun since entered was read. The caller has found before that h was
// idle, or that the same streams ordered h's work before w's. A batch of h that began afterwards may be running.
func (c *coresidency) take(w, h *World, entered uint64, streams []uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.holder != w:
		if c.holder != nil && (c.holder != h || c.batches > 0 || c.entered != entered) {
			return false
		}
		c.holder, c.batches, c.streams = w, 0, slices.Clone(streams)
	case !slices.Equal(c.streams, streams):
		c.streams = nil
	}
	c.batches++
	c.entered++
	return true
}

// restsNow calls w.Rests for a goroutine of another world. If a driver call in Rests does not return, the world w ends,
// not the world of the caller.
func (w *World) restsNow() bool {
	over, end := context.WithCancel(context.Background())
	end()
	var rests bool // a local variable, because the function may still write it after Do has returned
	return w.Do(over, func() { rests = w.Rests() }) != nil || rests
}

func (c *coresidency) leave(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w {
		c.batches--
	}
}

// abandon releases the lock if w holds it. It is called when w was given up.
func (c *coresidency) abandon(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w {
		c.holder, c.batches = nil, 0
	}
}

// forget releases the lock if w holds it and no batch of w is in progress. It is called when w was closed.
func (c *coresidency) forget(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w && c.batches == 0 {
		c.holder = nil
	}
}

// Rests reports whether w is idle: no work of w is known to run. It does not wait for the world's mutex, because the
// owner of the mutex may be waiting for this lock.
func (w *World) Rests() bool {
	if w.Ended() {
		return true
	}
	if !w.host.Mu.TryLock() {
		return false
	}
	defer w.host.Mu.Unlock()
	return w.host.Rests()
}

// Enter waits until the world holds the co-residency lock. It returns false if the world ends first. Each successful
// call needs a call of Leave. The caller must hold neither the issue lock nor a world's mutex, since the holder may
// need them to finish its work. The streams are the caller's streams that order the new work; nil if none do.
func (w *World) Enter(streams []uintptr) bool {
	for began := time.Now(); !w.Ended(); gpu.Pause(time.Since(began)) {
		if w.p.coresidency.try(w, streams) {
			return true
		}
	}
	return false
}

// Leave ends a batch. The world keeps the co-residency lock, because the work it has issued may still run.
func (w *World) Leave() { w.p.coresidency.leave(w) }

// HoldsCoresidency reports whether the world holds the co-residency lock.
func (w *World) HoldsCoresidency() bool {
	c := &w.p.coresidency
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holder == w
}
