package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Alignment is the alignment of every allocation in bytes.
const Alignment = 256

// Source allocates memory for the regions of a heap. Reserve returns a region of most bytes, or of least bytes if there
// is too little memory for most.
type Source interface {
	Reserve(most, least int64) (*Region, error)
	Release(*Region) error
}

// Region is a range of memory from which a heap allocates.
type Region struct {
	Addr   nvlib.Ptr
	Bytes  int64
	handle nvlib.MemHandle
	shown  bool      // other processes and NCCL can map the memory
	Known  bool      // some of the memory was passed to NCCL while a graph was recorded
	Free   []stretch // the free parts, sorted by address; adjacent parts are merged
}

// stretch represents a free part of a region.
type stretch struct {
	addr  nvlib.Ptr
	Bytes int64
}

// Heap allocates from regions; it takes the first free part that is large enough. The first region has the size least,
// or more if the first allocation needs more. Each further region is twice as large, up to the size slab. In this way a
// small world uses little memory, and a large world makes few driver calls. Heaps that receive the same requests have
// the same layout. The world's mutex guards a heap.
type Heap struct {
	least, slab, grain int64 // sizes of regions in bytes: the first, the largest regular one, and the unit of sizes
	From               Source
	Regions            []*Region
}

// Sizes of regions in bytes.
const (
	DeviceLeast = 2 << 20 // the granularity of a mapping
	DeviceSlab  = 64 << 20
	HostSlab    = 4 << 20
	// mostBytes is larger than the memory of any machine. Larger allocations are refused, because arithmetic with their
	// size could overflow.
	mostBytes = 1 << 50
)

// NewHeap returns an empty heap.
func NewHeap(least, slab, grain int64, from Source) *Heap {
	return &Heap{least: least, slab: slab, grain: max(grain, Alignment), From: from}
}

// RoundUp returns the smallest multiple of the number to that is at least n.
func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Alloc allocates memory and returns its address.
func (h *Heap) Alloc(bytes int64) (nvlib.Ptr, error) {
	if bytes > mostBytes {
		return 0, fmt.Errorf("%w: %d bytes asked for", device.ErrTooLarge, bytes)
	}
	n := RoundUp(max(bytes, 1), Alignment)
	for _, r := range h.Regions {
		if p, ok := r.cut(n); ok {
			return p, nil
		}
	}
	r, err := h.From.Reserve(h.size(n), RoundUp(n, h.grain))
	if err != nil {
		return 0, err
	}
	r.Free = []stretch{{r.Addr, r.Bytes}}
	h.Regions = append(h.Regions, r)
	p, _ := r.cut(n)
	return p, nil
}

// size returns the size of the new region that is created for an allocation of n bytes. Sizes up to slab are least
// times a power of 2, so that the unused part can serve other allocations. A larger allocation gets a region of exactly
// its size.
func (h *Heap) size(n int64) int64 {
	size := h.least
	for i := 0; size < h.slab && (i < len(h.Regions) || size < n); i++ {
		size *= 2
	}
	return RoundUp(max(n, min(size, h.slab)), h.grain)
}

// OutOfMemory reports whether err means that the driver is out of memory.
func OutOfMemory(err error) bool { return nvlib.CUDACode(err) == nvlib.CUDAOutOfMemory }

func (r *Region) cut(n int64) (nvlib.Ptr, bool) {
	for i, f := range r.Free {
		if f.Bytes < n {
			continue
		}
		if f.Bytes == n {
			r.Free = slices.Delete(r.Free, i, i+1)
		} else {
			r.Free[i] = stretch{f.addr + nvlib.Ptr(n), f.Bytes - n}
		}
		return f.addr, true
	}
	return 0, false
}

// FreeText lists the free stretches of the region by offset and size.
func (r *Region) FreeText() string {
	var list []string
	for _, f := range r.Free {
		list = append(list, fmt.Sprintf("%d+%d", f.addr-r.Addr, f.Bytes))
	}
	return strings.Join(list, " ")
}

func (r *Region) empty() bool { return len(r.Free) == 1 && r.Free[0].Bytes == r.Bytes }

