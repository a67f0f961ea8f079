package cuda

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// fakeGPU is a driver in Go that does all work immediately. This order is legal, because the machine never gives a
// device a wait for something that was not issued before: the fake refuses a wait for an event that was never
// recorded. It also records what is never freed.
type fakeGPU struct {
	testing.TB
	mu        sync.Mutex
	next      uintptr
	blocks    map[uintptr]*cabi.Block // memory, by address
	live      map[string]int          // objects that were made and not freed, by kind
	events    map[uintptr]int         // in which capture recorded; 1 for none, 0 for never
	kernels   map[uintptr]func(params uintptr)
	named     map[string]func(params uintptr)
	users     map[string]func(params [][]byte) // kernels of the user's, by file and name
	fail      map[string]uintptr               // status of a call, by name
	fatal     map[string]uintptr               // the same; from then on, of every call
	dead      uintptr                          // what every call returns; 0 for none
	vain      []string                         // the calls that got it
	called    map[string]int                   // how often, by name
	nth       func(name string) bool           // whether a call of any library is to fail; nil for none
	failure   uintptr                          // the driver's status of one that does
	late      map[string]int                   // so many calls more fail with not ready, by name
	devices   int
	model     string                   // its name
	limit     int64                    // memory of a device; 0 for plenty
	hostLimit int64                    // memory that can be pinned; 0 for plenty
	plain     bool                     // has no kernels that take long in Go
	lt        *fakeLT                  // its cuBLASLt; nil for one that takes nothing
	last      int                      // number of the last capture, from 2
	begun     map[uintptr]*fakeCapture // captures under way, by origin
	member    map[uintptr]*fakeCapture // streams in them
	graphs    map[uintptr][]fakeWork
	running   [][]fakeWork          // graphs launched, what is left of them
	joins     map[string]*fakeJoin  // kernels that are joins, by name
	joinOf    map[uintptr]*fakeJoin // by function
	hasty     bool                  // kernels run out of time at once
	mute      bool                  // and raise nothing
	patient   bool                  // kernels of queues never run out of time
	reach     fakeReach
	ills      map[int32]uintptr // by device: what calls about its streams return, from now on
	order     *fakeOrder        // of copies; nil where nobody asks
	joints    fakeJoints
	queues    *fakeQueues                                 // where it runs by itself; nil where calls do what they are given
	share     func(map[string]func([]uintptr) uintptr)    // has other processes share its memory; nil for none
	numbers   []int                                       // by device: which GPU of the host it is; nil for all, in order
	several   map[string]func(params uintptr) []fakeWork  // of queues: kernels that are pieces of work, by name
	severalOf map[uintptr]func(params uintptr) []fakeWork // by function
	trace     func(name string, a []uintptr)              // called for each call, unless nil
	haunted   bool                                        // what hung in it may still use its memory
	held      fakeBlocks                                  // calls that do not return
	guests    fakeGuests
	// remembered: NCCL may know of memory, whose addresses are then never given back.
	remembered bool
}

// fakeCapture is a capture under way.
type fakeCapture struct {
	id    int
	work  []fakeWork
	tails map[uintptr][]int // of queues: behind which work the next of a stream comes
}

// fakeJoin is a kernel in two steps: it raises, and then takes when it can.
type fakeJoin struct {
	raise func()
	ready func() bool
}

// fakeWork is a node of a graph; ready is nil for those that wait for nothing.
type fakeWork struct {
	ready  func() bool
	do     func()
	wait   func(since time.Time) bool // of queues: likewise, for who can wait too long
	behind []int                      // of queues: others of the graph
}

const fakeMemory = 1 << 40

