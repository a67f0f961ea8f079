package gpu

import (
	"runtime"
	"time"
)

// watchful is how long devices are asked again and again. To be told of their end
// would take longer than short runs do.
const watchful = time.Millisecond

// Pause lets time pass before devices are asked again: hardly any while a run may
// still be short, later a part of what it has taken so far.
func Pause(waited time.Duration) {
	if waited < watchful {
		runtime.Gosched()
		return
	}
	nap(min(waited/16, 500*time.Microsecond))
}
