package cuda

import (
	"fmt"
	"strings"

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
			list = append(list, fmt.Sprintf("%s%s waits for %s", where, markText(s.headMark()), s.queue[0].waitsFor()))
		case s.calling:
			list = append(list, where+markText(s.innermost())+" runs a call")
		case s.dirty:
			if idle, err := w.drv.StreamIdle(s.h); err == nil && !idle {
				list = append(list, where+markText(s.innermost())+" still runs")
			}
		}
	}
	return list
}

func markText(id int64) string {
	if id < 0 {
		return ""
	}
	return fmt.Sprintf(", mark %d", id)
}

// abortedError is what every call returns once the world has ended.
type abortedError struct{ cause error }

func (e *abortedError) Error() string        { return "aborted: " + e.cause.Error() }
func (e *abortedError) Unwrap() error        { return e.cause }
func (e *abortedError) Is(target error) bool { return target == device.ErrAborted }

// expired is the end of a context while there was work.
type expired struct {
	err, cause error
	at         []string
}

func (e *expired) Error() string {
	s := e.err.Error()
	if e.cause != nil && e.cause != e.err {
		s += " (" + e.cause.Error() + ")"
	}
	const most = 8
	if n := len(e.at); n > most {
		return fmt.Sprintf("%s; %s; and %d more streams", s, strings.Join(e.at[:most], "; "), n-most)
	}
	return strings.Join(append([]string{s}, e.at...), "; ")
}

func (e *expired) Unwrap() []error { return []error{e.err, e.cause} }