func newFake(t testing.TB, devices int) *fakeGPU {
	f := &fakeGPU{TB: t, next: 100, devices: devices, model: "fake",
		blocks: map[uintptr]*cabi.Block{}, live: map[string]int{},
		graphs: map[uintptr][]fakeWork{}, begun: map[uintptr]*fakeCapture{}, member: map[uintptr]*fakeCapture{},
		several: map[string]func(uintptr) []fakeWork{}, severalOf: map[uintptr]func(uintptr) []fakeWork{},
		joins: map[string]*fakeJoin{}, joinOf: map[uintptr]*fakeJoin{}, events: map[uintptr]int{}, kernels: map[uintptr]func(uintptr){}, named: map[string]func(uintptr){}, fail: map[string]uintptr{}, fatal: map[string]uintptr{},
		called: map[string]int{}, late: map[string]int{}, ills: map[int32]uintptr{}, reach: newFakeReach()}
	t.Cleanup(func() {
		defer f.abandon()
		if f.dead != 0 {
			return // nothing can be given back
		}
		for kind, n := range f.live {
			if n != 0 && (kind != "addresses" || !f.remembered) {
				t.Errorf("%d × %s were not given back", n, kind)
			}
		}
		if f.lt != nil && f.lt.live != 0 {
			t.Errorf("%d × what describes products was not given back", f.lt.live)
		}
	})
	return f
}

// number is which GPU of the host a device is.
func (f *fakeGPU) number(dev int32) int {
	if f.numbers == nil {
		return int(dev)
	}
	return f.numbers[dev]
}

func (f *fakeGPU) handle(kind string) uintptr {
	f.next++
	f.live[kind]++
	return f.next
}

// A fake's GPUs hold much memory, without pointers: little is worth collecting before there is much garbage, but tests
// promise to need less than 3 GB (CONTRIBUTING.md).
func init() {
	debug.SetGCPercent(300)
	debug.SetMemoryLimit(3 << 29)
}

// spare are blocks that fakes have freed, by size: making a slab takes the race
// detector longer than most tests use it. What lies in them stays, as on a GPU. No more
// than mostSpare bytes are kept: those that earlier tests left go first.
var spare struct {
	sync.Mutex
	blocks map[int][]*cabi.Block
	bytes  int
}

const mostSpare = 128 << 20

func spareBlock(size int) *cabi.Block {
	spare.Lock()
	defer spare.Unlock()
	list := spare.blocks[size]
	if len(list) == 0 {
		return cabi.NewBlock(size)
	}
	spare.blocks[size] = list[:len(list)-1]
	spare.bytes -= size
	return list[len(list)-1]
}

func keepBlock(b *cabi.Block) {
	spare.Lock()
	defer spare.Unlock()
	if spare.blocks == nil {
		spare.blocks = map[int][]*cabi.Block{}
	}
	size := len(b.Bytes())
	if size > mostSpare {
		return
	}
	if spare.bytes+size > mostSpare { // they are of sizes that earlier tests used
		clear(spare.blocks)
		spare.bytes = 0
	}
	spare.bytes += size
	spare.blocks[size] = append(spare.blocks[size], b)
}

// blockSlack is room to begin where memory does.
const blockSlack = 512

func (f *fakeGPU) memory(kind string, n uintptr) uintptr {
	b := spareBlock(int(n) + blockSlack)
	at := (b.Addr(0) + 511) &^ 511
	f.blocks[at] = b
	f.live[kind]++
	return at
}

func (f *fakeGPU) forget(kind string, at uintptr) uintptr {
	f.live[kind]--
	if b := f.blocks[at]; b != nil {
		keepBlock(b)
		delete(f.blocks, at)
	}
	return 0
}

// abandon takes the memory from a fake that is used no more, for the next: a test keeps its
// fakes until it ends, and what hangs keeps them longer.
func (f *fakeGPU) abandon() {
	f.mu.Lock() // of what hung some may go on
	defer f.mu.Unlock()
	for _, b := range f.blocks {
		if !f.haunted {
			keepBlock(b)
		}
	}
	clear(f.blocks)
}

