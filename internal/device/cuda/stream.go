package cuda

import (
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/internal/nvlib"
)

// stream checks the work that its methods receive, and either issues the work to the device or holds it back. The
// world's mutex guards all fields except the names.
type stream struct {
	dev   *dev
	name  string
	index int // among the world's streams
	h     nvlib.Stream

	queue    []task    // tasks that are held back, in order
	calling  bool      // a host function (Call) runs, or will run after earlier work
	flushing bool      // work that was held back is being issued
	dirty    bool      // the stream has received work since it was last known to be idle (dirty)
	since    time.Time // time at which the stream received the first of that work
	led      bool      // the last received work is a kernel after which another may begin early
	pos      int64     // number of issued tasks
	mark     *mark     // the most recent mark, for reuse while no work follows it
	reached  int64     // number of tasks, from the first, that are known to have ended

	// seen[i] is the position in stream i up to which s has waited; -1 if s has not waited for stream i.
	seen []int64

	issued device.Marks // marks (commands) that have begun and not ended according to all calls received
	open   device.Marks // marks (commands) that have begun and not ended according to all tasks issued
	track  timeline.Track

	forked *capture  // the capture that the stream is part of
	side   *stream   // stream that raises flags for s within graphs; nil until needed
	engine bool      // the stream contains only copies of a team's member by copy engines
	behind *graphRun // the graph launch that s waits for

	staged    *hostStaged // state for copies to and from GPUs that s's GPU cannot access; nil if there are none
	workspace *memory     // of cuBLASLt
	scratch   *memory     // buffer for copies between overlapping views
	args      [4]uintptr
}

func (s *stream) Name() string { return s.name }

func (s *stream) errorf(format string, args ...any) error {
	return fmt.Errorf("rank %d, stream %s: %w", s.dev.rank, s.name, fmt.Errorf(format, args...))
}

// add issues the task t, or holds it back. The caller holds the world's mutex.
func (s *stream) add(t task) error {
	w := s.dev.w
	if err := w.err(); err != nil {
		return err
	}
	if err := w.capture.refuses(&t); err != nil {
		return s.errorf("%w", err)
	}
	if len(s.queue) > 0 || !t.ready(s) {
		if len(s.queue) == 0 {
			t.hold(s)
		}
		s.queue = append(s.queue, t)
		return nil
	}
	if t.marks() && !s.stamps(t.kind == beginning) {
		return t.issue(s) // a mark without an event needs no driver call, not even one that makes a context current
	}
	if err := s.dev.bind(); err != nil {
		return s.failed(err)
	}
	err := t.give(s)
	w.drv.Unbind()
	if err != nil {
		return s.failed(err)
	}
	w.flight.flushWoken()
	return nil
}

// failed ends the world because a device refused valid work, so that its state is unknown. If the world has already
// ended for another reason, the error is not attributed to s's device.
func (s *stream) failed(err error) error {
	if !errors.Is(err, device.ErrAborted) {
		s.dev.w.fault(s, err)
	}
	return s.dev.w.err()
}

// flush issues the tasks of s that were held back and no longer have to wait. The caller holds the world's mutex.
func (s *stream) flush() {
	if len(s.queue) == 0 || s.flushing || s.dev.w.cause != nil {
		return
	}
	s.flushing = true // waiting for a staging buffer unlocks the world's mutex
	defer func() { s.flushing = false }()
	n := 0
	var err error
	if s.queue[0].given() { // the usual case, which needs no driver call
		n, err = 1, s.queue[0].issue(s)
	}
	if err == nil && n < len(s.queue) {
		err = s.dev.bound(func() error {
			for n < len(s.queue) && s.queue[n].ready(s) {
				t := s.queue[n]
				n++
				if err := t.give(s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		_ = s.failed(err)
		return
	}
	clear(s.queue[:n])
	if n == len(s.queue) && n <= 8 {
		s.queue = s.queue[:0] // the queue keeps its capacity, because the next collective holds back as many tasks
		return
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil
		return
	}
	s.queue[0].hold(s)
}

func (s *stream) Launch(l device.Launch) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	k, ok := l.(*launch)
	if !ok || k == nil || k.dev != s.dev {
		return s.errorf("the launch was not prepared on this device")
	}
	if k.released {
		return s.errorf("%s: its launch was released", k.name)
	}
	if k.member != nil && k.member.stream != s {
		return s.errorf("%s: the launch of team member %d, which is for stream %s, is on another stream", k.name, k.member.index, k.member.stream.name)
	}
	return s.add(task{kind: work, launch: k})
}

func (s *stream) Copy(dst, src device.View) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	d, err := s.dev.resolve(dst, true)
	if err != nil {
		return s.errorf("copy: destination: %w", err)
	}
	r, err := s.dev.resolve(src, true)
	if err != nil {
		return s.errorf("copy: source: %w", err)
	}
	if err := strided.CheckCopy(&d, &r); err != nil {
		return s.errorf("copy: %w", err)
	}
	d.Detach()
	r.Detach()
	return s.add(task{kind: copying, dst: d, src: r})
}

func (s *stream) Upload(dst device.View, src []byte) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	d, err := s.host(dst, src)
	if err != nil {
		return s.errorf("upload: %w", err)
	}
	if d.NamesTwice() {
		return s.errorf("upload: the destination contains some element twice")
	}
	return s.add(task{kind: uploading, dst: d, host: src})
}

func (s *stream) Download(dst []byte, src device.View) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	r, err := s.host(src, dst)
	if err != nil {
		return s.errorf("download: %w", err)
	}
	return s.add(task{kind: downloading, src: r, host: dst})
}

