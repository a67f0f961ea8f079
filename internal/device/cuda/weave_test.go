package cuda

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// weave is a pattern of work on one or more devices: operations of streams, in the order of issue.
type weave struct {
	gpus []int // by stream
	ops  []weaveOp
}

// weaveOp is an operation of a weave: a short kernel ('s'), a kernel that raises flag n ('r'), a kernel that waits for
// flag n ('w'), a wait of the stream for the current position of stream n ('e'), or a kernel of a meeting ('m'). A
// kernel of a meeting raises flag n + own and waits for the flags from n to n + of - 1.
type weaveOp struct {
	kind    byte
	on      int // the stream
	n       int // a flag, or a stream
	own, of int
}

const weaveSource = `
__device__ unsigned load(unsigned* p) { unsigned v; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ void store(unsigned* p) { asm volatile("st.relaxed.sys.global.u32 [%0], 1;" :: "l"(p) : "memory"); }
__device__ unsigned long long now() { unsigned long long v; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v)); return v; }
extern "C" __global__ void await_flags(unsigned* board, unsigned flag, unsigned count, unsigned own, unsigned arrival, unsigned long long ns) {
	if (threadIdx.x) return;
	if (own) store(board + own);
	if (!load(board)) store(board + arrival);
	unsigned long long began = now();
	for (unsigned i = 0; i < count; i++)
		while (!load(board + flag + 8 * i) && !load(board))
			if (now() - began > ns) store(board);
}
extern "C" __global__ void raise_flag(unsigned* board, unsigned flag) {
	if (threadIdx.x) return;
	__threadfence_system();
	store(board + flag);
}
extern "C" __global__ void spend() {
	for (unsigned long long began = now(); now() - began < 3000; ) {}
}
`

// The board is an array of words in host memory: whether a wait has timed out, then which waits began before that, then
// the flags.
const (
	boardBytes    = 512 << 10
	boardArrivals = 8
	boardFlags    = 4096
)

// The time limits of waits. The limit briefly is for waits that are expected to time out. The limit long is for other
// waits, because other programs may use the devices.
const (
	briefly = 25 * time.Millisecond
	long    = 2 * time.Second
)

// weaver runs weaves.
type weaver struct {
	testing.TB
	drv    *nvlib.Driver
	ctx    []nvlib.Context
	funcs  []map[byte]nvlib.Function
	board  nvlib.Ptr
	waits  int           // number of waits issued since the board was cleared
	bound  time.Duration // time limit of the waits that are issued next
	events []nvlib.Event
}

// newWeaver returns a weaver for at most two devices of this host.
func newWeaver(t testing.TB) *weaver {
	must := mustOf(t)
	drv, err := nvlib.OpenDriver()
	must(err)
	rtc, err := nvlib.OpenNVRTC()
	must(err)
	n, err := drv.DeviceCount()
	must(err)
	return newWeaverOn(t, drv, min(n, 2), func(arch string) []byte {
		c, err := rtc.Compile(nvlib.Compilation{Name: "weave.cu", Source: weaveSource, Options: []string{"--gpu-architecture=" + arch}})
		must(err)
		return c.Cubin
	})
}

// newWeaverOn returns a weaver for the given number of devices. The function compile returns the image of the kernels.
func newWeaverOn(t testing.TB, drv *nvlib.Driver, devices int, compile func(arch string) []byte) *weaver {
	must := mustOf(t)
	runtime.LockOSThread() // a context is current on one thread only
	t.Cleanup(runtime.UnlockOSThread)
	r := &weaver{TB: t, drv: drv, bound: long}
	for i := range devices {
		dev, err := drv.Device(i)
		must(err)
		major, err := drv.DeviceAttribute(dev, nvlib.ComputeCapabilityMajor)
		must(err)
		minor, err := drv.DeviceAttribute(dev, nvlib.ComputeCapabilityMinor)
		must(err)
		ctx, err := drv.RetainPrimary(dev)
		must(err)
		r.ctx = append(r.ctx, ctx)
		r.bind(i)
		m, err := drv.LoadModule(compile(gpu.Arch(major, minor)))
		must(err)
		fs := map[byte]nvlib.Function{}
		for kind, name := range map[byte]string{'w': "await_flags", 'r': "raise_flag", 's': "spend"} {
			fs[kind], err = drv.Function(m, name)
			must(err)
			must(drv.LoadFunction(fs[kind]))
		}
		fs['m'] = fs['w']
		r.funcs = append(r.funcs, fs)
	}
	var err error
	r.board, err = drv.HostAlloc(boardBytes)
	must(err)
	r.clear()
	return r
}

