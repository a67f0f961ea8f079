package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device/cuda/strided"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// alignment is that of every allocation, in bytes.
const alignment = 256

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
	defer w.exclusive()()
	if w.cause == errClosed {
		return w.err()
	}
	if m.freed {
		return m.dev.errorf("memory of %d bytes is freed twice", m.bytes)
	}
	m.freed = true
	if m.lent || m.dev.site.lost() {
		return nil
	}
	return w.excuse(m.dev.bound(func() error { return m.dev.site.heaps[m.kind].give(m.addr, m.bytes) }))
}

// Borrow implements device.Borrower. Peers are not shown such memory, nor is NCCL, which
// a world keeps account of by its own heaps.
func (d *dev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.w.m != d.w.m || m.dev.site.gpu != d.site.gpu || m.dev.rank != d.rank || m.kind == device.Pinned {
		return nil, d.errorf("borrowing memory that is not this device's: %w", device.ErrUnsupported)
	}
	m.dev.w.mu.Lock()
	gone := m.freed || m.dev.w.cause != nil
	m.dev.w.mu.Unlock()
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

// source gives regions of memory to a heap and takes them back.
type source interface {
	take(bytes int64) (*region, error)
	give(*region) error
}

// region is memory that a heap divides.
type region struct {
	addr   nvlib.Ptr
	bytes  int64
	handle nvlib.MemHandle
	shown  bool      // other processes, and NCCL, can be given it
	known  bool      // NCCL was given some of it within a graph
	free   []stretch // by address, never adjacent
}

// stretch is a free part of a region.
type stretch struct {
	addr  nvlib.Ptr
	bytes int64
}

// heap divides regions, first fit. The first has least bytes, or what it takes, and
// each further one twice as many, up to slab: a small world holds little, and a large
// one does not ask often. Devices that are asked alike have regions alike. The
// world's mutex guards it.
type heap struct {
	least, slab, grain int64 // grain divides sizes of regions
	from               source
	regions            []*region
}

const (
	deviceLeast = 2 << 20 // what a mapping takes, whatever its size
	deviceSlab  = 64 << 20
	hostSlab    = 4 << 20
	// mostBytes is more than any machine has: what lies beyond would overflow.
	mostBytes = 1 << 50
)

func newHeap(least, slab, grain int64, from source) *heap {
	return &heap{least: least, slab: slab, grain: max(grain, alignment), from: from}
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// take returns the address of that many bytes.
func (h *heap) take(bytes int64) (nvlib.Ptr, error) {
	if bytes > mostBytes {
		return 0, fmt.Errorf("%w: %d bytes asked for", device.ErrTooLarge, bytes)
	}
	n := roundUp(max(bytes, 1), alignment)
	for _, r := range h.regions {
		if p, ok := r.cut(n); ok {
			return p, nil
		}
	}
	size := h.size(n)
	r, err := h.from.take(size)
	if least := roundUp(n, h.grain); outOfMemory(err) && least < size {
		r, err = h.from.take(least)
	}
	if err != nil {
		return 0, err
	}
	r.free = []stretch{{r.addr, r.bytes}}
	h.regions = append(h.regions, r)
	p, _ := r.cut(n)
	return p, nil
}

// size is that of a new region for n bytes: a power of 2 up to a slab, so that the
// rest is good for something, and what is asked for beyond.
func (h *heap) size(n int64) int64 {
	size := h.least
	for i := 0; size < h.slab && (i < len(h.regions) || size < n); i++ {
		size *= 2
	}
	return roundUp(max(n, min(size, h.slab)), h.grain)
}

// takeBound is take with the site's context current.
func (h *heap) takeBound(s *site, bytes int64) (p nvlib.Ptr, err error) {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return 0, err
	}
	defer s.w.drv.Unbind()
	return h.take(bytes)
}

func outOfMemory(err error) bool { return nvlib.CUDACode(err) == nvlib.CUDAOutOfMemory }

func (r *region) cut(n int64) (nvlib.Ptr, bool) {
	for i, f := range r.free {
		if f.bytes < n {
			continue
		}
		if f.bytes == n {
			r.free = slices.Delete(r.free, i, i+1)
		} else {
			r.free[i] = stretch{f.addr + nvlib.Ptr(n), f.bytes - n}
		}
		return f.addr, true
	}
	return 0, false
}

func (r *region) empty() bool { return len(r.free) == 1 && r.free[0].bytes == r.bytes }

// regionOf returns the region that an address lies in; nil for another's.
func (h *heap) regionOf(p nvlib.Ptr) *region {
	i := slices.IndexFunc(h.regions, func(r *region) bool { return p >= r.addr && p < r.addr+nvlib.Ptr(r.bytes) })
	if i < 0 {
		return nil
	}
	return h.regions[i]
}

// give takes memory back. A region that is larger than a slab and empty goes
// back where it came from.
func (h *heap) give(p nvlib.Ptr, bytes int64) error {
	r := h.regionOf(p)
	if r == nil {
		return fmt.Errorf("memory at %#x is not this heap's", uint64(p))
	}
	r.join(stretch{p, roundUp(max(bytes, 1), alignment)})
	if r.bytes > h.slab && r.empty() {
		h.regions = slices.DeleteFunc(h.regions, func(o *region) bool { return o == r })
		return h.from.give(r)
	}
	return nil
}

// trim gives back all regions that are empty.
func (h *heap) trim() error {
	var errs []error
	h.regions = slices.DeleteFunc(h.regions, func(r *region) bool {
		if r.empty() {
			errs = append(errs, h.from.give(r))
		}
		return r.empty()
	})
	return errors.Join(errs...)
}

// join adds a free stretch and merges it with its neighbours.
func (r *region) join(s stretch) {
	i, _ := slices.BinarySearchFunc(r.free, s.addr, func(f stretch, a nvlib.Ptr) int {
		if f.addr < a {
			return -1
		}
		return 1
	})
	r.free = slices.Insert(r.free, i, s)
	if i+1 < len(r.free) && r.free[i].addr+nvlib.Ptr(r.free[i].bytes) == r.free[i+1].addr {
		r.free[i].bytes += r.free[i+1].bytes
		r.free = slices.Delete(r.free, i+1, i+2)
	}
	if i > 0 && r.free[i-1].addr+nvlib.Ptr(r.free[i-1].bytes) == r.free[i].addr {
		r.free[i-1].bytes += r.free[i].bytes
		r.free = slices.Delete(r.free, i, i+1)
	}
}

// close gives all regions back.
func (h *heap) close() error {
	var errs []error
	for _, r := range h.regions {
		errs = append(errs, h.from.give(r))
	}
	h.regions = nil
	return errors.Join(errs...)
}

// mapped is a GPU's memory under addresses that some devices may use.
type mapped struct {
	g    *gpu
	devs []nvlib.Device
}

// errMemory says how much there is.
func (g *gpu) errMemory(bytes int64, err error) error {
	if !outOfMemory(err) {
		return err
	}
	if free, total, ierr := g.sys.drv.MemInfo(); ierr == nil {
		return fmt.Errorf("out of memory: %d bytes asked for, %d of %d free on GPU %d: %w", bytes, free, total, g.dev, err)
	}
	return err
}

func (m mapped) take(bytes int64) (*region, error) {
	d := m.g.sys.drv
	if bytes > m.g.total {
		return nil, fmt.Errorf("%w: %d bytes asked for, GPU %d has %d", device.ErrTooLarge, bytes, m.g.dev, m.g.total)
	}
	shown := len(m.devs) > 1
	h, err := d.CreateMem(m.g.dev, bytes, shown)
	if shown && err != nil && !outOfMemory(err) { // a driver that cannot
		shown = false
		h, err = d.CreateMem(m.g.dev, bytes, shown)
	}
	if err != nil {
		return nil, m.g.errMemory(bytes, err)
	}
	r := &region{bytes: bytes, handle: h, shown: shown}
	if r.addr, err = d.ReserveAddresses(bytes, 0); err != nil {
		return nil, errors.Join(err, d.ReleaseMem(h))
	}
	if err = d.Map(r.addr, bytes, h); err != nil {
		return nil, errors.Join(err, d.FreeAddresses(r.addr, bytes), d.ReleaseMem(h))
	}
	if err = d.SetAccess(r.addr, bytes, m.devs); err != nil {
		return nil, errors.Join(err, m.give(r))
	}
	return r, nil
}

// give takes care that nothing else ever comes to lie at addresses that NCCL may know:
// it registers memory, by address, that it is given within a graph, and looks at what it
// registered before it forgets that of graphs that are gone (2.28.3: ncclRegister, and
// ncclCommPollCallbacks every tenth group). Peers would write to the memory that was
// there before. Addresses alone cost the driver some memory of the host, and are never
// given back: only memory that graphs gave NCCL leaves them.
//
// Nor are addresses given back where the memory could not be taken from them: others
// would be given what still reaches it.
func (m mapped) give(r *region) error {
	d := m.g.sys.drv
	err := d.Unmap(r.addr, r.bytes)
	if err == nil && !(r.shown && r.known) {
		err = d.FreeAddresses(r.addr, r.bytes)
	}
	return errors.Join(err, d.ReleaseMem(r.handle))
}

// pinned is host memory that all devices reach.
type pinned struct{ drv *nvlib.Driver }

func (p pinned) take(bytes int64) (*region, error) {
	addr, err := p.drv.HostAlloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of pinned host memory: %w", bytes, err)
	}
	return &region{addr: addr, bytes: bytes}, nil
}

func (p pinned) give(r *region) error { return p.drv.HostFree(r.addr) }
