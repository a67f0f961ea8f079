package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// readFaults ends the world if a kernel has reported a fault. All devices must be idle. The caller holds mu.
func readFaults(w *world) {
	var first, told error
	for _, s := range w.sites {
		if !s.report.Rang() {
			continue
		}
		kind, err := readFault(s)
		switch {
		case err == nil:
		case kind == kernels.FaultAborted: // another kernel's fault stopped this one, and its report is more precise
			told = err
		case first == nil:
			first = err
		}
	}
	if first == nil {
		first = told
	}
	if first != nil && w.cause == nil {
		w.end(first)
	}
}

// readFault returns the fault that a kernel on the GPU has reported.
func readFault(s *site) (kernels.FaultKind, error) {
	w := s.w
	var told kernels.Fault
	var ok bool
	err := s.bound(func() (err error) {
		told, ok, err = s.report.Read()
		return err
	})
	if err != nil || !ok {
		return 0, err
	}
	l := s.reporters[told.Tag]
	why := fmt.Sprintf("%s: %s", l.name, told)
	fault := &device.Fault{Rank: l.dev.rank, Stream: l.stream, ID: l.id}
	if told.Kind == kernels.FaultTimeout {
		why += "; " + w.m.opts.longer()
	}
	if fault.Err = told.Err(why); told.Kind == kernels.FaultTimeout && w.peers != nil {
		if late := w.peers.Late(); late >= 0 {
			return told.Kind, w.blame(fault, late)
		}
	}
	return told.Kind, fault
}
