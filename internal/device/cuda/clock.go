package cuda

import (
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// tick is a begin or end that is not known to be reached yet.
type tick struct {
	began  bool
	id     int64
	before int64 // milestones: the mark begun last before
	ev     nvlib.Event
	shared bool // the next tick has the same event
	clock  bool // ev tells the time; else it is a milestone
}

// base ties a device's clock to the world's: an event that was over at ns.
type base struct {
	ev nvlib.Event
	ns int64
}

// baseLife is how long a base serves: what the driver tells of the time since
// loses precision as it grows.
const baseLife = 4 * time.Second

func (w *world) Observe(o device.Observer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look()
	w.observer = o
	for _, s := range w.sites {
		s.base.ns = -int64(baseLife)
		s.rebase()
	}
}

// tick notes a begin or end, for the observer or else for errors. The context is
// current.
func (s *stream) tick(began bool, id int64) error {
	switch w := s.dev.w; {
	case w.capture != nil:
		return tickInGraph(s, began, id)
	case w.observer == nil:
		return milestone(s, began, id)
	}
	if n := len(s.ticks); n > 0 && s.tickPos == s.pos { // an end and the next begin
		s.ticks[n-1].shared = true
		s.ticks = append(s.ticks, tick{began: began, id: id, ev: s.ticks[n-1].ev, clock: true})
		return nil
	}
	ev, err := s.dev.site.newEvent(true)
	if err != nil {
		return err
	}
	s.tickPos = s.pos
	s.ticks = append(s.ticks, tick{began: began, id: id, ev: ev, clock: true})
	return s.record(ev)
}

// sparse is how many commands lie between two milestones: an event costs the
// host a third of what a launch does.
const sparse = 16

// stamps reports whether the next begin, or end, is to have an event.
func (s *stream) stamps(begin bool) bool {
	w := s.dev.w
	return w.observer != nil || w.capture == nil && begin && (s.begun+1)%sparse == 0
}

// milestone notes each beginning where nobody observes, and for every sparse-th
// an event, so that errors can say about where a stream was. The context is
// current.
func milestone(s *stream, began bool, id int64) error {
	if !began {
		return nil
	}
	if s.begun == 0 {
		s.passed = id
	}
	before, stamped := s.given, s.stamps(began)
	s.given = id
	if s.begun++; !stamped {
		return nil
	}
	ev, err := s.dev.site.newEvent(false)
	if err != nil {
		return err
	}
	s.ticks = append(s.ticks, tick{began: true, id: id, before: before, ev: ev})
	return s.record(ev)
}

// rebase makes a new base where the old one is too old; the device is at rest.
func (s *site) rebase() {
	w := s.w
	if w.observer == nil || w.cause != nil || time.Since(w.opened)-time.Duration(s.base.ns) < baseLife {
		return
	}
	if err := w.drv.Bind(s.ctx); err != nil {
		return // what comes next meets the same error
	}
	defer w.drv.Unbind()
	ev, err := s.newEvent(true)
	if err != nil {
		return
	}
	if s.base.ev != 0 {
		s.clocks = append(s.clocks, s.base.ev)
	}
	s.base.ev = ev
	if w.drv.Record(ev, 0) == nil {
		_ = w.drv.SyncStream(0)
	}
	s.base.ns = int64(time.Since(w.opened))
}

// tellMarks tells the observer of all marks that devices have reached. The caller
// holds mu.
func tellMarks(w *world) {
	for _, s := range w.streams {
		n := 0
		for n < len(s.ticks) && tellOne(s, s.ticks[n]) {
			n++
		}
		s.ticks = append(s.ticks[:0], s.ticks[n:]...)
	}
}

// tellOne reports whether the mark was reached.
func tellOne(s *stream, t tick) bool {
	w, site := s.dev.w, s.dev.site
	again := s.lastEv == t.ev // told of already: an end and the next begin
	if s.dirty && !again {
		if done, err := w.drv.EventDone(t.ev); err != nil || !done {
			return false
		}
	}
	if !t.clock {
		site.events, s.passed = append(site.events, t.ev), t.id
		return true
	}
	ns := s.lastNs
	if !again {
		if ms, err := w.drv.Elapsed(site.base.ev, t.ev); err == nil {
			ns = max(ns, site.base.ns+int64(float64(ms)*1e6))
		}
	}
	s.lastNs, s.lastEv = ns, 0
	if t.shared {
		s.lastEv = t.ev
	}
	if !t.shared {
		site.clocks = append(site.clocks, t.ev)
	}
	switch o := w.observer; {
	case o == nil:
	case t.began:
		o.Began(s.dev.rank, s.name, t.id, ns)
	default:
		o.Ended(s.dev.rank, s.name, t.id, ns)
	}
	return true
}
