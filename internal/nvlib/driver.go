package nvlib

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

// Handles of the driver API, and device pointers.
type (
	Ptr       uint64 // an address in device memory or in pinned host memory
	Device    int32  // the number of a device
	Context   uintptr
	Stream    uintptr
	Event     uintptr
	Module    uintptr
	Function  uintptr
	Graph     uintptr
	GraphExec uintptr
	MemHandle uint64
)

// Statuses of the driver API that callers of this package distinguish.
const (
	cudaLibrary = "CUDA"

	CUDAOutOfMemory  = 2
	CUDANoDevice     = 100
	CUDAInvalidValue = 1
	CUDAInvalidImage = 200
	CUDANotReady     = 600
)

// CUDACode returns the status of the driver in err, or 0 if there is none.
func CUDACode(err error) int { return Code(err, cudaLibrary) }

// Driver is the CUDA driver API. The methods of a Driver may be called from any goroutine. Methods that need a current
// context say so.
type Driver struct {
	lib   *cabi.Library
	f     driverFuncs
	watch atomic.Pointer[Watch] // monitors the calls of the owner; nil if none does
}

// Watched returns the driver for another owner, whose calls the Watch w monitors.
func (d *Driver) Watched(w *Watch) *Driver {
	v := &Driver{lib: d.lib, f: d.f}
	v.watch.Store(w)
	return v
}

// Lend makes the Watch w monitor all calls from now on. If w is nil, calls are not monitored. Only one owner at a time
// may use the driver.
func (d *Driver) Lend(w *Watch) { d.watch.Store(w) }

// Watch returns the Watch that monitors the calls, or nil.
func (d *Driver) Watch() *Watch { return d.watch.Load() }

// call makes the call f of the library, which the driver's Watch monitors.
func (d *Driver) call(f cabi.Func, args []uintptr) uintptr { return d.watch.Load().Call(f, args) }

var wantDriver = want{
	library: "the NVIDIA driver's library libcuda", env: "HOCKET_LIBCUDA",
	stem: "libcuda.so", versions: []string{".1"},
	help: "install the NVIDIA driver (in a container: start it with GPU access)",
}

// OpenDriver loads and initialises libcuda.
func OpenDriver() (*Driver, error) {
	d := &Driver{}
	lib, err := wantDriver.load(d.f.table(), d.f.optional())
	if err != nil {
		return nil, err
	}
	d.lib = lib
	return d, d.check(d.f.init, "cuInit", 0)
}

// DriverOn is like OpenDriver, for a library that is already loaded.
func DriverOn(lib *cabi.Library) (*Driver, error) {
	d := &Driver{lib: lib}
	if err := wantDriver.resolve(lib, d.f.table(), d.f.optional()); err != nil {
		return nil, err
	}
	return d, d.check(d.f.init, "cuInit", 0)
}

// Loaded describes the loaded library.
func (d *Driver) Loaded() Loaded {
	v, err := d.Version()
	version := fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10)
	if err != nil {
		version = "unknown: " + err.Error()
	}
	return Loaded{Name: "libcuda", Path: d.lib.Path("cuInit"), Version: version}
}

// result converts the status of a call to an error.
func (d *Driver) result(call string, status uintptr) error {
	if int32(status) == 0 {
		return nil
	}
	return d.failure(call, int32(status))
}

func (d *Driver) failure(call string, code int32) error {
	var p uintptr
	text := ""
	if int32(d.f.getErrorName.Call(uintptr(code), uintptr(unsafe.Pointer(&p)))) == 0 {
		text = cabi.GoString(p)
	}
	if int32(d.f.getErrorString.Call(uintptr(code), uintptr(unsafe.Pointer(&p)))) == 0 {
		text += ", " + cabi.GoString(p)
	}
	return &Error{Library: cudaLibrary, Call: call, Code: int(code), Text: text}
}

// check makes a call of the driver and converts its status to an error.
//
//go:uintptrescapes
func (d *Driver) check(f cabi.Func, name string, args ...uintptr) error {
	return d.result(name, d.call(f, args))
}

// Version returns the CUDA version that the driver supports: 13000 for 13.0.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.check(d.f.driverGetVersion, "cuDriverGetVersion", uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// DeviceCount returns the number of devices.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.check(d.f.deviceGetCount, "cuDeviceGetCount", uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Device returns the device with the given number.
func (d *Driver) Device(ordinal int) (Device, error) {
	var dev Device
	err := d.check(d.f.deviceGet, "cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, err
}

// DeviceName returns the product name of the device.
func (d *Driver) DeviceName(dev Device) (string, error) {
	var buf [128]byte
	err := d.check(d.f.deviceGetName, "cuDeviceGetName", uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)), uintptr(dev))
	return cstring(buf[:]), err
}

