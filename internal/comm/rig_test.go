package comm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// spec describes a collective of a team of n members. Instances, inputs and expected outputs are generated from it.
type spec struct {
	op          ir.Op
	red         ir.Red
	dt          ir.DType
	n           int
	shape       []int64 // of a member's smaller operand
	axis, split int
	root        int
	// for permute: member i sends to member i+shift; if hole is set, members whose destination would wrap around to 0 do
	// not send
	shift   int
	hole    bool
	overlap overlap
	algo    string
	shared  bool // whether operands are in memory that peers can access
	unevenSpec
}

// overlap describes how a member's input and output share memory.
type overlap int

const (
	apart   overlap = iota
	onTop           // input and output begin at the same byte
	inBlock         // the smaller operand is the member's block of the larger operand
	shifted         // they begin one element apart
	numOverlaps
)

func (s spec) String() string {
	return fmt.Sprintf("%s/%s/%s/n%d%v axis%d split%d root%d shift%d hole%v overlap%d shared%v %s counted%v room%d",
		s.op, s.red, s.dt, s.n, s.shape, s.axis, s.split, s.root, s.shift, s.hole, s.overlap, s.shared, s.algo, s.counted, s.room)
}

// larger returns shape extended to n blocks along axis.
func larger(shape []int64, axis, n int) []int64 {
	l := slices.Clone(shape)
	l[axis] *= int64(n)
	return l
}

// shapes returns the shapes of a member's input and output; nil if the member has none.
func (s spec) shapes(me int) (in, out []int64) {
	switch s.op {
	case ir.OpAllReduce:
		return s.shape, s.shape
	case ir.OpAllGather:
		return s.shape, larger(s.shape, s.axis, s.n)
	case ir.OpReduceScatter:
		return larger(s.shape, s.axis, s.n), s.shape
	case ir.OpAllToAll:
		return larger(s.shape, s.split, s.n), larger(s.shape, s.axis, s.n)
	case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		return s.shape, s.roomy()
	case ir.OpBroadcast:
		if me == s.root {
			in = s.shape
		}
		return in, s.shape
	case ir.OpReduce:
		if me == s.root {
			out = s.shape
		}
		return s.shape, out
	case ir.OpGather:
		if me == s.root {
			out = larger(s.shape, s.axis, s.n)
		}
		return s.shape, out
	case ir.OpScatter:
		if me == s.root {
			in = larger(s.shape, s.axis, s.n)
		}
		return in, s.shape
	case ir.OpPermute:
		to, from := s.links(me)
		if to >= 0 {
			in = s.shape
		}
		if from >= 0 {
			out = s.shape
		}
	}
	return in, out
}

// links returns the members that a member of a permute sends to and receives from.
func (s spec) links(me int) (to, from int) {
	if s.op != ir.OpPermute {
		return -1, -1
	}
	to, from = (me+s.shift)%s.n, (me+s.n-s.shift%s.n)%s.n
	if s.hole && to == 0 {
		to = -1
	}
	if s.hole && me == 0 {
		from = -1
	}
	return to, from
}

// want computes the outputs of all members from their inputs, directly by the definition of the collective.
func (s spec) want(ins []*tensor.Tensor) []*tensor.Tensor {
	outs := make([]*tensor.Tensor, s.n)
	for me := range outs {
		_, shape := s.shapes(me)
		if shape == nil || s.op == ir.OpBarrier {
			continue
		}
		out, _ := tensor.New(s.dt, shape)
		outs[me] = out
		switch s.op {
		case ir.OpAllReduce, ir.OpReduce:
			reduceInto(out, ins, s.red)
		case ir.OpReduceScatter:
			reduceInto(out, blocksOf(ins, s.axis, me, s.shape), s.red)
		case ir.OpAllGather, ir.OpGather:
			joinInto(out, ins, s.axis)
		case ir.OpAllToAll:
			joinInto(out, blocksOf(ins, s.split, me, s.shape), s.axis)
		case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
			s.rowsInto(out, ins, me)
		case ir.OpBroadcast:
			copy(out.Data, ins[s.root].Data)
		case ir.OpScatter:
			copy(out.Data, blocksOf(ins[s.root:s.root+1], s.axis, me, s.shape)[0].Data)
		case ir.OpPermute:
			_, from := s.links(me)
			copy(out.Data, ins[from].Data)
		}
	}
	return outs
}

