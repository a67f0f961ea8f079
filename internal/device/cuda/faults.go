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
	copied   nvlib.Ptr // in pinned memory, to be read there: Sync must take none
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
		if f.copied, err = f.s.heaps[device.Pinned].Alloc(kernels.FaultBytes); err != nil {
			return err
		}
	}
	at, err := f.s.heaps[device.Private].Alloc(kernels.FaultBytes)
	if err != nil {
		return err
	}
	f.at = at
	drv := f.s.w.drv
	return errors.Join(drv.Fill8(at, 0, kernels.FaultBytes, 0), drv.SyncStream(0))
}

// readFaults ends the world if some kernel reported something. The devices are
// at rest. The caller holds mu.
func readFaults(w *world) {
	var first, told error
	for _, s := range w.sites {
		if f := &s.faults; f.armed || f.always {
			f.armed = false
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
	if told.Kind == kernels.FaultTimeout {
		why += "; " + w.m.opts.longer()
	}
	return told.Kind, &device.Fault{Rank: l.dev.rank, Stream: l.stream, ID: l.id, Err: errors.New(why)}
}
