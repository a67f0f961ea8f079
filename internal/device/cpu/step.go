package cpu

import (
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
)

// step removes the first task of a stream and executes it. The caller holds the world's mutex, which step releases
// while it executes work or calls an observer. If the task fails, step ends the world.
func (s *stream) step() {
	switch t := s.queue.pop(); t.kind {
	case work:
		s.work(t)
	case begin:
		s.open.Begin(t.n)
		s.observe(t, device.Observer.Began)
	case end:
		s.open.End()
		s.observe(t, device.Observer.Ended)
	default:
		t.settle()
	}
	if w := s.dev.w; w.peers != nil { // reports progress to the processes that wait for this process
		w.done++
		w.peers.At(w.done)
	}
}

func (s *stream) work(t task) {
	w := s.dev.w
	s.busy, s.since = t.what, time.Now()
	err := errExited
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		s.busy = ""
		if err != nil && w.cause == nil {
			w.end(&device.Fault{Rank: s.dev.rank, Stream: s.name, ID: s.openMark(), Err: fmt.Errorf("%s: %w", t.what, err)})
		}
	}()
	err = guarded(t.run)
}

// errExited is the error for a task that called runtime.Goexit.
var errExited = errors.New("a task called runtime.Goexit, as testing's FailNow does: return an error instead")

// guarded converts a panic of run to an error.
func guarded(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	return run()
}

// panicError returns the error for a panic. If the panic's value is an error, errors.As finds it.
func panicError(p any) error {
	if err, ok := p.(error); ok {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", p)
}

func (s *stream) observe(t task, tell func(o device.Observer, rank int, stream string, id, ns int64)) {
	w := s.dev.w
	o, now := w.observer, w.step
	if o == nil {
		return
	}
	w.mu.Unlock()
	defer w.mu.Lock()
	if !w.scheduled() {
		now = time.Since(w.opened).Nanoseconds()
	}
	tell(o, s.dev.rank, s.name, t.n, now)
}
