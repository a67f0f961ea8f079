package cuda

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
)

// blockedStreams lists the streams whose work is held back. The caller holds mu.
func blockedStreams(w *world) []device.Blocked {
	var list []device.Blocked
	for _, s := range w.streams {
		if len(s.queue) > 0 {
			list = append(list, device.Blocked{Rank: s.dev.rank, Stream: s.name, ID: s.headMark(), On: s.queue[0].waitsFor()})
		}
	}
	return list
}

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
			w.asking(func() { list = standings(w) })
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

// standings says what each stream with work does. The caller holds mu.
func standings(w *world) []device.Standing {
	var list []device.Standing
	for _, s := range w.streams {
		at := device.Standing{Rank: s.dev.rank, Stream: s.name, Since: s.since}
		at.ID, at.Last = s.within()
		switch {
		case len(s.queue) > 0:
			at.ID, at.Last, at.Does = s.headMark(), 0, "waits for "+s.queue[0].waitsFor()
		case s.calling:
			at.Does = "runs a call"
		case isUnfinished(s):
			at.Does = "still runs"
		default:
			continue
		}
		list = append(list, at)
	}
	return list
}

// isUnfinished reports whether the device is known to work for s.
func isUnfinished(s *stream) bool {
	if !s.dirty {
		return false
	}
	idle, err := s.dev.w.drv.StreamIdle(s.h)
	return err == nil && !idle
}
