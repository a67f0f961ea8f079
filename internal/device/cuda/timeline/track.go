package timeline

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Track is the begins and ends of a stream that its device is not known to have reached.
type Track struct {
	ticks  []tick
	pos    int64       // of the latest of them
	lastNs int64       // of the tick told last
	lastEv nvlib.Event // of that, if the next tick has it too

	// These are used without an observer: the number of commands begun since the stream was last seen idle, the latest
	// of them, and one that the device is known to have reached.
	begun         int
	given, passed int64
}

// tick is a begin or end that is not known to be reached yet.
type tick struct {
	began  bool
	id     int64
	before int64 // milestones: the mark begun last before
	ev     nvlib.Event
	shared bool // the next tick has the same event
	clock  bool // ev tells the time; else it is a milestone
}

// Note records a begin or end for an observer, at position pos of the stream. It returns the event to record, or 0 for
// none. The context is current.
func (t *Track) Note(c *Clock, began bool, id, pos int64) (nvlib.Event, error) {
	if n := len(t.ticks); n > 0 && t.pos == pos { // an end and the next begin
		t.ticks[n-1].shared = true
		t.ticks = append(t.ticks, tick{began: began, id: id, ev: t.ticks[n-1].ev, clock: true})
		return 0, nil
	}
	ev, err := c.Event(true)
	if err != nil {
		return 0, err
	}
	t.pos = pos
	t.ticks = append(t.ticks, tick{began: began, id: id, ev: ev, clock: true})
	return ev, nil
}

// Sparse is how many commands lie between two milestones: an event costs the
// host a third of what a launch does.
const Sparse = 16

// Due reports whether the next milestone is to have an event.
func (t *Track) Due() bool { return (t.begun+1)%Sparse == 0 }

// Milestone notes a beginning where nobody observes, and for every Sparse-th returns an event to record, so that errors
// can say about where a stream was; 0 for none. The context is current.
func (t *Track) Milestone(c *Clock, id int64) (nvlib.Event, error) {
	if t.begun == 0 {
		t.passed = id
	}
	before, due := t.given, t.Due()
	t.given = id
	if t.begun++; !due {
		return 0, nil
	}
	ev, err := c.Event(false)
	if err == nil {
		t.ticks = append(t.ticks, tick{began: true, id: id, before: before, ev: ev})
	}
	return ev, err
}

// Rested notes that the stream has done all it was given.
func (t *Track) Rested() { t.begun = 0 }

// Tell reports to o, unless nil, all marks of a rank's stream that were reached; if atRest is set, these are all.
func (t *Track) Tell(c *Clock, atRest bool, rank int, stream string, o device.Observer) {
	n := 0
	for n < len(t.ticks) && t.tell(c, t.ticks[n], atRest, rank, stream, o) {
		n++
	}
	t.ticks = append(t.ticks[:0], t.ticks[n:]...)
}

// tell reports whether x was reached.
func (t *Track) tell(c *Clock, x tick, atRest bool, rank int, stream string, o device.Observer) bool {
	again := t.lastEv == x.ev // told of already: an end and the next begin
	if !atRest && !again {
		if done, err := c.drv.EventDone(x.ev); err != nil || !done {
			return false
		}
	}
	if !x.clock {
		c.Free(x.ev)
		t.passed = x.id
		return true
	}
	ns := t.lastNs
	if !again {
		if at, err := c.at(x.ev); err == nil {
			ns = max(ns, at)
		}
	}
	t.lastNs, t.lastEv = ns, 0
	if x.shared {
		t.lastEv = x.ev
	} else {
		c.FreeTimed(x.ev)
	}
	switch {
	case o == nil:
	case x.began:
		o.Began(rank, stream, x.id, ns)
	default:
		o.Ended(rank, stream, x.id, ns)
	}
	return true
}

// Inside reports whether the stream is known to have begun a command and not to have
// ended it.
func (t *Track) Inside() bool { return len(t.ticks) > 0 && !t.ticks[0].began }

// Within returns the mark of the work that the stream is doing: the innermost mark around it if the marks record it,
// else innermost, that of the work issued last. Without an observer it is one of the marks from id to last.
func (t *Track) Within(observed bool, innermost int64) (id, last int64) {
	switch {
	case t.Inside():
		return t.ticks[0].id, 0
	case observed || t.begun == 0:
		return innermost, 0
	case len(t.ticks) > 0:
		return t.passed, t.ticks[0].before
	}
	return t.passed, t.given
}
