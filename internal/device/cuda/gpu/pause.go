package gpu

import (
	"math/rand/v2"
	"runtime"
	"time"
)

const (
	// watchful is how long Pause returns immediately, so that callers poll devices continuously. A notification or a
	// sleep would take longer than short executions do.
	watchful = 2 * time.Millisecond
	// One of yields calls lets other goroutines run first. Each time, the scheduler wakes a thread, and the polling
	// goroutine moves to another thread. On two H100 with 32 processors, yielding in every call made callers of
	// executions of 0.4 ms return 31 µs later.
	yields = 32
	// A nap lasts at most 1/restless of the time waited so far, because the caller may learn of the end that much
	// later.
	restless = 64
	longest  = 500 * time.Microsecond
)

// Pause waits before devices are polled again. It returns immediately at first, and later sleeps for a fraction of the
// time waited so far.
func Pause(waited time.Duration) {
	if waited < watchful {
		if rand.Uint32N(yields) == 0 {
			runtime.Gosched()
		}
		return
	}
	nap(min(waited/restless, longest))
}
