package cuda

import (
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

// fakeGuests are streams of a caller's on a fake with queues, whose captures forbid other threads what may disturb
// them, as PyTorch's do: those threads must relax that for themselves.
type fakeGuests struct {
	streams map[uintptr]bool // captured by the caller
	relaxed map[int]bool     // threads
	deps    []uintptr        // node after which the next comes, by index + 1, of the capture asked for last
	foreign map[uintptr]bool // addresses that the driver knows nothing of
	off     map[uintptr]int  // addresses on another device than the current one: how many further
	added   int              // graphs that were put into captures
}

// unsafe are calls that a caller's capture forbids.
var unsafeCalls = []string{"cuMemCreate", "cuMemHostAlloc", "cuMemFreeHost", "cuStreamQuery", "cuEventQuery",
	"cuStreamSynchronize", "cuModuleLoadData"}

// calls has the fake know captures of the caller's.
func (g *fakeGuests) calls(f *fakeGPU, table map[string]func([]uintptr) uintptr) {
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
		return set(a[0], was)
	}
	table["cuPointerGetAttribute"] = func(a []uintptr) uintptr {
		if a[1] != 9 || g.foreign[a[2]] {
			return 1 // CUDA_ERROR_INVALID_VALUE
		}
		return set(a[0], f.deviceOf(0)+int32(g.off[a[2]]))
	}
	table["cuStreamIsCapturing"] = func(a []uintptr) uintptr {
		status := int32(0)
		if f.member[a[0]] != nil {
			status = 1
		}
		return set(a[1], status)
	}
	table["cuStreamGetCaptureInfo_v2"] = func(a []uintptr) uintptr {
		c := f.member[a[0]]
		if c == nil {
			return set(a[1], int32(0))
		}
		if a[3] == 0 { // only its number is wanted
			set(a[1], int32(1))
			return set(a[2], uint64(c.id))
		}
		g.deps = g.deps[:0]
		for _, k := range c.tails[a[0]] {
			g.deps = append(g.deps, uintptr(k+1))
		}
		set(a[1], int32(1))
		set(a[2], uint64(c.id))
		set(a[3], uintptr(c.id))
		set(a[4], uintptr(unsafe.Pointer(unsafe.SliceData(g.deps))))
		return set(a[5], uint64(len(g.deps)))
	}
	table["cuGraphAddChildGraphNode"] = func(a []uintptr) uintptr {
		for _, c := range f.begun {
			if uintptr(c.id) != a[1] {
				continue
			}
			var behind []int
			for i := range a[3] {
				behind = append(behind, int(cabi.Load[uintptr](a[2]+8*i))-1)
			}
			first := len(c.work)
			all := []int{}
			for i, w := range f.graphs[a[4]] {
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
			c.work = append(c.work, fakeWork{do: func() {}, behind: append(all, behind...)})
			g.added++
			return set(a[0], uintptr(len(c.work)))
		}
		return 1 // CUDA_ERROR_INVALID_VALUE
	}
	table["cuStreamUpdateCaptureDependencies"] = func(a []uintptr) uintptr {
		c := f.member[a[0]]
		if c == nil || a[2] != 1 || a[3] != 1 {
			return 1
		}
		c.tails[a[0]] = []int{int(cabi.Load[uintptr](a[1])) - 1}
		return 0
	}
}

// beginGuest has the caller capture a stream of its own.
func (f *fakeGPU) beginGuest(stream uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, 1) + 1
	c := &fakeCapture{id: f.last, tails: map[uintptr][]int{}}
	f.begun[stream], f.member[stream], f.guests.streams[stream] = c, c, true
}

// endGuest ends the capture and returns its work.
func (f *fakeGPU) endGuest(stream uintptr) []fakeWork {
	f.mu.Lock()
	defer f.mu.Unlock()
	work := f.begun[stream].work
	f.uncapture(stream)
	delete(f.guests.streams, stream)
	return work
}

// launchGuest launches what the caller captured.
func (f *fakeGPU) launchGuest(work []fakeWork, stream uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues.graph(work, stream)
}

// giveGuest gives a stream of the caller's work that waits until ready.
func (f *fakeGPU) giveGuest(stream uintptr, ready func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues.give(stream, fakeWork{ready: ready, do: func() {}})
}
