package guard

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// standingsPatience limits how long Standings waits for the holder of the world.
const standingsPatience = 200 * time.Millisecond

// Standings returns what ask reports about the world. Its driver calls may not return, so Standings does not wait long
// for them, nor for the holder of the world. If a driver call holds the world, it names the call. ask is called with
// the world's mutex held.
func (w *World) Standings(ask func() []device.Standing) []device.Standing {
	var seen sighting
	for began := time.Now(); !w.host.Mu.TryLock(); gpu.Pause(time.Since(began)) {
		now := time.Now()
		p, age := seen.of(&w.Calls, now)
		if w.GivenUp() == nil && now.Sub(began) < standingsPatience {
			continue
		}
		at := device.Standing{Rank: -1, ID: -1, Does: "blocks the host", Since: began}
		if err := w.GivenUp(); err != nil {
			at.Does = "was abandoned: " + err.Error()
		} else if age > 0 {
			at.Does, at.Since = fmt.Sprintf("is in %s, a call of the driver", p.Call), seen.since
		}
		return []device.Standing{at}
	}
	asked := make(chan []device.Standing, 1)
	go func() { // the questions are calls of the driver, which may not return either
		defer w.host.Mu.Unlock()
		asked <- ask()
	}()
	began := time.Now()
	select {
	case list := <-asked:
		return list
	case <-time.After(standingsPatience):
	}
	at := device.Standing{Rank: -1, ID: -1, Does: "does not answer", Since: began}
	if p, ok := w.Calls.Pending(); ok {
		at.Does = fmt.Sprintf("is in %s, a call of the driver", p.Call)
	}
	return []device.Standing{at}
}
