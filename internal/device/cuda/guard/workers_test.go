package guard

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// TestWorkers: functions one behind the other have one goroutine, functions at the same time one each, of which one
// stays; one that a function ends, as a call does that returns too late, is replaced; none is left in the end.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, closed, ended := workers{next: make(chan func())}, make(chan struct{}), 0
		var mu sync.Mutex
		do := func(f func()) {
			w.do(func() {
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					ended++
				}()
				f()
			}, closed, nil)
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
		close(closed)
		waiting(false)
		do(func() {})
		waiting(false)
		if ended != 9 {
			t.Errorf("%d functions have ended, of 9", ended)
		}
	})
}
