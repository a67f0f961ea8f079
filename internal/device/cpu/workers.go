package cpu

import (
	"sync"
	"sync/atomic"
)

// workers limits the goroutines that help kernels. All worlds of a machine share one limit. Without a shared limit,
// many ranks with many streams would each use as many goroutines as there are processors.
type workers struct{ free chan struct{} }

func newWorkers(n int) *workers {
	w := &workers{free: make(chan struct{}, n)}
	for range n {
		w.free <- struct{}{}
	}
	return w
}

// each calls f(0) … f(n-1), in any order and on as many goroutines as are available. The function each returns when all
// calls have returned. When stop is set, the remaining calls are skipped. If f panics, each panics with the same value.
// f must not depend on which goroutine calls it.
func (w *workers) each(n int64, stop *atomic.Bool, f func(i int64)) {
	var next atomic.Int64
	loop := func() {
		for i := next.Add(1) - 1; i < n && !stop.Load(); i = next.Add(1) - 1 {
			f(i)
		}
	}
	var helpers sync.WaitGroup
	var failed atomic.Pointer[any]
	for range n - 1 {
		if !w.lend(&helpers, &failed, loop) {
			break
		}
	}
	defer func() {
		helpers.Wait()
		if p := failed.Load(); p != nil {
			panic(*p)
		}
	}()
	loop()
}

// lend runs the function loop in another goroutine if the limit permits one more goroutine, and reports whether it did.
func (w *workers) lend(wg *sync.WaitGroup, failed *atomic.Pointer[any], loop func()) bool {
	select {
	case <-w.free:
	default:
		return false
	}
	wg.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				failed.CompareAndSwap(nil, &p)
			}
			w.free <- struct{}{}
		}()
		loop()
	})
	return true
}
