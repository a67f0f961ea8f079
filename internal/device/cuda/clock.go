package cuda

import (
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Observe implements device.World.
func (w *world) Observe(o device.Observer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flight.look()
	w.observer = o
	for _, s := range w.sites {
		s.clock.Reset()
		s.rebase()
	}
}

// tick records the begin or the end of a command. If the world has an observer, tick records the time; otherwise it
// records the position in the program for error messages. The context is current.
func (s *stream) tick(began bool, id int64) error {
	w, clock := s.dev.w, s.dev.site.clock
	var ev nvlib.Event
	var err error
	switch {
	case w.capture != nil && w.observer == nil:
		return nil
	case w.capture != nil:
		if ev, err = w.capture.replay.Note(&s.track, clock, s.dev.rank, s.name, began, id, s.pos); err == nil && ev != 0 {
			err = w.drv.RecordNode(ev, s.h)
			s.worked() // work that waits for the stream s must also wait for this event
		}
		return err
	case w.observer != nil:
		ev, err = s.track.Note(clock, began, id, s.pos)
	case began:
		ev, err = s.track.Milestone(clock, id)
	}
	if err != nil || ev == 0 {
		return err
	}
	return s.record(ev)
}

// stamps reports whether the next begin or the next end of a command needs an event.
func (s *stream) stamps(begin bool) bool {
	w := s.dev.w
	return w.observer != nil || w.capture == nil && begin && s.track.Due()
}

// rebase replaces the base event of the clock if the event is too old. The device must be idle.
func (s *site) rebase() {
	w := s.w
	if w.observer == nil || w.cause != nil || !s.clock.Stale(time.Since(w.opened)) {
		return
	}
	_ = s.bound(func() error { // the next driver call returns the same error
		s.clock.Rebase(w.opened)
		return nil
	})
}

// tellMarks reports to the observer each begin and end of a command that devices have reached. The caller holds mu.
func tellMarks(w *world) {
	for _, s := range w.flight.streams {
		s.track.Tell(s.dev.site.clock, !s.dirty, s.dev.rank, s.name, w.observer)
	}
}

// tellReplay reports to the observer the begins and ends of commands in the last graph launch, after its end. The
// caller holds mu.
func tellReplay(w *world) {
	f := w.marked
	w.marked = nil
	if f != nil && w.observer != nil {
		w.flight.asking(func() { f.replay.Tell(w.observer) })
	}
}
