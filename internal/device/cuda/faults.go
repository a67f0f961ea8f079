package cuda

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// faults is where kernels of a GPU that look at their data report what is wrong
// with it: the first report stays.
type faults struct {
	s        *site
	at       nvlib.Ptr // in device memory; 0 until it is needed
	copied   nvlib.Ptr // in pinned memory, to be read there: Sync must take none; behind it is the bell
	armed    bool      // a kernel that may report was launched since the last look
	always   bool      // one may be launched by others
	launches []*launch // by tag
}

// reserve gives a launch an address to report to, and its tag. The context is
// current.
func (f *faults) reserve(l *launch) (nvlib.Ptr, uint64, error) {
	if err := f.open(); err != nil {
		return 0, 0, err
	}
	l.looked = true
	f.launches = append(f.launches, l)
	return f.at, uint64(len(f.launches) - 1), nil
}

// open makes room for a report, and to read it. The context is current.
func (f *faults) open() error {
	if f.at != 0 {
		return nil
	}
	var err error
	if f.copied == 0 {
		if f.copied, err = f.s.heaps[device.Pinned].Alloc(kernels.FaultBytes + bellBytes); err != nil {
			return err
		}
		cabi.Store(uintptr(f.bell()), uint64(0))
	}
	at, err := f.s.heaps[device.Private].Alloc(kernels.FaultBytes)
	if err != nil {
		return err
	}
	f.at = at
	drv, bell := f.s.w.drv, uint64(f.bell())
	return errors.Join(drv.Fill8(at, 0, kernels.FaultBytes, 0), drv.Fill32(at+kernels.FaultBell, uint32(bell), 1, 0),
		drv.Fill32(at+kernels.FaultBell+4, uint32(bell>>32), 1, 0), drv.SyncStream(0))
}

// bellBytes is the size of a bell.
const bellBytes = 8

// bell is the word of host memory that is set when something was reported, so that a run
// which ends well costs no call of the driver.
func (f *faults) bell() nvlib.Ptr { return f.copied + kernels.FaultBytes }

// readFaults ends the world if some kernel reported something. The devices are
// at rest. The caller holds mu.
func readFaults(w *world) {
	var first, told error
	for _, s := range w.sites {
		if f := &s.faults; f.armed || f.always {
			f.armed = false
			if cabi.LoadAtomic(uintptr(f.bell())) == 0 {
				continue
			}
			kind, err := f.read()
			switch {
			case err == nil:
			case kind == kernels.FaultAborted: // by another's, which says more
				told = err
			case first == nil:
				first = err
			}
		}
	}
	if first == nil {
		first = told
	}
	if first != nil && w.cause == nil {
		w.end(first)
	}
}

func (f *faults) read() (kernels.FaultKind, error) {
	w := f.s.w
	if err := w.drv.Bind(f.s.ctx); err != nil {
		return 0, err
	}
	defer w.drv.Unbind()
	var args [4]uintptr
	if err := errors.Join(w.drv.Copy(f.copied, f.at, kernels.FaultBytes, 0, &args), w.drv.SyncStream(0)); err != nil {
		return 0, err
	}
	told, ok := kernels.ReadFault(cabi.Bytes(uintptr(f.copied), kernels.FaultBytes))
	if !ok {
		return 0, nil
	}
	l := f.launches[told.Tag]
	why := fmt.Sprintf("%s: %s", l.name, told)
	fault := &device.Fault{Rank: l.dev.rank, Stream: l.stream, ID: l.id}
	if told.Kind == kernels.FaultTimeout {
		why += "; " + w.m.opts.longer()
	}
	if fault.Err = errors.New(why); told.Kind == kernels.FaultTimeout && w.peers != nil {
		if late := w.peers.Late(); late >= 0 {
			return told.Kind, w.blame(fault, late)
		}
	}
	return told.Kind, fault
}
