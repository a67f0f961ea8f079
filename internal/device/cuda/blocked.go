package cuda

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
)

// standingsPatience is how long Standings waits for who has the world.
const standingsPatience = 200 * time.Millisecond

// Standings implements device.Status. Where a call of the driver has the world it says which.
func (w *world) Standings() (list []device.Standing) {
	var seen guard.Sighting
	for began := time.Now(); !w.mu.TryLock(); gpu.Pause(time.Since(began)) {
		now := time.Now()
		p, age := seen.Of(&w.guard.Calls, now)
		if w.guard.GivenUp() == nil && now.Sub(began) < standingsPatience {
			continue
		}
		at := device.Standing{Rank: -1, ID: -1, Does: "holds the host up", Since: began}
		if err := w.guard.GivenUp(); err != nil {
			at.Does = "was given up: " + err.Error()
		} else if age > 0 {
			at.Does, at.Since = fmt.Sprintf("is in %s, a call of the driver", p.Call), seen.Since
		}
		return []device.Standing{at}
	}
	asked := make(chan []device.Standing, 1)
	go func() { // the questions are calls of the driver, which may not return either
		defer w.mu.Unlock()
		var list []device.Standing
		if w.err() == nil && len(w.sites) > 0 && w.capture == nil {
			w.flight.asking(func() { list = w.flight.standings() })
		}
		asked <- list
	}()
	began := time.Now()
	select {
	case list = <-asked:
		return list
	case <-time.After(standingsPatience):
	}
	at := device.Standing{Rank: -1, ID: -1, Does: "does not answer", Since: began}
	if p, ok := w.guard.Calls.Pending(); ok {
		at.Does = fmt.Sprintf("is in %s, a call of the driver", p.Call)
	}
	return []device.Standing{at}
}