// DevicePCI returns the PCI bus id of the device, such as "0000:1B:00.0".
func (d *Driver) DevicePCI(dev Device) (string, error) {
	var buf [32]byte
	err := d.check(d.f.deviceGetPCIBusID, "cuDeviceGetPCIBusId", uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)), uintptr(dev))
	return cstring(buf[:]), err
}

func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// DeviceMemory returns the size of the device's memory in bytes.
func (d *Driver) DeviceMemory(dev Device) (int64, error) {
	var n uint64
	err := d.check(d.f.deviceTotalMem, "cuDeviceTotalMem", uintptr(unsafe.Pointer(&n)), uintptr(dev))
	return int64(n), err
}

// Attribute is the number of a property of devices.
type Attribute int32

// Attributes that hocket uses.
const (
	MultiprocessorCount     Attribute = 16
	ComputeCapabilityMajor  Attribute = 75
	ComputeCapabilityMinor  Attribute = 76
	SharedMemoryOfBlock     Attribute = 97 // shared memory of a thread block that a launch can request, in bytes
	VirtualMemoryManagement Attribute = 102
)

// DeviceAttribute returns a property of the device.
func (d *Driver) DeviceAttribute(dev Device, a Attribute) (int, error) {
	var v int32
	err := d.check(d.f.deviceGetAttribute, "cuDeviceGetAttribute", uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev))
	return int(v), err
}

// CanAccessPeer reports whether the device dev can access the memory of the device peer.
func (d *Driver) CanAccessPeer(dev, peer Device) (bool, error) {
	var v int32
	err := d.check(d.f.deviceCanAccessPeer, "cuDeviceCanAccessPeer", uintptr(unsafe.Pointer(&v)), uintptr(dev), uintptr(peer))
	return v != 0, err
}

// peerAtomics is CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED.
const peerAtomics = 3

// PeerAtomics reports whether dev can run atomic operations on the memory of peer. Devices that are connected by NVLink
// can.
func (d *Driver) PeerAtomics(dev, peer Device) (bool, error) {
	if !d.f.deviceGetP2PAttribute.Present() {
		return false, nil
	}
	var v int32
	err := d.check(d.f.deviceGetP2PAttribute, "cuDeviceGetP2PAttribute", uintptr(unsafe.Pointer(&v)), peerAtomics, uintptr(dev), uintptr(peer))
	return v != 0, err
}

// RetainPrimary creates the primary context of the device, or adds a reference to it.
func (d *Driver) RetainPrimary(dev Device) (Context, error) {
	var c Context
	err := d.check(d.f.primaryCtxRetain, "cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&c)), uintptr(dev))
	return c, err
}

// Bind makes the context c current on the thread of the goroutine, and locks the goroutine to that thread until it
// calls Unbind. Calls that need a current context must be made between Bind and Unbind.
func (d *Driver) Bind(c Context) error {
	runtime.LockOSThread()
	if w := d.watch.Load(); w != nil {
		w.ctx.Store(uintptr(c))
	}
	if err := d.check(d.f.ctxSetCurrent, "cuCtxSetCurrent", uintptr(c)); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

// Unbind releases the thread that Bind locked.
func (d *Driver) Unbind() { runtime.UnlockOSThread() }

// Keep saves the current context, and returns a function that makes it current again. It is for C threads that call Go,
// because Bind changes the current context of the thread.
func (d *Driver) Keep() (restore func()) {
	runtime.LockOSThread()
	var c Context
	code := d.f.ctxGetCurrent.Call(uintptr(unsafe.Pointer(&c)))
	return func() {
		if code == 0 {
			d.f.ctxSetCurrent.Call(uintptr(c))
		}
		runtime.UnlockOSThread()
	}
}

// Visit calls f while the context c is current, for calls on a thread of C, whose current context must not change. If c
// is current already and f succeeds, it makes one call of the driver. If the driver cannot return the current context,
// the context c stays current.
func (d *Driver) Visit(c Context, f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if w := d.watch.Load(); w != nil {
		w.ctx.Store(uintptr(c))
	}
	own := c
	get := d.check(d.f.ctxGetCurrent, "cuCtxGetCurrent", uintptr(unsafe.Pointer(&own)))
	if get != nil || own != c {
		if get != nil {
			own = c
		}
		if err := d.check(d.f.ctxSetCurrent, "cuCtxSetCurrent", uintptr(c)); err != nil {
			return err
		}
	}
	returned := false
	defer func() {
		if own != c || !returned || err != nil { // a call that fails may have made another context current
			_ = d.check(d.f.ctxSetCurrent, "cuCtxSetCurrent", uintptr(own)) // it was current before
		}
	}()
	err = f()
	returned = true
	return err
}

// StreamPriorities returns the numbers of the lowest and the highest priority. It needs a context.
func (d *Driver) StreamPriorities() (least, greatest int, err error) {
	var l, g int32
	err = d.check(d.f.ctxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", uintptr(unsafe.Pointer(&l)), uintptr(unsafe.Pointer(&g)))
	return int(l), int(g), err
}
