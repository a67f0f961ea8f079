package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// mark represents a position in a stream, after everything issued to the stream before it. Once that work has been
// issued to the driver, a driver event records the position. The world's mutex guards the mark.
type mark struct {
	stream *stream
	issued bool // the driver event ev has been recorded for it
	done   bool // the device is known to have reached the position
	pos    int64
	ev     nvlib.Event
	refs   int       // number of references
	in     *capture  // the capture that contains it; nil for none
	seen   []int64   // copy of the field seen of the stream at this position
	held   []*stream // streams that are held back until the mark is issued
}

// text describes a mark that is not issued, for an error message.
func (m *mark) text() string {
	return fmt.Sprintf("an event of rank %d, stream %s, that is not recorded yet", m.stream.dev.rank, m.stream.name)
}

// Release drops one reference. If it was the last reference, Release returns the event to the pool.
func (m *mark) Release() {
	m.refs--
	if m.refs == 0 && m.issued {
		site := m.stream.dev.site
		site.clock.Free(m.ev)
		site.seens = append(site.seens, m.seen[:0])
	}
}

// known reports whether all work before the mark is already known to have ended.
func (m *mark) known() bool {
	return m.done || m.issued && m.in == nil && m.pos <= m.stream.reached
}

// Over reports whether all work before the mark has ended. It returns false if the device has failed.
func (m *mark) Over() bool {
	if m.known() || !m.issued || m.in != nil {
		return m.known()
	}
	if done, err := m.stream.dev.w.drv.EventDone(m.ev); done && err == nil {
		m.done = true
		m.stream.reached = max(m.stream.reached, m.pos)
	}
	return m.done
}

// Lost reports whether the mark's GPU is lost.
func (m *mark) Lost() bool { return m.stream.dev.site.lost() }

// here returns a mark that follows all work issued to s so far. The caller owns one reference. The context is current.
func (s *stream) here() (*mark, error) {
	if s.mark != nil && s.mark.pos == s.pos && s.mark.in == s.dev.w.capture {
		s.mark.refs++
		return s.mark, nil
	}
	m := &mark{stream: s}
	if err := s.stamp(m); err != nil {
		return nil, err
	}
	if s.mark != nil {
		s.mark.Release()
	}
	m.refs = 2 // one reference for the caller and one for s
	s.mark = m
	return m, nil
}

// stamp records a driver event for the mark m. The context is current.
func (s *stream) stamp(m *mark) error {
	ev, err := s.dev.site.clock.Event(false)
	if err != nil {
		return err
	}
	if err := s.record(ev); err != nil {
		return err
	}
	m.ev, m.pos, m.issued, m.in = ev, s.pos, true, s.dev.w.capture
	m.seen = append(s.dev.site.seenRoom(), s.seen...)
	return nil
}

// record lets the driver record the event ev after all work issued to s so far. The context is current.
func (s *stream) record(ev nvlib.Event) error {
	s.gave(0)
	s.led = s.led && s.dev.w.capture != nil // a graph contains no node for this record
	return s.dev.w.drv.Record(ev, s.h)
}

// waitFor makes later work on s wait for the mark m, which has been issued. The context is current.
func (s *stream) waitFor(m *mark) error {
	// Work that was issued before a capture has ended. Work within a capture ends before any work that follows the
	// graph's launch. In neither case is a wait needed.
	if m.stream == s || s.isBehind(m) || m.in != s.dev.w.capture {
		return nil
	}
	c := m.in
	across := c != nil && c.of(s.dev.site) != c.of(m.stream.dev.site)
	var err error
	if across {
		err = c.flags.waitAcross(s, m)
	} else {
		err = s.dev.w.drv.WaitEvent(s.h, m.ev)
	}
	if err != nil {
		return err
	}
	s.learn(m, !across)
	s.worked()
	return nil
}

// isBehind reports whether s already waits for all work before the mark, directly or through another stream.
func (s *stream) isBehind(m *mark) bool {
	return m.stream.index < len(s.seen) && s.seen[m.stream.index] >= m.pos
}

