package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// naming has a profiler show work by the names of the marks that it was issued in.
type naming struct {
	nvtx  *nvlib.NVTX
	names func(id int64) string
}

// Profile begins or ends the range that a profiler captures. Without NVTX's library work has no names there.
func (w *world) Profile(names func(id int64) string) error {
	if !w.drv.Profiles() {
		return fmt.Errorf("the driver has no range of a profiler: %w", device.ErrUnsupported)
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

// begin has the profiler call what this thread issues by a mark's name, until end. The goroutine is locked to its
// thread.
func (n *naming) begin(id int64) { n.nvtx.Push(n.names(id)) }

func (n *naming) end() { n.nvtx.Pop() }
