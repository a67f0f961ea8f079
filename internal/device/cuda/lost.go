package cuda

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// fatal are the statuses after which a process cannot use a device again. The
// driver API's documentation of CUresult says so of most: "the process must be
// terminated and relaunched". Measured for 700 and 719 (driver 580.159, CUDA
// 13.0, H200): cuDevicePrimaryCtxReset and cuCtxDestroy return success, and the
// next cuDevicePrimaryCtxRetain or cuCtxCreate returns the same status again.
// Of 214, 220 and 999 it says nothing; what a device holds is then in doubt.
var fatal = map[int]bool{
	214: true, // uncorrectable ECC error
	220: true, // uncorrectable NVLink error
	226: true, // contained hardware error, or invalid access to a peer's memory
	700: true, // illegal address
	702: true, // launch timeout
	710: true, // assertion on the device
	714: true, // hardware stack error
	715: true, // illegal instruction
	716: true, // misaligned address
	717: true, // invalid address space
	718: true, // invalid program counter
	719: true, // launch failure: traps, among others
	721: true, // tensor memory not given back
	999: true, // unknown error
}

func isFatal(err error) bool { return err != nil && fatal[nvlib.CUDACode(err)] }

// loss is why, where and since when a GPU is lost to this process. It unwraps
// to the driver's error but not to a *device.Fault: that is about one world's
// work, and the loss meets every later one.
type loss struct {
	gpu   *gpu
	since time.Time
	where string
	err   error
}

func (l *loss) Error() string {
	return fmt.Sprintf("GPU %d, %s, is lost since %s (%s: %v); the CUDA driver gives this process no way to use the GPU again; start a new process",
		l.gpu.dev, l.gpu.name, l.since.Format(time.TimeOnly), l.where, l.err)
}

func (l *loss) Unwrap() error        { return l.err }
func (l *loss) Is(target error) bool { return target == device.ErrDeviceLost }

// lose notes that g is lost if err means that, and reports whether it does. The
// first cause stays.
func (g *gpu) lose(err error, where string) bool {
	if !isFatal(err) {
		return false
	}
	g.lost.CompareAndSwap(nil, &loss{g, time.Now(), where, err})
	return true
}

// hang gives g up because its work does not end: nothing stops a kernel but the
// end of the process.
func (g *gpu) hang(patience time.Duration, where string) error {
	g.lost.CompareAndSwap(nil, &loss{g, time.Now(), where, fmt.Errorf("work still ran %v after its world was closed", patience)})
	return g.lost.Load()
}

// unusable says why no world can be opened on g, after err.
func (g *gpu) unusable(err error) error {
	if g.lose(err, "while a world was opened") {
		return g.lost.Load()
	}
	return fmt.Errorf("GPU %d, %s: %w", g.dev, g.name, explain(err))
}

func (s *site) lost() bool { return s.gpu.lost.Load() != nil }

// excuse returns err, or nil where it only repeats that a GPU of the world is
// lost: so do other GPUs' calls about memory that they share with it.
func (w *world) excuse(err error) error {
	if !isFatal(err) {
		return err
	}
	for _, s := range w.sites {
		if s.lost() {
			return nil
		}
	}
	return err
}