// RegionOf returns the region that contains an address; nil if no region of the heap does.
func (h *Heap) RegionOf(p nvlib.Ptr) *Region {
	i := slices.IndexFunc(h.Regions, func(r *Region) bool { return p >= r.Addr && p < r.Addr+nvlib.Ptr(r.Bytes) })
	if i < 0 {
		return nil
	}
	return h.Regions[i]
}

// Free frees memory. If this makes its region empty and the region is larger than slab, Free releases the region.
func (h *Heap) Free(p nvlib.Ptr, bytes int64) error {
	r := h.RegionOf(p)
	if r == nil {
		return fmt.Errorf("memory at %#x does not belong to this heap", uint64(p))
	}
	r.join(stretch{p, RoundUp(max(bytes, 1), Alignment)})
	if r.Bytes > h.slab && r.empty() {
		h.Regions = slices.DeleteFunc(h.Regions, func(o *Region) bool { return o == r })
		return h.From.Release(r)
	}
	return nil
}

// Trim releases all empty regions.
func (h *Heap) Trim() error {
	var errs []error
	h.Regions = slices.DeleteFunc(h.Regions, func(r *Region) bool {
		if r.empty() {
			errs = append(errs, h.From.Release(r))
		}
		return r.empty()
	})
	return errors.Join(errs...)
}

// join adds a free part to the region and merges it with free neighbours.
func (r *Region) join(s stretch) {
	i, _ := slices.BinarySearchFunc(r.Free, s.addr, func(f stretch, a nvlib.Ptr) int {
		if f.addr < a {
			return -1
		}
		return 1
	})
	r.Free = slices.Insert(r.Free, i, s)
	if i+1 < len(r.Free) && r.Free[i].addr+nvlib.Ptr(r.Free[i].Bytes) == r.Free[i+1].addr {
		r.Free[i].Bytes += r.Free[i+1].Bytes
		r.Free = slices.Delete(r.Free, i+1, i+2)
	}
	if i > 0 && r.Free[i-1].addr+nvlib.Ptr(r.Free[i-1].Bytes) == r.Free[i].addr {
		r.Free[i-1].Bytes += r.Free[i].Bytes
		r.Free = slices.Delete(r.Free, i, i+1)
	}
}

// Close releases all regions.
func (h *Heap) Close() error {
	var errs []error
	for _, r := range h.Regions {
		errs = append(errs, h.From.Release(r))
	}
	h.Regions = nil
	return errors.Join(errs...)
}

// DeviceMemory is a source that allocates regions in one GPU's memory. It maps the regions so that the given devices
// can access them.
type DeviceMemory struct {
	GPU      *GPU
	Devices  []nvlib.Device
	Exported bool          // regions can be exported to other processes
	Driver   *nvlib.Driver // nil for the system's driver
}

func (m DeviceMemory) driver() *nvlib.Driver {
	if m.Driver == nil {
		return m.GPU.System.Driver
	}
	return m.Driver
}

// MemoryError adds the size of the free memory to an out-of-memory error.
func (g *GPU) MemoryError(bytes int64, err error) error {
	if !OutOfMemory(err) {
		return err
	}
	if free, total, ierr := g.System.Driver.MemInfo(); ierr == nil {
		return fmt.Errorf("out of memory: %d bytes requested, %d of %d free on GPU %d: %w", bytes, free, total, g.Device, err)
	}
	return err
}

// Reserve allocates memory and maps it at new addresses.
func (m DeviceMemory) Reserve(most, least int64) (*Region, error) {
	return orLess(most, least, m.reserve)
}

// orLess calls take(most) and, if there is too little memory for that, take(least).
func orLess(most, least int64, take func(int64) (*Region, error)) (*Region, error) {
	r, err := take(most)
	if OutOfMemory(err) && least < most {
		r, err = take(least)
	}
	return r, err
}

