package cuda

import "hocket.example/hocket/internal/nvlib"

// Where someone observes, a graph has a node for each mark that records an event.
// What these say can be read once a launch has ended, and the next launch writes
// over it: of launches in a row the last is told of.

// graphMark is a begin or end within a graph.
type graphMark struct {
	stream *stream
	began  bool
	id     int64
	pos    int64 // of the stream, behind the event
	ev     nvlib.Event
	shared bool // the event is the mark's before, of that stream
}

// tickInGraph notes a begin or end while a graph is recorded. The context is
// current.
func tickInGraph(s *stream, began bool, id int64) error {
	w := s.dev.w
	c := w.capture
	if w.observer == nil {
		return nil
	}
	m := graphMark{stream: s, began: began, id: id, pos: s.pos}
	if o := c.latest[s]; o != nil && o.pos == s.pos { // an end and the next begin
		m.ev, m.shared = o.ev, true
	} else {
		var err error
		if m.ev, err = s.dev.site.newEvent(true); err != nil {
			return err
		}
		if err := w.drv.RecordNode(m.ev, s.h); err != nil {
			return err
		}
		s.worked() // what waits for s waits for this node too
		m.pos = s.pos
	}
	c.marks = append(c.marks, m)
	if c.latest == nil {
		c.latest = map[*stream]*graphMark{}
	}
	c.latest[s] = &m
	return nil
}

// tellReplay tells the observer of the graph launched last, which has ended. The
// caller holds mu.
func tellReplay(w *world) {
	f := w.marked
	w.marked = nil
	if f == nil || w.observer == nil {
		return
	}
	w.asking(func() {
		for _, m := range f.marks {
			base := m.stream.dev.site.base
			ms, err := w.drv.Elapsed(base.ev, m.ev)
			if err != nil {
				return
			}
			tell := w.observer.Ended
			if m.began {
				tell = w.observer.Began
			}
			tell(m.stream.dev.rank, m.stream.name, m.id, base.ns+int64(float64(ms)*1e6))
		}
	})
}

// forgetMarks gives the events of f's marks back.
func forgetMarks(w *world, f *form) {
	if w.marked == f {
		w.marked = nil
	}
	for _, m := range f.marks {
		if site := m.stream.dev.site; !m.shared && !site.lost() {
			site.clocks = append(site.clocks, m.ev)
		}
	}
	f.marks = nil
}