// die has every call fail from now on: what hangs, or hung, does not give back what it has.
func (f *fakeGPU) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = 1
}

// do does what a stream was given, or records it.
func (f *fakeGPU) do(stream uintptr, work func()) uintptr { return f.await(stream, nil, work) }

// await is do for work that waits until ready.
func (f *fakeGPU) await(stream uintptr, ready func() bool, work func()) uintptr {
	if f.queues != nil {
		return f.queues.give(stream, fakeWork{ready: ready, do: work})
	}
	if c := f.in(stream); c != nil {
		c.work = append(c.work, fakeWork{ready: ready, do: work})
		return 0
	}
	if len(f.running) > 0 || ready != nil && !ready() {
		f.Error("work beside graphs that wait, or that waits by itself")
	}
	work()
	return 0
}

// launch runs a kernel. One that begins early runs no sooner than others.
func (f *fakeGPU) launch(function, stream, params uintptr) uintptr {
	f.launched(stream, f.reach.usedBy[function])
	if pieces := f.severalOf[function]; pieces != nil {
		for _, w := range pieces(params) {
			f.queues.give(stream, w)
		}
		return 0
	}
	var ready func() bool
	if j := f.joinOf[function]; j != nil {
		f.do(stream, j.raise)
		ready = j.ready
	}
	return f.await(stream, ready, func() { f.kernels[function](params) })
}

// in returns the capture that the stream is in; nil while there are none.
func (f *fakeGPU) in(stream uintptr) *fakeCapture {
	c := f.member[stream]
	if c == nil && f.captures() {
		f.Error("work beside a capture, on a stream that did not join it")
	}
	return c
}

// captures reports whether the machine's own streams are captured.
func (f *fakeGPU) captures() bool {
	for origin := range f.begun {
		if !f.guests.streams[origin] {
			return true
		}
	}
	return false
}

// advance runs what graphs can of those that were launched, one after another.
func (f *fakeGPU) advance() {
	for went := true; went; {
		went = false
		for i := range f.running {
			for g := &f.running[i]; len(*g) > 0 && ((*g)[0].ready == nil || (*g)[0].ready()); *g = (*g)[1:] {
				(*g)[0].do()
				went = true
			}
		}
	}
	f.running = slices.DeleteFunc(f.running, func(g []fakeWork) bool { return len(g) == 0 })
}

// resting answers whether all is done.
func (f *fakeGPU) resting() uintptr {
	if f.advance(); len(f.running) > 0 {
		return nvlib.CUDANotReady
	}
	return 0
}

// uncapture ends the capture that was begun on the stream, if there is one.
func (f *fakeGPU) uncapture(stream uintptr) {
	if c := f.begun[stream]; c != nil {
		delete(f.begun, stream)
		maps.DeleteFunc(f.member, func(_ uintptr, o *fakeCapture) bool { return o == c })
	}
}

// set stores through an out parameter.
func set[T any](p uintptr, v T) uintptr { cabi.Store(p, v); return 0 }

// fill stores n words. The race detector, which would take seconds for the sheets
// of large collectives, does not look.
//
//go:norace
func fill[T uint8 | uint32](at, n uintptr, v T) uintptr {
	b := cabi.Bytes(at, int(n*unsafe.Sizeof(v)))
	words := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
	if n > 0 {
		words[0] = v
	}
	for done := 1; done < len(words); done *= 2 { // many at once: an element at a time takes seconds
		copy(words[done:], words[:done])
	}
	return 0
}

