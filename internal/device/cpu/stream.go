package cpu

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
)

// stream checks and queues work. The world's mutex guards all fields except rank and name.
type stream struct {
	device.DefaultStream
	dev  *dev
	name string
	main bool // whether the stream is named "main", for the scheduler's strategies

	queue   queue
	running bool // whether the stream has a goroutine (concurrent mode)
	// whether the stream's first task waits, and the event or counter that it waits for will wake the stream (concurrent
	// mode)
	parked bool
	busy   string       // name of the running task; "" for none
	since  time.Time    // time at which the running task, or a wait, began
	issued device.Marks // marks that have begun but not ended after all issued tasks
	open   device.Marks // marks that have begun but not ended after all executed tasks
}

func (s *stream) Name() string { return s.name }

func (s *stream) errorf(format string, args ...any) error {
	return fmt.Errorf("rank %d, stream %s: %w", s.dev.rank, s.name, fmt.Errorf(format, args...))
}

// add queues t unless the world has ended.
func (s *stream) add(t task) error {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.addLocked(t)
}

func (s *stream) addLocked(t task) error {
	if err := s.dev.w.err(); err != nil {
		return err
	}
	s.queue.push(t)
	s.start()
	return nil
}

func (s *stream) Launch(l device.Launch) error {
	k, ok := l.(*launch)
	if !ok || k == nil || k.dev != s.dev {
		return s.errorf("the launch was not prepared on this device")
	}
	if k.released {
		return s.errorf("%s: its launch was released", k.name)
	}
	return s.add(task{kind: work, what: k.name, run: k.run})
}

func (s *stream) Copy(dst, src device.View) error {
	d, err := s.dev.resolve(dst, true)
	if err != nil {
		return s.errorf("copy: destination: %w", err)
	}
	r, err := s.dev.resolve(src, true)
	if err != nil {
		return s.errorf("copy: source: %w", err)
	}
	c, err := newCopier(d, r, s.dev.w)
	if err != nil {
		return s.errorf("copy: %w", err)
	}
	return s.add(task{kind: work, what: "copy", run: c.run})
}

func (s *stream) Upload(dst device.View, src []byte) error {
	d, err := s.host(dst, src)
	if err != nil {
		return s.errorf("upload: %w", err)
	}
	if d.doubles() {
		return s.errorf("upload: the view contains some element twice")
	}
	return s.add(task{kind: work, what: "upload", run: func() error {
		s.dev.w.piecewise(d, src, func(start int64, piece []byte) { scatterBytes(d, start, piece) })
		return nil
	}})
}

func (s *stream) Download(dst []byte, src device.View) error {
	r, err := s.host(src, dst)
	if err != nil {
		return s.errorf("download: %w", err)
	}
	return s.add(task{kind: work, what: "download", run: func() error {
		s.dev.w.piecewise(r, dst, func(start int64, piece []byte) { gatherBytes(piece, r, start) })
		return nil
	}})
}

// piecewise calls f for each piece of the host bytes of v. It stops when the world ends, so that the host bytes are
// no longer used soon after that.
func (w *world) piecewise(v ref, host []byte, f func(start int64, piece []byte)) {
	size := v.dt.Size()
	grain := copyGrain / size
	for start := int64(0); start < v.n && !w.ended.Load(); start += grain {
		f(start, host[start*size:min(start+grain, v.n)*size])
	}
}

// host checks a view of this device's memory against dense bytes of the host, and returns a ref to its elements.
func (s *stream) host(v device.View, b []byte) (ref, error) {
	r, err := s.dev.resolve(v, false)
	if err != nil {
		return r, err
	}
	return r, v.Holds(len(b))
}

// Call runs f when the stream's earlier work has ended, without holding a lock. f may issue work. It must not wait
// for other goroutines, because an abort cannot interrupt it, and it must not call Sync or Close.
func (s *stream) Call(f func()) error {
	return s.add(task{kind: work, what: "call", run: func() error { f(); return nil }})
}

func (s *stream) Record(e device.Event) error {
	ev, ok := e.(*event)
	if !ok || ev == nil || ev.dev != s.dev {
		return s.errorf("record: the event does not belong to this device")
	}
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if ev.released {
		return s.errorf("record: the event was released")
	}
	m := &mark{on: s}
	if err := s.addLocked(task{kind: record, mark: m}); err != nil {
		return err
	}
	ev.latest = m
	return nil
}

func (s *stream) Wait(e device.Event) error {
	ev, ok := e.(*event)
	if !ok || ev == nil || ev.dev.w != s.dev.w {
		return s.errorf("wait: the event does not belong to this world")
	}
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return err
	}
	if ev.released {
		return s.errorf("wait: the event was released")
	}
	if ev.latest == nil {
		return s.errorf("wait: the event was never recorded, so there is nothing to wait for")
	}
	return s.addLocked(task{kind: waitMark, mark: ev.latest})
}

func (s *stream) Signal(c device.Counters, elem int, by int64) error {
	cs, err := s.counters(c, elem)
	if err != nil {
		return s.errorf("signal: %w", err)
	}
	if by <= 0 {
		return s.errorf("signal: cannot change a counter by %d; counters can only be raised", by)
	}
	return s.add(task{kind: signal, ctrs: cs, elem: elem, n: by})
}

func (s *stream) WaitCounter(c device.Counters, elem int, least int64) error {
	cs, err := s.counters(c, elem)
	if err != nil {
		return s.errorf("wait: %w", err)
	}
	if cs.dev != s.dev {
		return s.errorf("wait: the counters belong to rank %d, but a stream can wait only for counters of its own device",
			cs.dev.rank)
	}
	return s.add(task{kind: waitCounter, ctrs: cs, elem: elem, n: least})
}

func (s *stream) counters(c device.Counters, elem int) (*counters, error) {
	cs, ok := c.(*counters)
	if !ok || cs == nil || cs.dev.w != s.dev.w {
		return nil, fmt.Errorf("the counters do not belong to this world")
	}
	if elem < 0 || elem >= cs.n {
		return nil, fmt.Errorf("the index %d is not one of the %d counters", elem, cs.n)
	}
	if err := cs.dev.reach(s.dev); err != nil {
		return nil, err
	}
	cs.dev.w.mu.Lock()
	defer cs.dev.w.mu.Unlock()
	if cs.released {
		return nil, fmt.Errorf("the counters were released")
	}
	return cs, nil
}

func (s *stream) Begin(id int64) error {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := s.addLocked(task{kind: begin, n: id}); err != nil {
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
	if err := s.addLocked(task{kind: end, n: id}); err != nil {
		return err
	}
	s.issued.End()
	return nil
}

// head returns the stream's next task that is not a mark, and the innermost mark around that task. If there is no
// such task, it returns nil. The caller holds the world's mutex.
func (s *stream) head() (*task, int64) {
	open := s.open
	for i := s.queue.next; i < len(s.queue.tasks); i++ {
		switch t := &s.queue.tasks[i]; t.kind {
		case begin:
			open = append(open[:len(open):len(open)], t.n)
		case end:
			open = open[:len(open)-1]
		default:
			return t, open.Innermost()
		}
	}
	return nil, open.Innermost()
}

// openMark returns the innermost mark around the running work; -1 for none.
func (s *stream) openMark() int64 { return s.open.Innermost() }

var (
	_ device.World  = (*world)(nil)
	_ device.Stream = (*stream)(nil)
)
