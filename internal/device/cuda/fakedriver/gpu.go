// Package fakedriver is a CUDA driver written in Go, for tests of what runs on GPUs: memory, streams, events, graphs,
// cuBLASLt and NCCL, and kernels that are Go functions. Tests can make every call fail, or never return.
package fakedriver

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
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// GPU is a fake driver that executes all work immediately. Immediate execution is permitted, because the machine never
// makes a device wait for work that was not issued before. The fake refuses a wait for an event that was never
// recorded. It also reports objects that are never freed.
type GPU struct {
	testing.TB
	Mu        sync.Mutex
	next      uintptr
	Blocks    map[uintptr]*cabi.Block // memory, by address
	Live      map[string]int          // number of objects that were created and not freed, by kind
	hostBytes map[uintptr]uintptr     // sizes of registered host memory, by address
	events    map[uintptr]int         // capture in which the event was recorded; 1: outside captures, 0: never recorded
	Kernels   map[uintptr]func(params uintptr)
	Named     map[string]func(params uintptr)
	Users     map[string]func(params [][]byte) // kernels of the user, by file and name
	Returns   map[string]uintptr               // status that calls return, by name
	Kills     map[string]uintptr               // by name: status that the call returns and that, from then on, all calls return
	Dead      uintptr                          // status that all calls return; 0 for none
	Vain      []string                         // names of calls that returned Dead
	Called    map[string]int                   // number of calls, by name
	Nth       func(name string) bool           // decides whether a call of any library fails; if the function is nil, no call fails
	Failure   uintptr                          // status of driver calls for which Nth returns true
	Late      map[string]int                   // number of further calls that return "not ready", by name
	devices   int
	Model     string               // name of the GPUs
	Limit     int64                // memory of a device; 0 for 1 TiB
	HostLimit int64                // bytes that can be pinned; 0 for no limit
	Plain     bool                 // leave out kernels that take long in Go
	LT        *LT                  // fake cuBLASLt; nil for one without algorithms
	last      int                  // number of the last capture; the first has number 2
	Begun     map[uintptr]*Capture // captures in progress, by origin stream
	Member    map[uintptr]*Capture // streams in captures
	Graphs    map[uintptr][]Task
	running   [][]Task          // remaining nodes of launched graphs
	joins     map[string]*join  // kernels that raise flags and wait for flags (kernels.Join), by name
	joinOf    map[uintptr]*join // by function: kernels that raise flags and wait for flags
	Hasty     bool              // waiting kernels time out immediately
	Mute      bool              // kernels do not raise flags
	Patient   bool              // with Queues: waiting kernels never time out
	Reach     Access
	Ills      map[int32]uintptr // by device: status that calls with its streams return
	Order     *Order            // detects data races of copies and kernels; nil for no check
	Multicast Multicast
	Queues    *Queues                                  // executes work asynchronously; nil for immediate execution
	share     func(map[string]func([]uintptr) uintptr) // makes memory shareable between processes; nil for none
	Numbers   []int                                    // by device: number of the GPU on the host; nil for 0, 1, …
	several   map[string]func(params uintptr) []Task   // with Queues, by name: kernels that run as several tasks
	severalOf map[uintptr]func(params uintptr) []Task  // by function: kernels that run as several tasks
	OnCall    func(name string, a []uintptr)           // called for each call; may be nil
	Haunted   bool                                     // calls that hang may still use the memory, so it is not reused
	Gate      gate                                     // makes calls hang
	Guests    Guests
	// Remembered is set once NCCL may have recorded addresses of memory. Addresses are then never freed.
	Remembered bool
}

// Capture is a stream capture in progress.
type Capture struct {
	id    int
	work  []Task
	tails map[uintptr][]int // with Queues, by stream: the tasks after which the stream's next task runs
}

// join is a kernel that runs in two steps: it raises flags, and completes when ready returns true.
type join struct {
	raise func()
	ready func() bool
}