func (f *fakeGPU) calls() map[string]func(a []uintptr) uintptr {
	zero := func([]uintptr) uintptr { return 0 }
	gone := func(kind string) func(a []uintptr) uintptr {
		return func([]uintptr) uintptr { f.live[kind]--; return 0 }
	}
	text := cabi.NewCStrings([]string{"CUDA_ERROR_FAKE"})
	words := func(a []uintptr) uintptr { return set(a[1], cabi.Load[uintptr](text.Addr())) }
	return map[string]func(a []uintptr) uintptr{
		"cuInit":          zero,
		"cuProfilerStart": zero,
		"cuProfilerStop":  zero,
		"cuCtxSetCurrent": func(a []uintptr) uintptr { f.reach.current[thread()] = int32(a[0]) - fakeContext; return 0 },
		"cuCtxGetCurrent": func(a []uintptr) uintptr {
			return set(a[0], uintptr(f.reach.current[thread()]+fakeContext))
		},
		"cuDriverGetVersion": func(a []uintptr) uintptr { return set(a[0], int32(13000)) },
		"cuDeviceGetCount":   func(a []uintptr) uintptr { return set(a[0], int32(f.devices)) },
		"cuDeviceGet":        func(a []uintptr) uintptr { return set(a[0], int32(a[1])) },
		"cuDeviceGetName": func(a []uintptr) uintptr {
			copy(cabi.Bytes(a[0], len(f.model)+1), f.model+"\x00")
			return 0
		},
		"cuDeviceGetPCIBusId": func(a []uintptr) uintptr {
			id := fmt.Sprintf("%d:0\x00", f.number(int32(a[2])))
			copy(cabi.Bytes(a[0], len(id)), id)
			return 0
		},
		"cuDeviceTotalMem_v2": func(a []uintptr) uintptr { return set(a[0], uint64(fakeMemory)) },
		"cuDeviceGetAttribute": func(a []uintptr) uintptr {
			switch nvlib.Attribute(a[1]) {
			case nvlib.ComputeCapabilityMajor:
				return set(a[0], int32(9))
			case nvlib.SharedMemoryOfBlock:
				return set(a[0], int32(227<<10))
			}
			return set(a[0], int32(1))
		},
		"cuDeviceCanAccessPeer": func(a []uintptr) uintptr {
			if f.reach.apart(int32(a[1]), int32(a[2])) {
				return set(a[0], int32(0))
			}
			return set(a[0], int32(1))
		},
		"cuDeviceGetP2PAttribute":       func(a []uintptr) uintptr { return set(a[0], int32(1)) },
		"cuDevicePrimaryCtxRetain":      func(a []uintptr) uintptr { return set(a[0], uintptr(fakeContext+int32(a[1]))) },
		"cuCtxGetStreamPriorityRange":   func(a []uintptr) uintptr { set(a[0], int32(0)); return set(a[1], int32(-5)) },
		"cuMemGetInfo_v2":               func(a []uintptr) uintptr { set(a[0], uint64(1)); return set(a[1], uint64(fakeMemory)) },
		"cuMemGetAllocationGranularity": func(a []uintptr) uintptr { return set(a[0], uint64(2<<20)) },
		"cuMemCreate": func(a []uintptr) uintptr {
			if owner := cabi.Load[[4]int32](a[2])[3]; a[1] > 16<<30 || f.limit > 0 && f.reach.mapped(owner)+int64(a[1]) > f.limit {
				return nvlib.CUDAOutOfMemory
			}
			h := f.handle("memory")
			f.reach.created[h] = cabi.Load[[4]int32](a[2])[3]
			return set(a[0], h)
		},
		"cuMemRelease":        gone("memory"),
		"cuMemAddressReserve": func(a []uintptr) uintptr { return set(a[0], f.memory("addresses", a[1])) },
		"cuMemAddressFree": func(a []uintptr) uintptr {
			if f.reach.ranges[a[0]] != nil {
				f.Errorf("addresses are given back from which memory is reached")
			}
			return f.forget("addresses", a[0])
		},
		"cuMemMap": func(a []uintptr) uintptr {
			f.live["mappings"]++
			f.reach.ranges[a[0]] = &fakeRange{a[1], f.reach.created[a[3]], map[int32]bool{}}
			return 0
		},
		"cuMemUnmap": func(a []uintptr) uintptr {
			f.live["mappings"]--
			delete(f.reach.ranges, a[0])
			return 0
		},
		"cuMemSetAccess": f.grant,
		"cuMemHostAlloc": func(a []uintptr) uintptr {
			if f.hostLimit > 0 && f.pinned()+int64(a[1]) > f.hostLimit {
				return nvlib.CUDAOutOfMemory
			}
			return set(a[0], f.memory("host memory", a[1]))
		},
		"cuMemFreeHost":                  func(a []uintptr) uintptr { return f.forget("host memory", a[0]) },
		"cuMemHostRegister_v2":           func([]uintptr) uintptr { f.live["registered host memory"]++; return 0 },
		"cuMemHostUnregister":            gone("registered host memory"),
		"cuMemExportToShareableHandle":   func([]uintptr) uintptr { return 801 }, // not supported
		"cuMemImportFromShareableHandle": func([]uintptr) uintptr { return 801 },
		"cuMemcpyAsync": func(a []uintptr) uintptr {
			dst, src, n := a[0], a[1], int(a[2])
			f.check(a[3], dst, src)
			f.inOrder(a[3], fakeTouch{lo: src, hi: src + a[2]}, fakeTouch{lo: dst, hi: dst + a[2], write: true})
			return f.do(a[3], func() { f.copied(dst, src, n) })
		},
		"cuMemcpy2DAsync_v2": func(a []uintptr) uintptr {
			r := cabi.Load[[16]uint64](a[0])
			f.check(a[1], uintptr(r[11]), uintptr(r[4]))
			return f.do(a[1], func() {
				for y := range r[15] {
					f.copied(uintptr(r[11]+y*r[13]), uintptr(r[4]+y*r[6]), int(r[14]))
				}
			})
		},
		"cuMemsetD32Async": func(a []uintptr) uintptr {
			return fill(a[0], a[2], uint32(a[1]))
		},
		"cuMemsetD8Async": func(a []uintptr) uintptr {
			return fill(a[0], a[2], byte(a[1]))
		},
		"cuModuleLoadData": func(a []uintptr) uintptr { f.next++; return set(a[0], f.next) },
		"cuModuleGetFunction": func(a []uintptr) uintptr {
			k := f.named[cabi.GoString(a[2])]
			if k == nil {
				return 500
			}
			f.next++
			f.kernels[f.next], f.joinOf[f.next] = k, f.joins[cabi.GoString(a[2])]
			f.severalOf[f.next] = f.several[cabi.GoString(a[2])]
			f.reach.usedBy[f.next] = f.reach.uses[cabi.GoString(a[2])]
			return set(a[0], f.next)
		},
		"cuFuncSetAttribute": zero,
		"cuLaunchKernel":     func(a []uintptr) uintptr { return f.launch(a[0], a[8], a[9]) },
		"cuLaunchKernelEx": func(a []uintptr) uintptr {
			if n, attr := cabi.Load[uint32](a[0]+48), cabi.Load[uintptr](a[0]+40); n != 1 || cabi.Load[uint32](attr) != 6 {
				f.Errorf("a launch with %d attributes, the first is %d", n, cabi.Load[uint32](attr))
			}
			return f.launch(a[1], cabi.Load[uintptr](a[0]+32), a[2])
		},
		"cuStreamCreateWithPriority": func(a []uintptr) uintptr {
			h := f.handle("streams")
			f.reach.streams[h] = f.reach.current[thread()]
			return set(a[0], h)
		},
		"cuStreamDestroy_v2": gone("streams"),
		"cuStreamQuery": func(a []uintptr) uintptr {
			if f.in(a[0]) != nil {
				return 900 // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
			}
			return f.resting()
		},
		"cuStreamSynchronize": zero,
		"cuStreamWaitEvent": func(a []uintptr) uintptr {
			if f.order != nil {
				f.order.wait(a[0], a[1])
			}
			c := f.member[a[0]]
			if c == nil && len(f.begun) > 0 { // it joins
				for _, other := range f.begun {
					if other.id == f.events[a[1]] {
						c = other
						f.member[a[0]] = c
					}
				}
			}
			now := 1
			if c != nil {
				now = c.id
			}
			if f.events[a[1]] != now {
				f.Errorf("a wait in %d for an event recorded in %d", now, f.events[a[1]])
			}
			return 0
		},
		"cuEventCreate":     func(a []uintptr) uintptr { return set(a[0], f.handle("events")) },
		"cuEventDestroy_v2": gone("events"),
		"cuEventRecord": func(a []uintptr) uintptr {
			f.events[a[0]] = 1
			if f.order != nil {
				f.order.record(a[0], a[1])
			}
			if c := f.in(a[1]); c != nil {
				f.events[a[0]] = c.id
			}
			return 0
		},
		"cuEventRecordWithFlags": func(a []uintptr) uintptr { // by a graph
			if f.in(a[1]) == nil || a[2] != 1 {
				f.Errorf("an event is recorded with flags %d, in a capture: %v", a[2], f.in(a[1]) != nil)
			}
			f.events[a[0]] = 1
			return 0
		},
		"cuEventQuery": func(a []uintptr) uintptr {
			if f.events[a[0]] != 1 {
				f.Errorf("a question for an event recorded in %d", f.events[a[0]])
			}
			return f.resting()
		},
		"cuEventElapsedTime": func(a []uintptr) uintptr { f.next++; return set(a[0], float32(f.next)) },
		"cuStreamBeginCapture_v2": func(a []uintptr) uintptr {
			f.last = max(f.last, 1) + 1
			f.begun[a[0]] = &fakeCapture{id: f.last}
			f.member[a[0]] = f.begun[a[0]]
			return 0
		},
		"cuStreamEndCapture": func(a []uintptr) uintptr {
			h := f.handle("graphs")
			f.graphs[h] = f.begun[a[0]].work
			f.uncapture(a[0])
			return set(a[1], h)
		},
		"cuGraphInstantiateWithFlags": func(a []uintptr) uintptr {
			h := f.handle("ready graphs")
			f.graphs[h] = f.graphs[a[1]]
			return set(a[0], h)
		},
		"cuGraphUpload": zero,
		"cuGraphLaunch": func(a []uintptr) uintptr {
			f.running = append(f.running, slices.Clone(f.graphs[a[0]]))
			f.advance()
			return 0
		},
		"cuGraphGetNodes":    func(a []uintptr) uintptr { return set(a[2], uint64(len(f.graphs[a[0]]))) },
		"cuGraphDestroy":     gone("graphs"),
		"cuGraphExecDestroy": gone("ready graphs"),
		"cuGetErrorName":     words, "cuGetErrorString": words,
	}
}

