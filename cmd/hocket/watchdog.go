package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var errTimeout = errors.New("timeout")

// watchdog cancels a context when nothing ends for a while.
type watchdog struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func watch(ctx context.Context, limit time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watchdog{limit, time.AfterFunc(limit, func() { cancel(errTimeout) }), cancel}
}

// alive starts the time anew.
func (w *watchdog) alive() { w.timer.Reset(w.limit) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain says of an error that the watchdog caused what it is.
func (w *watchdog) explain(ctx context.Context, err error) error {
	if context.Cause(ctx) != errTimeout {
		return ofMachine(err)
	}
	f := &failure{code: exitMachine, kind: "timeout", err: fmt.Errorf("the run did not end within %v", w.limit)}
	if text := err.Error(); text != context.Canceled.Error() {
		f.err = fmt.Errorf("%w: %s", f.err, text) // what was under way, and where
	}
	return f.helping("a larger program needs a larger --timeout")
}
