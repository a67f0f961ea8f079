package guard

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device/cuda/gpu"
)

// TestWorkers: functions one behind the other have one goroutine, functions at the same time one each, of which one
// stays; one that a function ends, as a call does that returns too late, is replaced; none is left in the end.
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
				t.Errorf("a worker waits: %v, want %v", !want, want)
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
			t.Errorf("%d functions have ended, of 9", ended)
		}
	})
}

// TestEndedWorldKeepsNoWorker: a world that has ended has no goroutines, however it ended, even if it is never closed,
// such as one that was opened for a world that has been given up meanwhile.
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
			t.Error("no worker waits for the next function")
		}
		w.End()
		w.End()
		synctest.Wait()
		if w.workers.waits.Load() {
			t.Error("a worker of a world that has ended waits")
		}
	})
}
