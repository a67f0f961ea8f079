package gpu

import (
	"runtime"
	"time"
)

const (
	// watchful is how long devices are asked again and again: to be told of their end, or to sleep, would take longer than
	// short runs do.
	watchful = 2 * time.Millisecond
	// restless is what part of the time that a run has taken so far a nap may be: its caller learns of its end so
	// much later.
	restless = 64
	longest  = 500 * time.Microsecond
)

// Pause lets time pass before devices are asked again: hardly any while a run may
// still be short, later a part of what it has taken so far.
func Pause(waited time.Duration) {
	if waited < watchful {
		runtime.Gosched()
		return
	}
	nap(min(waited/restless, longest))
}
