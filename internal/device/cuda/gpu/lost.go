package gpu

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Fatal is the set of CUDA statuses after which a process cannot use a device again. For most of these statuses, the
// documentation of CUresult in the driver API says: "the process must be terminated and relaunched". A test confirmed
// this for statuses 700 and 719 (driver 580.159, CUDA 13.0, H200): cuDevicePrimaryCtxReset and cuCtxDestroy returned
// success, but the next cuDevicePrimaryCtxRetain or cuCtxCreate returned the same status again. For statuses 214, 220
// and 999 the documentation makes no statement, but the contents of device memory may be wrong.
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
	721: true, // tensor memory not freed
	810: true, // the MPS server terminated the process as a client
	999: true, // unknown error
}

// IsFatal reports whether err is a status of Fatal.
func IsFatal(err error) bool { return err != nil && Fatal[nvlib.CUDACode(err)] }

// loss describes how this process lost a GPU: the cause, the place and the time. Its method Unwrap returns the driver's
// error but no *device.Fault, because a fault concerns one world's work, whereas a loss affects all later worlds.
type loss struct {
	gpu   *GPU
	since time.Time
	where string
	err   error
}

func (l *loss) Error() string {
	return fmt.Sprintf("GPU %d, %s, was lost at %s (%s: %v); this process can no longer use the GPU: start a new process",
		l.gpu.Device, l.gpu.Name, l.since.Format(time.TimeOnly), l.where, l.err)
}

func (l *loss) Unwrap() error { return l.err }

// Is reports whether target is device.ErrDeviceLost.
func (l *loss) Is(target error) bool { return target == device.ErrDeviceLost }

// Lose marks g as lost if err is fatal, and reports whether err is fatal. If g is lost already, the first cause stays
// recorded.
func (g *GPU) Lose(err error, where string) bool {
	if !IsFatal(err) {
		return false
	}
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), where, err})
	return true
}

// Hang marks g as lost because its work does not end. A running kernel can be stopped only by ending the process.
func (g *GPU) Hang(patience time.Duration, where string) error {
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), where, fmt.Errorf("work still ran %v after its world was closed", patience)})
	return g.Lost.Load()
}

// LostTo returns the reason why g is lost; nil while the GPU can be used.
func (g *GPU) LostTo() error {
	if l := g.Lost.Load(); l != nil {
		return l
	}
	return nil
}

// Abandon marks g as lost because a driver call has not returned.
func (g *GPU) Abandon(call string, waited time.Duration) error {
	g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), call, fmt.Errorf("the call has not returned for %v", waited.Round(time.Millisecond))})
	return g.Lost.Load()
}

// Unusable returns the error for a world that cannot be opened on g because opening failed with err.
func (g *GPU) Unusable(err error) error {
	if g.Lose(err, "while a world was opened") {
		return g.Lost.Load()
	}
	return fmt.Errorf("GPU %d, %s: %w", g.Device, g.Name, Explain(err))
}
