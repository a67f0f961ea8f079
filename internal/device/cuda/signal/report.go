// Package signal has memory by which kernels report and signal. A Report is where kernels of a GPU report errors in
// their data. A Board has flags that kernels of one GPU raise and kernels of another wait for, and lists of flags that
// a kernel raises together. Package cuda issues the kernels.
package signal

import (
	"errors"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Report is where kernels of a GPU that look at their data report what is wrong
// with it: the first report stays. The world's mutex guards it.
type Report struct {
	Armed  bool // a kernel that may report was launched since the last look
	Always bool // one may be launched by others

	drv    *nvlib.Driver
	heaps  *[3]*gpu.Heap
	at     nvlib.Ptr // in device memory; 0 until it is needed
	copied nvlib.Ptr // in pinned memory, to be read there: Sync must take none; behind it is the bell
	tags   uint64
}

// NewReport returns one that takes its memory from heaps when it is needed.
func NewReport(drv *nvlib.Driver, heaps *[3]*gpu.Heap) *Report {
	return &Report{drv: drv, heaps: heaps}
}

// At is its address; 0 before it is open.
func (r *Report) At() nvlib.Ptr { return r.at }

// Reserve returns the address to report to, and the next tag, from 0. The context is current.
func (r *Report) Reserve() (nvlib.Ptr, uint64, error) {
	if err := r.Open(); err != nil {
		return 0, 0, err
	}
	r.tags++
	return r.at, r.tags - 1, nil
}

// Open makes room for a report, and to read it. The context is current.
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

// bellBytes is the size of a bell.
const bellBytes = 8

// bell is the word of host memory that is set when something was reported, so that a run
// which ends well costs no call of the driver.
func (r *Report) bell() nvlib.Ptr { return r.copied + kernels.FaultBytes }

// Rang reports whether something was reported. The device is at rest.
func (r *Report) Rang() bool {
	if !r.Armed && !r.Always {
		return false
	}
	r.Armed = false
	return cabi.LoadAtomic(uintptr(r.bell())) != 0
}

// Read returns the report; false if there is none. The device must be idle, and the context current.
func (r *Report) Read() (kernels.Fault, bool, error) {
	var args [4]uintptr
	if err := errors.Join(r.drv.Copy(r.copied, r.at, kernels.FaultBytes, 0, &args), r.drv.SyncStream(0)); err != nil {
		return kernels.Fault{}, false, err
	}
	told, ok := kernels.ReadFault(cabi.Bytes(uintptr(r.copied), kernels.FaultBytes))
	return told, ok, nil
}
