package guard

import "sync/atomic"

// workers runs functions on goroutines that it reuses. A new goroutine would begin with a small stack, which would be
// copied each time it grows. At most one idle goroutine waits for the next function.
type workers struct {
	next  chan func()
	over  chan struct{} // channel that is closed when the world ends, which ends the idle goroutine
	waits atomic.Bool   // whether a goroutine is idle, or is about to be
}

// do runs f on a worker goroutine. f must not panic.
func (w *workers) do(f func()) {
	select {
	case w.next <- f:
	default:
		go w.work(f)
	}
}

func (w *workers) work(f func()) {
	for f != nil {
		f()
		if !w.waits.CompareAndSwap(false, true) {
			return
		}
		select {
		case f = <-w.next:
		case <-w.over:
			f = nil
		}
		w.waits.Store(false)
	}
}
