// Package gpu manages the CUDA state of a process: the driver, the GPUs with their contexts and loaded code, heaps of
// device memory, and peer access between GPUs. It records which GPUs are lost.
package gpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/nvlib"
)

// GPU represents a device of the process. The mutex mu guards the fields that follow it.
type GPU struct {
	System      *System
	Device      nvlib.Device
	Name        string
	PCI         string
	Arch        string
	SMs         int
	BlockShared int                  // largest number of bytes of shared memory that a thread block can have
	Early       bool                 // supports programmatic dependent launch
	Memory      int64                // bytes
	Lost        atomic.Pointer[loss] // nil while the GPU can be used

	mu      sync.Mutex
	ctx     nvlib.Context
	lt      nvlib.LtHandle
	modules map[string]nvlib.Module
	Funcs   map[string]nvlib.Function
	shared  map[nvlib.Function]uint32 // by kernel: dynamic shared memory that its launches may use, in bytes
}

func (s *System) describe(ordinal int) (*GPU, error) {
	g := &GPU{System: s, modules: map[string]nvlib.Module{}, Funcs: map[string]nvlib.Function{}, shared: map[nvlib.Function]uint32{}}
	var err error
	if g.Device, err = s.Driver.Device(ordinal); err != nil {
		return nil, err
	}
	if g.Name, err = s.Driver.DeviceName(g.Device); err != nil {
		return nil, err
	}
	if g.PCI, err = s.Driver.DevicePCI(g.Device); err != nil {
		return nil, err
	}
	if g.Memory, err = s.Driver.DeviceMemory(g.Device); err != nil {
		return nil, err
	}
	var major, minor, vmm int
	for a, v := range map[nvlib.Attribute]*int{
		nvlib.MultiprocessorCount: &g.SMs, nvlib.ComputeCapabilityMajor: &major, nvlib.ComputeCapabilityMinor: &minor,
		nvlib.SharedMemoryOfBlock: &g.BlockShared, nvlib.VirtualMemoryManagement: &vmm,
	} {
		if *v, err = s.Driver.DeviceAttribute(g.Device, a); err != nil {
			return nil, err
		}
	}
	if vmm == 0 {
		return nil, fmt.Errorf("GPU %d, %s, lacks virtual memory management, which hocket needs; exclude the GPU with CUDA_VISIBLE_DEVICES", ordinal, g.Name)
	}
	g.Arch, g.Early = Arch(major, minor), major >= 9
	return g, nil
}

// Arch returns NVRTC's name of the architecture with this compute capability, including architecture-specific features.
func Arch(major, minor int) string {
	s := fmt.Sprintf("sm_%d%d", major, minor)
	if major >= 9 {
		s += "a"
	}
	return s
}

// Context returns the device's primary context. The first call creates it.
func (g *GPU) Context() (nvlib.Context, error) {
	unlock, err := g.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	if g.ctx != 0 {
		return g.ctx, nil
	}
	c, err := g.System.Lent.RetainPrimary(g.Device)
	if err != nil {
		return 0, err
	}
	g.ctx = c
	g.System.contexts.Store(c, g)
	return c, nil
}

// lock locks g.mu on behalf of the world that is using the driver (see nvlib.Watch).
func (g *GPU) lock() (unlock func(), err error) {
	w := g.System.Lent.Watch()
	if !w.Hold(&g.mu) {
		return nil, errGivenUp
	}
	return func() { w.Release(&g.mu) }, nil
}

// errGivenUp is the error of a call that is made for a world that was abandoned because a driver call did not return.
var errGivenUp = errors.New("canceled: a call of the driver did not return")

// Function returns the kernel symbol of a compiled image. The first call for a key loads the image to the GPU. The
// context is current.
func (g *GPU) Function(key string, image []byte, symbol string) (nvlib.Function, error) {
	unlock, err := g.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	name := key + "\x00" + symbol
	if f, ok := g.Funcs[name]; ok {
		return f, nil
	}
	m, ok := g.modules[key]
	if !ok {
		if m, err = g.System.Lent.LoadModule(image); err != nil {
			return 0, fmt.Errorf("loading kernel %s: %w", symbol, Explain(err))
		}
		g.modules[key] = m
	}
	f, err := g.System.Lent.Function(m, symbol)
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", symbol, err)
	}
	if err := g.System.Lent.LoadFunction(f); err != nil {
		return 0, fmt.Errorf("loading kernel %s to GPU %d: %w", symbol, g.Device, err)
	}
	g.Funcs[name] = f
	return f, nil
}

// AllowShared permits launches of f to use the given number of bytes of dynamic shared memory. A limit that was set
// before is never lowered. The context is current.
func (g *GPU) AllowShared(f nvlib.Function, bytes uint32) error {
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if bytes <= max(DefaultShared, g.shared[f]) {
		return nil
	}
	if err := g.System.Lent.AllowShared(f, int(bytes)); err != nil {
		return err
	}
	g.shared[f] = bytes
	return nil
}

// LtHandle returns the library cuBLASLt and the handle that it has for this device. The context is current.
func (g *GPU) LtHandle() (*nvlib.CuBLASLt, nvlib.LtHandle, error) {
	lib, err := g.System.BLAS()
	if err != nil {
		return nil, 0, err
	}
	unlock, err := g.lock()
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	lib = lib.Watched(g.System.Lent.Watch())
	if g.lt == 0 {
		if g.lt, err = lib.Create(); err != nil {
			return nil, 0, err
		}
	}
	return lib, g.lt, nil
}

// DefaultShared is the number of bytes of dynamic shared memory that a kernel may use unless AllowShared permits more.
const DefaultShared = 48 << 10

// Multicasts reports whether the GPU's memory can be part of a multicast object. Old drivers do not support this query.
func (g *GPU) Multicasts() bool {
	v, err := g.System.Driver.DeviceAttribute(g.Device, nvlib.MulticastSupported)
	return err == nil && v != 0
}
