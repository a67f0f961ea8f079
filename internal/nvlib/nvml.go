package nvlib

import (
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

const nvmlLibrary = "NVML"

// NVML is the management library. NVML reports properties of devices, and hocket works without it.
type NVML struct {
	lib *cabi.Library
	f   nvmlFuncs
}

type nvmlFuncs struct {
	init, shutdown, errorString, driverVersion, handleByPCI cabi.Func
	nvlinkState, p2pStatus                                  cabi.Func
}

func (f *nvmlFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"nvmlInit_v2":                      &f.init,
		"nvmlShutdown":                     &f.shutdown,
		"nvmlErrorString":                  &f.errorString,
		"nvmlSystemGetDriverVersion":       &f.driverVersion,
		"nvmlDeviceGetHandleByPciBusId_v2": &f.handleByPCI,
		"nvmlDeviceGetNvLinkState":         &f.nvlinkState,
		"nvmlDeviceGetP2PStatus":           &f.p2pStatus,
	}
}

var wantNVML = want{
	library: "NVIDIA's management library libnvidia-ml", env: "HOCKET_LIBNVML",
	stem: "libnvidia-ml.so", versions: []string{".1"},
	help: "it comes with the NVIDIA driver",
}

// OpenNVML loads and starts libnvidia-ml. Close ends it.
func OpenNVML() (*NVML, error) {
	n := &NVML{}
	var err error
	if n.lib, err = wantNVML.load(n.f.table(), nil); err != nil {
		return nil, err
	}
	return n, n.check(n.f.init, "nvmlInit")
}

// NVMLOn is like OpenNVML, for a library that is already loaded.
func NVMLOn(lib *cabi.Library) (*NVML, error) {
	n := &NVML{lib: lib}
	if err := wantNVML.resolve(lib, n.f.table(), nil); err != nil {
		return nil, err
	}
	return n, n.check(n.f.init, "nvmlInit")
}

// Close ends the use of the library.
func (n *NVML) Close() error { return n.check(n.f.shutdown, "nvmlShutdown") }

// Loaded describes the loaded library. The version of NVML is that of the driver.
func (n *NVML) Loaded() Loaded {
	v, err := n.DriverVersion()
	if err != nil {
		v = "unknown: " + err.Error()
	}
	return Loaded{Name: "libnvidia-ml", Path: n.lib.Path("nvmlShutdown"), Version: "driver " + v}
}

//go:uintptrescapes
func (n *NVML) check(f cabi.Func, call string, args ...uintptr) error {
	if code := int32(f.CallPinned(args)); code != 0 {
		text := cabi.GoString(n.f.errorString.Call(uintptr(code)))
		return &Error{Library: nvmlLibrary, Call: call, Code: int(code), Text: text}
	}
	return nil
}

// DriverVersion returns the version of the driver, such as "580.159.04".
func (n *NVML) DriverVersion() (string, error) {
	var buf [96]byte
	err := n.check(n.f.driverVersion, "nvmlSystemGetDriverVersion", uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)))
	return cstring(buf[:]), err
}

// NVMLDevice is a device of NVML.
type NVMLDevice uintptr

// DeviceAt returns the device that has the given PCI bus id.
func (n *NVML) DeviceAt(pci string) (NVMLDevice, error) {
	var d NVMLDevice
	id := cabi.CString(pci)
	err := n.check(n.f.handleByPCI, "nvmlDeviceGetHandleByPciBusId", uintptr(unsafe.Pointer(&id[0])), uintptr(unsafe.Pointer(&d)))
	return d, err
}

// maxNVLinks is an upper limit of the number of NVLinks of a device.
const maxNVLinks = 36

// NVLinks returns how many NVLinks of the device are active.
func (n *NVML) NVLinks(d NVMLDevice) int {
	up := 0
	for link := range uintptr(maxNVLinks) {
		var state int32
		if n.check(n.f.nvlinkState, "nvmlDeviceGetNvLinkState", uintptr(d), link, uintptr(unsafe.Pointer(&state))) != nil {
			break
		}
		up += int(state)
	}
	return up
}

// PeerPath is a kind of connection between two devices.
type PeerPath int

// Connections between devices.
const (
	PeerRead   PeerPath = 0
	PeerWrite  PeerPath = 1
	PeerNVLink PeerPath = 2
)

// Peers reports whether a connection between two devices works.
func (n *NVML) Peers(a, b NVMLDevice, way PeerPath) (bool, error) {
	status, err := n.p2pStatus(a, b, way)
	return err == nil && status == 0, err
}

// p2pStatus returns the status of a connection, an nvmlGpuP2PStatus_t, which is 0 if the connection works.
func (n *NVML) p2pStatus(a, b NVMLDevice, way PeerPath) (status int32, err error) {
	err = n.check(n.f.p2pStatus, "nvmlDeviceGetP2PStatus", uintptr(a), uintptr(b), uintptr(way), uintptr(unsafe.Pointer(&status)))
	return status, err
}

// refusals maps statuses of p2pStatus to the reasons why a connection does not work.
var refusals = map[int32]string{
	1: "the chipset does not support peer access", 2: "a GPU does not support peer access", 3: "the GPUs are under different I/O hubs",
	4: "a registry key of the driver disables peer access", 5: "not supported",
}

// Refusal returns NVML's reason why the devices with two PCI bus ids cannot access each other's memory. The reason is
// empty if NVML knows none.
func (n *NVML) Refusal(pci, peer string) string {
	a, err := n.DeviceAt(pci)
	if err != nil {
		return ""
	}
	b, err := n.DeviceAt(peer)
	if err != nil {
		return ""
	}
	for _, way := range []PeerPath{PeerRead, PeerWrite} {
		status, err := n.p2pStatus(a, b, way)
		if why := refusals[status]; err == nil && why != "" {
			return why
		}
	}
	return ""
}
