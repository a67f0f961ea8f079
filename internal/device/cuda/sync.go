package cuda

import (
	"context"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// Sync waits for all work. Sync ends the world when ctx is done, because work in flight cannot be cancelled otherwise.
func (w *world) Sync(ctx context.Context) error {
	over := false // the world's mutex guards it; set when Sync returns, so that a later end of ctx has no effect
	stop := context.AfterFunc(ctx, func() { w.expire(ctx, &over) })
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { over = true }()
	began := time.Now()
	for w.cause == nil {
		if w.flight.calls == 0 {
			if blocked := w.flight.blocked(); len(blocked) > 0 {
				w.end(&device.Deadlock{Blocked: blocked})
				break
			}
		}
		idle := w.flight.look()
		if idle && w.flight.calls == 0 && w.cause == nil {
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

// forgetFinished drops state that is needed only while work is unfinished. The caller holds mu, and the devices are
// idle.
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
