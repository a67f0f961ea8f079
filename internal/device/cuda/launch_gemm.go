package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// gemmLaunch is a step that runs a GEMM by cuBLASLt.
type gemmLaunch struct{ *gemm.Launch }

func (g gemmLaunch) run(s *stream) error {
	need := g.Workspace()
	if need == 0 {
		return g.Launch.Run(0, s.h)
	}
	if err := reserveWorkspace(s, need, gemm.WorkspaceBytes); err != nil {
		return err
	}
	return g.Launch.Run(s.workspace.addr, s.h)
}

func (g gemmLaunch) free() { g.Launch.Free() }

// PrepareLaunches implements device.Stream. Each stream that runs GEMMs has its own workspace, because concurrent GEMMs
// must not share one. The workspace is as large as the largest GEMM requires. It is reserved before execution: during
// execution, a call that maps memory may wait for kernels that themselves wait for work that is not yet issued.
func (s *stream) PrepareLaunches(list []device.Launch) error {
	need := int64(0)
	for _, l := range list {
		if k, ok := l.(*launch); ok && k != nil {
			need = max(need, k.workspace())
		}
	}
	w := s.dev.w
	if need == 0 {
		return nil
	}
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return err
	}
	if err := reserveWorkspace(s, need, need); err != nil {
		return err
	}
	return s.dev.bound(func() error {
		for _, l := range list {
			if k, ok := l.(*launch); ok && k != nil {
				if err := k.reserve(s); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// reserve creates the streams on which products of l run concurrently with those on s. The context is current.
func (l *launch) reserve(s *stream) error {
	for _, st := range l.steps {
		if g, ok := st.(gemmLaunch); ok {
			if err := g.Reserve(s.h); err != nil {
				return err
			}
		}
	}
	return nil
}

// workspace returns the number of bytes of workspace that the GEMMs of the launch l need. It includes GEMMs for which
// processes may still agree on another algorithm.
func (l *launch) workspace() int64 {
	need := int64(0)
	if l.agreeing {
		return gemm.WorkspaceBytes
	}
	for _, st := range l.steps {
		if g, ok := st.(gemmLaunch); ok {
			need = max(need, g.Workspace())
		}
	}
	return need
}

// reserveWorkspace ensures that the stream s has a workspace of at least need bytes. If it has not, reserveWorkspace
// reserves a workspace of the given number of bytes. It does not free the old workspace before the world ends, because
// a graph or unfinished work may use it.
func reserveWorkspace(s *stream, need, bytes int64) error {
	if s.workspace != nil && s.workspace.bytes >= need {
		return nil
	}
	m, err := s.dev.alloc(bytes, device.Private)
	if err != nil {
		return fmt.Errorf("allocating a workspace for products on stream %s: %w", s.name, err)
	}
	s.workspace = m
	return nil
}

// Guesses implements device.Status.
func (w *world) Guesses() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, s := range w.sites {
		list = append(list, s.gemms.Guesses()...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Recording reports whether the world is recording a graph.
func (s *site) Recording() bool { return s.w.capture != nil }

// NewClock returns a timing event from the pool.
func (s *site) NewClock() (nvlib.Event, error) { return s.clock.Event(true) }

// FreeClocks returns to the pool the events that NewClock returned.
func (s *site) FreeClocks(list []nvlib.Event) { s.clock.FreeTimed(list...) }

// Compile compiles the kernels for p and returns their launches.
func (s *site) Compile(p kernels.Problem) ([]*nvlib.Launch, error) { return s.compile(p, nil) }

// CompileAside is like Compile, but unlocks the world's mutex while the compiler runs.
func (s *site) CompileAside(p kernels.Problem) ([]*nvlib.Launch, error) {
	return s.compileAside(p, nil)
}
