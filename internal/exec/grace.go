package exec

import (
	"context"
	"time"
)

// lateContext is a context that ends a while after another one, for the same reason.
type lateContext struct {
	context.Context
	first context.Context
}

// lateBy returns a context that ends grace after ctx does. Its cancel function, which is
// to be called, ends it at once.
func lateBy(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil || grace <= 0 {
		return ctx, func() {}
	}
	l, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-l.Done():
		case <-time.After(grace):
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
