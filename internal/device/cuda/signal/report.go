// Package signal manages memory through which kernels report errors and signal each other. Kernels write errors that
// they find in their data to the Report of their GPU. A Board holds flags that kernels of one GPU raise and for which
// kernels of another GPU wait. It also holds lists of flags that a kernel raises together. Package cuda issues the
// kernels.
package signal

import (
	"errors"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Report is memory in which kernels of a GPU that check their data report errors. Only the first error is recorded.
// The world's mutex guards it.
type Report struct {
	Armed  bool // Armed: a kernel that may report an error was launched after the last call of Rang
	Always bool // Always: such a kernel may be launched at any time, without notice

	drv    *nvlib.Driver
	heaps  *[3]*gpu.Heap
	at     nvlib.Ptr // address of the record in device memory; 0 until it is needed
	copied nvlib.Ptr // address of pinned memory, allocated in advance for Sync: a buffer for Read, then the bell
	tags   uint64
}

// NewReport returns a report that allocates memory from heaps when it is first needed.
func NewReport(drv *nvlib.Driver, heaps *[3]*gpu.Heap) *Report {
	return &Report{drv: drv, heaps: heaps}
}

// At returns the report's address in device memory; 0 before Open.
func (r *Report) At() nvlib.Ptr { return r.at }

// Reserve returns the address at which a kernel reports errors, and the tag that identifies the kernel. Tags count from
// 0. The context is current.
func (r *Report) Reserve() (nvlib.Ptr, uint64, error) {
	if err := r.Open(); err != nil {
		return 0, 0, err
	}
	r.tags++
	return r.at, r.tags - 1, nil
}

// Open allocates the memory of the report unless it is allocated already. The context is current.
func (r *Report) Open() error {
	if r.at != 0 {
		return nil
	}
	var err error
	if r.copied == 0 {
		if r.copied, err = r.heaps[device.Pinned].Alloc(kernels.FaultBytes + bellBytes); err != nil {
			return err
		}
		cabi.Store(uintptr(r.bell()), uint64(0))
	}
	at, err := r.heaps[device.Private].Alloc(kernels.FaultBytes)
	if err != nil {
		return err
	}
	r.at = at
	bell := uint64(r.bell())
	return errors.Join(r.drv.Fill8(at, 0, kernels.FaultBytes, 0), SetWord(r.drv, at+kernels.FaultBell, bell))
}

const bellBytes = 8

// bell returns the address of the bell: a word in host memory that kernels set when they report an error. The host can
// thus check for errors without a driver call.
func (r *Report) bell() nvlib.Ptr { return r.copied + kernels.FaultBytes }

// Rang reports whether a kernel has reported an error, as far as the bell shows. The device is idle.
func (r *Report) Rang() bool {
	if !r.Armed && !r.Always {
		return false
	}
	r.Armed = false
	return cabi.LoadAtomic(uintptr(r.bell())) != 0
}

// Read returns the reported error; false if there is none. The device must be idle, and the context current.
func (r *Report) Read() (kernels.Fault, bool, error) {
	var args [4]uintptr
	if err := errors.Join(r.drv.Copy(r.copied, r.at, kernels.FaultBytes, 0, &args), r.drv.SyncStream(0)); err != nil {
		return kernels.Fault{}, false, err
	}
	told, ok := kernels.ReadFault(cabi.Bytes(uintptr(r.copied), kernels.FaultBytes))
	return told, ok, nil
}
