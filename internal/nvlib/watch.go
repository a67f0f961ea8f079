package nvlib

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/cabi"
)

// Watch records the library call that its owner is making, so that other goroutines can detect a call that does not
// return. These goroutines can then disown the owner: its locks are released, and the goroutine of the call ends if the
// call ever returns. An owner makes one call at a time. The zero value is ready to use. A nil Watch does nothing.
//
// Monitoring a call takes one store and two compare-and-swaps.
type Watch struct {
	state atomic.Uint64 // odd during a call, and different for each; the constant disowned if the owner was abandoned
	call  atomic.Pointer[string]
	ctx   atomic.Uintptr // the context that was made current most recently

	mu   sync.Mutex // protects the following fields
	held []sync.Locker
	gone bool
}

// disowned is the state of a Watch whose owner was abandoned.
const disowned = ^uint64(0) // odd

// Call calls a function.
func (w *Watch) Call(f cabi.Func, args []uintptr) uintptr {
	if w == nil {
		return f.CallPinned(args)
	}
	n := w.Enter(f.Name())
	r := f.CallPinned(args)
	w.Leave(n)
	return r
}

// Enter records that a call begins, and returns the argument for Leave. If several calls run at the same time, only the
// first is recorded.
func (w *Watch) Enter(call *string) uint64 {
	n := w.state.Load()
	if n&1 != 0 || !w.state.CompareAndSwap(n, n+1) {
		return disowned
	}
	w.call.Store(call)
	return n + 1
}

// Leave records that the call has returned. If the owner was disowned during the call, the goroutine ends.
func (w *Watch) Leave(n uint64) {
	if n != disowned && !w.state.CompareAndSwap(n, n+1) {
		runtime.Goexit()
	}
}

// Pending is a call that has not returned.
type Pending struct {
	Call    string
	Context Context // the context that was current when the call began; 0 for none
	state   uint64
}

// Pending returns the owner's call in progress, or false if there is none. Equal results denote the same call.
func (w *Watch) Pending() (Pending, bool) {
	n := w.state.Load()
	call := w.call.Load()
	if n == disowned || n&1 == 0 || call == nil {
		return Pending{}, false
	}
	return Pending{*call, Context(w.ctx.Load()), n}, true
}

// Disown abandons the owner because of the call p, unless the call has returned in the meantime.
func (w *Watch) Disown(p Pending) bool { return w.state.CompareAndSwap(p.state, disowned) }

// ReleaseAll releases the locks of a disowned owner.
func (w *Watch) ReleaseAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	for _, l := range w.held {
		l.Unlock()
	}
	w.held = nil
}

// Hold locks l on behalf of the owner. If the owner was disowned, Hold returns false and leaves l unlocked.
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

// Release unlocks l if the owner still holds it.
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
