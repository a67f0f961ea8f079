package cuda

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/nccl"
)

// meeting is a launch of a team: it combines the members' shares of the launch. The shares are issued to their devices
// together, as soon as each share is next in its stream. Until then the host holds back the streams, as for an event
// that has not been recorded. If a member never issues its share, the machine therefore reports a deadlock without
// delay. The shares are kernels that wait for each other (see the method together), or they are one call that one
// thread makes for all members.
type meeting struct {
	what    string
	members []*attendee
	call    func() error // makes the call for all members; nil if the shares are kernels
	library *nccl.Call   // the prepared call, if NCCL makes it
}

// together makes the launches of a team, whose kernels wait for each other, a meeting, so that the devices receive them
// as one group. It does nothing if no other stream can issue work between the kernels.
//
// Streams may share a hardware queue of a device, and a queue starts work in the order of issue. If the group is issued
// as a whole, each kernel waits only for work that was issued earlier or in the same group, so the first entry of a
// queue never waits for a later entry. If the kernels were issued one at a time, a waiting kernel could block work that
// is later in its queue. If another device needs that work before it can start its own kernel, neither kernel ends.
func (t *team) together(what string, launches []device.Launch) {
	if t.alone() || t.w.m.opts.teamsApart {
		return
	}
	m := &meeting{what: what}
	for _, l := range launches {
		if l, ok := l.(*launch); ok && l.meets == nil {
			at := &attendee{meeting: m, stream: l.member.stream, before: l.steps}
			m.members = append(m.members, at)
			l.steps, l.meets = []step{at}, at
		}
	}
}

// meets reports whether st launches a kernel that waits for kernels on other devices.
func meets(st step) bool {
	k, ok := st.(*kernelStep)
	return ok && k.meets
}

// attendee is a member's share of a meeting. It is a step of the member's launch, and holds the steps of the share on
// the member's stream.
type attendee struct {
	meeting       *meeting
	stream        *stream
	before, after []step
	left          []step // steps that are not issued yet
	waiting       bool   // the stream is held back until all other members are ready
	given         bool   // the share was already issued, together with the share of the last member that became ready
}

// ready reports whether the share can be issued: all other members are waiting, or the share was already issued
// together with theirs.
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

// run issues the shares of all members once the last member is ready. The context of its stream is current.
func (a *attendee) run(s *stream) error {
	if a.given {
		a.given = false
		return nil
	}
	m := a.meeting
	w := s.dev.w
	if m.call != nil {
		if err := w.capture.bind(m.what); err != nil {
			return err
		}
	}
	for _, o := range m.members {
		o.waiting, o.left = false, o.before
		if o != a {
			o.given = true
			w.flight.woken = append(w.flight.woken, o.stream)
		}
	}
	// Kernels that wait for each other are issued in rounds, with one kernel of each member in a round. Work that
	// follows such a kernel in a hardware queue may begin only after the kernel has ended.
	for first, more := true, true; more; first = false {
		more = false
		for _, o := range m.members {
			if first || len(o.left) > 0 {
				if err := o.part(first && o != a); err != nil {
					return err
				}
			}
			more = more || len(o.left) > 0
		}
	}
	if m.call != nil {
		if err := m.call(); err != nil {
			return err
		}
		for _, o := range m.members {
			if o.left = o.after; len(o.left) > 0 {
				if err := o.part(false); err != nil {
					return err
				}
			}
		}
	}
	return a.stream.dev.rebind() // the next call on s needs its context
}

// part issues further steps of the member's share, up to and including the next kernel that waits for other members. If
// follow is set, part first calls stream.follow.
func (a *attendee) part(follow bool) error {
	if err := a.stream.dev.bind(); err != nil {
		return err
	}
	defer a.stream.dev.w.drv.Unbind()
	if follow {
		if err := a.stream.follow(); err != nil {
			return err
		}
		a.stream.worked()
	}
	for len(a.left) > 0 {
		st := a.left[0]
		a.left = a.left[1:]
		if err := st.run(a.stream); err != nil {
			return err
		}
		if meets(st) {
			break
		}
	}
	return nil
}

func (a *attendee) free() {
	for _, st := range append(a.before, a.after...) {
		st.free()
	}
}

// text describes, for an error message, the members for which the share waits.
func (a *attendee) text() string {
	var absent []string
	for _, o := range a.meeting.members {
		if o != a && !o.waiting {
			absent = append(absent, fmt.Sprintf("rank %d, stream %s", o.stream.dev.rank, o.stream.name))
		}
	}
	return fmt.Sprintf("%s, which has not come up yet on %s", a.meeting.what, strings.Join(absent, " and "))
}

// meetingOf returns the attendee (a share of a meeting) among the steps of a launch, or nil if there is none.
func meetingOf(steps []step) *attendee {
	for _, st := range steps {
		if a, ok := st.(*attendee); ok {
			return a
		}
	}
	return nil
}
