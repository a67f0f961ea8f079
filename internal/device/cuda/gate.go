package cuda

import "sync"

// gate keeps two things apart, over all worlds of the process, that together
// could stand still: issuing work whose kernels wait on devices for kernels
// issued later, and calls of the driver that may wait until a device rests while
// they keep others from issuing: for memory, code, graphs. Issuing shares the
// gate, such calls have it alone. So has whoever issues kernels that wait for each other:
// another world's work between them might stand before one of them in a hardware queue,
// and wait for what stands behind another. Work that was issued whole ends by itself, so
// nobody need wait for it.
type gate struct{ mu sync.RWMutex }

// Batch calls issue, which gives work to the world's streams, with nothing
// between the commands that could keep those issued first from ending. A world
// with teams, or with graphs that flags join, has to itself what others of the kind
// would need (see floor), until it rests.
func (w *world) Batch(issue func() error) error {
	gate := &w.m.sys.gate.mu
	enter, leave := gate.RLock, gate.RUnlock
	if f := &w.m.sys.floor; w.gathers() {
		if !f.enter(w) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.err()
		}
		defer f.leave()
		enter, leave = gate.Lock, gate.Unlock
	}
	enter()
	w.issuing.Add(1)
	defer func() {
		w.issuing.Add(-1)
		leave()
	}()
	return issue()
}

// alone locks the world for calls of the driver that need the gate. The function
// it returns unlocks both. Within a batch the gate is passed already.
func (w *world) alone() (unlock func()) {
	gated := w.issuing.Load() == 0
	if gated {
		w.m.sys.gate.mu.Lock()
	}
	w.mu.Lock()
	w.gated = gated
	return w.together
}

func (w *world) together() {
	gated := w.gated
	w.gated = false
	w.mu.Unlock()
	if gated {
		w.m.sys.gate.mu.Unlock()
	}
}

// aside runs f, which calls neither the driver nor the world but by its own
// locking, while others go on: compiling takes long. The caller holds the world
// by alone, and does again.
func (w *world) aside(f func() error) error {
	gated := w.gated
	w.together()
	err := f()
	if gated {
		w.m.sys.gate.mu.Lock()
	}
	w.mu.Lock()
	w.gated = gated
	if err == nil {
		err = w.err()
	}
	return err
}
