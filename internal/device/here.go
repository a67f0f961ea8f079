package device

import "context"

type hereKey struct{}

// Here returns a context.Context for World.Do that makes Do run its function in the caller's goroutine. It is meant for
// goroutines that execute calls of C threads. A switch to another goroutine wakes another thread, and so does the
// switch back, because such a goroutine cannot change its thread.
func Here(ctx context.Context) context.Context { return context.WithValue(ctx, hereKey{}, true) }

// IsHere reports whether ctx is made by Here.
func IsHere(ctx context.Context) bool { return ctx.Value(hereKey{}) != nil }