func (r *weaver) bind(gpu int) {
	mustOf(r)(r.drv.Bind(r.ctx[gpu]))
	r.drv.Unbind() // the context stays current on the test's thread
}

// clear resets the board.
func (r *weaver) clear() {
	clear(cabi.Bytes(uintptr(r.board), boardBytes))
	r.waits = 0
}

func (r *weaver) gaveUp() bool { return cabi.Load[uint32](uintptr(r.board)) != 0 }

// arrived returns the number of waits that began before one timed out.
func (r *weaver) arrived() int {
	n := 0
	for i := range r.waits {
		n += int(cabi.Load[uint32](uintptr(r.board) + uintptr(4*(boardArrivals+i))))
	}
	return n
}

// newStreams creates a stream on each of the given GPUs.
func (r *weaver) newStreams(gpus []int) []nvlib.Stream {
	var list []nvlib.Stream
	for _, g := range gpus {
		r.bind(g)
		s, err := r.drv.NewStream(0)
		mustOf(r)(err)
		list = append(list, s)
	}
	return list
}

func (r *weaver) freeStreams(gpus []int, list []nvlib.Stream) {
	for i, s := range list {
		r.bind(gpus[i])
		mustOf(r)(r.drv.DestroyStream(s))
	}
}

func (r *weaver) sync(gpus []int, list []nvlib.Stream) {
	for i, s := range list {
		r.bind(gpus[i])
		mustOf(r)(r.drv.SyncStream(s))
	}
}

// here records an event at the current position of s.
func (r *weaver) here(s nvlib.Stream) nvlib.Event {
	e, err := r.drv.NewEvent(false)
	mustOf(r)(err)
	mustOf(r)(r.drv.Record(e, s))
	r.events = append(r.events, e)
	return e
}

// give issues an operation to a stream. It calls the function join before it uses a stream, while the context of the
// stream's device is current.
func (r *weaver) give(p weave, streams []nvlib.Stream, o weaveOp, join func(stream int)) {
	if o.kind == 'e' {
		r.bind(p.gpus[o.n])
		join(o.n)
		e := r.here(streams[o.n])
		r.bind(p.gpus[o.on])
		join(o.on)
		mustOf(r)(r.drv.WaitEvent(streams[o.on], e))
		return
	}
	r.bind(p.gpus[o.on])
	join(o.on)
	r.kernel(p.gpus[o.on], o, streams[o.on])
}

// eagerly issues the weave p to new streams without a graph, and waits for it.
func (r *weaver) eagerly(p weave) {
	streams := r.newStreams(p.gpus)
	for _, o := range p.ops {
		r.give(p, streams, o, func(int) {})
	}
	r.sync(p.gpus, streams)
	r.freeStreams(p.gpus, streams)
	r.freeEvents()
}

// kernel launches the kernel of the operation o on stream s.
func (r *weaver) kernel(gpu int, o weaveOp, s nvlib.Stream) {
	word := func(v int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
	flag := boardFlags + 8*o.n
	params := [][]byte{binary.LittleEndian.AppendUint64(nil, uint64(r.board)), word(flag)}
	switch o.kind {
	case 's':
		params = nil
	case 'w', 'm':
		count, own := 1, 0
		if o.kind == 'm' {
			count, own = o.of, flag+8*o.own
		}
		params = append(params, word(count), word(own), word(boardArrivals+r.waits), binary.LittleEndian.AppendUint64(nil, uint64(r.bound)))
		r.waits++
	}
	if flag+8*o.of >= boardBytes/4 || boardArrivals+r.waits > boardFlags {
		r.Fatalf("flag %d, wait %d: the board is too small", o.n, r.waits)
	}
	l := nvlib.NewLaunch(r.funcs[gpu][o.kind], nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}, params)
	defer l.Free()
	mustOf(r)(r.drv.Launch(l, s))
}

func (r *weaver) freeEvents() {
	for _, e := range r.events {
		mustOf(r)(r.drv.DestroyEvent(e))
	}
	r.events = nil
}

// recorded is a weave that was recorded as graphs, one over all devices or one for each.
type recorded struct {
	gpus    []int
	origins []nvlib.Stream
	execs   []nvlib.GraphExec
}

