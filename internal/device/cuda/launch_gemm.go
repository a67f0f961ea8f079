package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// addGEMM computes linear and matmul: by cuBLASLt what it takes, else by a
// plain kernel.
func (l *launch) addGEMM(k *kernel) error {
	if err := k.checkGEMM(); err != nil {
		return err
	}
	if k.out.N == 0 {
		return nil
	}
	if k.Relu {
		if err := k.checkOverlap(); err != nil {
			return err
		}
	}
	weight := k.ins[1].Addr
	if err := l.stage(k); err != nil {
		return err
	}
	p := k.product()
	p.Merge()
	if g, ok := p.Problem(); ok {
		g.Relu, g.Fixed, g.Timed = k.Relu, k.Fixed || l.dev.w.m.opts.FixedProducts, k.Timed
		g.Constant = k.Constant && k.Op == ir.OpLinear && k.ins[1].Addr == weight // else it was copied just now
		// What is fixed depends on no hint, since other algorithms may sum in
		// another order; all multiprocessors are no hint.
		if !g.Fixed && k.SMs < l.dev.site.gpu.SMs {
			g.SMs = k.SMs
		}
		st, err := l.dev.site.gemms.Prepare(g)
		if err != nil {
			return err
		}
		if st != nil {
			l.steps = append(l.steps, stepOf(st))
			return nil
		}
	}
	if k.Relu {
		return fmt.Errorf("%w: a relu behind a product that cuBLASLt does not take", device.ErrUnsupported)
	}
	return l.addLibrary(k)
}

func (k *kernel) product() gemm.Product {
	if k.Op == ir.OpMatmul {
		return gemm.Matmul(&k.out, k.ins, k.TA, k.TB)
	}
	return gemm.Linear(&k.out, k.ins)
}

// gemmLaunch is a GEMM by cuBLASLt as a step.
type gemmLaunch struct{ *gemm.Launch }

// stepOf is what runs st: cuBLASLt, or hocket's kernel, which may begin early.
func stepOf(st *gemm.Launch) step {
	if own := st.TakeOwn(); own != nil {
		return &kernelStep{l: own, f: closely}
	}
	return gemmLaunch{st}
}

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

// PrepareLaunches implements device.LaunchPreparer: a stream that multiplies has a
// workspace of its own, since products that run at a time must not share one. It is
// what the largest need is, reserved before a run: memory that is mapped amid a run
// may have to wait for kernels that wait for what the run has not issued yet.
func (s *stream) PrepareLaunches(list []device.Launch) error {
	if s.dev.site.foreign {
		return nil
	}
	need, products := int64(0), false
	for _, l := range list {
		if k, ok := l.(*launch); ok && k != nil {
			need = max(need, k.workspace())
			products = products || slices.ContainsFunc(k.steps, func(st step) bool { _, is := st.(gemmLaunch); return is })
		}
	}
	w := s.dev.w
	if w.peers != nil && products { // another process's algorithm may need more
		need = gemm.WorkspaceBytes
	}
	if need == 0 {
		return nil
	}
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return err
	}
	return reserveWorkspace(s, need, need)
}

// workspace is what the products of l need, in bytes.
func (l *launch) workspace() int64 {
	need := int64(0)
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

// NewClock takes an event that tells the time from the pool.
func (s *site) NewClock() (nvlib.Event, error) { return s.newEvent(true) }

// FreeClocks gives such events back.
func (s *site) FreeClocks(list []nvlib.Event) { s.clocks = append(s.clocks, list...) }

// Compile makes the launches of p.
func (s *site) Compile(p kernels.Problem) ([]*nvlib.Launch, error) { return s.compile(p, nil) }

// CompileAside is Compile while others use the world.
func (s *site) CompileAside(p kernels.Problem) ([]*nvlib.Launch, error) {
	return s.compileAside(p, nil)
}
