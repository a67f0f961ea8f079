// Package grace provides contexts that end some time after another context. When a caller cancels an operation,
// unfinished work usually ends soon. The work is aborted only if it has not ended when the later context ends.
package grace

import (
	"context"
	"time"
)

// Transfer is the time for which copies and trials outside of runs may continue after their context has ended. After
// that time, the world is abandoned, as for a run. Tests change Transfer.
var Transfer = time.Minute

// lateContext is a context.Context that ends some time after another context, with the same error.
type lateContext struct {
	context.Context
	first context.Context
}

// After returns a context.Context that ends with ctx's error, after ctx has ended and the time d has passed. The caller
// must call the cancel function, which ends the context at once.
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
