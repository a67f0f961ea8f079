package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// precompiler is a Library that compiles ahead: *kernels.Library is one.
type precompiler interface {
	Ahead(t kernels.Target, p kernels.Problem)
	MeetingAhead(t kernels.Target, m kernels.Meeting)
}

// precompiles reports whether the library compiles ahead.
func (m *machine) precompiles() bool {
	_, ok := m.opts.Kernels.(precompiler)
	return ok
}

func (s *site) target() kernels.Target {
	return kernels.Target{Arch: s.gpu.Arch, SMs: s.gpu.SMs, Block: s.gpu.BlockShared}
}

// PrepareAhead has the compiler begin with the kernels for k. Products are not
// foreseen: they are mostly a library's. Nor are kernels of the user's.
func (d *dev) PrepareAhead(dk device.Kernel) {
	lib, ok := d.w.m.opts.Kernels.(precompiler)
	if !ok || dk.User != nil || dk.Op == ir.OpLinear || dk.Op == ir.OpMatmul {
		return
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.w.err() != nil || d.site.foreign {
		return
	}
	k := &kernel{Kernel: dk}
	if k.resolve(d) != nil {
		return
	}
	switch {
	case k.Red != ir.NoRed || len(k.Links) > 0 || !isCopy(k.Op) || !k.copies():
		lib.Ahead(d.site.target(), k.problem())
	default:
		if dims := strided.Merge(&k.out, &k.ins[0]); k.out.N > 0 && !strided.ByEngine(&k.out, dims) {
			lib.Ahead(d.site.target(), strided.CopyProblem(&k.out, &k.ins[0], dims))
		}
	}
}

// PrepareAhead has the compiler begin with the kernels that Prepare will load, or the
// loader with NCCL.
func (t *team) PrepareAhead(tune device.Tuning, c *device.Collective) {
	if tune.Algo == ncclName {
		go func() { _, _ = t.w.m.sys.NCCL() }() // Prepare waits for it, and tells of errors
		return
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	a, r, err := t.check(tune, c)
	if err != nil || r.Empty() {
		return
	}
	if p, err := a.Plan(t, tune, r); err == nil { // Prepare tells of errors
		t.compileAhead(p)
	}
}

var (
	_ precompiler = (*kernels.Library)(nil)
)
