// Package grace provides contexts that end some time after another context. When a caller cancels an operation,
// unfinished work usually ends soon. It is aborted only if it has not ended when the later context ends.
package grace

import (
	"context"
	"time"
)

// Transfer is the time for which copies and trials outside of runs may continue after their context has ended. After
// that time, the world is abandoned, as in a run. Tests change Transfer.
var Transfer = time.Minute

// lateContext is a context that ends some time after another one, for the same reason.
type lateContext struct {
	context.Context
	first context.Context
}

// After returns a context that ends d after ctx ends, with ctx's error. The caller must call the cancel function, which
// ends the context at once.
func After(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil || d <= 0 {
		return ctx, func() {}
	}
	l, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-l.Done():
		case <-time.After(d):
			giveUp(context.Cause(ctx))
		}
	})
	return lateContext{l, ctx}, func() {
		stop()
		giveUp(nil)
	}
}

// Err returns the first context's error once the late context has ended.
func (l lateContext) Err() error {
	if err := l.Context.Err(); err == nil || l.first.Err() == nil {
		return err
	}
	return l.first.Err()
}
