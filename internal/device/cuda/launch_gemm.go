package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// gemmLaunch is a GEMM by cuBLASLt as a step.
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

// PrepareLaunches implements device.Stream. Each stream that runs GEMMs has its own workspace, because concurrent
// GEMMs must not share one. The workspace has the size of the largest need and is reserved before a run: mapping
// memory during a run may wait for kernels that wait for work not yet issued.
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
	return reserveWorkspace(s, need, need)
}

// workspace is what the products of l need, in bytes, or may need once processes agree.
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

// reserveWorkspace has s have a workspace of at least need bytes; if it has none, one
// of that many bytes. What it had may be in use, by a graph too: it stays until the
// world ends.
func reserveWorkspace(s *stream, need, bytes int64) error {
	if s.workspace != nil && s.workspace.bytes >= need {
		return nil
	}
	m, err := s.dev.alloc(bytes, device.Private)
	if err != nil {
		return fmt.Errorf("a workspace for products on stream %s: %w", s.name, err)
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

// Recording reports whether the world records a graph.
func (s *site) Recording() bool { return s.w.capture != nil }

// NewClock takes an event that records time from the pool.
func (s *site) NewClock() (nvlib.Event, error) { return s.clock.Event(true) }

// FreeClocks gives such events back.
func (s *site) FreeClocks(list []nvlib.Event) { s.clock.FreeTimed(list...) }

// Compile makes the launches of p.
func (s *site) Compile(p kernels.Problem) ([]*nvlib.Launch, error) { return s.compile(p, nil) }

// CompileAside is Compile while others use the world.
func (s *site) CompileAside(p kernels.Problem) ([]*nvlib.Launch, error) {
	return s.compileAside(p, nil)
}
