package guard

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// standingsPatience limits how long Standings waits for the world's mutex, and for the answer of ask.
const standingsPatience = 200 * time.Millisecond

// Standings returns the current work of the world's streams, as the function ask reports it. The function ask makes
// driver calls, which may not return, so Standings waits only for a short time for ask and for the world's mutex. If a
// driver call blocks the world, the result names the call. The world's mutex is held while ask is called.
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
	go func() { // the driver calls of ask may not return
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
