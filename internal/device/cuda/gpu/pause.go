package gpu

import (
	"math/rand/v2"
	"runtime"
	"time"
)

const (
	// watchful is how long devices are asked again and again: to be told of their end, or to sleep, would take longer than
	// short runs do.
	watchful = 2 * time.Millisecond
	// yields is one in how many such questions lets other goroutines run first. The scheduler wakes a thread for each,
	// by which the asker goes from thread to thread: on two H100 beside 32 processors, callers of runs of 0.4 ms
	// got them back 31 µs later with one in one.
	yields = 32
	// restless is what part of the time that a run has taken so far a nap may be: its caller learns of its end so
	// much later.
	restless = 64
	longest  = 500 * time.Microsecond
)

// Pause lets time pass before devices are asked again: hardly any while a run may
// still be short, later a part of what it has taken so far.
func Pause(waited time.Duration) {
	if waited < watchful {
		if rand.Uint32N(yields) == 0 {
			runtime.Gosched()
		}
		return
	}
	nap(min(waited/restless, longest))
}
