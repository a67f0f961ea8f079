package cpu

import (
	"context"
	"errors"

	"hocket.example/hocket/internal/device"
)

var errSyncing = errors.New("Sync was called while Sync runs")

// runScheduled executes one step after another until no stream is ready, the world has ended or ctx has ended. The
// caller holds mu.
func (w *world) runScheduled(ctx context.Context) error {
	if w.syncing {
		return errSyncing
	}
	w.syncing = true
	defer func() { w.syncing = false }()
	pick := newPicker(w)
	for w.cause == nil {
		if err := ctx.Err(); err != nil {
			w.end(&device.Expired{Err: err, Cause: context.Cause(ctx), At: w.standing()})
			return nil
		}
		ready := w.ready()
		if len(ready) == 0 {
			return nil
		}
		w.advance(pick(ready))
	}
	return nil
}

// ready returns the streams that can execute a step, in order of creation. The slice is valid until the next call.
func (w *world) ready() []*stream {
	list := w.candidates[:0]
	for _, s := range w.streams {
		if s.queue.empty() {
			continue
		}
		if t, _ := s.head(); t == nil || t.ready() {
			list = append(list, s)
		}
	}
	w.candidates = list
	return list
}

// advance executes one step of a stream: the begin marks before its next task, the task, and the end marks after
// the task.
func (w *world) advance(s *stream) {
	w.running++
	defer func() { // deferred, so that it also runs if a kernel calls runtime.Goexit
		w.running--
		w.rests()
	}()
	for s.next(begin) || s.next(end) {
		s.step()
	}
	if !s.queue.empty() {
		s.step()
	}
	w.step++
	for s.next(end) {
		s.step()
	}
}

// next reports whether the stream's next task is of the given kind.
func (s *stream) next(kind taskKind) bool {
	return !s.queue.empty() && s.queue.peek().kind == kind
}
