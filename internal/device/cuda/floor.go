package cuda

import (
	"slices"
	"sync"
	"time"
)

// floor is where kernels meet that wait on devices for each other. Those of one
// world fit on the devices at once (see room); those of two might not, and then
// each waits for a kernel that the other keeps from starting. So may graphs that flags
// join: their waits and the kernels that raise want room, which the other's teams need
// not leave. So worlds with teams or such graphs take the floor by turns: a world has
// it from a batch on until its devices rest, or until it has ended, when its kernels
// give up.
type floor struct {
	mu    sync.Mutex
	world *world // that has the floor; nil for none
	under int    // batches of it under way
}

// enter waits until w has the floor; it returns false if w ends before. Each entry
// wants a call of leave. Whoever waits must have neither the gate nor a world's
// mutex: the world that has the floor may want them before it is done.
func (f *floor) enter(w *world) bool {
	for began := time.Now(); !w.ended.Load(); pause(time.Since(began)) {
		if f.try(w) {
			return true
		}
	}
	return false
}

func (f *floor) try(w *world) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.world != w {
		if f.world != nil && (f.under > 0 || !f.world.rests()) {
			return false
		}
		f.world, f.under = w, 0
	}
	f.under++
	return true
}

// leave ends an entry. The world keeps the floor: what it issued may still run.
func (f *floor) leave() {
	f.mu.Lock()
	f.under--
	f.mu.Unlock()
}

// forget takes the floor from a world that is closed. While batches of it are under
// way it has the floor: they have still to leave.
func (f *floor) forget(w *world) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.world == w && f.under == 0 {
		f.world = nil
	}
}

// rests reports whether nothing of w is known to run. It does not wait for whoever
// holds w, since that may be waiting for the floor.
func (w *world) rests() bool {
	if w.ended.Load() {
		return true
	}
	if !w.mu.TryLock() {
		return false
	}
	defer w.mu.Unlock()
	return w.calls == 0 && w.look()
}

// gathers reports whether w has teams, or graphs that flags join.
func (w *world) gathers() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.teams) > 0 || slices.ContainsFunc(w.recorded, (*graph).flagged)
}

// flagged reports whether a form of g that may be launched has flags.
func (g *graph) flagged() bool {
	return slices.ContainsFunc(g.forms, func(f *form) bool { return f.flags != nil })
}