// record records the weave p in the same way as a world records its work: as one graph over all devices, or as one for
// each. In the second case the graphs first wait for each other, by flags with numbers from meeting on, unless meeting
// is negative.
func (r *weaver) record(p weave, one bool, meeting int) recorded {
	must := mustOf(r)
	var g recorded
	section := make([]int, len(r.ctx)) // index in g.gpus, by device
	for gpu := range r.ctx {
		if section[gpu] = len(g.gpus); slices.Contains(p.gpus, gpu) && (!one || len(g.gpus) == 0) {
			g.gpus = append(g.gpus, gpu)
		}
		if one {
			section[gpu] = 0
		}
	}
	g.origins = r.newStreams(g.gpus)
	var begins []nvlib.Event
	for i, gpu := range g.gpus {
		r.bind(gpu)
		must(r.drv.BeginCapture(g.origins[i]))
		if meeting >= 0 && len(g.gpus) > 1 {
			r.kernel(gpu, weaveOp{kind: 'm', n: meeting, own: i, of: len(g.gpus)}, g.origins[i])
		}
		begins = append(begins, r.here(g.origins[i]))
	}
	streams, joined := r.newStreams(p.gpus), make([]bool, len(p.gpus))
	for _, o := range p.ops {
		r.give(p, streams, o, func(s int) {
			if !joined[s] {
				joined[s] = true
				must(r.drv.WaitEvent(streams[s], begins[section[p.gpus[s]]]))
			}
		})
	}
	for s, in := range joined {
		if in {
			r.bind(p.gpus[s])
			end := r.here(streams[s])
			i := section[p.gpus[s]]
			r.bind(g.gpus[i])
			must(r.drv.WaitEvent(g.origins[i], end))
		}
	}
	for i, gpu := range g.gpus {
		r.bind(gpu)
		raw, err := r.drv.EndCapture(g.origins[i])
		must(err)
		e, err := r.drv.Instantiate(raw)
		must(err)
		must(r.drv.DestroyGraph(raw))
		must(r.drv.UploadGraph(e, g.origins[i]))
		must(r.drv.SyncStream(g.origins[i]))
		g.execs = append(g.execs, e)
	}
	r.freeEvents()
	r.freeStreams(p.gpus, streams)
	return g
}

func (r *weaver) launch(g recorded, i int) {
	r.bind(g.gpus[i])
	mustOf(r)(r.drv.LaunchGraph(g.execs[i], g.origins[i]))
}

// launchAll launches graphs one after another, and waits for them.
func (r *weaver) launchAll(list ...recorded) {
	clear(cabi.Bytes(uintptr(r.board), boardBytes))
	for _, g := range list {
		for i := range g.gpus {
			r.launch(g, i)
		}
	}
	for _, g := range list {
		r.sync(g.gpus, g.origins)
	}
}

func (r *weaver) free(list ...recorded) {
	for _, g := range list {
		for i, gpu := range g.gpus {
			r.bind(gpu)
			mustOf(r)(r.drv.DestroyGraphExec(g.execs[i]))
		}
		r.freeStreams(g.gpus, g.origins)
	}
}

// wide returns a weave of branches on one device that have the same operations, body. Branches are issued one after
// another. The branch with the index raiser has the operations raise instead of body; -1 for none.
func wide(branches int, body string, raiser int, raise string) weave {
	p := weave{gpus: make([]int, branches)}
	for b := range branches {
		does := body
		if b == raiser {
			does = raise
		}
		for _, k := range []byte(does) {
			p.ops = append(p.ops, weaveOp{kind: k, on: b})
		}
	}
	return p
}

// exchange returns a random weave that resembles the work of programs with the strategy exchange, with the given number
// of streams on each device. Separate streams raise flags, for which another device waits later. In the order of issue,
// every raise comes before its wait.
func exchange(rng *rand.Rand, gpus, streams, ops int) weave {
	var p weave
	for g := range gpus {
		for range 2 * streams { // the second half raises flags
			p.gpus = append(p.gpus, g)
		}
	}
	raised := make([][]int, gpus) // by device: flags for which it will wait
	flag := 2 * gpus              // the first flags are those by which graphs wait for each other
	for range ops * gpus * streams {
		g := rng.IntN(gpus)
		s := 2*g*streams + rng.IntN(streams)
		switch rng.IntN(5) {
		case 0, 1:
			p.step(s)
		case 2:
			p.behind(s, 2*g*streams+rng.IntN(streams))
		case 3:
			p.behind(s+streams, s)
			p.ops = append(p.ops, weaveOp{kind: 'r', on: s + streams, n: flag})
			to := (g + 1) % gpus
			raised[to] = append(raised[to], flag)
			flag++
		default:
			if n := len(raised[g]); n > 0 {
				i := rng.IntN(n)
				p.ops = append(p.ops, weaveOp{kind: 'w', on: s, n: raised[g][i]})
				p.step(s)
				raised[g] = slices.Delete(raised[g], i, i+1)
			}
		}
	}
	return p
}

