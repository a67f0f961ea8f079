package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	errTimeout = errors.New("timeout")
	errLimit   = errors.New("time limit") // of the whole command
)

// within returns a context with a time limit; 0 means no limit. The returned function converts the command's error to
// an error about the time limit if the limit was reached.
func (a *session) within(ctx context.Context, limit time.Duration) (context.Context, func(err error) error) {
	if limit == 0 {
		return ctx, func(err error) error { return err }
	}
	a.limit = limit
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() {
		cancel(errLimit)
		close(a.expired)
	})
	return ctx, func(err error) error {
		timer.Stop()
		if err != nil && context.Cause(ctx) == errLimit {
			err = a.timedOut(err)
		}
		cancel(nil)
		return err
	}
}

// timedOut returns the error that the time limit of --timeout was reached, with the current stage and the cause.
func (a *session) timedOut(err error) error {
	f := &failure{code: exitMachine, kind: "timeout", err: fmt.Errorf("the command did not end within %v", a.limit)}
	if stage := a.progress.Current(); stage != "" {
		f.err = fmt.Errorf("%w: it was %s", f.err, stage)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		f.err = fmt.Errorf("%w: %w", f.err, err)
	}
	return f.helping("raise --timeout for a larger program")
}

// stuck is the time limit of one run if --timeout is not given.
const stuck = 30 * time.Second

// watchdog cancels a context when no run has ended within a time limit.
type watchdog struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func watch(ctx context.Context, limit time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watchdog{limit, time.AfterFunc(limit, func() { cancel(errTimeout) }), cancel}
}

// alive restarts the time limit.
func (w *watchdog) alive() { w.timer.Reset(w.limit) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain converts an error that the watchdog has caused to an error about the time limit.
func (w *watchdog) explain(ctx context.Context, err error) error {
	if context.Cause(ctx) == errLimit {
		return err // the caller that set the time limit reports it
	}
	if context.Cause(ctx) != errTimeout {
		return ofMachine(err)
	}
	f := &failure{code: exitMachine, kind: "timeout", err: fmt.Errorf("the run did not end within %v", w.limit)}
	if text := err.Error(); text != context.Canceled.Error() {
		f.err = fmt.Errorf("%w: %s", f.err, text) // the text names the commands in progress, and their positions
	}
	return f.helping("raise --timeout for a larger program")
}
