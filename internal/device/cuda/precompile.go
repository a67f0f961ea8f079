package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/compute"
	"hocket.example/hocket/internal/kernels"
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

// PrepareAhead has the compiler begin with the kernels for k.
func (d *dev) PrepareAhead(k device.Kernel) {
	lib, ok := d.w.m.opts.Kernels.(precompiler)
	if !ok {
		return
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.w.err() != nil {
		return
	}
	if p, ok := compute.Ahead(&launch{dev: d}, &k); ok {
		lib.Ahead(d.site.target(), p)
	}
}

var (
	_ precompiler = (*kernels.Library)(nil)
)
