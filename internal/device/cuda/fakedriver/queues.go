package fakedriver

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Queues make a fake execute work asynchronously, as a device does. A stream is a queue, and a wait for another process
// blocks the queue, not the call that issued the wait. Each piece of work is a node that runs after other nodes: the
// previous node of its stream, and those for which the stream waits. Graphs consist of the same nodes. The mutex of the
// fake driver guards all fields.
type Queues struct {
	f       *GPU
	tails   map[queueKey][]*node // by stream: nodes after which the stream's next node runs
	events  map[uintptr][]*node
	indexes map[uintptr][]int // by event that was recorded in a capture: indices of nodes of the graph
	pending []*node
	given   *sync.Cond // signals that nodes are pending
	over    bool
	ended   chan struct{}
}

// queueKey identifies a stream. The device is part of the key because each device has a null stream.
type queueKey struct {
	h   uintptr
	dev int32
}

// node is issued work.
type node struct {
	Task
	deps  []*node   // nodes after which it runs and that have not run yet
	since time.Time // time when the last node of deps had run
	done  bool
}

// Queue makes the fake run work asynchronously until the test ends.
func (f *GPU) Queue() {
	q := &Queues{f: f, tails: map[queueKey][]*node{},
		events: map[uintptr][]*node{}, indexes: map[uintptr][]int{}, given: sync.NewCond(&f.Mu),
		ended: make(chan struct{})}
	f.Queues = q
	go q.run()
	f.Cleanup(func() {
		f.Mu.Lock()
		q.over = true
		f.Mu.Unlock()
		q.given.Broadcast()
		<-q.ended
	})
}

// run executes pending nodes as soon as they can run, independently of calls.
func (q *Queues) run() {
	defer close(q.ended)
	q.f.Mu.Lock()
	defer q.f.Mu.Unlock()
	for {
		for len(q.pending) == 0 && !q.over {
			q.given.Wait()
		}
		if q.over {
			return
		}
		q.Advance()
		q.f.Mu.Unlock()
		time.Sleep(100 * time.Microsecond)
		q.f.Mu.Lock()
	}
}

// Give adds work to a stream, or to the capture that contains the stream.
func (q *Queues) Give(stream uintptr, w Task) uintptr {
	if c := q.f.in(stream); c != nil {
		w.behind = c.tails[stream]
		c.tails[stream] = []int{len(c.work)}
		c.work = append(c.work, w)
		return 0
	}
	s := q.stream(stream)
	q.tails[s] = []*node{q.add(w, q.tails[s])}
	q.Advance()
	return 0
}

func (q *Queues) stream(h uintptr) queueKey {
	if h == 0 {
		return queueKey{dev: q.f.deviceOf(0)}
	}
	return queueKey{h: h}
}

func (q *Queues) add(w Task, deps []*node) *node {
	n := &node{Task: w, deps: slices.Clone(deps)}
	q.pending = append(q.pending, n)
	q.given.Broadcast()
	return n
}

// Advance executes all nodes that can run.
func (q *Queues) Advance() {
	for went := true; went; {
		went = false
		for _, n := range q.pending {
			if !n.done && n.can() {
				n.Do()
				n.done, went = true, true
			}
		}
		q.pending = slices.DeleteFunc(q.pending, func(n *node) bool { return n.done })
	}
}

func (n *node) can() bool {
	n.deps = slices.DeleteFunc(n.deps, func(d *node) bool { return d.done })
	if len(n.deps) > 0 {
		return false
	}
	if n.since.IsZero() {
		n.since = time.Now()
	}
	return (n.Ready == nil || n.Ready()) && (n.wait == nil || n.wait(n.since))
}

// asked returns the status CUDANotReady unless all nodes are done.
func (q *Queues) asked(nodes []*node) uintptr {
	q.Advance()
	if slices.ContainsFunc(nodes, func(n *node) bool { return !n.done }) {
		return nvlib.CUDANotReady
	}
	return 0
}

