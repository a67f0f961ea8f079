// Package fakedriver is a CUDA driver written in Go, for tests of what runs on GPUs: memory, streams, events, graphs,
// cuBLASLt and NCCL, and kernels that are Go functions. Every call can be made to fail, or not to return.
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

// GPU is a driver in Go that does all work immediately. This order is legal, because the machine never gives a
// device a wait for something that was not issued before: the fake refuses a wait for an event that was never
// recorded. It also records what is never freed.
type GPU struct {
	testing.TB
	Mu        sync.Mutex
	next      uintptr
	Blocks    map[uintptr]*cabi.Block // memory, by address
	Live      map[string]int          // objects that were made and not freed, by kind
	events    map[uintptr]int         // in which capture recorded; 1 for none, 0 for never
	Kernels   map[uintptr]func(params uintptr)
	Named     map[string]func(params uintptr)
	Users     map[string]func(params [][]byte) // kernels of the user's, by file and name
	Returns   map[string]uintptr               // status of a call, by name
	Kills     map[string]uintptr               // the same; from then on, of every call
	Dead      uintptr                          // what every call returns; 0 for none
	Vain      []string                         // the calls that got it
	Called    map[string]int                   // how often, by name
	Nth       func(name string) bool           // whether a call of any library is to fail; nil for none
	Failure   uintptr                          // the driver's status of one that does
	Late      map[string]int                   // so many calls more fail with not ready, by name
	devices   int
	Model     string               // its name
	Limit     int64                // memory of a device; 0 for plenty
	HostLimit int64                // memory that can be pinned; 0 for plenty
	Plain     bool                 // has no kernels that take long in Go
	LT        *LT                  // its cuBLASLt; nil for one that takes nothing
	last      int                  // number of the last capture, from 2
	Begun     map[uintptr]*Capture // captures under way, by origin
	Member    map[uintptr]*Capture // streams in them
	Graphs    map[uintptr][]Task
	running   [][]Task          // graphs launched, what is left of them
	joins     map[string]*join  // kernels that are joins, by name
	joinOf    map[uintptr]*join // by function
	Hasty     bool              // kernels run out of time at once
	Mute      bool              // and raise nothing
	Patient   bool              // kernels of queues never run out of time
	Reach     Access
	Ills      map[int32]uintptr // by device: what calls about its streams return, from now on
	Order     *Order            // of copies; nil where nobody asks
	Multicast Multicast
	Queues    *Queues                                  // where it runs by itself; nil where calls do what they are given
	share     func(map[string]func([]uintptr) uintptr) // has other processes share its memory; nil for none
	Numbers   []int                                    // by device: which GPU of the host it is; nil for all, in order
	several   map[string]func(params uintptr) []Task   // of queues: kernels that are pieces of work, by name
	severalOf map[uintptr]func(params uintptr) []Task  // by function
	OnCall    func(name string, a []uintptr)           // called for each call, unless nil
	Haunted   bool                                     // what hung in it may still use its memory
	Gate      gate                                     // calls that do not return
	Guests    Guests
	// remembered: NCCL may know of memory, whose addresses are then never given back.
	Remembered bool
}

// Capture is a capture under way.
type Capture struct {
	id    int
	work  []Task
	tails map[uintptr][]int // of queues: behind which work the next of a stream comes
}

// join is a kernel in two steps: it raises, and then takes when it can.
type join struct {
	raise func()
	ready func() bool
}

// Task is a node of a graph; ready is nil for those that wait for nothing.
type Task struct {
	Ready  func() bool
	Do     func()
	wait   func(since time.Time) bool // of queues: likewise, for who can wait too long
	behind []int                      // of queues: others of the graph
}

const deviceMemory = 1 << 40

func New(t testing.TB, devices int) *GPU {
	f := &GPU{TB: t, next: 100, devices: devices, Model: "fake",
		Blocks: map[uintptr]*cabi.Block{}, Live: map[string]int{},
		Graphs: map[uintptr][]Task{}, Begun: map[uintptr]*Capture{}, Member: map[uintptr]*Capture{},
		several: map[string]func(uintptr) []Task{}, severalOf: map[uintptr]func(uintptr) []Task{},
		joins: map[string]*join{}, joinOf: map[uintptr]*join{}, events: map[uintptr]int{},
		Kernels: map[uintptr]func(uintptr){}, Named: map[string]func(uintptr){}, Returns: map[string]uintptr{},
		Kills:  map[string]uintptr{},
		Called: map[string]int{}, Late: map[string]int{}, Ills: map[int32]uintptr{}, Reach: newAccess()}
	t.Cleanup(func() {
		defer f.Abandon()
		if f.Dead != 0 {
			return // nothing can be given back
		}
		for kind, n := range f.Live {
			if n != 0 && (kind != "addresses" || !f.Remembered) {
				t.Errorf("%d × %s were not given back", n, kind)
			}
		}
		if f.LT != nil && f.LT.Live != 0 {
			t.Errorf("%d × what describes products was not given back", f.LT.Live)
		}
	})
	return f
}

