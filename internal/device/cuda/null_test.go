package cuda

import (
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// nullDriver is a fake driver in which calls that issue work do nothing, at no cost. Measurements with it show the cost
// of the machine itself. The field binds counts how often a context was made current, the only call that the fake still
// handles.
func nullDriver(tb testing.TB, f *fakedriver.GPU, binds *int) *process.Shared {
	tb.Helper()
	table := f.Calls()
	for _, name := range []string{"cuLaunchKernel", "cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuStreamQuery"} {
		table[name] = func([]uintptr) uintptr { return 0 }
	}
	bind := table["cuCtxSetCurrent"]
	table["cuCtxSetCurrent"] = func(a []uintptr) uintptr {
		*binds++
		return bind(a)
	}
	drv, err := nvlib.DriverOn(cabi.Fake("null libcuda", table))
	if err != nil {
		tb.Fatal(err)
	}
	sys, err := process.New(drv, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return sys
}

// nullLine returns a world on nullDriver, with so many launches that none is in a CPU cache when it is issued again.
func nullLine(tb testing.TB) (w device.World, binds *int, issue map[string]func(i int)) {
	tb.Helper()
	f := fakedriver.New(tb, 2)
	must := mustOf(tb)
	binds = new(int)
	w, s := streamed(tb, newMachine(nullDriver(tb, f, binds), Options{Kernels: f}), 2, "main")
	var err error
	var c [2]device.Counters
	for r := range s {
		c[r], err = w.Device(r).NewCounters(1)
		must(err)
	}
	mem, err := w.Device(0).Alloc(64, device.Shared)
	must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
	launches := make([]device.Launch, 1000)
	for i := range launches {
		launches[i], err = w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{v}})
		must(err)
	}
	return w, binds, map[string]func(i int){
		"kernel": func(i int) {
			must(s[0].Begin(int64(i)))
			must(s[0].Launch(launches[i%len(launches)]))
			must(s[0].End(int64(i)))
		},
		"edge": func(i int) {
			from, to := i%2, 1-i%2
			must(s[from].Begin(int64(2 * i)))
			must(s[from].Signal(c[to], 0, 1))
			must(s[from].End(int64(2 * i)))
			must(s[to].Begin(int64(2*i + 1)))
			must(s[to].WaitCounter(c[to], 0, int64(i/2+1)))
			must(s[to].End(int64(2*i + 1)))
		},
	}
}

// TestIssueCalls limits how much the host does for issuing in addition to the driver calls for the work. An operation
// makes a context current once for each of its streams, which takes a tenth of the time of a launch. Marks make a
// context current only if they need an event. Issuing allocates almost nothing.
func TestIssueCalls(t *testing.T) {
	for name, most := range map[string]struct {
		binds  float64 // number of calls that make a context current per operation, not counting marks with events
		allocs float64
	}{"kernel": {1, 1}, "edge": {2, 6}} {
		t.Run(name, func(t *testing.T) {
			w, binds, issue := nullLine(t)
			const ops = 32 * timeline.Sparse
			next := 0
			run := func() {
				for range ops {
					issue[name](next)
					next++
				}
			}
			run() // fills pools
			must := mustOf(t)
			must(w.Sync(t.Context()))
			*binds = 0
			allocs := testing.AllocsPerRun(1, run) / ops // run executes twice
			if got := float64(*binds) / (2 * ops); got > most.binds*(1+1./timeline.Sparse) || got < most.binds {
				t.Errorf("a context was made current %.2f times per op, want %v plus once every %d ops", got, most.binds, timeline.Sparse)
			}
			if allocs > most.allocs+0.5 {
				t.Errorf("%.2f allocations per op, want at most %v", allocs, most.allocs)
			}
			must(w.Sync(t.Context()))
			must(w.Close())
		})
	}
}

// BenchmarkMachine times what the machine adds to the time of driver calls.
func BenchmarkMachine(b *testing.B) {
	for _, name := range []string{"kernel", "edge"} {
		b.Run(name, func(b *testing.B) {
			w, _, issue := nullLine(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				issue[name](i)
				if i%1000 == 999 {
					b.StopTimer()
					if err := w.Sync(b.Context()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
			b.StopTimer()
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
