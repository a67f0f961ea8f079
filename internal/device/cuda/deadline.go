package cuda

import (
	"context"

	"hocket.example/hocket/internal/device"
)

// expire ends the world because ctx is done, unless the call that ctx bounds is over. The error says what each stream
// was doing.
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
