package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// memory is a stretch of one device's memory, or of pinned host memory. The
// world's mutex guards it.
type memory struct {
	device.DefaultMemory
	dev   *dev
	kind  device.MemKind
	addr  nvlib.Ptr
	bytes int64
	freed bool
	lent  bool // it is another world's, of the same GPU

	nowhere bool           // another process's alone: the address is a name
	seg     *procs.Segment // host memory that processes share; nil for other
}

func (m *memory) Bytes() int64 { return m.bytes }

// Rank is that of the device whose memory it is.
func (m *memory) Rank() int { return m.dev.rank }

// Kind is that which was asked for.
func (m *memory) Kind() device.MemKind { return m.kind }

// memoryOf returns the memory that r lies in; r.mem is not nil.
func memoryOf(r *strided.View) *memory { return r.Mem.(*memory) }

// Address implements device.Addresser.
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

// giveBack gives the memory back, once. The caller holds the world exclusively.
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

// Borrow implements device.Borrower. Peers are not shown such memory, nor is NCCL, which
// a world keeps account of by its own heaps.
func (d *dev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if ok && m != nil && d.site.foreign && m.dev.rank == d.rank {
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
		return d.nameless(&memory{dev: d, kind: device.Private, bytes: m.bytes}), nil
	}
	if !ok || m == nil || m.dev.w.m != d.w.m || m.dev.site.gpu != d.site.gpu || m.dev.rank != d.rank || m.kind == device.Pinned {
		return nil, d.errorf("borrowing memory that is not this device's: %w", device.ErrUnsupported)
	}
	gone := !m.dev.w.guard.LockLive()
	if !gone {
		gone = m.freed || m.dev.w.cause != nil
		m.dev.w.mu.Unlock()
	}
	if gone {
		return nil, d.errorf("borrowing memory that was freed")
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

// take returns the address of that many bytes of a kind of memory.
func (s *site) take(kind device.MemKind, bytes int64) (p nvlib.Ptr, err error) {
	err = s.bound(func() error {
		p, err = s.heaps[kind].Alloc(bytes)
		return err
	})
	return p, err
}
