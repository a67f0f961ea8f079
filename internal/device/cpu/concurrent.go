package cpu

import "time"

// In concurrent mode, a stream has a goroutine only while it can continue. The method start creates the goroutine
// when work arrives, and the function wake creates it when the event for which the stream's first task waits has
// occurred. The world's field running counts these goroutines. When it is zero, no stream can continue.

// start creates the goroutine of a stream that can continue, in concurrent mode. The caller holds the world's
// mutex.
func (s *stream) start() {
	w := s.dev.w
	if w.scheduled() || s.running || s.parked {
		return
	}
	s.running = true
	w.running++
	go s.drain()
}

// wake makes the given parked streams check again whether their first tasks can run. The caller holds the world's
// mutex.
func wake(streams []*stream) {
	for _, s := range streams {
		s.parked = false
		s.start()
	}
}

// drain executes the tasks of a stream until none is left or the first one must wait.
func (s *stream) drain() {
	w := s.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { // deferred, so that it also runs if a kernel calls runtime.Goexit
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

// rests wakes the goroutines that wait until the world is idle, if it is now idle. The caller holds the world's mutex.
func (w *world) rests() {
	if w.running == 0 && w.awaiting == 0 {
		w.quiet.Broadcast()
	}
}
