package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// naming labels work for a profiler with the names of the marks (commands) within which the work was issued. The labels
// are NVTX ranges.
type naming struct {
	nvtx  *nvlib.NVTX
	names func(id int64) string
}

// Profile begins or ends the range that a profiler captures. If the NVTX library is missing, work is not labelled.
func (w *world) Profile(names func(id int64) string) error {
	if !w.drv.Profiles() {
		return fmt.Errorf("cannot begin or end the range of a profiler: %w", device.ErrUnsupported)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return err
	}
	if err := w.drv.Bind(w.sites[0].ctx); err != nil {
		return err
	}
	defer w.drv.Unbind()
	if names == nil {
		w.naming = nil
		return w.drv.StopProfiler()
	}
	if nvtx, err := w.m.sys.NVTX(); err == nil {
		w.naming = &naming{nvtx, names}
	}
	return w.drv.StartProfiler()
}

// begin labels the work that this thread issues with the name of a mark, until the caller calls the returned function.
// Until then, the goroutine is locked to its thread.
func (n *naming) begin(id int64) (end func()) {
	n.nvtx.Push(n.names(id))
	return n.nvtx.Pop
}