// number is which GPU of the host a device is.
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

// A fake's GPUs hold much memory, without pointers: little is worth collecting before there is much garbage, but tests
// promise to need less than 3 GB (CONTRIBUTING.md).
func init() {
	debug.SetGCPercent(300)
	debug.SetMemoryLimit(3 << 29)
}

// Spare are blocks that fakes have freed, by size: making a slab takes the race
// detector longer than most tests use it. What lies in them stays, as on a GPU. No more
// than mostSpare bytes are kept: those that earlier tests left go first.
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
	if Spare.Bytes+size > mostSpare { // they are of sizes that earlier tests used
		clear(Spare.Blocks)
		Spare.Bytes = 0
	}
	Spare.Bytes += size
	Spare.Blocks[size] = append(Spare.Blocks[size], b)
}

// blockSlack is room to begin where memory does.
const blockSlack = 512

func (f *GPU) memory(kind string, n uintptr) uintptr {
	b := spareBlock(int(n) + blockSlack)
	at := (b.Addr(0) + 511) &^ 511
	f.Blocks[at] = b
	f.Live[kind]++
	return at
}

func (f *GPU) forget(kind string, at uintptr) uintptr {
	f.Live[kind]--
	if b := f.Blocks[at]; b != nil {
		keepBlock(b)
		delete(f.Blocks, at)
	}
	return 0
}

// Abandon takes the memory from a fake that is used no more, for the next: a test keeps its
// fakes until it ends, and what hangs keeps them longer.
func (f *GPU) Abandon() {
	f.Mu.Lock() // of what hung some may go on
	defer f.Mu.Unlock()
	for _, b := range f.Blocks {
		if !f.Haunted {
			keepBlock(b)
		}
	}
	clear(f.Blocks)
}

// Die has every call fail from now on: what hangs, or hung, does not give back what it has.
func (f *GPU) Die() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Dead = 1
}

// do does what a stream was given, or records it.
func (f *GPU) do(stream uintptr, work func()) uintptr { return f.await(stream, nil, work) }

// await is do for work that waits until ready.
func (f *GPU) await(stream uintptr, ready func() bool, work func()) uintptr {
	if f.Queues != nil {
		return f.Queues.Give(stream, Task{Ready: ready, Do: work})
	}
	if c := f.in(stream); c != nil {
		c.work = append(c.work, Task{Ready: ready, Do: work})
		return 0
	}
	if len(f.running) > 0 || ready != nil && !ready() {
		f.Error("work beside graphs that wait, or that waits by itself")
	}
	work()
	return 0
}

// launch runs a kernel. One that begins early runs no sooner than others.
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

// in returns the capture that the stream is in; nil while there are none.
func (f *GPU) in(stream uintptr) *Capture {
	c := f.Member[stream]
	if c == nil && f.captures() {
		f.Error("work beside a capture, on a stream that did not join it")
	}
	return c
}

// captures reports whether the machine's own streams are captured.
func (f *GPU) captures() bool {
	for origin := range f.Begun {
		if !f.Guests.streams[origin] {
			return true
		}
	}
	return false
}

// advance runs what graphs can of those that were launched, one after another.
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

// resting answers whether all is done.
func (f *GPU) resting() uintptr {
	if f.advance(); len(f.running) > 0 {
		return nvlib.CUDANotReady
	}
	return 0
}

// uncapture ends the capture that was begun on the stream, if there is one.
func (f *GPU) uncapture(stream uintptr) {
	if c := f.Begun[stream]; c != nil {
		delete(f.Begun, stream)
		maps.DeleteFunc(f.Member, func(_ uintptr, o *Capture) bool { return o == c })
	}
}