// learn records that the stream s waits for the mark m. If all is set, s thus also waits for all work that m's stream
// had waited for. If the wait is for a flag between sections, all is false. Earlier work on s's own GPU then keeps its
// edge in the graph, so that this order does not depend only on the flag.
func (s *stream) learn(m *mark, all bool) {
	if all {
		for i, pos := range m.seen {
			s.raiseSeen(i, pos)
		}
	}
	s.raiseSeen(m.stream.index, m.pos)
}

func (s *stream) raiseSeen(i int, pos int64) {
	for len(s.seen) <= i {
		s.seen = append(s.seen, -1)
	}
	s.seen[i] = max(s.seen[i], pos)
}

// event is a device.Event; it refers to the mark (position in a stream) of its most recent record. The world's mutex
// guards it.
type event struct {
	dev      *dev
	latest   *mark
	released bool
}

// Release frees the event.
func (e *event) Release() {
	e.dev.w.mu.Lock()
	defer e.dev.w.mu.Unlock()
	if !e.released && e.latest != nil {
		e.latest.Release()
	}
	e.released, e.latest = true, nil
}

// set makes the event e refer to the mark m. The caller's reference to m becomes e's reference.
func (e *event) set(m *mark) {
	if e.latest != nil {
		e.latest.Release()
	}
	e.latest = m
}

// counters holds a set of counters. A wait for a counter's value becomes a wait for the signals that, in the order of
// issue, raise the counter to that value. The world's mutex guards the counters.
type counters struct {
	dev      *dev
	elems    []counter
	released bool
	words    *memory      // memory of the counters in a world of several processes; see peer_counters.go
	waits    []*waitedFor // by element: the launch that faults of waits name; nil if no stream has waited
}

// counter holds the sum of all issued signals, and a log of the signals that may not have been executed yet.
type counter struct {
	total int64
	base  int64 // the counter's value after the signals that are known to have been executed
	log   []raise
	held  []*stream // streams that are held back until more signals are issued
}

// raise describes one signal: its mark (position in its stream), and the counter's value after the signal.
type raise struct {
	value int64
	mark  *mark
}

func (c *counters) Len() int { return len(c.elems) }

// Release frees the counters.
func (c *counters) Release() {
	c.dev.w.mu.Lock()
	defer c.dev.w.mu.Unlock()
	if c.words != nil && !c.released {
		_ = c.words.giveBack()
	}
	c.released = true
}

// settle clears the counters' logs of signals. The devices must be idle.
func (c *counters) settle() {
	for i := range c.elems {
		c.elems[i].forget(len(c.elems[i].log))
	}
}

// forget drops the first n signals of the log, all of which have been executed.
func (c *counter) forget(n int) {
	for _, r := range c.log[:n] {
		c.base = r.value
		r.mark.Release()
	}
	c.log = append(c.log[:0], c.log[n:]...)
}

// longLog is the number of signals in a log at which the executed ones are looked for and removed.
const longLog = 64

// raise appends a signal to the log.
func (c *counter) raise(by int64, m *mark) {
	c.total += by
	c.log = append(c.log, raise{c.total, m})
	if len(c.log)%longLog != 0 {
		return
	}
	// Query only one signal, because a query takes the host as long as issuing work. Usually one stream issues all
	// signals, so that its earlier signals have been executed as well.
	n := 0
	if c.log[len(c.log)/2].mark.Over() {
		for n < len(c.log)-1 && c.log[n].mark.known() {
			n++
		}
	}
	c.forget(n)
}

// waitFor makes the stream s wait until the counter c has at least the value least. It makes s wait for every signal up
// to the one that reaches this value; enough signals must have been issued. The context is current.
func (c *counter) waitFor(s *stream, least int64) error {
	if least <= c.base {
		return nil
	}
	last := 0
	for c.log[last].value < least {
		last++
	}
	// Wait for the last signal first: s then already waits for the earlier signals of the same stream.
	for i := last; i >= 0; i-- {
		if err := s.waitFor(c.log[i].mark); err != nil {
			return err
		}
	}
	return nil
}

var (
	_ device.Event    = (*event)(nil)
	_ device.Counters = (*counters)(nil)
)
