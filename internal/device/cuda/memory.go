package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// memory represents a contiguous range of one device's memory, or of pinned host memory. The world's mutex guards it.
type memory struct {
	device.DefaultMemory
	dev   *dev
	kind  device.MemKind
	addr  nvlib.Ptr
	bytes int64
	freed bool
	lent  bool // the memory is lent: it belongs to another world on the same GPU

	nowhere bool           // only another process accesses the memory, so it has an address that is never mapped
	seg     *procs.Segment // segment of host memory that processes share; nil for other memory
}

func (m *memory) Bytes() int64 { return m.bytes }

// Rank returns the rank of the device that owns the memory.
func (m *memory) Rank() int { return m.dev.rank }

// Kind returns the memory kind that was requested.
func (m *memory) Kind() device.MemKind { return m.kind }

// memoryOf returns the memory that contains the view r; r.Mem is not nil.
func memoryOf(r *strided.View) *memory { return r.Mem.(*memory) }

// Address implements device.Memory.
func (m *memory) Address() uintptr { return uintptr(m.addr) }

func (m *memory) Free() error {
	w := m.dev.w
	defer w.guard.Exclusive()()
	if w.cause == errClosed {
		return w.err()
	}
	if m.freed {
		return m.dev.errorf("memory of %d bytes is freed twice", m.bytes)
	}
	return w.excuse(m.giveBack())
}

// giveBack frees the memory; if it is called again, it does nothing. The caller holds the world exclusively.
func (m *memory) giveBack() error {
	if m.freed {
		return nil
	}
	m.freed = true
	switch {
	case m.lent, m.nowhere, m.dev.site.lost():
		return nil
	case m.seg != nil:
		return m.dropSegment()
	}
	return m.dev.bound(func() error { return m.dev.site.heaps[m.kind].Free(m.addr, m.bytes) })
}

// Poison overwrites bytes [off, off+n) immediately, and ignores bytes outside the memory. The next Sync returns any
// error.
func (m *memory) Poison(off, n int64) {
	w := m.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	lo := min(max(off, 0), m.bytes)
	hi := lo + min(max(n, 0), m.bytes-lo)
	if w.err() != nil || m.freed || lo == hi {
		return
	}
	if err := m.dev.bound(func() error { return signal.Poison(w.drv, m.addr, lo, hi) }); err != nil {
		m.dev.site.gpu.Lose(err, fmt.Sprintf("rank %d", m.dev.rank))
		w.end(&device.Fault{Rank: m.dev.rank, ID: -1, Err: err})
	}
}

// Borrow implements device.Device. Borrowed memory is never passed to peers or NCCL. It is not part of the world's
// heaps, which record the memory that was passed to NCCL.
func (d *dev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.w.m != d.w.m || m.dev.site.gpu != d.site.gpu || m.dev.rank != d.rank || m.kind == device.Pinned {
		return nil, d.errorf("cannot borrow memory of another device: %w", device.ErrUnsupported)
	}
	gone := !m.dev.w.guard.LockLive()
	if !gone {
		gone = m.freed || m.dev.w.cause != nil
		m.dev.w.mu.Unlock()
	}
	if gone {
		return nil, d.errorf("cannot borrow memory that was freed")
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.w.err(); err != nil {
		return nil, err
	}
	return &memory{dev: d, kind: device.Private, addr: m.addr, bytes: m.bytes, lent: true}, nil
}

var (
	_ device.Device = (*dev)(nil)
	_ device.Memory = (*memory)(nil)
)

// take allocates the given number of bytes of the given kind of memory and returns their address.
func (s *site) take(kind device.MemKind, bytes int64) (p nvlib.Ptr, err error) {
	err = s.bound(func() error {
		p, err = s.heaps[kind].Alloc(bytes)
		return err
	})
	return p, err
}

// resolve checks a view. If the view is in a peer's memory, peers must be set, and that memory must be shared.
func (d *dev) resolve(v device.View, peers bool) (strided.View, error) {
	m, ok := v.Mem.(*memory)
	if !ok || m == nil || m.dev.w != d.w {
		return strided.View{}, fmt.Errorf("the memory of a view belongs to another world")
	}
	if m.freed {
		return strided.View{}, fmt.Errorf("the memory of a view was freed")
	}
	if err := device.MayUse(d.rank, m.dev.rank, m.kind, peers); err != nil {
		return strided.View{}, err
	}
	if err := m.dev.site.reach(d); err != nil {
		return strided.View{}, err
	}
	return m.view(v)
}

// view checks that v lies within m, and returns it with its address.
func (m *memory) view(v device.View) (strided.View, error) {
	n, err := v.Within(m.bytes)
	at := m.addr + nvlib.Ptr(v.Off)
	return strided.View{Mem: m, Addr: at, DType: v.DType, N: n, Shape: v.Shape, Strides: v.Strides}, err
}
