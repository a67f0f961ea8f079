package cuda

import (
	"context"

	"hocket.example/hocket/internal/device"
)

// expire ends the world because ctx is done, unless *over is true: the call that ctx limits has returned. The error
// describes the work on each stream.
func (w *world) expire(ctx context.Context, over *bool) {
	if !w.guard.LockLive() {
		return
	}
	defer w.mu.Unlock()
	if w.cause != nil || *over {
		return
	}
	var at []device.Standing
	w.flight.asking(func() {
		tellMarks(w)
		at = w.flight.standings()
	})
	w.end(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx), At: at})
}