// Task is a node of a graph. Ready reports whether it can run; nil if it need not wait.
type Task struct {
	Ready  func() bool
	Do     func()
	wait   func(since time.Time) bool // with Queues: as Ready, for waits that have a timeout
	behind []int                      // with Queues: indices of the tasks in the graph after which this task runs
}

const deviceMemory = 1 << 40

func New(t testing.TB, devices int) *GPU {
	f := &GPU{TB: t, next: 100, devices: devices, Model: "fake",
		Blocks: map[uintptr]*cabi.Block{}, Live: map[string]int{}, hostBytes: map[uintptr]uintptr{},
		Graphs: map[uintptr][]Task{}, Begun: map[uintptr]*Capture{}, Member: map[uintptr]*Capture{},
		several: map[string]func(uintptr) []Task{}, severalOf: map[uintptr]func(uintptr) []Task{},
		joins: map[string]*join{}, joinOf: map[uintptr]*join{}, events: map[uintptr]int{},
		Kernels: map[uintptr]func(uintptr){}, Named: map[string]func(uintptr){}, Returns: map[string]uintptr{},
		Kills:  map[string]uintptr{},
		Called: map[string]int{}, Late: map[string]int{}, Ills: map[int32]uintptr{}, Reach: newAccess()}
	t.Cleanup(func() {
		defer f.Abandon()
		if f.Dead != 0 {
			return // nothing can be freed
		}
		for kind, n := range f.Live {
			if n != 0 && (kind != "addresses" || !f.Remembered) {
				t.Errorf("%d × %s were not freed", n, kind)
			}
		}
		if f.LT != nil && f.LT.Live != 0 {
			t.Errorf("%d descriptors, layouts or preferences of cuBLASLt were not freed", f.LT.Live)
		}
	})
	return f
}

// number returns the number that the GPU of device dev has on the host.
func (f *GPU) number(dev int32) int {
	if f.Numbers == nil {
		return int(dev)
	}
	return f.Numbers[dev]
}

func (f *GPU) handle(kind string) uintptr {
	f.next++
	f.Live[kind]++
	return f.next
}

// The fakes' memory is large and contains no pointers, so frequent garbage collections gain little. The memory limit
// keeps tests below the 3 GB that CONTRIBUTING.md states.
func init() {
	debug.SetGCPercent(300)
	debug.SetMemoryLimit(3 << 29)
}

// Spare caches blocks of memory that fakes have freed, by size. Under the race detector, allocating a large block takes
// longer than most tests use it. A cached block keeps its contents, as memory of a GPU does. At most mostSpare bytes
// are cached. To make room, blocks of other sizes are dropped first.
var Spare struct {
	sync.Mutex
	Blocks map[int][]*cabi.Block
	Bytes  int
}

const mostSpare = 128 << 20

func spareBlock(size int) *cabi.Block {
	Spare.Lock()
	defer Spare.Unlock()
	list := Spare.Blocks[size]
	if len(list) == 0 {
		return cabi.NewBlock(size)
	}
	Spare.Blocks[size] = list[:len(list)-1]
	Spare.Bytes -= size
	return list[len(list)-1]
}

func keepBlock(b *cabi.Block) {
	Spare.Lock()
	defer Spare.Unlock()
	if Spare.Blocks == nil {
		Spare.Blocks = map[int][]*cabi.Block{}
	}
	size := len(b.Bytes())
	if size > mostSpare {
		return
	}
	if Spare.Bytes+size > mostSpare { // make room: drop the blocks of sizes that earlier tests used
		clear(Spare.Blocks)
		Spare.Bytes = 0
	}
	Spare.Bytes += size
	Spare.Blocks[size] = append(Spare.Blocks[size], b)
}

// blockSlack is the number of bytes that are allocated in addition, so that addresses can be aligned.
const blockSlack = 512

func (f *GPU) memory(kind string, n uintptr) uintptr {
	b := spareBlock(int(n) + blockSlack)
	at := (b.Addr(0) + 511) &^ 511
	f.Blocks[at] = b
	f.Live[kind]++
	return at
}