// calls replaces the calls for streams, events and graphs in the table by those of queues.
func (q *Queues) calls(table map[string]func([]uintptr) uintptr) {
	f := q.f
	also := func(name string, do func(a []uintptr) uintptr) {
		first := table[name]
		table[name] = func(a []uintptr) uintptr {
			if status := first(a); status != 0 {
				return status
			}
			return do(a)
		}
	}
	table["cuStreamQuery"] = func(a []uintptr) uintptr {
		if f.in(a[0]) != nil {
			return 900 // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
		return q.asked(q.tails[q.stream(a[0])])
	}
	table["cuStreamSynchronize"] = func(a []uintptr) uintptr {
		for s := q.stream(a[0]); q.asked(q.tails[s]) != 0; {
			f.Mu.Unlock()
			time.Sleep(50 * time.Microsecond)
			f.Mu.Lock()
		}
		return 0
	}
	table["cuCtxSynchronize"] = func([]uintptr) uintptr {
		for q.Advance(); len(q.pending) > 0; q.Advance() {
			f.Mu.Unlock()
			time.Sleep(50 * time.Microsecond)
			f.Mu.Lock()
		}
		return 0
	}
	also("cuEventQuery", func(a []uintptr) uintptr { return q.asked(q.events[a[0]]) })
	also("cuEventRecord", func(a []uintptr) uintptr {
		if c := f.in(a[1]); c != nil {
			q.indexes[a[0]] = c.tails[a[1]]
		} else {
			q.events[a[0]] = q.tails[q.stream(a[1])]
		}
		return 0
	})
	// The driver records this event in a node of a graph. A query of the event then waits for the whole graph.
	also("cuEventRecordWithFlags", func(a []uintptr) uintptr { delete(q.events, a[0]); return 0 })
	also("cuStreamWaitEvent", func(a []uintptr) uintptr {
		if c := f.Member[a[0]]; c != nil {
			c.tails[a[0]] = append(slices.Clone(c.tails[a[0]]), q.indexes[a[1]]...)
			return 0
		}
		s := q.stream(a[0])
		q.tails[s] = append(undone(q.tails[s]), undone(q.events[a[1]])...)
		return 0
	})
	also("cuStreamBeginCapture_v2", func(a []uintptr) uintptr {
		f.Begun[a[0]].tails = map[uintptr][]int{}
		return 0
	})
	table["cuGraphLaunch"] = func(a []uintptr) uintptr { return q.graph(f.Graphs[a[0]], a[1]) }
	for name, bytes := range map[string]bool{"cuMemsetD32Async": false, "cuMemsetD8Async": true} {
		table[name] = func(a []uintptr) uintptr {
			at, v, n := a[0], a[1], a[2]
			f.check(a[3], at)
			return f.do(a[3], func() {
				if bytes {
					fill(at, n, byte(v))
				} else {
					fill(at, n, uint32(v))
				}
			})
		}
	}
}

// graph adds the nodes of a graph to a stream.
func (q *Queues) graph(work []Task, stream uintptr) uintptr {
	s := q.stream(stream)
	before, nodes := q.tails[s], []*node(nil)
	for _, w := range work {
		deps := before
		for i, k := range w.behind {
			if i == 0 {
				deps = nil
			}
			deps = append(deps, nodes[k])
		}
		nodes = append(nodes, q.add(w, deps))
	}
	q.tails[s] = append(undone(before), nodes...)
	q.Advance()
	return 0
}

// undone returns the nodes that are not done.
func undone(nodes []*node) []*node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n.done })
}

// word returns a pointer to a word of memory that other processes or threads change.
func word(at uintptr) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(cabi.Bytes(at, 8))))
}

// peek reads a word that the host writes, as a device would: the race detector does not see the read.
//
//go:norace
func peek(at uintptr) uint64 { return *word(at) }

//go:norace
func poke(at uintptr, v uint64) { *word(at) = v }

// wiredWork creates the task of a raise or await kernel. wiredWork reads the kernel's arguments when the kernel is
// launched.
func (f *GPU) wiredWork(name string, params uintptr) Task {
	at := cabi.Load[uintptr](params)
	if name == "raise" {
		to, by := cabi.Load[uintptr](at), cabi.Load[uint64](at+8)
		return Task{Do: func() {
			if !f.Mute {
				atomic.AddUint64(word(to), by)
			}
		}}
	}
	a := cabi.Load[struct {
		At    uintptr
		Least int64
		Abort uintptr
		Ns    int64
		Fault uintptr
		Tag   uint64
		Words uintptr
	}](at)
	now := func() int64 { return sum(a.At, a.Words) }
	var began time.Time
	late := func() bool { return !f.Patient && time.Since(began).Nanoseconds() > a.Ns }
	return Task{
		wait: func(since time.Time) bool {
			began = since
			return now() >= a.Least || peek(a.Abort) != 0 || late()
		},
		Do: func() {
			if v := now(); v < a.Least {
				reportWait(a.Fault, a.Abort, a.Tag, a.Least, v, time.Since(began))
			}
		},
	}
}

