package timeline

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Track holds the begins and ends of commands on a stream that the device is not known to have reached.
type Track struct {
	ticks  []tick
	pos    int64       // position in the stream of the most recent tick
	lastNs int64       // time of the tick that was reported last
	lastEv nvlib.Event // event of the tick that was reported last, if the next tick shares it

	// The following fields are used without an observer: the number of commands begun since the stream was last known
	// to be idle, the id of the most recent of these, and the id of one that the device is known to have reached.
	begun         int
	given, passed int64
}

// tick is a begin or end of a command that the device is not known to have reached.
type tick struct {
	began  bool
	id     int64
	before int64 // for milestones: the id of the preceding command
	ev     nvlib.Event
	shared bool // the next tick shares this tick's event
	clock  bool // ev measures time, for an observer; otherwise the tick is a milestone
}

// Note adds a begin or end of a command for an observer, at position pos of the stream. It returns the event that the
// caller must record, or 0 if none is needed. The context is current.
func (t *Track) Note(c *Clock, began bool, id, pos int64) (nvlib.Event, error) {
	if n := len(t.ticks); n > 0 && t.pos == pos { // the end of a command and the begin of the next share an event
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

// Without an observer, one of Sparse commands gets an event (a milestone). Recording an event takes the host a third of
// the time of a launch, so most commands have none.
const Sparse = 16

// Due reports whether the next milestone needs an event.
func (t *Track) Due() bool { return (t.begun+1)%Sparse == 0 }

// Milestone adds the begin of a command when there is no observer. For every Sparse-th command it returns an event to
// record, and otherwise 0. The events of milestones let error messages name the stream's position approximately. The
// context is current.
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

// Rested records that the stream is idle.
func (t *Track) Rested() { t.begun = 0 }

// Tell reports to the observer o, unless it is nil, the ticks that the device has reached. If atRest is set, the device
// has reached all ticks.
func (t *Track) Tell(c *Clock, atRest bool, rank int, stream string, o device.Observer) {
	n := 0
	for n < len(t.ticks) && t.tell(c, t.ticks[n], atRest, rank, stream, o) {
		n++
	}
	t.ticks = append(t.ticks[:0], t.ticks[n:]...)
}

// tell reports the tick x to the observer o if the device has reached it, and returns whether it has.
func (t *Track) tell(c *Clock, x tick, atRest bool, rank int, stream string, o device.Observer) bool {
	again := t.lastEv == x.ev // the end of a command and the begin of the next share the event, and the end was reported
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

// Inside reports whether the stream is known to be executing a command: it has begun one and not ended it.
func (t *Track) Inside() bool { return len(t.ticks) > 0 && !t.ticks[0].began }

// Within returns the id of the command that the stream is executing. If the ticks show the device's position in the
// stream, it is the command around that position. Otherwise it is the command issued last, which the argument innermost
// names. Without an observer, the command is one of those from id to last.
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
