package cuda

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// weave is a program for one device or more: what streams are given, in that order.
type weave struct {
	gpus []int // of each stream
	ops  []weaveOp
}

// weaveOp is a step ('s'), a raise of a flag ('r'), a wait for it ('w'), a wait of the
// stream for where stream n stands ('e'), or one of the kernels that meet ('m'): it raises
// its flag, number own of those from n on, and waits for all of them.
type weaveOp struct {
	kind    byte
	on      int // stream
	n       int // flag, or stream
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

// The board is words in the host's memory: whether a wait ended by its bound, then
// which waits began before, then flags.
const (
	boardBytes    = 512 << 10
	boardArrivals = 8
	boardFlags    = 4096
)

// Waits end after briefly where they are to be in vain, else after long: others may be
// at work on the devices.
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
	waits  int           // given since the board was cleared
	bound  time.Duration // of the waits that are given
	events []nvlib.Event
}

// newWeaver makes one of at most two devices of this host.
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

// newWeaverOn makes one of so many devices, with the image that compile makes.
func newWeaverOn(t testing.TB, drv *nvlib.Driver, devices int, compile func(arch string) []byte) *weaver {
	must := mustOf(t)
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
	r.drv.Unbind() // the test keeps its thread
}

// clear makes the board as at first.
func (r *weaver) clear() {
	clear(cabi.Bytes(uintptr(r.board), boardBytes))
	r.waits = 0
}

func (r *weaver) gaveUp() bool { return cabi.Load[uint32](uintptr(r.board)) != 0 }

// arrived counts the waits that began before one gave up.
func (r *weaver) arrived() int {
	n := 0
	for i := range r.waits {
		n += int(cabi.Load[uint32](uintptr(r.board) + uintptr(4*(boardArrivals+i))))
	}
	return n
}

// newStreams makes a stream for each of p.
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

// here returns an event of where s is.
func (r *weaver) here(s nvlib.Stream) nvlib.Event {
	e, err := r.drv.NewEvent(false)
	mustOf(r)(err)
	mustOf(r)(r.drv.Record(e, s))
	r.events = append(r.events, e)
	return e
}

// give gives a stream an operation. join is called before a stream is used, whose
// device is current then.
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

// eagerly gives p to streams of its own, and waits.
func (r *weaver) eagerly(p weave) {
	streams := r.newStreams(p.gpus)
	for _, o := range p.ops {
		r.give(p, streams, o, func(int) {})
	}
	r.sync(p.gpus, streams)
	r.freeStreams(p.gpus, streams)
	r.freeEvents()
}

// kernel gives s a kernel of o's kind.
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

// recorded is a weave as graphs, one over all devices or one for each.
type recorded struct {
	gpus    []int
	origins []nvlib.Stream
	execs   []nvlib.GraphExec
}

// record records p as the world does: one graph over all devices, or one for each, which
// meet first, by flags from meeting on, where that is not negative.
func (r *weaver) record(p weave, one bool, meeting int) recorded {
	must := mustOf(r)
	var g recorded
	section := make([]int, len(r.ctx)) // of each device
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

// launchAll launches graphs one after the other, and waits.
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

// wide is a weave of so many branches on one device, each of the same body, issued by
// depth: a branch whole before the next. The branch raiser does what raise says instead;
// -1 for none.
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

// exchange is a random weave of devices as exchanges are, with so many streams on each:
// flags are raised by streams of their own, and waited for by another device
// later. In the order of issue every raise comes before its wait.
func exchange(rng *rand.Rand, gpus, streams, ops int) weave {
	var p weave
	for g := range gpus {
		for range 2 * streams { // the second half raises
			p.gpus = append(p.gpus, g)
		}
	}
	raised := make([][]int, gpus) // flags to be waited for there
	flag := 2 * gpus              // the first are of meetings
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

// behind makes stream s wait for what stream other was given so far.
func (p *weave) behind(s, other int) {
	if s != other {
		p.ops = append(p.ops, weaveOp{kind: 'e', on: s, n: other})
	}
}

// moved is p with other flags.
func (p weave) moved(by int) weave {
	q := weave{gpus: p.gpus, ops: slices.Clone(p.ops)}
	for i := range q.ops {
		if q.ops[i].kind != 'e' {
			q.ops[i].n += by
		}
	}
	return q
}

// gathering is a random weave of devices, with so many ranks and streams of a rank on
// each, in which a stream of every rank each meet. Together, kernels that meet are issued
// with nothing between; else others' work comes between, none of which they wait for.
func gathering(rng *rand.Rand, gpus, ranks, streams, ops int, together bool) weave {
	var p weave
	for rank := range gpus * ranks {
		for range streams {
			p.gpus = append(p.gpus, rank%gpus)
		}
	}
	all := gpus * ranks
	owes := map[int][]weaveOp{} // by stream: its part in a meeting, not issued yet
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

// locksUp reports whether p, given to streams, would stand still on devices of so many
// queues, which the streams of each share by turns: a queue begins things in the order in
// which they were given, one as soon as what it follows is over and all before it in the
// queue have begun. What waits ends when what it waits for has begun.
func (p weave) locksUp(queues int) bool {
	type place struct{ GPU, queue int }
	order := map[place][]int{}
	after := make([][]int, len(p.ops)) // what must be over before each begins
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