func (p *weave) step(s int) { p.ops = append(p.ops, weaveOp{kind: 's', on: s}) }

// behind adds an operation that makes stream s wait for the work that stream other has received so far.
func (p *weave) behind(s, other int) {
	if s != other {
		p.ops = append(p.ops, weaveOp{kind: 'e', on: s, n: other})
	}
}

// moved returns a copy of p whose flags have higher numbers.
func (p weave) moved(by int) weave {
	q := weave{gpus: p.gpus, ops: slices.Clone(p.ops)}
	for i := range q.ops {
		if q.ops[i].kind != 'e' {
			q.ops[i].n += by
		}
	}
	return q
}

// gathering returns a random weave with kernels that meet, for the given numbers of ranks per device and of streams per
// rank. In each meeting, one stream of every rank takes part. If together is set, the kernels of a meeting are issued
// without other operations between them. Otherwise other work, for which none of them waits, is issued between them.
func gathering(rng *rand.Rand, gpus, ranks, streams, ops int, together bool) weave {
	var p weave
	for rank := range gpus * ranks {
		for range streams {
			p.gpus = append(p.gpus, rank%gpus)
		}
	}
	all := gpus * ranks
	owes := map[int][]weaveOp{} // by stream: its kernel of a meeting that still has to be issued
	flag := 0
	for range ops * len(p.gpus) {
		s := rng.IntN(len(p.gpus))
		if o := owes[s]; o != nil {
			p.ops = append(p.ops, o...)
			delete(owes, s)
			continue
		}
		switch rng.IntN(4) {
		case 0, 1:
			p.step(s)
		case 2:
			if other := rng.IntN(len(p.gpus)); owes[other] == nil {
				p.behind(s, other)
			}
		default:
			team := s % streams
			free := true
			for rank := range all {
				free = free && owes[rank*streams+team] == nil
			}
			for rank := range all {
				if free {
					at := rank*streams + team
					owes[at] = []weaveOp{{kind: 'm', on: at, n: flag, own: rank, of: all}}
				}
			}
			if free {
				flag += all
			}
		}
		for at := 0; together && at < len(p.gpus); at++ {
			p.ops = append(p.ops, owes[at]...)
			delete(owes, at)
		}
	}
	for s := range p.gpus {
		p.ops = append(p.ops, owes[s]...)
	}
	return p
}

// locksUp reports whether the weave p deadlocks on devices with the given number of hardware queues. In the model that
// it uses, the streams of a device are assigned to queues cyclically. A queue starts operations in the order of issue.
// An operation starts when the operations it follows are over and all earlier ones in its queue have started. A kernel
// that waits ends when the kernel it waits for has started.
func (p weave) locksUp(queues int) bool {
	type place struct{ GPU, queue int }
	order := map[place][]int{}
	after := make([][]int, len(p.ops)) // operations that must be over before each operation starts
	latest, made := make([]int, len(p.gpus)), map[int]int{}
	at := make([]place, len(p.gpus))
	for s, gpu := range p.gpus {
		at[s] = place{gpu, made[gpu] % queues}
		made[gpu]++
		latest[s] = -1
	}
	for i, o := range p.ops {
		for _, s := range map[bool][]int{false: {o.on}, true: {o.on, o.n}}[o.kind == 'e'] {
			if latest[s] >= 0 {
				after[i] = append(after[i], latest[s])
			}
		}
		latest[o.on] = i
		order[at[o.on]] = append(order[at[o.on]], i)
	}
	begun, raised := make([]bool, len(p.ops)), map[int]bool{}
	over := func(i int) bool {
		o := p.ops[i]
		for k := range map[byte]int{'w': 1, 'm': o.of}[o.kind] {
			if !raised[o.n+k] {
				return false
			}
		}
		return begun[i]
	}
	for went := true; went; {
		went = false
		for q, list := range order {
			for len(list) > 0 && !slices.ContainsFunc(after[list[0]], func(i int) bool { return !over(i) }) {
				o := p.ops[list[0]]
				if o.kind == 'r' || o.kind == 'm' {
					raised[o.n+o.own] = true
				}
				begun[list[0]], list, went = true, list[1:], true
			}
			order[q] = list
		}
	}
	return slices.Contains(begun, false)
}