// registered reports whether an address is in registered host memory.
func (f *GPU) registered(at uintptr) bool {
	for lo, n := range f.hostBytes {
		if lo <= at && at < lo+n {
			return true
		}
	}
	return false
}

func (f *GPU) forget(kind string, at uintptr) uintptr {
	f.Live[kind]--
	if b := f.Blocks[at]; b != nil {
		keepBlock(b)
		delete(f.Blocks, at)
	}
	return 0
}

// Abandon caches the memory of a fake that is no longer used. Without it, a test would keep its fakes until it ends,
// and goroutines that hang would keep them longer.
func (f *GPU) Abandon() {
	f.Mu.Lock() // goroutines that hung may still continue
	defer f.Mu.Unlock()
	for _, b := range f.Blocks {
		if !f.Haunted {
			keepBlock(b)
		}
	}
	clear(f.Blocks)
}

// Die makes every call fail from now on. Objects that hanging calls have created are then not reported as leaks.
func (f *GPU) Die() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Dead = 1
}

// do executes work on a stream, or records it.
func (f *GPU) do(stream uintptr, work func()) uintptr { return f.await(stream, nil, work) }

// await is like do, for work that begins only when ready returns true.
func (f *GPU) await(stream uintptr, ready func() bool, work func()) uintptr {
	if f.Queues != nil {
		return f.Queues.Give(stream, Task{Ready: ready, Do: work})
	}
	if c := f.in(stream); c != nil {
		c.work = append(c.work, Task{Ready: ready, Do: work})
		return 0
	}
	if len(f.running) > 0 || ready != nil && !ready() {
		f.Error("work is issued while graphs wait, or work waits for an event that no other work can cause")
	}
	work()
	return 0
}

// launch launches a kernel. A programmatic dependent launch does not start early.
func (f *GPU) launch(function, stream, params uintptr) uintptr {
	f.launched(stream, f.Reach.usedBy[function])
	if pieces := f.severalOf[function]; pieces != nil {
		for _, w := range pieces(params) {
			f.Queues.Give(stream, w)
		}
		return 0
	}
	var ready func() bool
	if j := f.joinOf[function]; j != nil {
		f.do(stream, j.raise)
		ready = j.ready
	}
	return f.await(stream, ready, func() { f.Kernels[function](params) })
}

// in returns the capture that contains the stream; nil if there is none.
func (f *GPU) in(stream uintptr) *Capture {
	c := f.Member[stream]
	if c == nil && f.captures() {
		f.Error("work is issued during a capture, on a stream that did not join it")
	}
	return c
}

// captures reports whether a capture of the machine's own streams is in progress.
func (f *GPU) captures() bool {
	for origin := range f.Begun {
		if !f.Guests.streams[origin] {
			return true
		}
	}
	return false
}

// advance runs the nodes of launched graphs as far as they are ready, each graph in order.
func (f *GPU) advance() {
	for went := true; went; {
		went = false
		for i := range f.running {
			for g := &f.running[i]; len(*g) > 0 && ((*g)[0].Ready == nil || (*g)[0].Ready()); *g = (*g)[1:] {
				(*g)[0].Do()
				went = true
			}
		}
	}
	f.running = slices.DeleteFunc(f.running, func(g []Task) bool { return len(g) == 0 })
}

// resting returns the status CUDANotReady unless all work is done.
func (f *GPU) resting() uintptr {
	if f.advance(); len(f.running) > 0 {
		return nvlib.CUDANotReady
	}
	return 0
}

// uncapture ends the capture that was begun on the stream, if any.
func (f *GPU) uncapture(stream uintptr) {
	if c := f.Begun[stream]; c != nil {
		delete(f.Begun, stream)
		maps.DeleteFunc(f.Member, func(_ uintptr, o *Capture) bool { return o == c })
	}
}

// Set stores v, a result of a call, at the address p.
func Set[T any](p uintptr, v T) uintptr { cabi.Store(p, v); return 0 }

