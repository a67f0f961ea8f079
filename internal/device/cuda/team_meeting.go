package cuda

import (
	"fmt"
	"strings"
)

// meeting is a call that one thread makes for all members of a team: no member's
// share may be given to its device before all members' shares are next on their
// streams. Until then a stream is held back on the host, as for an event that
// was not recorded; so a member that never comes is a deadlock, seen at once.
type meeting struct {
	what    string
	members []*attendee
	call    func() error
}

// attendee is a member's share: what its stream does before and after the call.
type attendee struct {
	meeting       *meeting
	stream        *stream
	before, after []step
	waiting       bool // its stream is held back for the others
	given         bool // done by whoever came last
}

// ready reports whether the share can be given: all the others wait for it, or it
// was given with theirs.
func (a *attendee) ready() bool {
	if a.given {
		return true
	}
	for _, o := range a.meeting.members {
		if o != a && !o.waiting {
			return false
		}
	}
	return true
}

// run gives all members' shares when the last one comes. The context is that of
// its stream.
func (a *attendee) run(s *stream) error {
	if a.given {
		a.given = false
		if s.windowed > 0 && s.windowed == s.pos-1 {
			s.windowed = s.pos // this is that call
		}
		return nil
	}
	m := a.meeting
	w := s.dev.w
	if err := w.capture.bind(m.what); err != nil {
		return err
	}
	for _, o := range m.members {
		o.waiting = false
		if o == a {
			continue
		}
		o.given = true
		w.woken = append(w.woken, o.stream)
		if err := o.bound(o.stream.follow); err != nil {
			return err
		}
		o.stream.worked()
	}
	for _, o := range m.members {
		if err := o.steps(o.before); err != nil {
			return err
		}
	}
	if err := m.call(); err != nil {
		return err
	}
	for _, o := range m.members {
		if err := o.steps(o.after); err != nil {
			return err
		}
	}
	return a.bound(func() error { return nil }) // what comes next on s needs its context
}

func (a *attendee) bound(f func() error) error { return a.stream.dev.bound(f) }

func (a *attendee) steps(list []step) error {
	return a.bound(func() error {
		for _, st := range list {
			if err := st.run(a.stream); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *attendee) free() {
	for _, st := range append(a.before, a.after...) {
		st.free()
	}
}

// text says whom the share waits for.
func (a *attendee) text() string {
	var absent []string
	for _, o := range a.meeting.members {
		if o != a && !o.waiting {
			absent = append(absent, fmt.Sprintf("rank %d, stream %s", o.stream.dev.rank, o.stream.name))
		}
	}
	return fmt.Sprintf("%s, which has not come up yet on %s", a.meeting.what, strings.Join(absent, " and "))
}

// meetingOf returns the attendee among the steps of a launch; nil for none.
func meetingOf(steps []step) *attendee {
	for _, st := range steps {
		if a, ok := st.(*attendee); ok {
			return a
		}
	}
	return nil
}
