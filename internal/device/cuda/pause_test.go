package cuda

import (
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestSyncSoon checks that Sync returns soon after the end of an execution, within a fraction of its time. The test
// uses the best of several measurements, over up to a minute, because the CPUs may be busy with other work.
func TestSyncSoon(t *testing.T) {
	f := fakedriver.New(t, 1)
	var end time.Time
	table := f.Calls()
	table["cuStreamQuery"] = func([]uintptr) uintptr {
		if time.Now().Before(end) {
			return nvlib.CUDANotReady
		}
		return 0
	}
	drv, err := nvlib.DriverOn(cabi.Fake("slow libcuda", table))
	must := mustOf(t)
	must(err)
	sys, err := process.New(drv, nil)
	must(err)
	w, s := streamed(t, newMachine(sys, Options{Kernels: f}), 1, "main")
	mem, err := w.Device(0).Alloc(64, device.Shared)
	must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
	l, err := w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{v}})
	must(err)
	for _, takes := range []time.Duration{20 * time.Microsecond, 300 * time.Microsecond, 1300 * time.Microsecond, 3 * time.Millisecond} {
		best, soon := time.Hour, takes/8+200*time.Microsecond
		for tried := time.Now(); best > soon && time.Since(tried) < time.Minute; {
			must(s[0].Launch(l))
			end = time.Now().Add(takes)
			must(w.Sync(t.Context()))
			best = min(best, time.Since(end))
		}
		if best > soon {
			t.Errorf("the end of an execution of %v was noticed %v later, at best", takes, best)
		}
	}
	must(w.Close())
}