// fill stores n words. The stores are hidden from the race detector, which would take seconds for the LL128 lines of
// large collectives.
//
//go:norace
func fill[T uint8 | uint32](at, n uintptr, v T) uintptr {
	b := cabi.Bytes(at, int(n*unsafe.Sizeof(v)))
	words := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
	if n > 0 {
		words[0] = v
	}
	for done := 1; done < len(words); done *= 2 { // doubling the filled part is fast; single elements take seconds
		copy(words[done:], words[:done])
	}
	return 0
}

func (f *GPU) Calls() map[string]func(a []uintptr) uintptr {
	zero := func([]uintptr) uintptr { return 0 }
	gone := func(kind string) func(a []uintptr) uintptr {
		return func([]uintptr) uintptr { f.Live[kind]--; return 0 }
	}
	text := cabi.NewCStrings([]string{"CUDA_ERROR_FAKE"})
	words := func(a []uintptr) uintptr { return Set(a[1], cabi.Load[uintptr](text.Addr())) }
	return map[string]func(a []uintptr) uintptr{
		"cuInit":          zero,
		"cuProfilerStart": zero,
		"cuProfilerStop":  zero,
		"cuCtxSetCurrent": func(a []uintptr) uintptr { f.Reach.current[thread()] = int32(a[0]) - firstContext; return 0 },
		"cuCtxGetCurrent": func(a []uintptr) uintptr {
			return Set(a[0], uintptr(f.Reach.current[thread()]+firstContext))
		},
		"cuDriverGetVersion": func(a []uintptr) uintptr { return Set(a[0], int32(13000)) },
		"cuDeviceGetCount":   func(a []uintptr) uintptr { return Set(a[0], int32(f.devices)) },
		"cuDeviceGet":        func(a []uintptr) uintptr { return Set(a[0], int32(a[1])) },
		"cuDeviceGetName": func(a []uintptr) uintptr {
			copy(cabi.Bytes(a[0], len(f.Model)+1), f.Model+"\x00")
			return 0
		},
		"cuDeviceGetPCIBusId": func(a []uintptr) uintptr {
			id := fmt.Sprintf("%d:0\x00", f.number(int32(a[2])))
			copy(cabi.Bytes(a[0], len(id)), id)
			return 0
		},
		"cuDeviceTotalMem_v2": func(a []uintptr) uintptr { return Set(a[0], uint64(deviceMemory)) },
		"cuDeviceGetAttribute": func(a []uintptr) uintptr {
			switch nvlib.Attribute(a[1]) {
			case nvlib.ComputeCapabilityMajor:
				return Set(a[0], int32(9))
			case nvlib.SharedMemoryOfBlock:
				return Set(a[0], int32(227<<10))
			}
			return Set(a[0], int32(1))
		},
		"cuDeviceCanAccessPeer": func(a []uintptr) uintptr {
			if f.Reach.Apart(int32(a[1]), int32(a[2])) {
				return Set(a[0], int32(0))
			}
			return Set(a[0], int32(1))
		},
		"cuDeviceGetP2PAttribute": func(a []uintptr) uintptr { return Set(a[0], int32(1)) },
		"cuDevicePrimaryCtxRetain": func(a []uintptr) uintptr {
			return Set(a[0],
				uintptr(firstContext+int32(a[1])))
		},
		"cuCtxGetStreamPriorityRange": func(a []uintptr) uintptr { Set(a[0], int32(0)); return Set(a[1], int32(-5)) },
		"cuMemGetInfo_v2": func(a []uintptr) uintptr {
			Set(a[0], uint64(1))
			return Set(a[1],
				uint64(deviceMemory))
		},
		"cuMemGetAllocationGranularity": func(a []uintptr) uintptr { return Set(a[0], uint64(2<<20)) },
		"cuMemCreate": func(a []uintptr) uintptr {
			if owner := cabi.Load[[4]int32](a[2])[3]; a[1] > 16<<30 || f.Limit > 0 &&
				f.Reach.Mapped(owner)+int64(a[1]) > f.Limit {
				return nvlib.CUDAOutOfMemory
			}
			h := f.handle("memory")
			f.Reach.created[h] = cabi.Load[[4]int32](a[2])[3]
			return Set(a[0], h)
		},
		"cuMemRelease":        gone("memory"),
		"cuMemAddressReserve": func(a []uintptr) uintptr { return Set(a[0], f.memory("addresses", a[1])) },
		"cuMemAddressFree": func(a []uintptr) uintptr {
			if f.Reach.ranges[a[0]] != nil {
				f.Errorf("an address range is freed while memory is mapped to it")
			}
			return f.forget("addresses", a[0])
		},
		"cuMemMap": func(a []uintptr) uintptr {
			f.Live["mappings"]++
			f.Reach.ranges[a[0]] = &Mapping{a[1], f.Reach.created[a[3]], map[int32]bool{}}
			return 0
		},
		"cuMemUnmap": func(a []uintptr) uintptr {
			f.Live["mappings"]--
			delete(f.Reach.ranges, a[0])
			return 0
		},
		"cuMemSetAccess": f.grant,
		"cuMemHostAlloc": func(a []uintptr) uintptr {
			if f.HostLimit > 0 && f.pinned()+int64(a[1]) > f.HostLimit {
				return nvlib.CUDAOutOfMemory
			}
			return Set(a[0], f.memory("host memory", a[1]))
		},
		"cuMemFreeHost": func(a []uintptr) uintptr { return f.forget("host memory", a[0]) },
		"cuMemHostRegister_v2": func(a []uintptr) uintptr {
			f.Live["registered host memory"]++
			f.hostBytes[a[0]] = a[1]
			return 0
		},
		"cuMemHostUnregister": func(a []uintptr) uintptr {
			delete(f.hostBytes, a[0])
			return f.forget("registered host memory", a[0])
		},
		"cuMemExportToShareableHandle":   func([]uintptr) uintptr { return 801 }, // not supported
		"cuMemImportFromShareableHandle": func([]uintptr) uintptr { return 801 },
		"cuMemcpyAsync": func(a []uintptr) uintptr {
			dst, src, n := a[0], a[1], int(a[2])
			f.check(a[3], dst, src)
			if a[3] != 0 && (f.registered(dst) && (f.registered(src) || f.Reach.Of(src) == nil) ||
				f.registered(src) && f.Reach.Of(dst) == nil) {
				f.Errorf("a copy from host memory to host memory blocks its caller until the stream has reached it\n%s", debug.Stack())
			}
			f.inOrder(a[3], use{lo: src, hi: src + a[2]}, use{lo: dst, hi: dst + a[2], write: true})
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
		"cuModuleLoadData": func(a []uintptr) uintptr { f.next++; return Set(a[0], f.next) },
		"cuModuleGetFunction": func(a []uintptr) uintptr {
			k := f.Named[cabi.GoString(a[2])]
			if k == nil {
				return 500
			}
			f.next++
			f.Kernels[f.next], f.joinOf[f.next] = k, f.joins[cabi.GoString(a[2])]
			f.severalOf[f.next] = f.several[cabi.GoString(a[2])]
			f.Reach.usedBy[f.next] = f.Reach.uses[cabi.GoString(a[2])]
			return Set(a[0], f.next)
		},
		"cuFuncSetAttribute": zero,
		"cuLaunchKernel":     func(a []uintptr) uintptr { return f.launch(a[0], a[8], a[9]) },
		"cuLaunchKernelEx": func(a []uintptr) uintptr {
			if n, attr := cabi.Load[uint32](a[0]+48), cabi.Load[uintptr](a[0]+40); n != 1 ||
				cabi.Load[uint32](attr) != 6 {
				f.Errorf("a launch has %d attributes, of which the first is %d", n, cabi.Load[uint32](attr))
			}
			return f.launch(a[1], cabi.Load[uintptr](a[0]+32), a[2])
		},
		"cuStreamCreateWithPriority": func(a []uintptr) uintptr {
			h := f.handle("streams")
			f.Reach.streams[h] = f.Reach.current[thread()]
			return Set(a[0], h)
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
			if f.Order != nil {
				f.Order.wait(a[0], a[1])
			}
			c := f.Member[a[0]]
			if c == nil && len(f.Begun) > 0 { // the stream joins the capture
				for _, other := range f.Begun {
					if other.id == f.events[a[1]] {
						c = other
						f.Member[a[0]] = c
					}
				}
			}
			now := 1
			if c != nil {
				now = c.id
			}
			if f.events[a[1]] != now {
				f.Errorf("a wait in capture %d for an event that was recorded in %d (1: no capture)", now, f.events[a[1]])
			}
			return 0
		},
		"cuEventCreate":     func(a []uintptr) uintptr { return Set(a[0], f.handle("events")) },
		"cuEventDestroy_v2": gone("events"),
		"cuEventRecord": func(a []uintptr) uintptr {
			f.events[a[0]] = 1
			if f.Order != nil {
				f.Order.record(a[0], a[1])
			}
			if c := f.in(a[1]); c != nil {
				f.events[a[0]] = c.id
			}
			return 0
		},
		"cuEventRecordWithFlags": func(a []uintptr) uintptr { // within a graph
			if f.in(a[1]) == nil || a[2] != 1 {
				f.Errorf("an event is recorded with flags %d, within a capture: %v", a[2], f.in(a[1]) != nil)
			}
			f.events[a[0]] = 1
			return 0
		},
		"cuEventQuery": func(a []uintptr) uintptr {
			if f.events[a[0]] != 1 {
				f.Errorf("a query of an event that was recorded in capture %d", f.events[a[0]])
			}
			return f.resting()
		},
		"cuEventElapsedTime": func(a []uintptr) uintptr { f.next++; return Set(a[0], float32(f.next)) },
		"cuStreamBeginCapture_v2": func(a []uintptr) uintptr {
			f.last = max(f.last, 1) + 1
			f.Begun[a[0]] = &Capture{id: f.last}
			f.Member[a[0]] = f.Begun[a[0]]
			return 0
		},
		"cuStreamEndCapture": func(a []uintptr) uintptr {
			h := f.handle("graphs")
			f.Graphs[h] = f.Begun[a[0]].work
			f.uncapture(a[0])
			return Set(a[1], h)
		},
		"cuGraphInstantiateWithFlags": func(a []uintptr) uintptr {
			h := f.handle("ready graphs")
			f.Graphs[h] = f.Graphs[a[1]]
			return Set(a[0], h)
		},
		"cuGraphUpload": zero,
		"cuGraphLaunch": func(a []uintptr) uintptr {
			f.running = append(f.running, slices.Clone(f.Graphs[a[0]]))
			f.advance()
			return 0
		},
		"cuGraphGetNodes":    func(a []uintptr) uintptr { return Set(a[2], uint64(len(f.Graphs[a[0]]))) },
		"cuGraphDestroy":     gone("graphs"),
		"cuGraphExecDestroy": gone("ready graphs"),
		"cuGetErrorName":     words, "cuGetErrorString": words,
	}
}

// status executes a call and returns its status, unless the call is set to fail. After a fatal error all calls fail
// except cuGetErrorName and cuGetErrorString, as with a real driver.
func (f *GPU) status(name string, do func() uintptr) uintptr {
	f.Called[name]++
	if strings.HasPrefix(name, "cuGetError") {
		return do()
	}
	if f.Nth != nil && f.Nth(name) {
		return f.Failure
	}
	switch {
	case f.Late[name] > 0:
		f.Late[name]--
		return nvlib.CUDANotReady
	case f.Dead != 0:
		f.Vain = append(f.Vain, name)
		return f.Dead
	case f.Kills[name] != 0:
		f.Dead = f.Kills[name]
		return f.Dead
	case f.Returns[name] != 0:
		return f.Returns[name]
	}
	return do()
}

// streamOf maps the name of a call to the index of the stream among its arguments.
var streamOf = map[string]int{"cuStreamQuery": 0, "cuStreamSynchronize": 0, "cuStreamWaitEvent": 0, "cuEventRecord": 1,
	"cuGraphLaunch":      1,
	"cuMemcpy2DAsync_v2": 1, "cuMemcpyAsync": 3, "cuLaunchKernel": 8}

// ill returns a call's status from f.Ills if the call uses a stream of a device in f.Ills, and 0 for other calls. The
// status "not ready" models a slow device, so only cuStreamQuery returns it.
func (f *GPU) ill(name string, a []uintptr) uintptr {
	i, streams := streamOf[name]
	if !streams {
		return 0
	}
	status := f.Ills[f.deviceOf(a[i])]
	if status == nvlib.CUDANotReady && name != "cuStreamQuery" {
		return 0
	}
	return status
}

// failing changes the calls of another library: a call returns status if Gate or Nth makes it fail. The function tell
// is called for each call that fails because of Nth.
func (f *GPU) failing(table map[string]func([]uintptr) uintptr, status uintptr, tell func(name string)) {
	for name, do := range table {
		table[name] = func(a []uintptr) uintptr {
			if !f.Gate.Pass(name) {
				return status
			}
			f.Mu.Lock()
			fails := f.Nth != nil && f.Nth(name)
			f.Mu.Unlock()
			if fails {
				tell(name)
				return status
			}
			return do(a)
		}
	}
}

// AllCalls returns the functions of Calls with all options of the fake applied.
func (f *GPU) AllCalls() map[string]func(a []uintptr) uintptr {
	table := f.Calls()
	if f.LT != nil {
		f.LT.time(table)
	}
	f.Multicast.Calls(f, table)
	if f.Queues != nil {
		f.Queues.calls(table)
	}
	f.Guests.calls(f, table)
	if f.share != nil {
		f.share(table)
	}
	return table
}

// Driver returns the fake as a CUDA driver.
func (f *GPU) Driver() *nvlib.Driver {
	table := f.AllCalls()
	for name, do := range table {
		table[name] = func(a []uintptr) uintptr {
			if !f.Gate.Pass(name) {
				return 999 // CUDA_ERROR_UNKNOWN
			}
			f.Mu.Lock()
			defer f.Mu.Unlock()
			if f.OnCall != nil {
				f.OnCall(name, a)
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
	return drv
}

// CuBLASLt opens f.LT, or a cuBLASLt without algorithms if it is nil.
func (f *GPU) CuBLASLt() (*nvlib.CuBLASLt, error) {
	if f.LT != nil {
		return f.LT.open()
	}
	return noAlgorithms(f.TB), nil
}

// noAlgorithms returns a cuBLASLt that has no algorithm for any GEMM.
func noAlgorithms(t testing.TB) *nvlib.CuBLASLt {
	zero := func([]uintptr) uintptr { return 0 }
	table := map[string]func([]uintptr) uintptr{}
	for _, name := range []string{"cublasLtCreate", "cublasLtDestroy", "cublasLtGetVersion", "cublasLtMatmulDescCreate",
		"cublasLtMatmulDescDestroy",
		"cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy",
		"cublasLtMatrixLayoutSetAttribute",
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

// Meeting refuses kernels that compute in a meeting, because the fake executes one kernel at a time. A kernel in which
// members only wait for each other computes nothing; the fake executes it if it has Queues.
func (f *GPU) Meeting(_ kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	if strings.HasPrefix(m.Body, "moveMeet<") { // members only wait for each other
		f.Mu.Lock()
		defer f.Mu.Unlock()
		f.next++
		name := fmt.Sprint("meet", f.next)
		f.Named[name] = func(uintptr) {}
		if f.Queues != nil {
			f.several[name] = func(uintptr) []Task { return f.meet(m) }
		}
		return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name,
			Shape: nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}}, nil
	}
	return kernels.Step{}, fmt.Errorf("%w: the fake's kernels cannot wait for each other", device.ErrUnsupported)
}

// Steps implements kernels.Library by Go functions: fill, add, sub, mul, neg and reductions of f32, f64 and i32,
// computed in float64.
func (f *GPU) Steps(_ kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	if !f.Gate.Pass(Compile) {
		return nil, errors.New("the compiler hung until it was released")
	}
	if _, err := kernels.Sources(p); err != nil {
		return nil, err
	}
	if f.Plain && takesLong(p) {
		return nil, fmt.Errorf("%w: %s takes long", device.ErrUnsupported, p)
	}
	run, err := goKernel(p)
	if err != nil {
		return nil, err
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.next++
	name := fmt.Sprint("go", f.next)
	f.Named[name] = func(uintptr) { run() }
	f.operands(name, p)
	return []kernels.Step{stepOf(name)}, nil
}

// takesLong reports whether p takes long to compute in Go.
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

// stepOf returns a step that launches one thread.
func stepOf(name string) kernels.Step {
	one := [3]uint32{1, 1, 1}
	return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name, Shape: nvlib.Shape{Grid: one, Block: one}}
}

// Raise and Await implement kernels.Library.
func (f *GPU) Raise(kernels.Target) (kernels.Step, error) { return f.wired("raise", 2) }
func (f *GPU) Await(kernels.Target) (kernels.Step, error) { return f.wired("await", 7) }

func (f *GPU) wired(name string, words int) (kernels.Step, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Named[name] = func(uintptr) {}
	f.several[name] = func(params uintptr) []Task { return []Task{f.wiredWork(name, params)} }
	s := stepOf(name)
	s.Params = [][]byte{make([]byte, 8*words)}
	return s, nil
}

// Join implements kernels.Library. The flags are words that Go functions read and write.
func (f *GPU) Join(_ kernels.Target, j kernels.Join) (kernels.Step, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.next++
	name := fmt.Sprint("join", f.next)
	if f.Queues != nil {
		f.Named[name] = func(uintptr) {}
		f.several[name] = func(uintptr) []Task { return f.joined(j) }
		return stepOf(name), nil
	}
	there := func() bool { return cabi.Load[int64](uintptr(j.Flag)) >= j.Count }
	aborted := func() bool { return j.Abort != 0 && cabi.Load[uint64](uintptr(j.Abort)) != 0 }
	f.joins[name] = &join{
		raise: func() {
			if j.List == 0 || f.Mute {
				return
			}
			for i := range cabi.Load[uint64](uintptr(j.List)) {
				at := cabi.Load[uintptr](uintptr(j.List) + 8*uintptr(i+1))
				cabi.Store(at, cabi.Load[int64](at)+1)
			}
		},
		ready: func() bool { return j.Count == 0 || there() || aborted() || f.Hasty },
	}
	f.Named[name] = func(uintptr) {
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
	return stepOf(name), nil
}

// Holds returns how many bytes of device and host memory are allocated on the fake, in the form in which worlds report
// this.
func (f *GPU) Holds() (h device.Held) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for d := range int32(f.devices) {
		h.Device = max(h.Device, f.Reach.Mapped(d))
	}
	h.Host = f.pinned()
	return h
}

// pinned returns the number of pinned bytes.
func (f *GPU) pinned() int64 {
	n := int64(0)
	for at, b := range f.Blocks {
		if f.Reach.ranges[at] == nil {
			n += int64(len(b.Bytes())) - blockSlack
		}
	}
	return n
}

// Taken returns the number of allocations of device memory since the previous call of Taken.
func (f *GPU) Taken() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	n := f.Called["cuMemCreate"]
	f.Called["cuMemCreate"] = 0
	return n
}

// Given returns how many objects of the driver and cuBLASLt exist, by kind.
func (f *GPU) Given() map[string]int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	given := maps.Clone(f.Live)
	given["descriptions of products"] = f.LT.Live
	return given
}

// Load registers a function as a kernel and returns the kernel's handle.
func (f *GPU) Load(run func(params uintptr)) uintptr {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.next++
	f.Kernels[f.next] = run
	return f.next
}
