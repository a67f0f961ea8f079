// Package grace makes contexts that end some time after another context. When a caller gives up, work under way
// usually ends soon; it is aborted only if it does not.
package grace

import (
	"context"
	"time"
)

// Transfer is how long copies and trials outside of runs may go on when the context has
// ended; then the world is given up, as in a run. Variable for tests.
var Transfer = time.Minute

// lateContext is a context that ends a while after another one, for the same reason.
type lateContext struct {
	context.Context
	first context.Context
}

// After returns a context that ends d after ctx does, with its error. Its cancel function, which is
// to be called, ends it at once.
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

// Err returns the first context's error once the late one has ended.
func (l lateContext) Err() error {
	if err := l.Context.Err(); err == nil || l.first.Err() == nil {
		return err
	}
	return l.first.Err()
}
