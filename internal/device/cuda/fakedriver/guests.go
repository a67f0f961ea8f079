package fakedriver

import (
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

// Guests holds the streams of a caller, on a fake with Queues. As with PyTorch's captures, a capture of such a stream
// forbids unsafe calls in all threads. Threads must set the relaxed capture mode for themselves to make these calls.
type Guests struct {
	streams map[uintptr]bool // captured by the caller
	relaxed map[int]bool     // by thread: whether it is in relaxed capture mode
	deps    []uintptr        // for the capture that was queried last: index + 1 of the node that precedes the next node
	Foreign map[uintptr]bool // addresses that are unknown to the driver
	Off     map[uintptr]int  // by address: number of its device, relative to the current device
	Added   int              // number of graphs added to captures
}

// unsafeCalls are the calls that a capture of the caller forbids.
var unsafeCalls = []string{"cuMemCreate", "cuMemHostAlloc", "cuMemFreeHost", "cuStreamQuery", "cuEventQuery",
	"cuStreamSynchronize", "cuModuleLoadData"}

// calls changes the calls in the table so that they respect captures of the caller.
func (g *Guests) calls(f *GPU, table map[string]func([]uintptr) uintptr) {
	g.streams, g.relaxed = map[uintptr]bool{}, map[int]bool{}
	for _, name := range unsafeCalls {
		do := table[name]
		if do == nil {
			f.Fatalf("the fake has no %s", name)
		}
		table[name] = func(a []uintptr) uintptr {
			if len(g.streams) > 0 && !g.relaxed[thread()] {
				f.Errorf("%s while a caller's stream is captured", name)
				return 900 // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
			}
			return do(a)
		}
	}
	table["cuThreadExchangeStreamCaptureMode"] = func(a []uintptr) uintptr {
		const global, relaxed = 0, 2
		was := int32(global)
		if g.relaxed[thread()] {
			was = relaxed
		}
		g.relaxed[thread()] = cabi.Load[int32](a[0]) == relaxed
		return Set(a[0], was)
	}
	table["cuPointerGetAttribute"] = func(a []uintptr) uintptr {
		if a[1] != 9 || g.Foreign[a[2]] {
			return 1 // CUDA_ERROR_INVALID_VALUE
		}
		return Set(a[0], f.deviceOf(0)+int32(g.Off[a[2]]))
	}
	table["cuStreamIsCapturing"] = func(a []uintptr) uintptr {
		status := int32(0)
		if f.Member[a[0]] != nil {
			status = 1
		}
		return Set(a[1], status)
	}
	table["cuStreamGetCaptureInfo_v2"] = func(a []uintptr) uintptr {
		c := f.Member[a[0]]
		if c == nil {
			return Set(a[1], int32(0))
		}
		if a[3] == 0 { // the caller only queries the number of dependencies
			Set(a[1], int32(1))
			return Set(a[2], uint64(c.id))
		}
		g.deps = g.deps[:0]
		for _, k := range c.tails[a[0]] {
			g.deps = append(g.deps, uintptr(k+1))
		}
		Set(a[1], int32(1))
		Set(a[2], uint64(c.id))
		Set(a[3], uintptr(c.id))
		Set(a[4], uintptr(unsafe.Pointer(unsafe.SliceData(g.deps))))
		return Set(a[5], uint64(len(g.deps)))
	}
	table["cuGraphAddChildGraphNode"] = func(a []uintptr) uintptr {
		for _, c := range f.Begun {
			if uintptr(c.id) != a[1] {
				continue
			}
			var behind []int
			for i := range a[3] {
				behind = append(behind, int(cabi.Load[uintptr](a[2]+8*i))-1)
			}
			first := len(c.work)
			all := []int{}
			for i, w := range f.Graphs[a[4]] {
				inner := w.behind
				w.behind = behind
				if len(inner) > 0 {
					w.behind = nil
				}
				for _, k := range inner {
					w.behind = append(w.behind, first+k)
				}
				c.work = append(c.work, w)
				all = append(all, first+i)
			}
			c.work = append(c.work, Task{Do: func() {}, behind: append(all, behind...)})
			g.Added++
			return Set(a[0], uintptr(len(c.work)))
		}
		return 1 // CUDA_ERROR_INVALID_VALUE
	}
	table["cuStreamUpdateCaptureDependencies"] = func(a []uintptr) uintptr {
		c := f.Member[a[0]]
		if c == nil || a[2] != 1 || a[3] != 1 {
			return 1
		}
		c.tails[a[0]] = []int{int(cabi.Load[uintptr](a[1])) - 1}
		return 0
	}
}

// BeginGuest begins a capture of one of the caller's streams.
func (f *GPU) BeginGuest(stream uintptr) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.last = max(f.last, 1) + 1
	c := &Capture{id: f.last, tails: map[uintptr][]int{}}
	f.Begun[stream], f.Member[stream], f.Guests.streams[stream] = c, c, true
}

// EndGuest ends the capture of a caller's stream and returns the captured work.
func (f *GPU) EndGuest(stream uintptr) []Task {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	work := f.Begun[stream].work
	f.uncapture(stream)
	delete(f.Guests.streams, stream)
	return work
}

// LaunchGuest launches work that the caller has captured.
func (f *GPU) LaunchGuest(work []Task, stream uintptr) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Queues.graph(work, stream)
}

// GiveGuest issues work to one of the caller's streams; the work waits until ready returns true.
func (f *GPU) GiveGuest(stream uintptr, ready func() bool) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Queues.Give(stream, Task{Ready: ready, Do: func() {}})
}
