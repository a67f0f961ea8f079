package gpu

import (
	"math/rand/v2"
	"runtime"
	"time"
)

const (
	// watchful is the waiting time up to which Pause returns immediately, so that callers poll devices continuously.
	// For short executions, a notification or a sleep would take longer than the execution.
	watchful = 2 * time.Millisecond
	// Of every yields calls of Pause that do not sleep, one lets other goroutines run before it returns. Yielding in
	// every call is slow: the scheduler then wakes a thread and moves the polling goroutine to another thread. On two
	// H100 with 32 processors, yielding in every call delayed the callers of executions of 0.4 ms by 31 µs.
	yields = 32
	// A sleep of Pause lasts at most 1/restless of the time waited so far, because the caller may notice the end later
	// by the length of the sleep.
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
