package cuda

import (
	"errors"

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
	armed    bool      // a kernel that may report was launched since the last look
	launches []*launch // by tag
}

// reserve gives a launch an address to report to, and its tag. The context is
// current.
func (f *faults) reserve(l *launch) (nvlib.Ptr, uint64, error) {
	if f.at == 0 {
		at, err := f.s.heaps[device.Private].take(kernels.FaultBytes)
		if err != nil {
			return 0, 0, err
		}
		drv := f.s.w.drv
		if err := errors.Join(drv.Fill8(at, 0, kernels.FaultBytes, 0), drv.SyncStream(0)); err != nil {
			return 0, 0, err
		}
		f.at = at
	}
	l.looked = true
	f.launches = append(f.launches, l)
	return f.at, uint64(len(f.launches) - 1), nil
}

// readFaults ends the world if some kernel reported something. The devices are
// at rest. The caller holds mu.
func (w *world) readFaults() {
	for _, s := range w.sites {
		if f := &s.faults; f.armed {
			f.armed = false
			if err := f.read(); err != nil && w.cause == nil {
				w.end(err)
			}
		}
	}
}

func (f *faults) read() error {
	w := f.s.w
	if err := w.drv.Bind(f.s.ctx); err != nil {
		return err
	}
	defer w.drv.Unbind()
	buf, err := f.s.heaps[device.Pinned].take(kernels.FaultBytes)
	if err != nil {
		return err
	}
	var args [4]uintptr
	if err := errors.Join(w.drv.Copy(buf, f.at, kernels.FaultBytes, 0, &args), w.drv.SyncStream(0)); err != nil {
		return err
	}
	told, ok := kernels.ReadFault(cabi.Bytes(uintptr(buf), kernels.FaultBytes))
	if err := f.s.heaps[device.Pinned].give(buf, kernels.FaultBytes); err != nil || !ok {
		return err
	}
	l := f.launches[told.Tag]
	return &device.Fault{Rank: l.dev.rank, Stream: l.stream, ID: l.id, Err: errors.New(told.String())}
}
