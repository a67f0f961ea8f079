package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

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

// standing says in words what each stream with work does. The caller holds mu.
func (w *world) standing() []string {
	var list []string
	for _, s := range w.streams {
		where := fmt.Sprintf("rank %d, stream %s", s.dev.rank, s.name)
		switch {
		case len(s.queue) > 0:
			list = append(list, fmt.Sprintf("%s%s waits for %s", where, device.MarkText(s.headMark()), s.queue[0].waitsFor()))
		case s.calling:
			list = append(list, where+device.MarkText(s.innermost())+" runs a call")
		case s.dirty:
			if idle, err := w.drv.StreamIdle(s.h); err == nil && !idle {
				list = append(list, where+device.MarkText(s.innermost())+" still runs")
			}
		}
	}
	return list
}