// sum returns the sum of n words.
func sum(at, n uintptr) (sum int64) {
	for i := range n {
		sum += int64(atomic.LoadUint64(word(at + kernels.WordBytes*i)))
	}
	return sum
}

// joined returns the tasks of a join kernel: one raises flags of other streams; the other waits until its own flag has
// reached the count, and subtracts the count.
func (f *GPU) joined(j kernels.Join) []Task {
	now := func() int64 { return sum(uintptr(j.Flag), uintptr(max(j.Words, 1))) }
	var began time.Time
	raise := Task{Do: func() {
		if j.List == 0 || f.Mute {
			return
		}
		for i := range cabi.Load[uint64](uintptr(j.List)) {
			atomic.AddUint64(word(cabi.Load[uintptr](uintptr(j.List)+8*uintptr(i+1))), 1)
		}
	}}
	take := Task{
		wait: func(since time.Time) bool {
			began = since
			return now() >= j.Count || peek(uintptr(j.Abort)) != 0 || !f.Patient && time.Since(since) > j.Timeout
		},
		Do: func() {
			if v := now(); v < j.Count {
				reportWait(uintptr(j.Fault), uintptr(j.Abort), j.Tag, j.Count, v, time.Since(began))
				return
			}
			if j.Words == 0 {
				atomic.AddUint64(word(uintptr(j.Flag)), -uint64(j.Count))
			}
		},
	}
	if j.Count == 0 {
		return []Task{raise}
	}
	return []Task{raise, take}
}

// reportWait writes the fault report of a wait that timed out, and aborts all other waits.
func reportWait(fault, abort uintptr, tag uint64, words0, words1 int64, waited time.Duration) {
	kind := kernels.FaultAborted
	if peek(abort) == 0 {
		kind = kernels.FaultTimeout
		poke(abort, 1)
	}
	if b := cabi.Bytes(fault, kernels.FaultBytes); binary.LittleEndian.Uint64(b) == 0 {
		for i, v := range []uint64{tag, uint64(words0), uint64(words1), uint64(waited.Nanoseconds())} {
			binary.LittleEndian.PutUint64(b[8*(i+1):], v)
		}
		poke(fault, uint64(kind)|1)
		ring(fault)
	}
}

// meet returns the tasks of a kernel that only synchronizes a team: each member waits until all others have begun as
// many launches. The fake does not implement kernels of teams that also compute.
func (f *GPU) meet(m kernels.Meeting) []Task {
	t := m.Team
	word := func(i int, off uintptr) *uint32 {
		return (*uint32)(unsafe.Pointer(unsafe.SliceData(cabi.Bytes(uintptr(t.Control[i])+off, 4))))
	}
	own := word(t.Rank, kernels.ControlEpochs)
	late := func() int {
		epoch := atomic.LoadUint32(own)
		for i := range t.Control {
			if int32(atomic.LoadUint32(word(i, kernels.ControlBegun))-epoch) < 0 {
				return i
			}
		}
		return -1
	}
	var began time.Time
	return []Task{
		{Do: func() {
			if !f.Mute {
				atomic.StoreUint32(word(t.Rank, kernels.ControlBegun), atomic.AddUint32(own, 1))
			}
		}},
		{wait: func(since time.Time) bool {
			began = since
			return late() < 0 || peek(uintptr(t.Abort)) != 0 ||
				!f.Patient && time.Since(since).Nanoseconds() > t.Timeout
		}, Do: func() {
			if i := late(); i >= 0 {
				reportWait(uintptr(t.Record), uintptr(t.Abort), t.Tag, int64(atomic.LoadUint32(own)), int64(i),
					time.Since(began))
			}
		}},
	}
}
