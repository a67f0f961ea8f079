package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/compute"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
)

// precompiles reports whether the library can compile kernels before they are prepared.
func (m *machine) precompiles() bool {
	_, ok := m.opts.Kernels.(gpu.Precompiler)
	return ok
}

func (s *site) target() kernels.Target {
	return kernels.Target{Arch: s.gpu.Arch, SMs: s.gpu.SMs, Block: s.gpu.BlockShared, Alone: s.alone()}
}

// PrepareAhead starts to compile the kernels that k requires.
func (d *dev) PrepareAhead(k device.Kernel) {
	lib, ok := d.w.m.opts.Kernels.(gpu.Precompiler)
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
