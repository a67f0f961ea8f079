package cuda

import (
	"context"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// Sync also ends the world with ctx: work in flight cannot be taken back, so a
// cancelled Sync aborts.
func (w *world) Sync(ctx context.Context) error {
	over := false // mu guards it: a context that ends behind Sync is nobody's any more
	stop := context.AfterFunc(ctx, func() { w.expire(ctx, &over) })
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { over = true }()
	began := time.Now()
	for w.cause == nil {
		if w.calls == 0 {
			if blocked := blockedStreams(w); len(blocked) > 0 {
				w.end(&device.Deadlock{Blocked: blocked})
				break
			}
		}
		idle := w.look()
		if idle && w.calls == 0 && w.cause == nil {
			forgetFinished(w)
			readFaults(w)
			readTeams(w)
			readNCCL(w)
			return w.err()
		}
		if time.Since(began) > ncclPatience {
			readNCCL(w)
		}
		w.mu.Unlock()
		gpu.Pause(time.Since(began))
		w.mu.Lock()
	}
	return w.err()
}

// look finds out what the devices have done since the last look, and whether
// they have done all. The caller holds mu.
func (w *world) look() (idle bool) {
	w.asking(func() {
		idle = w.poll()
		w.land()
		tellMarks(w)
	})
	return idle
}

// asking runs f with some context current, which questions about streams and
// events need; which one does not matter to them.
func (w *world) asking(f func()) {
	if err := w.drv.Bind(w.sites[0].ctx); err == nil {
		defer w.drv.Unbind()
	}
	f()
}

// poll reports whether the devices have done all they were given. It notes
// errors. The caller holds mu.
func (w *world) poll() bool {
	if w.capture != nil {
		return false // the driver refuses questions for streams that record; others wait for the end
	}
	for range w.streams {
		s := w.streams[w.asked%len(w.streams)]
		// The next question is for the next stream, also where this one is busy: it may
		// wait for one that has failed, and would for ever.
		w.asked = s.index + 1
		if !s.dirty {
			continue
		}
		idle, err := s.idle()
		if err != nil {
			w.fault(s, err)
			return false
		}
		if !idle {
			return false
		}
		s.rested()
	}
	return true
}

// rested notes that s has done all it was given.
func (s *stream) rested() {
	s.dirty, s.reached = false, s.pos
	s.track.Rested()
}

// forgetFinished forgets what only unfinished work needs. The caller holds mu; the
// devices are at rest.
func forgetFinished(w *world) {
	forgetLatest(w)
	tellReplay(w)
	for _, d := range w.devices {
		for _, c := range d.counters {
			c.settle()
		}
	}
	for _, s := range w.sites {
		s.rebase()
	}
}