// status does a call, unless it is to fail, or the devices are lost as real ones
// are: then all calls fail but those that put errors into words.
func (f *fakeGPU) status(name string, do func() uintptr) uintptr {
	f.called[name]++
	if strings.HasPrefix(name, "cuGetError") {
		return do()
	}
	if f.nth != nil && f.nth(name) {
		return f.failure
	}
	switch {
	case f.late[name] > 0:
		f.late[name]--
		return nvlib.CUDANotReady
	case f.dead != 0:
		f.vain = append(f.vain, name)
		return f.dead
	case f.fatal[name] != 0:
		f.dead = f.fatal[name]
		return f.dead
	case f.fail[name] != 0:
		return f.fail[name]
	}
	return do()
}

// streamOf is which argument of a call is the stream.
var streamOf = map[string]int{"cuStreamQuery": 0, "cuStreamSynchronize": 0, "cuStreamWaitEvent": 0, "cuEventRecord": 1, "cuGraphLaunch": 1,
	"cuMemcpy2DAsync_v2": 1, "cuMemcpyAsync": 3, "cuLaunchKernel": 8}

// ill returns what a call about a stream of a device that is ill gets; 0 for others. Of
// one that is only slow questions alone get it.
func (f *fakeGPU) ill(name string, a []uintptr) uintptr {
	i, streams := streamOf[name]
	if !streams {
		return 0
	}
	status := f.ills[f.deviceOf(a[i])]
	if status == nvlib.CUDANotReady && name != "cuStreamQuery" {
		return 0
	}
	return status
}

