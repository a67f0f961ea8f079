package nvlib

import (
	"unsafe"
)

const (
	memTypePinned      = 1
	memLocationDevice  = 1
	memAccessReadWrite = 3
	memGranularityMin  = 0
	memHostPortable    = 1
	memHostDeviceMap   = 2
	memHandlePosixFD   = 1
	memoryTypeUnified  = 4
)

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind, handles int32
	location      memLocation
	win32         uintptr
	flags         uint64
}

type memLocation struct{ kind, id int32 }

// accessDesc is CUmemAccessDesc.
type accessDesc struct {
	location memLocation
	flags    int32
}

func onDevice(dev Device) allocationProp {
	return allocationProp{kind: memTypePinned, location: memLocation{memLocationDevice, int32(dev)}}
}

// MemInfo returns the free and the total memory of the current context's device in bytes.
func (d *Driver) MemInfo() (free, total int64, err error) {
	var f, t uint64
	err = d.check(d.f.memGetInfo, "cuMemGetInfo", uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t)))
	return int64(f), int64(t), err
}

// Granularity returns the number of which sizes for CreateMem must be a multiple.
func (d *Driver) Granularity(dev Device) (int64, error) {
	prop, n := onDevice(dev), uint64(0)
	err := d.check(d.f.memGetAllocationGranularity, "cuMemGetAllocationGranularity",
		uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&prop)), memGranularityMin)
	return int64(n), err
}

// CreateMem allocates memory of a device, without mapping it to an address. Exportable memory can be passed to other
// processes as a file descriptor; NCCL does this even between ranks of one process.
func (d *Driver) CreateMem(dev Device, bytes int64, exportable bool) (MemHandle, error) {
	prop := onDevice(dev)
	if exportable {
		prop.handles = memHandlePosixFD
	}
	var h MemHandle
	err := d.check(d.f.memCreate, "cuMemCreate", uintptr(unsafe.Pointer(&h)), uintptr(bytes),
		uintptr(unsafe.Pointer(&prop)), 0)
	return h, err
}

// ReleaseMem releases the handle; the memory is freed when it is also unmapped.
func (d *Driver) ReleaseMem(h MemHandle) error {
	return d.check(d.f.memRelease, "cuMemRelease", uintptr(h))
}

// ExportMem returns a file descriptor for exportable memory that other processes can import. The memory exists as long
// as any process has mapped it or has the descriptor.
func (d *Driver) ExportMem(h MemHandle) (fd int, err error) {
	var out int32
	err = d.check(d.f.memExportToShareableHandle, "cuMemExportToShareableHandle",
		uintptr(unsafe.Pointer(&out)), uintptr(h), memHandlePosixFD, 0)
	return int(out), err
}

// ImportMem imports memory that another process exported. The descriptor still belongs to the caller.
func (d *Driver) ImportMem(fd int) (MemHandle, error) {
	var h MemHandle
	err := d.check(d.f.memImportFromShareable, "cuMemImportFromShareableHandle",
		uintptr(unsafe.Pointer(&h)), uintptr(fd), memHandlePosixFD)
	return h, err
}

// ReserveAddresses reserves a range of addresses that starts at a multiple of align. If align is 0, the driver chooses
// the alignment.
func (d *Driver) ReserveAddresses(bytes, align int64) (Ptr, error) {
	var p Ptr
	err := d.check(d.f.memAddressReserve, "cuMemAddressReserve", uintptr(unsafe.Pointer(&p)), uintptr(bytes),
		uintptr(align), 0, 0)
	return p, err
}

// FreeAddresses frees a range of addresses.
func (d *Driver) FreeAddresses(p Ptr, bytes int64) error {
	return d.check(d.f.memAddressFree, "cuMemAddressFree", uintptr(p), uintptr(bytes))
}

// Map maps memory at addresses.
func (d *Driver) Map(p Ptr, bytes int64, h MemHandle) error {
	return d.check(d.f.memMap, "cuMemMap", uintptr(p), uintptr(bytes), 0, uintptr(h), 0)
}

// Unmap unmaps it.
func (d *Driver) Unmap(p Ptr, bytes int64) error {
	return d.check(d.f.memUnmap, "cuMemUnmap", uintptr(p), uintptr(bytes))
}

// SetAccess permits devices to read and write the memory at mapped addresses.
func (d *Driver) SetAccess(p Ptr, bytes int64, devs []Device) error {
	list := make([]accessDesc, len(devs))
	for i, dev := range devs {
		list[i] = accessDesc{memLocation{memLocationDevice, int32(dev)}, memAccessReadWrite}
	}
	return d.check(d.f.memSetAccess, "cuMemSetAccess", uintptr(p), uintptr(bytes), uintptr(unsafe.Pointer(&list[0])),
		uintptr(len(list)))
}

