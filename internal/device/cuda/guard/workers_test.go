package guard

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device/cuda/gpu"
)

// TestWorkers checks how many goroutines run functions. Consecutive functions share one goroutine. Functions that run
// concurrently have one goroutine each. One of these goroutines remains idle afterwards. A function may end its
// goroutine, as a hung call does that returns late; the goroutine is then replaced. At the end no goroutine remains.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ended := workers{next: make(chan func()), over: make(chan struct{})}, 0
		var mu sync.Mutex
		do := func(f func()) {
			w.do(func() {
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					ended++
				}()
				f()
			})
		}
		waiting := func(want bool) {
			t.Helper()
			synctest.Wait()
			if w.waits.Load() != want {
				t.Errorf("a worker is idle: %v, want %v", !want, want)
			}
		}
		for range 3 {
			do(func() {})
			waiting(true)
		}
		hold := make(chan struct{})
		for range 3 {
			do(func() { <-hold })
			waiting(false)
		}
		close(hold)
		waiting(true)
		do(runtime.Goexit)
		waiting(false)
		do(func() {})
		waiting(true)
		close(w.over)
		waiting(false)
		do(func() {})
		waiting(false)
		if ended != 9 {
			t.Errorf("%d of 9 functions have ended", ended)
		}
	})
}

// TestEndedWorldKeepsNoWorker checks that a world that has ended has no goroutines, however it ended. This holds even
// for a world that is never closed, such as one that was opened to replace a world that was given up meanwhile.
func TestEndedWorldKeepsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(true)
		w.p.System = &gpu.System{CallPatience: gpu.Patience{Call: time.Hour}}
		w.Open(t.Context())
		if err := w.Do(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !w.workers.waits.Load() {
			t.Error("no idle worker waits for the next function")
		}
		w.End()
		w.End()
		synctest.Wait()
		if w.workers.waits.Load() {
			t.Error("a world that has ended has an idle worker")
		}
	})
}
