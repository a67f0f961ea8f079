package cuda

import (
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
	"hocket.example/hocket/internal/device/cuda/strided"
)

type taskKind uint8

const (
	work taskKind = iota
	copying
	uploading
	downloading
	calling
	recording
	waiting
	signalling
	waitingCounter
	raising  // add to a counter that other processes may wait for
	awaiting // wait for a counter that other processes may raise
	beginning
	ending
)

// task represents one call of a stream's method.
type task struct {
	kind     taskKind
	launch   *launch
	dst, src strided.View
	host     []byte
	call     func()
	mark     *mark
	ctrs     *counters
	elem     int
	n        int64
}

// ready reports whether the task t can be issued now, that is, whether everything that it waits for has been issued.
func (t *task) ready(s *stream) bool {
	switch {
	case s.calling:
		return false
	case t.kind == waiting:
		return t.mark.issued
	case t.kind == waitingCounter:
		return t.ctrs.elems[t.elem].total >= t.n
	case t.kind == work && t.launch.meets != nil:
		return t.launch.meets.ready()
	}
	return true
}

// given reports whether the task t has already been issued to the device, together with the shares of a meeting's other
// members. The stream then only has to count the task as issued.
func (t *task) given() bool { return t.kind == work && t.launch.meets != nil && t.launch.meets.given }

// hold arranges that the stream s is flushed when the work that the task t waits for has been issued. It is called for
// the first task that s holds back.
func (t *task) hold(s *stream) {
	switch {
	case s.calling:
	case t.kind == waiting && !t.mark.issued:
		t.mark.held = appendOnce(t.mark.held, s)
	case t.kind == waitingCounter:
		c := &t.ctrs.elems[t.elem]
		c.held = appendOnce(c.held, s)
	case t.kind == work && t.launch.meets != nil:
		t.launch.meets.waiting = true
	}
}

func appendOnce(list []*stream, s *stream) []*stream {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// waitsFor describes, for an error message, the work that the task t waits for.
func (t *task) waitsFor() string {
	switch t.kind {
	case waiting:
		return t.mark.text()
	case waitingCounter:
		return fmt.Sprintf("counter %d ≥ %d (now %d)", t.elem, t.n, t.ctrs.elems[t.elem].total)
	case work:
		return t.launch.meets.text()
	}
	return "a call of the host"
}

// give issues the task t to the device; it runs after the most recent launch of a graph. The context is current.
func (t *task) give(s *stream) error {
	if err := s.follow(); err != nil {
		return err
	}
	n := s.dev.w.naming
	if n == nil || t.marks() || len(s.open) == 0 {
		return t.issue(s)
	}
	defer n.begin(s.open.Innermost())()
	return t.issue(s)
}

func (t *task) issue(s *stream) error {
	switch t.kind {
	case work:
		s.gave(1)
		return t.launch.run(s)
	case copying:
		s.gave(1)
		dst, src := t.dst, t.src // copies: the address of a field of t would move every task to the heap
		return s.copy(&dst, &src)
	case uploading:
		s.worked()
		dst := t.dst
		return uploadView(s, &dst, t.host)
	case downloading:
		s.worked()
		src := t.src
		return downloadView(s, t.host, &src)
	case calling:
		return runCall(s, t.call)
	case recording:
		return t.record(s)
	case waiting:
		defer t.mark.Release()
		return s.waitFor(t.mark)
	case signalling:
		return t.signal(s)
	case waitingCounter:
		return t.ctrs.elems[t.elem].waitFor(s, t.n)
	case raising:
		return s.dev.w.wired.raiseWord(s, t.ctrs, t.elem, t.n)
	case awaiting:
		return s.dev.w.wired.awaitWord(s, t.ctrs, t.elem, t.n)
	case beginning:
		s.open.Begin(t.n)
		return s.tick(true, t.n)
	default:
		s.open.End()
		return s.tick(false, t.n)
	}
}

// marks reports whether the task t is the begin or the end of a mark.
func (t *task) marks() bool { return t.kind >= beginning }

// worked records that the stream's last work is not a kernel after which another may begin early.
func (s *stream) worked() {
	s.gave(1)
	s.led = false
}

// gave records that the stream s has received n tasks of the device. If s was idle before, gave also records the time.
func (s *stream) gave(n int64) {
	s.pos += n
	if !s.dirty {
		s.dirty, s.since = true, time.Now()
	}
}

// record issues the driver event for a mark, which was requested while s was held back.
func (t *task) record(s *stream) error {
	if err := s.stamp(t.mark); err != nil {
		return err
	}
	s.dev.w.flight.wake(&t.mark.held)
	t.mark.Release()
	return nil
}

func (t *task) signal(s *stream) error {
	m, err := s.here()
	if err != nil {
		return err
	}
	c := &t.ctrs.elems[t.elem]
	c.raise(t.n, m)
	s.dev.w.flight.wake(&c.held)
	return nil
}

// runCall calls the host function f once the device has completed all earlier work of s. Until f has returned, later
// work of s is held back.
func runCall(s *stream, f func()) error {
	m, err := s.here()
	if err != nil {
		return err
	}
	w := s.dev.w
	s.calling = true
	w.flight.calls++
	go func() {
		if awaitMark(s, m) {
			err = guard.Recovered(f)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		m.Release()
		s.calling = false
		w.flight.calls--
		if err != nil {
			w.end(&device.Fault{Rank: s.dev.rank, Stream: s.name, ID: s.open.Innermost(), Err: err})
			return
		}
		s.flush()
		w.flight.flushWoken()
	}()
	return nil
}

// awaitMark waits on the host until the work before the mark m has ended. It returns false if the world ends first.
func awaitMark(s *stream, m *mark) bool {
	w, over := s.dev.w, false
	for began := time.Now(); ; gpu.Pause(time.Since(began)) {
		w.mu.Lock()
		ended := w.cause != nil
		w.flight.asking(func() { over = m.Over() })
		w.mu.Unlock()
		if over || ended {
			return over && !ended
		}
	}
}