// failing has calls of another library fail where they are to, with that status, and
// tells of each.
func (f *fakeGPU) failing(table map[string]func([]uintptr) uintptr, status uintptr, tell func(name string)) {
	for name, do := range table {
		table[name] = func(a []uintptr) uintptr {
			if !f.held.pass(name) {
				return status
			}
			f.mu.Lock()
			fails := f.nth != nil && f.nth(name)
			f.mu.Unlock()
			if fails {
				tell(name)
				return status
			}
			return do(a)
		}
	}
}

// allCalls are those of calls, and what else the fake was made to do.
func (f *fakeGPU) allCalls() map[string]func(a []uintptr) uintptr {
	table := f.calls()
	if f.lt != nil {
		f.lt.time(table)
	}
	f.joints.calls(f, table)
	if f.queues != nil {
		f.queues.calls(table)
	}
	f.guests.calls(f, table)
	if f.share != nil {
		f.share(table)
	}
	return table
}

// system is the fake's driver, with a cuBLASLt that takes nothing.
func (f *fakeGPU) system() *process.Shared {
	table := f.allCalls()
	blas := func() (*nvlib.CuBLASLt, error) { return fakeBLAS(f.TB), nil }
	if f.lt != nil {
		blas = f.lt.open
	}
	for name, do := range table {
		table[name] = func(a []uintptr) uintptr {
			if !f.held.pass(name) {
				return 999 // CUDA_ERROR_UNKNOWN
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.trace != nil {
				f.trace(name, a)
			}
			status := f.status(name, func() uintptr {
				if status := f.ill(name, a); status != 0 {
					return status
				}
				return do(a)
			})
			if status != 0 && name == "cuStreamEndCapture" {
				f.uncapture(a[0])
			}
			return status
		}
	}
	drv, err := nvlib.DriverOn(cabi.Fake("fake libcuda", table))
	if err != nil {
		f.Fatal(err)
	}
	sys, err := process.New(drv, blas)
	if err != nil {
		f.Fatal(err)
	}
	sys.NCCL = func() (*nvlib.NCCL, error) { return nil, errors.New("the fake has no NCCL") }
	return sys
}

// fakeBLAS answers every question for an algorithm with none.
func fakeBLAS(t testing.TB) *nvlib.CuBLASLt {
	zero := func([]uintptr) uintptr { return 0 }
	table := map[string]func([]uintptr) uintptr{}
	for _, name := range []string{"cublasLtCreate", "cublasLtDestroy", "cublasLtGetVersion", "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy",
		"cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
		"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoCheck", "cublasLtMatmul"} {
		table[name] = zero
	}
	lib, err := nvlib.CuBLASLtOn(cabi.Fake("fake libcublasLt", table))
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// Meeting is refused: the fake does one thing at a time. Where members only meet
// that is as good; with queues they do.
func (f *fakeGPU) Meeting(_ kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	if strings.HasPrefix(m.Body, "moveMeet<") { // nothing but meets
		f.mu.Lock()
		defer f.mu.Unlock()
		f.next++
		name := fmt.Sprint("meet", f.next)
		f.named[name] = func(uintptr) {}
		if f.queues != nil {
			f.several[name] = func(uintptr) []fakeWork { return f.meet(m) }
		}
		return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name, Shape: nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}}, nil
	}
	return kernels.Step{}, fmt.Errorf("%w: the fake's kernels cannot wait for each other", device.ErrUnsupported)
}

