package nvlib

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/cabi"
)

// Watch shows which call of a library its owner is in, so that others can tell a call that
// does not return, and disown it: then the locks that the owner holds are released for it,
// and the goroutine that the call returns to, if it does, ends there. The owner makes one
// call at a time. The zero value is ready, a nil Watch sees nothing.
//
// A call costs a store and two compare-and-swaps.
type Watch struct {
	state atomic.Uint64 // odd within a call, and another number for each; disowned for good
	call  atomic.Pointer[string]
	ctx   atomic.Uintptr // the context made current last

	mu   sync.Mutex // of what follows
	held []sync.Locker
	gone bool
}

// disowned is the state of a Watch whose owner was given up.
const disowned = ^uint64(0) // odd

// Call makes a call.
func (w *Watch) Call(f cabi.Func, args []uintptr) uintptr {
	if w == nil {
		return f.CallPinned(args)
	}
	n := w.Enter(f.Name())
	r := f.CallPinned(args)
	w.Leave(n)
	return r
}

// Enter notes that a call begins, and returns what Leave is to be given. Of calls at the same
// time only the first shows.
func (w *Watch) Enter(call *string) uint64 {
	n := w.state.Load()
	if n&1 != 0 || !w.state.CompareAndSwap(n, n+1) {
		return disowned
	}
	w.call.Store(call)
	return n + 1
}

// Leave notes that the call has returned. Where it was disowned its goroutine ends.
func (w *Watch) Leave(n uint64) {
	if n != disowned && !w.state.CompareAndSwap(n, n+1) {
		runtime.Goexit()
	}
}

// Pending is a call that has not returned.
type Pending struct {
	Call    string
	Context Context // current when it was made; 0 where none was
	state   uint64
}

// Pending returns the call that the owner is in; false if it is in none. Equal ones are the
// same call.
func (w *Watch) Pending() (Pending, bool) {
	n := w.state.Load()
	call := w.call.Load()
	if n == disowned || n&1 == 0 || call == nil {
		return Pending{}, false
	}
	return Pending{*call, Context(w.ctx.Load()), n}, true
}

// Disown gives the owner up, unless the call has returned meanwhile.
func (w *Watch) Disown(p Pending) bool { return w.state.CompareAndSwap(p.state, disowned) }

// ReleaseAll releases what an owner that was disowned holds.
func (w *Watch) ReleaseAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	for _, l := range w.held {
		l.Unlock()
	}
	w.held = nil
}

// Hold locks l for the owner. It returns false, with l unlocked, if the owner was disowned.
func (w *Watch) Hold(l sync.Locker) bool {
	l.Lock()
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		l.Unlock()
		return false
	}
	w.held = append(w.held, l)
	return true
}

// Release unlocks l, if the owner still holds it.
func (w *Watch) Release(l sync.Locker) {
	if w == nil {
		l.Unlock()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.held, l); i >= 0 {
		w.held = slices.Delete(w.held, i, i+1)
		l.Unlock()
	}
}
