package device

import "context"

type hereKey struct{}

// Here returns a context for World.Do that makes f run in the goroutine of its caller. It is for goroutines that
// execute calls of C threads. A switch to another goroutine wakes another thread, and so does the switch back, because
// such a goroutine cannot change its thread.
func Here(ctx context.Context) context.Context { return context.WithValue(ctx, hereKey{}, true) }

// IsHere reports whether ctx is made by Here.
func IsHere(ctx context.Context) bool { return ctx.Value(hereKey{}) != nil }
