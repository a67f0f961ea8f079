package nvlib

import (
	"sync"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// held returns a library function that closes the channel enters when it is called, and returns when the channel
// release is closed.
func held(t testing.TB, enters, release chan struct{}) cabi.Func {
	t.Helper()
	f, err := cabi.Fake("fake", map[string]func([]uintptr) uintptr{"held": func([]uintptr) uintptr {
		close(enters)
		<-release
		return 7
	}}).Lookup("held")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWatch checks that Pending returns a call until it returns. After Disown the owner's locks are free, a later
// Release of the owner does not unlock them for others, and its goroutine ends when the call returns.
func TestWatch(t *testing.T) {
	var w Watch
	var a, b sync.Mutex
	enters, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := held(t, enters, release)
	if _, in := w.Pending(); in {
		t.Error("Pending returns a call before the first call")
	}
	went := false
	go func() {
		defer close(ended)
		if !w.Hold(&a) || !w.Hold(&b) {
			t.Error("a lock was refused")
		}
		w.Release(&b)
		w.Call(f, nil)
		went = true
	}()
	<-enters
	p, in := w.Pending()
	if again, _ := w.Pending(); !in || p.Call != "held" || again != p {
		t.Fatalf("%+v, %v", p, in)
	}
	if a.TryLock() || !b.TryLock() {
		t.Fatal("the wrong locks are held")
	}
	if !w.Disown(p) || w.Disown(p) {
		t.Error("a call can be disowned twice")
	}
	w.ReleaseAll()
	if !a.TryLock() {
		t.Fatal("the lock was not released")
	}
	w.Release(&a)
	if a.TryLock() {
		t.Error("a disowned owner unlocked a lock of another owner")
	}
	a.Unlock()
	if w.Hold(&a) || !a.TryLock() {
		t.Error("a disowned owner can lock")
	}
	close(release)
	<-ended
	if went {
		t.Error("the goroutine continued after the disowned call")
	}
}

// TestWatchReturned checks that a call that has returned does not let its owner be disowned, and that two calls of the
// same function are not equal.
func TestWatchReturned(t *testing.T) {
	var w Watch
	var seen []Pending
	for range 2 {
		enters, release, ended := make(chan struct{}), make(chan struct{}), make(chan uintptr)
		f := held(t, enters, release)
		go func() { ended <- w.Call(f, nil) }()
		<-enters
		p, _ := w.Pending()
		seen = append(seen, p)
		close(release)
		if r := <-ended; r != 7 {
			t.Errorf("it returns %d", r)
		}
		if w.Disown(p) {
			t.Error("a call that has returned was disowned")
		}
	}
	if seen[0] == seen[1] {
		t.Error("two calls have equal Pending values")
	}
}

// BenchmarkWatch compares a watched call with one that is not watched.
func BenchmarkWatch(b *testing.B) {
	f, err := cabi.Fake("fake", map[string]func([]uintptr) uintptr{"f": func([]uintptr) uintptr { return 0 }}).Lookup("f")
	if err != nil {
		b.Fatal(err)
	}
	for name, w := range map[string]*Watch{"watched": {}, "not": nil} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				w.Call(f, nil)
			}
		})
	}
}