// host checks the operands of a transfer: a view of this device's memory, and host bytes of the same size.
func (s *stream) host(v device.View, b []byte) (strided.View, error) {
	r, err := s.dev.resolve(v, false)
	if err != nil {
		return r, err
	}
	r.Detach()
	return r, v.Holds(len(b))
}

// Call runs f in a goroutine once the device has completed all earlier work of s. Later work of s starts after f has
// returned. The function f may issue work on other streams, but must not wait for the goroutine that called Call, and
// must not call Sync or Close. If the world ends first, f is not called. If f panics, the world ends with a fault.
func (s *stream) Call(f func()) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	return s.add(task{kind: calling, call: f})
}

func (s *stream) Record(e device.Event) error {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	ev, ok := e.(*event)
	if !ok || ev == nil || ev.dev != s.dev {
		return s.errorf("record: the event belongs to another device")
	}
	if ev.released {
		return s.errorf("record: the event was released")
	}
	if err := w.err(); err != nil {
		return err
	}
	if len(s.queue) > 0 || s.calling {
		m := &mark{stream: s, refs: 2} // one reference is the event's, one the task's
		ev.set(m)
		return s.add(task{kind: recording, mark: m})
	}
	err := s.dev.bound(func() error {
		if err := s.follow(); err != nil {
			return err
		}
		m, err := s.here()
		if err == nil {
			ev.set(m)
		}
		return err
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}

func (s *stream) Wait(e device.Event) error {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	ev, ok := e.(*event)
	if !ok || ev == nil || ev.dev.w != w {
		return s.errorf("wait: the event belongs to another world")
	}
	if err := w.err(); err != nil {
		return err
	}
	if ev.released {
		return s.errorf("wait: the event was released")
	}
	if ev.latest == nil {
		return s.errorf("wait: the event was never recorded, so there is nothing to wait for")
	}
	ev.latest.refs++
	return s.add(task{kind: waiting, mark: ev.latest})
}

func (s *stream) Signal(c device.Counters, elem int, by int64) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	cs, err := countersOf(s, c, elem)
	if err != nil {
		return s.errorf("signal: %w", err)
	}
	if err := cs.dev.site.reach(s.dev); err != nil {
		return s.errorf("signal: %w", err)
	}
	if by <= 0 {
		return s.errorf("signal: a counter can only be raised, not changed by %d", by)
	}
	if cs.wired() {
		return s.add(task{kind: raising, ctrs: cs, elem: elem, n: by})
	}
	return s.add(task{kind: signalling, ctrs: cs, elem: elem, n: by})
}

func (s *stream) WaitCounter(c device.Counters, elem int, least int64) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	cs, err := countersOf(s, c, elem)
	if err != nil {
		return s.errorf("wait: %w", err)
	}
	if cs.dev != s.dev {
		return s.errorf("wait: the counters belong to rank %d, but a stream can wait only for counters of its own device", cs.dev.rank)
	}
	if cs.wired() {
		return s.add(task{kind: awaiting, ctrs: cs, elem: elem, n: least})
	}
	return s.add(task{kind: waitingCounter, ctrs: cs, elem: elem, n: least})
}

func countersOf(s *stream, c device.Counters, elem int) (*counters, error) {
	cs, ok := c.(*counters)
	if !ok || cs == nil || cs.dev.w != s.dev.w {
		return nil, fmt.Errorf("the counters belong to another world")
	}
	if elem < 0 || elem >= len(cs.elems) {
		return nil, fmt.Errorf("counter %d of %d", elem, len(cs.elems))
	}
	if cs.released {
		return nil, fmt.Errorf("the counters were released")
	}
	return cs, nil
}

func (s *stream) Begin(id int64) error {
	s.dev.w.mu.Lock()
	defer s.dev.w.mu.Unlock()
	if err := s.add(task{kind: beginning, n: id}); err != nil {
		return err
	}
	s.issued.Begin(id)
	return nil
}

func (s *stream) End(id int64) error {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return err
	}
	if err := s.issued.Ends(id); err != nil {
		return s.errorf("%w", err)
	}
	if err := s.add(task{kind: ending, n: id}); err != nil {
		return err
	}
	s.issued.End()
	return nil
}

// headMark returns the innermost mark (command) around the first task that is held back. The begin or end of a mark is
// never the first such task.
func (s *stream) headMark() int64 { return s.open.Innermost() }

// where returns a text that describes the stream and its current work.
func (s *stream) where() string {
	return fmt.Sprintf("rank %d, stream %s%s", s.dev.rank, s.name, device.MarkText(s.within()))
}

// idle reports whether the stream s has completed all work that it has received. It queries the driver in the context
// of s, because in another context the answer could be the error of another, lost device.
func (s *stream) idle() (idle bool, err error) {
	err = s.dev.bound(func() (err error) {
		idle, err = s.dev.w.drv.StreamIdle(s.h)
		return err
	})
	return idle, err
}

// within returns the mark (command) around the current work of s. If s records times of marks, the result is the
// innermost mark around the running work. Otherwise the result is the innermost mark around the work issued last, or -1
// if there is none. Without an observer, the mark is only known to be one of those from id to last.
func (s *stream) within() (id, last int64) {
	return s.track.Within(s.dev.w.observer != nil, s.open.Innermost())
}

var (
	_ device.Stream = (*stream)(nil)
)
