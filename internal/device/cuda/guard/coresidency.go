package guard

import (
	"context"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/device/cuda/gpu"
)

// coresidency is the lock for kernels that wait for each other on devices. The kernels of one world fit on the devices
// together (see Room in package cuda). Those of two worlds might not: each could then wait for a kernel that the other
// keeps from starting. Graphs joined by flags have the same problem: their waits, and the kernels that raise the
// flags, need room that the teams of another world may occupy. Therefore only one world with teams or such graphs uses
// the devices at a time: from its batch until its devices are idle, or until it has ended and its kernels have
// stopped. Batches on the same streams of the caller follow each other in any case.
type coresidency struct {
	mu      sync.Mutex
	holder  *World    // nil for none
	batches int       // of the holder, under way
	streams []uintptr // of the caller's, that all which the holder was given is between; nil for none
}

func (c *coresidency) try(w *World, streams []uintptr) bool {
	h, busy, ahead := c.waitedFor(w, streams)
	if busy || h != nil && !ahead && !h.restsNow() {
		return false
	}
	return c.take(w, h, streams)
}

// waitedFor is another world that has the lock, nil for none, whether it is at a batch, and whether all that it was
// given is ahead of what comes, on the same streams.
func (c *coresidency) waitedFor(w *World, streams []uintptr) (h *World, busy, ahead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w || c.holder == nil {
		return nil, false, false
	}
	return c.holder, c.batches > 0, streams != nil && slices.Equal(c.streams, streams)
}

// take gives w the lock if no world holds it, if w holds it already, or if its holder is h, which is idle or whose work
// is ahead of w's on the same streams.
func (c *coresidency) take(w, h *World, streams []uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.holder != w:
		if c.holder != nil && (c.holder != h || c.batches > 0) {
			return false
		}
		c.holder, c.batches, c.streams = w, 0, slices.Clone(streams)
	case !slices.Equal(c.streams, streams):
		c.streams = nil
	}
	c.batches++
	return true
}

// restsNow is rests, for another world's goroutine: questions to the driver that are not
// answered have the world given up that they are about.
func (w *World) restsNow() bool {
	over, end := context.WithCancel(context.Background())
	end()
	var rests bool // not the result: the function may write it when Do has returned
	return w.Do(over, func() { rests = w.Rests() }) != nil || rests
}

func (c *coresidency) leave(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w {
		c.batches--
	}
}

// abandon releases the lock that a given-up world holds.
func (c *coresidency) abandon(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w {
		c.holder, c.batches = nil, 0
	}
}

// forget releases the lock that a closed world holds, unless some of its batches have not called Leave yet.
func (c *coresidency) forget(w *World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == w && c.batches == 0 {
		c.holder = nil
	}
}

// Rests reports whether no work of w is known to run. It does not wait for the world's mutex, because the owner of the
// mutex may be waiting for this lock.
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

// Enter waits until the world holds the co-residency lock, and returns false if it ends first. Each entry needs a
// call of Leave. The caller holds neither the issue lock nor a world's mutex, since the holder may want these before it
// is done. streams are those of the caller's that what comes is between; nil for none.
func (w *World) Enter(streams []uintptr) bool {
	for began := time.Now(); !w.Ended(); gpu.Pause(time.Since(began)) {
		if w.p.coresidency.try(w, streams) {
			return true
		}
	}
	return false
}

// Leave ends an entry. The world still holds the lock: what it issued may still run.
func (w *World) Leave() { w.p.coresidency.leave(w) }

// HoldsCoresidency reports whether the world holds the co-residency lock.
func (w *World) HoldsCoresidency() bool {
	c := &w.p.coresidency
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holder == w
}
