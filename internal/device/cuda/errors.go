package cuda

import "hocket.example/hocket/internal/device"

// blocked lists the streams whose work is held back. The caller holds mu.
func (w *world) blocked() []device.Blocked {
	var list []device.Blocked
	for _, s := range w.streams {
		if len(s.queue) > 0 {
			list = append(list, device.Blocked{Rank: s.dev.rank, Stream: s.name, ID: s.headMark(), On: s.queue[0].waitsFor()})
		}
	}
	return list
}

// standing says what each stream with work does. The caller holds mu.
func (w *world) standing() []device.Standing {
	var list []device.Standing
	for _, s := range w.streams {
		at := device.Standing{Rank: s.dev.rank, Stream: s.name}
		at.ID, at.Last = s.within()
		switch {
		case len(s.queue) > 0:
			at.ID, at.Last, at.Does = s.headMark(), 0, "waits for "+s.queue[0].waitsFor()
		case s.calling:
			at.Does = "runs a call"
		case s.unfinished():
			at.Does = "still runs"
		default:
			continue
		}
		list = append(list, at)
	}
	return list
}

// unfinished reports whether the device is known to work for s.
func (s *stream) unfinished() bool {
	if !s.dirty {
		return false
	}
	idle, err := s.dev.w.drv.StreamIdle(s.h)
	return err == nil && !idle
}