func (m DeviceMemory) reserve(bytes int64) (*Region, error) {
	d := m.driver()
	if bytes > m.GPU.Memory {
		return nil, fmt.Errorf("%w: %d bytes requested, but GPU %d has %d", device.ErrTooLarge, bytes, m.GPU.Device, m.GPU.Memory)
	}
	shown := len(m.Devices) > 1 || m.Exported
	h, err := d.CreateMem(m.GPU.Device, bytes, shown)
	if shown && !m.Exported && err != nil && !OutOfMemory(err) { // the driver does not support memory that can be shared
		shown = false
		h, err = d.CreateMem(m.GPU.Device, bytes, shown)
	}
	if err != nil {
		return nil, m.GPU.MemoryError(bytes, err)
	}
	return m.mapAt(&Region{Bytes: bytes, handle: h, shown: shown})
}

// mapAt maps the memory of the region r at new addresses.
func (m DeviceMemory) mapAt(r *Region) (_ *Region, err error) {
	d := m.driver()
	if r.Addr, err = d.ReserveAddresses(r.Bytes, 0); err != nil {
		return nil, errors.Join(err, d.ReleaseMem(r.handle))
	}
	if err = d.Map(r.Addr, r.Bytes, r.handle); err != nil {
		return nil, errors.Join(err, d.FreeAddresses(r.Addr, r.Bytes), d.ReleaseMem(r.handle))
	}
	if err = d.SetAccess(r.Addr, r.Bytes, m.Devices); err != nil {
		return nil, errors.Join(err, m.Release(r))
	}
	return r, nil
}

// Export returns a file by which another process can map a region. Exported must be set.
func (m DeviceMemory) Export(r *Region) (*os.File, error) {
	fd, err := m.driver().ExportMem(r.handle)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memory of a GPU"), nil
}

// Import maps a region that another process exported.
func (m DeviceMemory) Import(file *os.File, bytes int64) (*Region, error) {
	h, err := m.driver().ImportMem(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	return m.mapAt(&Region{Bytes: bytes, handle: h})
}

// Release releases a region. Addresses that NCCL may have registered stay reserved, so that no other memory is mapped
// there. If a graph passes memory to NCCL, NCCL registers the memory by its address. NCCL may use this registration
// even after the graph was destroyed (2.28.3: ncclRegister looks it up before ncclCommPollCallbacks, called every tenth
// group, removes it). If other memory were mapped at the address, peers would then write to it. A reserved address
// range uses some host memory of the driver, and is never freed. This happens only to memory that was passed to NCCL
// within a graph.
//
// Addresses also stay reserved if unmapping failed. New memory at these addresses would otherwise be accessible through
// the old mapping.
func (m DeviceMemory) Release(r *Region) error {
	d := m.driver()
	err := d.Unmap(r.Addr, r.Bytes)
	if err == nil && !(r.shown && r.Known) {
		err = d.FreeAddresses(r.Addr, r.Bytes)
	}
	return errors.Join(err, d.ReleaseMem(r.handle))
}

// HostMemory is a source that allocates regions in host memory, which all devices can access.
type HostMemory struct{ Driver *nvlib.Driver }

// Reserve allocates pinned memory.
func (p HostMemory) Reserve(most, least int64) (*Region, error) {
	return orLess(most, least, p.reserve)
}

func (p HostMemory) reserve(bytes int64) (*Region, error) {
	addr, err := p.Driver.HostAlloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes of pinned host memory: %w", bytes, err)
	}
	return &Region{Addr: addr, Bytes: bytes}, nil
}

// Release frees the region's pinned memory.
func (p HostMemory) Release(r *Region) error { return p.Driver.HostFree(r.Addr) }

// Held returns the total size of the heap's regions.
func (h *Heap) Held() int64 {
	n := int64(0)
	for _, r := range h.Regions {
		n += r.Bytes
	}
	return n
}

// Layout describes the heap's regions and their free stretches.
func (h *Heap) Layout() string {
	var b strings.Builder
	for i, r := range h.Regions {
		fmt.Fprintf(&b, "region %d of %d bytes, free %s; ", i, r.Bytes, r.FreeText())
	}
	return b.String()
}

// Place describes an address by the region of the heap and the offset in it. Heaps that received the same requests
// return the same text.
func (h *Heap) Place(at nvlib.Ptr) string {
	for i, r := range h.Regions {
		if at >= r.Addr && at < r.Addr+nvlib.Ptr(r.Bytes) {
			return fmt.Sprintf("%d of region %d", at-r.Addr, i)
		}
	}
	return "an address of the host"
}