// Set stores through an out parameter.
func Set[T any](p uintptr, v T) uintptr { cabi.Store(p, v); return 0 }

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
				f.Errorf("addresses are given back from which memory is reached")
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
		"cuMemFreeHost":                  func(a []uintptr) uintptr { return f.forget("host memory", a[0]) },
		"cuMemHostRegister_v2":           func([]uintptr) uintptr { f.Live["registered host memory"]++; return 0 },
		"cuMemHostUnregister":            gone("registered host memory"),
		"cuMemExportToShareableHandle":   func([]uintptr) uintptr { return 801 }, // not supported
		"cuMemImportFromShareableHandle": func([]uintptr) uintptr { return 801 },
		"cuMemcpyAsync": func(a []uintptr) uintptr {
			dst, src, n := a[0], a[1], int(a[2])
			f.check(a[3], dst, src)
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
				f.Errorf("a launch with %d attributes, the first is %d", n, cabi.Load[uint32](attr))
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
			if c == nil && len(f.Begun) > 0 { // it joins
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
				f.Errorf("a wait in %d for an event recorded in %d", now, f.events[a[1]])
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

// status does a call, unless it is to fail, or the devices are lost as real ones
// are: then all calls fail but those that put errors into words.
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

// streamOf is which argument of a call is the stream.
var streamOf = map[string]int{"cuStreamQuery": 0, "cuStreamSynchronize": 0, "cuStreamWaitEvent": 0, "cuEventRecord": 1,
	"cuGraphLaunch":      1,
	"cuMemcpy2DAsync_v2": 1, "cuMemcpyAsync": 3, "cuLaunchKernel": 8}

// ill returns what a call about a stream of a device that is ill gets; 0 for others. Of
// one that is only slow questions alone get it.
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

// failing has calls of another library fail where they are to, with that status, and
// tells of each.
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

// AllCalls are those of calls, and what else the fake was made to do.
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

// Driver is the fake as a CUDA driver.
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

// CuBLASLt opens the fake's cuBLASLt: one without algorithms unless the test gave it another.
func (f *GPU) CuBLASLt() (*nvlib.CuBLASLt, error) {
	if f.LT != nil {
		return f.LT.open()
	}
	return noAlgorithms(f.TB), nil
}

// noAlgorithms answers every question for an algorithm with none.
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

// Meeting is refused: the fake does one thing at a time. Where members only meet
// that is as good; with queues they do.
func (f *GPU) Meeting(_ kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	if strings.HasPrefix(m.Body, "moveMeet<") { // nothing but meets
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

// Steps is a Library whose kernels are Go functions: fill, add, sub, mul, neg
// and reductions of f32, f64 and i32 in float64.
func (f *GPU) Steps(_ kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	if !f.Gate.Pass(Compile) {
		return nil, errors.New("a compiler that was held up")
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

// stepOf is a launch of one thread.
func stepOf(name string) kernels.Step {
	one := [3]uint32{1, 1, 1}
	return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name, Shape: nvlib.Shape{Grid: one, Block: one}}
}

// Raise and Await are a Library's.
func (f *GPU) Raise(kernels.Target) (kernels.Step, error) { return f.wired("raise", 2) }
func (f *GPU) Await(kernels.Target) (kernels.Step, error) { return f.wired("await", 6) }

func (f *GPU) wired(name string, words int) (kernels.Step, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Named[name] = func(uintptr) {}
	f.several[name] = func(params uintptr) []Task { return []Task{f.wiredWork(name, params)} }
	s := stepOf(name)
	s.Params = [][]byte{make([]byte, 8*words)}
	return s, nil
}

// Join is a Library's: flags are words that Go changes.
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

// Holds is what the fake's devices and host have given away, told as worlds do.
func (f *GPU) Holds() (h device.Held) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for d := range int32(f.devices) {
		h.Device = max(h.Device, f.Reach.Mapped(d))
	}
	h.Host = f.pinned()
	return h
}

// pinned is how much host memory is, in bytes.
func (f *GPU) pinned() int64 {
	n := int64(0)
	for at, b := range f.Blocks {
		if f.Reach.ranges[at] == nil {
			n += int64(len(b.Bytes())) - blockSlack
		}
	}
	return n
}

// Taken says how often the fake's devices were asked for memory since the last time.
func (f *GPU) Taken() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	n := f.Called["cuMemCreate"]
	f.Called["cuMemCreate"] = 0
	return n
}

// Given is what the driver and cuBLASLt have given and not been given back.
func (f *GPU) Given() map[string]int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	given := maps.Clone(f.Live)
	given["descriptions of products"] = f.LT.Live
	return given
}

// Load returns the handle of a kernel that runs the given function.
func (f *GPU) Load(run func(params uintptr)) uintptr {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.next++
	f.Kernels[f.next] = run
	return f.next
}