// Steps is a Library whose kernels are Go functions: fill, add, sub, mul, neg
// and reductions of f32, f64 and i32 in float64.
func (f *fakeGPU) Steps(_ kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	if !f.held.pass(fakeCompile) {
		return nil, errors.New("a compiler that was held up")
	}
	if _, err := kernels.Sources(p); err != nil {
		return nil, err
	}
	if f.plain && takesLong(p) {
		return nil, fmt.Errorf("%w: %s takes long", device.ErrUnsupported, p)
	}
	run, err := goKernel(p)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	name := fmt.Sprint("go", f.next)
	f.named[name] = func(uintptr) { run() }
	f.operands(name, p)
	return []kernels.Step{fakeStep(name)}, nil
}

// takesLong reports whether the fake takes long to compute p.
func takesLong(p kernels.Problem) bool {
	switch p := p.(type) {
	case kernels.Skinny:
		return true
	case kernels.Computation:
		switch op := p.Op.(type) {
		case device.Linear, device.Matmul, device.Concat:
			return true
		case device.ReduceAxes:
			return op.Op == ir.OpSum || op.Op == ir.OpMax
		}
	}
	return false
}

// fakeStep is a launch of one thread.
func fakeStep(name string) kernels.Step {
	one := [3]uint32{1, 1, 1}
	return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name, Shape: nvlib.Shape{Grid: one, Block: one}}
}

