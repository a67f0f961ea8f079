package cuda

import "hocket.example/hocket/internal/device"

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

// standings says what each stream with work does. The caller holds mu.
func standings(w *world) []device.Standing {
	var list []device.Standing
	for _, s := range w.streams {
		at := device.Standing{Rank: s.dev.rank, Stream: s.name}
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
