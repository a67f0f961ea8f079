package cpu

import "time"

// A stream has a goroutine only while it can continue. The method start creates the goroutine when work arrives, and
// wake creates it when the event that the stream's first task waits for has occurred. The field running counts these
// goroutines. When it is zero, no stream can continue.

// start creates a goroutine for a concurrent stream that can continue. The caller holds the world's mutex.
func (s *stream) start() {
	w := s.dev.w
	if w.scheduled() || s.running || s.parked {
		return
	}
	s.running = true
	w.running++
	go s.drain()
}

// wake makes parked streams check their heads again. The caller holds the world's mutex.
func wake(streams []*stream) {
	for _, s := range streams {
		s.parked = false
		s.start()
	}
}

// drain executes the stream's tasks until none is left or the head must wait.
func (s *stream) drain() {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { // also runs after runtime.Goexit in a kernel
		s.running = false
		w.running--
		w.rests()
	}()
	for !s.queue.empty() {
		if t := s.queue.peek(); !t.ready() {
			if t.kind == waitCounter && t.ctrs.shared != nil {
				s.await(t.ctrs.shared, t.elem, t.n)
				continue
			}
			t.park(s)
			s.parked, s.since = true, time.Now()
			break
		}
		s.step()
	}
}

// rests wakes the goroutines that wait until the world is idle, if it is idle. The caller holds the world's mutex.
func (w *world) rests() {
	if w.running == 0 && w.awaiting == 0 {
		w.quiet.Broadcast()
	}
}
