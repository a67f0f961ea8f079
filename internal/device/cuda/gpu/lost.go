package gpu

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Fatal are the statuses after which a process cannot use a device again. The
// driver API's documentation of CUresult says so of most: "the process must be
// terminated and relaunched". Measured for 700 and 719 (driver 580.159, CUDA
// 13.0, H200): cuDevicePrimaryCtxReset and cuCtxDestroy return success, and the
// next cuDevicePrimaryCtxRetain or cuCtxCreate returns the same status again.
// Of 214, 220 and 999 it says nothing; what a device holds is then in doubt.
var Fatal = map[int]bool{
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
	810: true, // the MPS server ended the process as a client
	999: true, // unknown error
}

// IsFatal reports whether err is a status of Fatal.
func IsFatal(err error) bool { return err != nil && Fatal[nvlib.CUDACode(err)] }

// loss is why, where and since when a GPU is lost to this process. It unwraps
// to the driver's error but not to a *device.Fault: that is about one world's
// work, and the loss meets every later one.
type loss struct {
	gpu   *GPU
	since time.Time
	where string
	err   error
}

// Error names the GPU, the cause, and the way out.
func (l *loss) Error() string {
	return fmt.Sprintf("GPU %d, %s, was lost at %s (%s: %v); this process can no longer use the GPU: start a new process",
		l.gpu.Device, l.gpu.Name, l.since.Format(time.TimeOnly), l.where, l.err)
}

// Unwrap returns the cause.
func (l *loss) Unwrap() error { return l.err }

// Is reports whether target is device.ErrDeviceLost.
func (l *loss) Is(target error) bool { return target == device.ErrDeviceLost }

// Lose notes that g is lost if err means that, and reports whether it does. The
// first cause stays.
func (g *GPU) Lose(err error, where string) bool {
	if !IsFatal(err) {
		return false
	}
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), where, err})
	return true
}

// Hang gives g up because its work does not end: nothing stops a kernel but the
// end of the process.
func (g *GPU) Hang(patience time.Duration, where string) error {
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), where, fmt.Errorf("work still ran %v after its world was closed", patience)})
	return g.Lost.Load()
}

// LostTo is what g is lost to; nil while it can be used.
func (g *GPU) LostTo() error {
	if l := g.Lost.Load(); l != nil {
		return l
	}
	return nil
}

// Abandon notes that g is lost because a call of the driver has not returned.
func (g *GPU) Abandon(call string, waited time.Duration) error {
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), call, fmt.Errorf("the call has not returned for %v", waited.Round(time.Millisecond))})
	return g.Lost.Load()
}

// Unusable says why no world can be opened on g, after err.
func (g *GPU) Unusable(err error) error {
	if g.Lose(err, "while a world was opened") {
		return g.Lost.Load()
	}
	return fmt.Errorf("GPU %d, %s: %w", g.Device, g.Name, Explain(err))
}
