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

// Source gives regions of memory to a heap and takes them back. Reserve gives most bytes, or least if there
// is no memory for more.
type Source interface {
	Reserve(most, least int64) (*Region, error)
	Release(*Region) error
}

// Region represents a range of memory that a heap divides into allocations.
type Region struct {
	Addr   nvlib.Ptr
	Bytes  int64
	handle nvlib.MemHandle
	shown  bool      // other processes, and NCCL, can be given it
	Known  bool      // NCCL was given some of it within a graph
	Free   []stretch // by address, never adjacent
}

// stretch represents a free part of a region.
type stretch struct {
	addr  nvlib.Ptr
	Bytes int64
}

// Heap divides regions, first fit. The first has least bytes, or what it takes, and
// each further one twice as many, up to slab: a small world holds little, and a large
// one does not ask often. Devices that are asked alike have regions alike. The
// world's mutex guards it.
type Heap struct {
	least, slab, grain int64 // grain divides sizes of regions
	From               Source
	Regions            []*Region
}

// Sizes of regions.
const (
	DeviceLeast = 2 << 20 // what a mapping takes, whatever its size
	DeviceSlab  = 64 << 20
	HostSlab    = 4 << 20
	// mostBytes is more than any machine has: what lies beyond would overflow.
	mostBytes = 1 << 50
)

// NewHeap returns an empty heap.
func NewHeap(least, slab, grain int64, from Source) *Heap {
	return &Heap{least: least, slab: slab, grain: max(grain, Alignment), From: from}
}

// RoundUp is the least multiple of to that is no less than n.
func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Alloc returns the address of that many bytes.
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

// size is that of a new region for n bytes: a power of 2 up to a slab, so that the
// rest is good for something, and what is asked for beyond.
func (h *Heap) size(n int64) int64 {
	size := h.least
	for i := 0; size < h.slab && (i < len(h.Regions) || size < n); i++ {
		size *= 2
	}
	return RoundUp(max(n, min(size, h.slab)), h.grain)
}

// OutOfMemory reports whether err is the driver's status for that.
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

// FreeText lists what of the region is free: where, and how many bytes.
func (r *Region) FreeText() string {
	var list []string
	for _, f := range r.Free {
		list = append(list, fmt.Sprintf("%d+%d", f.addr-r.Addr, f.Bytes))
	}
	return strings.Join(list, " ")
}

func (r *Region) empty() bool { return len(r.Free) == 1 && r.Free[0].Bytes == r.Bytes }

// RegionOf returns the region that an address lies in; nil for another's.
func (h *Heap) RegionOf(p nvlib.Ptr) *Region {
	i := slices.IndexFunc(h.Regions, func(r *Region) bool { return p >= r.Addr && p < r.Addr+nvlib.Ptr(r.Bytes) })
	if i < 0 {
		return nil
	}
	return h.Regions[i]
}

// Free takes memory back. A region that is larger than a slab and empty goes
// back where it came from.
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

// Trim gives back all regions that are empty.
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

// join adds a free stretch and merges it with its neighbours.
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

// Close gives all regions back.
func (h *Heap) Close() error {
	var errs []error
	for _, r := range h.Regions {
		errs = append(errs, h.From.Release(r))
	}
	h.Regions = nil
	return errors.Join(errs...)
}

// DeviceMemory is a GPU's memory under addresses that some devices may use.
type DeviceMemory struct {
	GPU      *GPU
	Devices  []nvlib.Device
	Exported bool          // other processes are given it
	Driver   *nvlib.Driver // nil for the system's
}

func (m DeviceMemory) driver() *nvlib.Driver {
	if m.Driver == nil {
		return m.GPU.System.Driver
	}
	return m.Driver
}

// MemoryError says how much there is.
func (g *GPU) MemoryError(bytes int64, err error) error {
	if !OutOfMemory(err) {
		return err
	}
	if free, total, ierr := g.System.Driver.MemInfo(); ierr == nil {
		return fmt.Errorf("out of memory: %d bytes asked for, %d of %d free on GPU %d: %w", bytes, free, total, g.Device, err)
	}
	return err
}

// Reserve maps memory at new addresses.
func (m DeviceMemory) Reserve(most, least int64) (*Region, error) {
	return orLess(most, least, m.reserve)
}

// orLess takes most, or least where there is no memory for that.
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
		return nil, fmt.Errorf("%w: %d bytes asked for, GPU %d has %d", device.ErrTooLarge, bytes, m.GPU.Device, m.GPU.Memory)
	}
	shown := len(m.Devices) > 1 || m.Exported
	h, err := d.CreateMem(m.GPU.Device, bytes, shown)
	if shown && !m.Exported && err != nil && !OutOfMemory(err) { // a driver that cannot
		shown = false
		h, err = d.CreateMem(m.GPU.Device, bytes, shown)
	}
	if err != nil {
		return nil, m.GPU.MemoryError(bytes, err)
	}
	return m.mapAt(&Region{Bytes: bytes, handle: h, shown: shown})
}

// mapAt gives a region's memory addresses.
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

// Export returns a file that stands for a region of memory that is Exported.
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

// Release keeps the addresses reserved that NCCL may know, so that no other memory is mapped there. NCCL registers, by
// address, memory that it is given within a graph, and reads from these registrations before it removes those of
// destroyed graphs (2.28.3: ncclRegister, and ncclCommPollCallbacks every tenth group). Peers would then write to the
// new memory. A reserved address costs the driver some host memory and is never freed; only memory that graphs gave to
// NCCL leaves one.
//
// Nor are addresses given back where the memory could not be taken from them: others
// would be given what still reaches it.
func (m DeviceMemory) Release(r *Region) error {
	d := m.driver()
	err := d.Unmap(r.Addr, r.Bytes)
	if err == nil && !(r.shown && r.Known) {
		err = d.FreeAddresses(r.Addr, r.Bytes)
	}
	return errors.Join(err, d.ReleaseMem(r.handle))
}

// HostMemory is host memory that all devices reach.
type HostMemory struct{ Driver *nvlib.Driver }

// Reserve allocates pinned memory.
func (p HostMemory) Reserve(most, least int64) (*Region, error) {
	return orLess(most, least, p.reserve)
}

func (p HostMemory) reserve(bytes int64) (*Region, error) {
	addr, err := p.Driver.HostAlloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of pinned host memory: %w", bytes, err)
	}
	return &Region{Addr: addr, Bytes: bytes}, nil
}

// Release frees pinned memory.
func (p HostMemory) Release(r *Region) error { return p.Driver.HostFree(r.Addr) }

// Held is what the heap's regions take.
func (h *Heap) Held() int64 {
	n := int64(0)
	for _, r := range h.Regions {
		n += r.Bytes
	}
	return n
}

// Layout says which regions the heap has, and what of them is free.
func (h *Heap) Layout() string {
	var b strings.Builder
	for i, r := range h.Regions {
		fmt.Fprintf(&b, "region %d of %d bytes, free %s; ", i, r.Bytes, r.FreeText())
	}
	return b.String()
}

// Place says where an address is, in words that are the same for all heaps that were asked for the same.
func (h *Heap) Place(at nvlib.Ptr) string {
	for i, r := range h.Regions {
		if at >= r.Addr && at < r.Addr+nvlib.Ptr(r.Bytes) {
			return fmt.Sprintf("%d of region %d", at-r.Addr, i)
		}
	}
	return "an address of the host"
}
