package guard

import "sync/atomic"

// workers are goroutines that functions run on. One that has done its own waits for the next: a new one would begin
// with a small stack, and copy it again and again as that grows, in each run.
type workers struct {
	next  chan func()
	waits atomic.Bool // one does, or is about to
}

// do has a worker run f, which does not panic. None waits any more once over is closed.
func (w *workers) do(f func(), over <-chan struct{}) {
	select {
	case w.next <- f:
	default:
		go w.work(f, over)
	}
}

func (w *workers) work(f func(), over <-chan struct{}) {
	f()
	for w.waits.CompareAndSwap(false, true) {
		select {
		case f = <-w.next:
			w.waits.Store(false)
			f()
		case <-over:
			w.waits.Store(false)
			return
		}
	}
}