// Raise and Await are a Library's.
func (f *fakeGPU) Raise(kernels.Target) (kernels.Step, error) { return f.wired("raise", 2) }
func (f *fakeGPU) Await(kernels.Target) (kernels.Step, error) { return f.wired("await", 6) }

func (f *fakeGPU) wired(name string, words int) (kernels.Step, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named[name] = func(uintptr) {}
	f.several[name] = func(params uintptr) []fakeWork { return []fakeWork{f.wiredWork(name, params)} }
	s := fakeStep(name)
	s.Params = [][]byte{make([]byte, 8*words)}
	return s, nil
}

// Join is a Library's: flags are words that Go changes.
func (f *fakeGPU) Join(_ kernels.Target, j kernels.Join) (kernels.Step, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	name := fmt.Sprint("join", f.next)
	if f.queues != nil {
		f.named[name] = func(uintptr) {}
		f.several[name] = func(uintptr) []fakeWork { return f.joined(j) }
		return fakeStep(name), nil
	}
	there := func() bool { return cabi.Load[int64](uintptr(j.Flag)) >= j.Count }
	aborted := func() bool { return j.Abort != 0 && cabi.Load[uint64](uintptr(j.Abort)) != 0 }
	f.joins[name] = &fakeJoin{
		raise: func() {
			if j.List == 0 || f.mute {
				return
			}
			for i := range cabi.Load[uint64](uintptr(j.List)) {
				at := cabi.Load[uintptr](uintptr(j.List) + 8*uintptr(i+1))
				cabi.Store(at, cabi.Load[int64](at)+1)
			}
		},
		ready: func() bool { return j.Count == 0 || there() || aborted() || f.hasty },
	}
	f.named[name] = func(uintptr) {
		switch {
		case j.Count == 0:
		case there():
			cabi.Store(uintptr(j.Flag), cabi.Load[int64](uintptr(j.Flag))-j.Count)
		case cabi.Load[uint64](uintptr(j.Fault)) == 0:
			kind := kernels.FaultTimeout
			if aborted() {
				kind = kernels.FaultAborted
			}
			cabi.Store(uintptr(j.Abort), uint64(1))
			cabi.Store(uintptr(j.Fault), [5]uint64{uint64(kind) | 1, j.Tag, uint64(j.Count), 0, 7})
			ring(uintptr(j.Fault))
		}
	}
	return fakeStep(name), nil
}
