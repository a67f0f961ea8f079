package guard

import "sync/atomic"

// workers are goroutines that functions run on. One that has done its own waits for the next: a new one would begin
// with a small stack, and copy it again and again as that grows, in each run.
type workers struct {
	next  chan func()
	over  chan struct{} // closed in the end: none waits any more
	waits atomic.Bool   // one does, or is about to
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
