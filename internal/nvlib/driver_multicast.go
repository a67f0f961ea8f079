package nvlib

import (
	"fmt"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

// Multicast objects combine memory of several devices under one address for the multimem instructions of kernels. A
// load from this address returns the sum of the devices' values, which the NVLink switches compute. A store to this
// address is distributed to all devices. All functions are optional, because drivers provide them only since CUDA
// 12.1.

// MulticastSupported is the attribute of devices that reports whether their memory can be part of a multicast object.
const MulticastSupported Attribute = 132

// multicastProp is CUmulticastObjectProp.
type multicastProp struct {
	devices uint32
	_       uint32
	bytes   uint64
	handles uint64 // the kinds of handles that other processes can import
	flags   uint64
}

// multicastGranularityMin is CU_MULTICAST_GRANULARITY_MINIMUM.
const multicastGranularityMin = 0

// HasMulticast returns an error that names the function for multicast objects that the driver lacks, or nil.
func (d *Driver) HasMulticast() error {
	for _, f := range []struct {
		name string
		f    cabi.Func
	}{
		{"cuMulticastCreate", d.f.multicastCreate}, {"cuMulticastAddDevice", d.f.multicastAddDevice}, {"cuMulticastBindMem", d.f.multicastBindMem},
		{"cuMulticastUnbind", d.f.multicastUnbind}, {"cuMulticastGetGranularity", d.f.multicastGetGranularity},
	} {
		if !f.f.Present() {
			return fmt.Errorf("the driver has no %s; drivers for CUDA 12.1 and newer do", f.name)
		}
	}
	return nil
}

// MulticastGranularity returns the number of which the size and the address of a multicast object for the given number
// of devices must be a multiple.
func (d *Driver) MulticastGranularity(devices int, bytes int64) (int64, error) {
	prop, n := multicastProp{devices: uint32(devices), bytes: uint64(bytes)}, uint64(0)
	err := d.check(d.f.multicastGetGranularity, "cuMulticastGetGranularity",
		uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&prop)), multicastGranularityMin)
	return int64(n), err
}

// CreateMulticast creates a multicast object for the given number of bytes on each of the given number of devices. The
// object is mapped like memory and released by ReleaseMem.
func (d *Driver) CreateMulticast(devices int, bytes int64) (MemHandle, error) {
	prop := multicastProp{devices: uint32(devices), bytes: uint64(bytes)}
	var h MemHandle
	err := d.check(d.f.multicastCreate, "cuMulticastCreate", uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&prop)))
	return h, err
}

// AddToMulticast adds a device to a multicast object. All devices must be added before memory is bound.
func (d *Driver) AddToMulticast(object MemHandle, dev Device) error {
	return d.check(d.f.multicastAddDevice, "cuMulticastAddDevice", uintptr(object), uintptr(dev))
}

// BindMulticast binds memory of one of the devices to the object.
func (d *Driver) BindMulticast(object, mem MemHandle, bytes int64) error {
	return d.check(d.f.multicastBindMem, "cuMulticastBindMem", uintptr(object), 0, uintptr(mem), 0, uintptr(bytes), 0)
}

// UnbindMulticast removes the memory of a device from the object. No work may be using this memory.
func (d *Driver) UnbindMulticast(object MemHandle, dev Device, bytes int64) error {
	return d.check(d.f.multicastUnbind, "cuMulticastUnbind", uintptr(object), uintptr(dev), 0, uintptr(bytes))
}