// pointerDeviceOrdinal is CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
const pointerDeviceOrdinal = 9

// DeviceOf returns the device that owns the memory at an address, regardless of the library that reserved the address.
// For pinned host memory it returns the device that mapped the memory first. It returns an error if the driver has no
// memory at the address.
func (d *Driver) DeviceOf(p Ptr) (Device, error) {
	var ordinal int32
	err := d.check(d.f.pointerGetAttribute, "cuPointerGetAttribute", uintptr(unsafe.Pointer(&ordinal)),
		pointerDeviceOrdinal,
		uintptr(p))
	return Device(ordinal), err
}

// KnowsDevices reports whether the driver has the function that DeviceOf needs.
func (d *Driver) KnowsDevices() bool { return d.f.pointerGetAttribute.Present() }

// HostAlloc allocates host memory that all devices can access at the same address. It needs a context.
func (d *Driver) HostAlloc(bytes int64) (Ptr, error) {
	var p Ptr
	err := d.check(d.f.memHostAlloc, "cuMemHostAlloc", uintptr(unsafe.Pointer(&p)), uintptr(bytes),
		memHostPortable|memHostDeviceMap)
	return p, err
}

// HostFree frees memory from HostAlloc.
func (d *Driver) HostFree(p Ptr) error { return d.check(d.f.memFreeHost, "cuMemFreeHost", uintptr(p)) }

// HostRegister gives all devices access to host memory that the driver did not allocate, at the same address. The
// memory must consist of whole pages. It needs a context.
func (d *Driver) HostRegister(p Ptr, bytes int64) error {
	return d.check(d.f.memHostRegister, "cuMemHostRegister", uintptr(p), uintptr(bytes),
		memHostPortable|memHostDeviceMap)
}

// HostUnregister undoes HostRegister.
func (d *Driver) HostUnregister(p Ptr) error {
	return d.check(d.f.memHostUnregister, "cuMemHostUnregister", uintptr(p))
}

// Copy enqueues a copy of bytes on stream s, between any two addresses of devices or pinned memory. It does not
// allocate.
func (d *Driver) Copy(dst, src Ptr, bytes int64, s Stream, args *[4]uintptr) error {
	*args = [4]uintptr{uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s)}
	return d.result("cuMemcpyAsync", d.call(d.f.memcpyAsync, args[:]))
}

// Rect describes a copy of Height rows of Width bytes. The pitches are the distances between rows in bytes.
type Rect struct {
	Dst, Src           Ptr
	DstPitch, SrcPitch int64
	Width, Height      int64
}

// memcpy2D is CUDA_MEMCPY2D.
type memcpy2D struct {
	srcX, srcY uint64
	srcType    int32
	_          int32
	srcHost    uintptr
	srcDevice  Ptr
	srcArray   uintptr
	srcPitch   uint64

	dstX, dstY uint64
	dstType    int32
	_          int32
	dstHost    uintptr
	dstDevice  Ptr
	dstArray   uintptr
	dstPitch   uint64

	width, height uint64
}

// CopyRect enqueues a copy of rows on stream s. The driver limits pitches (to 2 GiB on current devices). If the driver
// refuses the copy, no part of it is executed.
func (d *Driver) CopyRect(r Rect, s Stream) error {
	c := memcpy2D{
		srcType: memoryTypeUnified, srcDevice: r.Src, srcPitch: uint64(r.SrcPitch),
		dstType: memoryTypeUnified, dstDevice: r.Dst, dstPitch: uint64(r.DstPitch),
		width: uint64(r.Width), height: uint64(r.Height),
	}
	return d.check(d.f.memcpy2DAsync, "cuMemcpy2DAsync", uintptr(unsafe.Pointer(&c)), uintptr(s))
}

// Fill32 enqueues, on stream s, filling memory with n words of 32 bits.
func (d *Driver) Fill32(p Ptr, v uint32, n int64, s Stream) error {
	return d.check(d.f.memsetD32Async, "cuMemsetD32Async", uintptr(p), uintptr(v), uintptr(n), uintptr(s))
}

// Fill8 enqueues, on stream s, filling memory with n bytes.
func (d *Driver) Fill8(p Ptr, v byte, n int64, s Stream) error {
	return d.check(d.f.memsetD8Async, "cuMemsetD8Async", uintptr(p), uintptr(v), uintptr(n), uintptr(s))
}