func blocksOf(ts []*tensor.Tensor, axis, i int, shape []int64) []*tensor.Tensor {
	var blocks []*tensor.Tensor
	lo := make([]int64, len(shape))
	lo[axis] = int64(i) * shape[axis]
	for _, t := range ts {
		b, err := tensor.Slice(t, lo, shape)
		if err != nil {
			panic(err)
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func joinInto(out *tensor.Tensor, parts []*tensor.Tensor, axis int) {
	lo := make([]int64, len(out.Shape))
	for _, p := range parts {
		if err := tensor.Paste(out, p, lo); err != nil {
			panic(err)
		}
		lo[axis] += p.Shape[axis]
	}
}

// reduceInto implements rule S11 literally: it adds the operands in team order with an f32, f64 or i64 accumulator and
// rounds once.
func reduceInto(out *tensor.Tensor, ins []*tensor.Tensor, red ir.Red) {
	for e := range out.Len() {
		switch out.DType.Accum() {
		case ir.I64:
			out.SetInt64(e, reduceVals(red, ins, func(t *tensor.Tensor) int64 { return t.Int64(e) }))
		case ir.F64:
			out.SetFloat64(e, reduceVals(red, ins, func(t *tensor.Tensor) float64 { return t.Float64(e) }))
		default:
			out.SetFloat64(e, float64(reduceVals(red, ins, func(t *tensor.Tensor) float32 { return float32(t.Float64(e)) })))
		}
	}
}

func reduceVals[A int64 | float32 | float64](red ir.Red, ins []*tensor.Tensor, at func(*tensor.Tensor) A) A {
	acc := at(ins[0])
	for _, t := range ins[1:] {
		switch v := at(t); red {
		case ir.Max:
			acc = max(acc, v)
		case ir.Min:
			acc = min(acc, v)
		default:
			acc += v
		}
	}
	if red == ir.Avg {
		acc /= A(len(ins))
	}
	return acc
}

var collectives = []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBroadcast,
	ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute, ir.OpBarrier,
	ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV}

// randomSpec draws a collective of a team of n.
func randomSpec(rng *rand.Rand, n int) spec {
	s := spec{op: collectives[rng.IntN(len(collectives))], red: ir.Sum + ir.Red(rng.IntN(4)), dt: ir.ArithmeticTypes()[rng.IntN(6)],
		n: n, root: rng.IntN(n), shift: rng.IntN(n), hole: rng.IntN(2) == 0, overlap: overlap(rng.IntN(int(numOverlaps)))}
	if s.op.Info().AttrSpec("op") == nil {
		s.dt = ir.DTypes()[rng.IntN(len(ir.DTypes()))]
	}
	for range 1 + rng.IntN(3) {
		s.shape = append(s.shape, []int64{0, 1, 2, 3, 5, 7}[rng.IntN(6)])
	}
	s.axis, s.split = rng.IntN(len(s.shape)), rng.IntN(len(s.shape))
	if rng.IntN(4) > 0 {
		s.algo = Schedules()[rng.IntN(len(schedules))]
	}
	s.shared = rng.IntN(3) > 0
	s.unevenSpec = unevenSpec{counted: rng.IntN(2) == 0, room: rng.Int64N(12), seed: rng.Uint64()}
	return s
}

// onCUDA makes the tests open their worlds on GPUs, with up to eight ranks on the available GPUs.
var onCUDA = flag.Bool("cuda", false, "run on the CUDA machine")

// open opens a world that is closed when the test ends.
func open(t testing.TB, mode cpu.Mode, seed int64, ranks int) device.World {
	t.Helper()
	m := cpu.New(cpu.Options{Mode: mode, Seed: seed})
	if *onCUDA {
		var err error
		if m, err = cuda.New(cuda.Options{RanksPerGPU: 8}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := m.Open(context.Background(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// rig is a channel under test together with the memory of its operands.
type rig struct {
	t       testing.TB
	w       device.World
	specs   []spec
	team    []int
	streams []device.Stream
	ch      *Channel
	parts   [][]Part // by instance and member
	mems    [][]device.Memory
	jobs    []*job
}

// job holds the inputs and outputs of one instance in one run.
type job struct {
	s        spec
	run      int64
	ins, got []*tensor.Tensor
}

func newRig(t testing.TB, w device.World, name string, team []int, specs []spec) *rig {
	t.Helper()
	r := &rig{t: t, w: w, specs: specs, team: team}
	var members []Member
	for _, rank := range team {
		s, err := w.Device(rank).NewStream(device.StreamOptions{Name: name})
		r.must(err)
		r.streams = append(r.streams, s)
		members = append(members, Member{Rank: rank, Stream: s})
	}
	var insts []Instance
	for _, s := range specs {
		in := s.instance()
		in.nodes = plain(w).nodes(members)
		mems := make([]device.Memory, s.n)
		for me, rank := range team {
			in.Parts = append(in.Parts, r.place(w.Device(rank), s, me, &mems[me]))
		}
		if a := schedule(in.Pin.Algo); a != nil && supports(a, &in, device.Caps{}) != nil {
			in.Pin.Algo = ""
		}
		ranMu.Lock()
		ranBy[in.Pin.Algo]++
		ranMu.Unlock()
		insts = append(insts, in)
		r.parts = append(r.parts, in.Parts)
		r.mems = append(r.mems, mems)
	}
	var err error
	r.ch, err = plain(w).Design(members, insts)
	r.must(err)
	r.must(r.ch.Open())
	return r
}

// instance returns s as an Instance without parts.
func (s spec) instance() Instance {
	return Instance{Pin: device.Tuning{Algo: s.algo}, Shared: s.shared,
		Collective: device.Collective{Op: s.op, Red: s.red, Root: s.root, Axis: s.axis, Split: s.split, Together: s.shared}}
}

// plain returns a dispatch without a table.
func plain(w device.World) *Dispatch { return NewDispatch(w, device.Caps{}, nil, Policy{}) }

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// ranBy counts, by algorithm and over all tests, the instances that pin the algorithm.
var (
	ranMu sync.Mutex // worlds of several processes are goroutines in this test binary
	ranBy = map[string]int{}
)

// place allocates a member's operands. Operands that are not shared are in private memory, where an access by a peer
// fails.
func (r *rig) place(d device.Device, s spec, me int, mem *device.Memory) Part {
	in, out := s.shapes(me)
	p := Part{Reads: in != nil, Writes: out != nil}
	p.To, p.From = s.links(me)
	if !p.Reads && !p.Writes {
		return p
	}
	nIn, nOut := plainBytes(s.dt, in), plainBytes(s.dt, out)
	offOut := int64(0)
	switch s.overlap {
	case apart:
		offOut = alignUp(nIn)
	case shifted:
		offOut = s.dt.Size()
	}
	kind := device.Private
	if s.shared {
		kind = device.Shared
	}
	m, err := d.Alloc(nIn+nOut+256, kind)
	r.must(err)
	*mem = m
	if p.Reads {
		p.In = packed(m, 0, s.dt, in)
	}
	if p.Writes {
		p.Out = packed(m, offOut, s.dt, out)
	}
	if s.overlap == inBlock && p.Reads && p.Writes && s.axis == 0 {
		switch s.op {
		case ir.OpAllGather, ir.OpGather:
			p.In = block(p.Out, 0, me, s.n)
		case ir.OpReduceScatter, ir.OpScatter:
			p.Out = block(p.In, 0, me, s.n)
		}
	}
	if s.op.Uneven() {
		r.placeCounts(d, s, me, &p)
	}
	return p
}

func plainBytes(dt ir.DType, shape []int64) int64 {
	if shape == nil {
		return 0
	}
	n, err := tensor.Bytes(dt, shape)
	if err != nil {
		panic(err)
	}
	return n
}

// issue enqueues instance i of the run for all members: the upload of the operands, the collective, and the download of
// the results. On a scheduled machine results are overwritten right before the collective, and all operands right after
// it.
func (r *rig) issue(i int, run int64) {
	r.t.Helper()
	s := r.specs[i]
	s.run = run
	j := &job{s: s, run: run, ins: make([]*tensor.Tensor, s.n), got: make([]*tensor.Tensor, s.n)}
	r.jobs = append(r.jobs, j)
	for me, st := range r.streams {
		p := &r.parts[i][me]
		if p.Reads {
			j.ins[me] = r.input(s, fmt.Sprint(i, " ", me, " ", run))
			r.must(st.Upload(p.In, j.ins[me].Data))
		}
		if p.Counted {
			r.uploadCounts(st, s, me, p)
		}
		if p.Writes && (!p.Reads || !meet(p.In, p.Out)) {
			r.must(st.Call(func() { p.Out.Mem.Poison(p.Out.Off, viewBytes(p.Out)) }))
		}
		r.must(r.ch.Issue(i, me, run))
		if p.Writes {
			j.got[me], _ = tensor.New(s.dt, p.Out.Shape)
			r.must(st.Download(j.got[me].Data, p.Out))
		}
		if p.Reads || p.Writes {
			mem := r.mems[i][me]
			r.must(st.Call(func() { mem.Poison(0, mem.Bytes()) }))
		}
	}
}

func (r *rig) input(s spec, name string) *tensor.Tensor {
	in, _ := s.shapes(s.root)
	if s.op == ir.OpPermute {
		in = s.shape
	}
	x, err := tensor.New(s.dt, in)
	r.must(err)
	r.must(tensor.Fill(x, name, tensor.Spec{Kind: tensor.SpecRand, Seed: 7}))
	return x
}

// check compares all results with plain arithmetic, bit by bit.
func (r *rig) check() {
	r.t.Helper()
	for _, j := range r.jobs {
		for me, want := range j.s.want(j.ins) {
			if !r.w.Local(r.team[me]) {
				continue
			}
			if (want == nil) != (j.got[me] == nil) {
				r.t.Fatalf("%s: member %d has an output: %v", j.s, me, j.got[me] != nil)
			}
			if want != nil && !slices.Equal(j.got[me].Data, want.Data) {
				r.t.Fatalf("%s, run %d, member %d: got %x, want %x", j.s, j.run, me, j.got[me].Data, want.Data)
			}
		}
	}
}

func settle(t testing.TB, w device.World) {
	t.Helper()
	if err := w.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}
