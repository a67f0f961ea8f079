// Package ours exports the collectives of hocket, whose schedules are in package comm, as execution plans of MSCCL++.
package ours

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/tape"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/ir"
)

// names maps collectives to their names in MSCCL++.
var names = map[ir.Op]string{ir.OpAllReduce: "allreduce", ir.OpAllGather: "allgather",
	ir.OpReduceScatter: "reducescatter",
	ir.OpAllToAll:      "alltoall"}

// part is the number of f32 elements in a block of a collective. This number is large enough for every schedule to
// divide the block.
const part = 1 << 12

// Plan returns an execution plan of MSCCL++ for a collective of the given number of ranks. The argument algorithm is
// the name of the schedule. An empty name selects the first schedule that can be expressed as an execution plan. The
// plan has one thread block for each rank, and chunks as large as the schedule's pieces. Ranks wait for each other at
// the beginning and at the end of the plan.
func Plan(op ir.Op, ranks int, algorithm string) (*mscclpp.File, error) {
	if algorithm != "" {
		return write(op, ranks, algorithm)
	}
	var first error
	for _, name := range comm.Schedules() {
		f, err := write(op, ranks, name)
		if err == nil {
			return f, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

func write(op ir.Op, ranks int, algorithm string) (*mscclpp.File, error) {
	if names[op] == "" {
		return nil, fmt.Errorf("MSCCL++ has plans of all_reduce, all_gather, reduce_scatter and all_to_all, not of %s",
			op)
	}
	if ranks < 2 || ranks > 64 {
		return nil, fmt.Errorf("%d ranks: 2 to 64 are possible", ranks)
	}
	machine := &tape.Machine{}
	t := tape.New(ranks)
	d := comm.NewDispatch(t, machine.Caps(), nil, comm.Policy{})
	in := comm.Instance{Pin: device.Tuning{Algo: algorithm}, Shared: true,
		Collective: device.Collective{Op: op, Red: ir.Sum, AnyOrder: true, Together: true}}
	whole := int64(part * ranks)
	lenIn, lenOut := whole, whole
	switch op {
	case ir.OpAllGather:
		lenIn = part
	case ir.OpReduceScatter:
		lenOut = part
	}
	e := &exporter{tape: t, memory: map[int32]place{}, read: map[int32]plan.Ref{}}
	var members []comm.Member
	vector := func(r int, kind string, n int64) device.View {
		m := t.Alloc(r, 4*n, device.Shared, kind)
		e.memory[t.Number(m)] = place{kind: kind, rank: r}
		return device.View{Mem: m, DType: ir.F32, Shape: []int64{n}, Strides: []int64{1}}
	}
	for r := range ranks {
		s, err := t.Device(r).NewStream(device.StreamOptions{Name: "collectives"})
		if err != nil {
			return nil, err
		}
		members = append(members, comm.Member{Rank: r, Stream: s})
		in.Parts = append(in.Parts, comm.Part{In: vector(r, "i", lenIn), Out: vector(r, "o", lenOut), Reads: true,
			Writes: true,
			To:     -1, From: -1})
	}
	ch, err := d.Design(members, []comm.Instance{in})
	if err == nil {
		err = ch.Open()
	}
	if err != nil {
		return nil, err
	}
	t.Rewind()
	for m := range members {
		if err := ch.Issue(0, m, 0); err != nil {
			return nil, err
		}
	}
	e.cmds = slices.Clone(t.Cmds)
	e.file = &mscclpp.File{Name: "hocket_" + op.String() + "_" + algorithm, Collective: names[op], Protocol: "Simple",
		InPlace: new(false), ThreadsPerBlock: new(1024),
		Alignment: new(16), MaxMessage: new(uint64(1 << 62))}
	return e.write(ranks, 4*lenIn, 4*lenOut)
}

// place is the location in the plan of a piece of the schedule's memory: a buffer of a rank and an offset in bytes.
type place struct {
	kind string
	rank int
	at   int64
}

type exporter struct {
	tape   *tape.Tape
	cmds   []plan.Cmd
	file   *mscclpp.File
	memory map[int32]place
	read   map[int32]plan.Ref // for each buffer that a sum reads: the peer's memory from which the buffer was copied
	chunk  int64
	err    error

	waited  map[counter]int64 // for each counter: the total number of waited signals
	told    map[counter]int64
	raiser  map[counter]int
	numbers map[[2]int][]counter // for each pair of ranks: the counters that correspond to the channels between them
}

// counter identifies one element of a counter array on one rank.
type counter struct{ index, elem, rank int32 }

func (e *exporter) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

func (e *exporter) write(ranks int, in, out int64) (*mscclpp.File, error) {
	scratch := e.memories(ranks)
	e.channels()
	divide := func(n int64) {
		for a, b := e.chunk, n; ; a, b = b, a%b {
			if b == 0 {
				e.chunk = a
				return
			}
		}
	}
	divide(in)
	divide(out)
	for i := range e.cmds {
		for _, r := range slices.Concat(e.cmds[i].Ins, e.cmds[i].Outs) {
			divide(r.Off)
			divide(4 * r.Elements())
		}
	}
	if e.err != nil {
		return nil, e.err
	}
	for r := range ranks {
		g := mscclpp.GPU{ID: new(r), InputChunks: new(int(in / e.chunk)), OutputChunks: new(int(out / e.chunk)),
			ScratchChunks: new(int((scratch[r] + e.chunk - 1) / e.chunk)), Semaphores: []mscclpp.Semaphore{}}
		w := &writer{exporter: e, gpu: &g, rank: r, progress: map[counter]int64{}}
		w.connect(ranks)
		w.block()
		e.file.GPUs = append(e.file.GPUs, g)
	}
	return e.file, e.err
}

// memories assigns locations in the rank's scratch to all memory except the operands, and records the memory of peers
// that sums read.
func (e *exporter) memories(ranks int) []int64 {
	scratch := make([]int64, ranks)
	reaches := map[int32]int64{}
	for i := range e.cmds {
		c := &e.cmds[i]
		if c.Kind == plan.Copy && c.Ins[0].Rank != c.Rank && e.tape.Temporary(c.Outs[0].Buf) {
			e.read[c.Outs[0].Buf] = c.Ins[0]
			continue
		}
		for _, r := range slices.Concat(c.Ins, c.Outs) {
			if len(r.Shape) > 0 && !r.Dense() {
				e.fail("a step works on rows with gaps between them")
			}
			reaches[r.Buf] = max(reaches[r.Buf], r.Off+r.DType.Size()*r.Elements())
		}
	}
	for b := range int32(e.tape.Buffers()) {
		if _, known := e.memory[b]; known || reaches[b] == 0 || e.read[b].Shape != nil {
			continue
		}
		r := e.tape.RankOf(b)
		e.memory[b] = place{kind: "s", rank: r, at: scratch[r]}
		scratch[r] += (reaches[b] + part*4 - 1) / (part * 4) * (part * 4)
	}
	return scratch
}

// channels determines which rank raises each counter for which another rank waits, and numbers the channels.
func (e *exporter) channels() {
	e.waited, e.told, e.raiser, e.numbers = map[counter]int64{}, map[counter]int64{}, map[counter]int{},
		map[[2]int][]counter{}
	for i := range e.cmds {
		if c := &e.cmds[i]; c.Kind == plan.WaitCounter {
			k := counter{c.Counter, c.Elem, c.Rank}
			e.waited[k] = max(e.waited[k], c.Value)
		}
	}
	for i := range e.cmds {
		c := &e.cmds[i]
		k := counter{c.Counter, c.Elem, c.Peer}
		if c.Kind != plan.Signal || e.waited[k] <= 0 {
			continue
		}
		if r, ok := e.raiser[k]; ok && r != int(c.Rank) {
			e.fail("two ranks raise one counter")
		} else if !ok {
			e.raiser[k] = int(c.Rank)
			link := [2]int{int(c.Rank), int(c.Peer)}
			e.numbers[link] = append(e.numbers[link], k)
		}
		e.told[k]++
	}
	for k, n := range e.waited {
		if n > 0 && n != e.told[k] {
			e.fail("a counter is raised %d times and awaited until %d", e.told[k], n)
		}
	}
}

// writer writes the part of the plan that one rank executes.
type writer struct {
	*exporter
	gpu      *mscclpp.GPU
	rank     int
	ops      []mscclpp.Op
	first    []int // for each peer: the number of its first channel
	progress map[counter]int64
	dirty    bool // set if data were moved or a wait was executed since the last barrier of the block's threads
}

// connect adds the channels to all peers to the plan. The last channel to each peer is used for the barrier of all
// ranks at the end of the plan.
func (w *writer) connect(ranks int) {
	var to []int
	for q := range ranks {
		w.first = append(w.first, len(to))
		if q != w.rank {
			to = append(to, slices.Repeat([]int{q}, w.links(q)+1)...)
		}
	}
	w.gpu.Channels = []mscclpp.Channel{{Type: "memory", ConnectedTo: to}}
}

// links returns the number of channels between the rank and rank q, without the channel for the barrier at the end.
func (w *writer) links(q int) int {
	return max(len(w.numbers[[2]int{w.rank, q}]), len(w.numbers[[2]int{q, w.rank}]))
}

func (w *writer) add(o mscclpp.Op) { w.ops = append(w.ops, o) }

func (w *writer) sync() {
	if w.dirty {
		w.add(mscclpp.Op{Name: "nop"})
	}
	w.dirty = false
}

// channel returns the number of the channel to a peer that corresponds to counter k.
func (w *writer) channel(from, to int, k counter) int {
	return w.first[from+to-w.rank] + slices.Index(w.numbers[[2]int{from, to}], k)
}

// meet adds a barrier of all ranks. A plan has one at its beginning, because peers may access a rank's memory only
// after the rank has started, and one at its end.
func (w *writer) meet(kind string) {
	var all []int
	for q := range w.first {
		if q != w.rank {
			all = append(all, w.first[q]+w.links(q))
		}
	}
	w.sync()
	for _, name := range []string{"signal", "wait"} {
		w.add(mscclpp.Op{Name: kind + name, ChannelIDs: all, ChannelType: "memory"})
	}
	w.dirty = true
	w.sync()
}

func (w *writer) block() {
	w.meet("rlx")
	for i := range w.cmds {
		c := &w.cmds[i]
		if int(c.Rank) != w.rank {
			continue
		}
		switch {
		case c.Kind == plan.Signal:
			if k := (counter{c.Counter, c.Elem, c.Peer}); w.waited[k] > 0 {
				w.sync()
				w.add(mscclpp.Op{Name: "signal", ChannelIDs: []int{w.channel(w.rank, int(c.Peer), k)},
					ChannelType: "memory"})
			}
		case c.Kind == plan.WaitCounter:
			k := counter{c.Counter, c.Elem, c.Rank}
			for ; w.progress[k] < c.Value; w.progress[k]++ {
				w.add(mscclpp.Op{Name: "wait", ChannelIDs: []int{w.channel(w.raiser[k], w.rank, k)},
					ChannelType: "memory"})
				w.dirty = true
			}
		case c.Kind == plan.Copy:
			if w.read[c.Outs[0].Buf].Shape == nil {
				w.move(&c.Ins[0], &c.Outs[0])
			}
		case c.Kind == plan.Compute && c.Op == ir.OpAdd:
			w.reduce(c)
		default:
			w.fail("a step is %s: plans have copies, sums, signals and waits", c.Kind)
		}
	}
	w.meet("")
	w.gpu.Threadblocks = []mscclpp.Threadblock{{ID: new(0), Ops: w.ops}}
	tb := &w.gpu.Threadblocks[0]
	for i := range w.gpu.Channels[0].ConnectedTo {
		if i == 0 {
			tb.Channels = []mscclpp.ChannelID{{Type: "memory"}}
		}
		tb.Channels[0].IDs = append(tb.Channels[0].IDs, i)
	}
	for i := range w.gpu.RemoteBuffers {
		if i == 0 {
			tb.Remote = []mscclpp.RemoteRef{{Type: "memory"}}
		}
		tb.Remote[0].IDs = append(tb.Remote[0].IDs, i)
	}
	if w.gpu.RemoteBuffers == nil {
		w.gpu.RemoteBuffers = []mscclpp.RemoteBuffer{}
	}
	if n := len(w.ops); n > 64 {
		w.fail("rank %d has %d operations, and MSCCL++'s executor takes 64", w.rank, n)
	}
	if n := len(w.gpu.Channels[0].ConnectedTo); n > 16 {
		w.fail("rank %d has %d channels, and MSCCL++'s executor takes 16", w.rank, n)
	}
}

// chunkOf returns an operand in the notation of the plan.
func (w *writer) chunkOf(r *plan.Ref) mscclpp.Chunk {
	at := w.memory[r.Buf]
	c := mscclpp.Chunk{Type: at.kind, Index: new(int((at.at + r.Off) / w.exporter.chunk)),
		Size: new(int(4 * r.Elements() / w.exporter.chunk))}
	if at.rank == w.rank {
		return c
	}
	id := slices.IndexFunc(w.gpu.RemoteBuffers, func(b mscclpp.RemoteBuffer) bool {
		return *b.Rank == at.rank && b.Type == at.kind
	})
	if id < 0 {
		id = len(w.gpu.RemoteBuffers)
		w.gpu.RemoteBuffers = append(w.gpu.RemoteBuffers,
			mscclpp.RemoteBuffer{Rank: new(at.rank), Type: at.kind, Access: []string{"memory"}})
	}
	c.Type, c.Buffer = "", &id
	return c
}

func (w *writer) move(src, dst *plan.Ref) {
	w.sync()
	from, to := w.chunkOf(src), w.chunkOf(dst)
	o := mscclpp.Op{Name: "copy", Src: []mscclpp.Chunk{from}, Dst: []mscclpp.Chunk{to}}
	switch {
	case from.Buffer != nil && to.Buffer != nil:
		w.fail("a rank copies between peers")
	case to.Buffer != nil:
		o.Name, o.ChannelType = "put", "memory"
	case from.Buffer != nil:
		o.Name, o.ChannelType = "get", "memory"
		if *from.Index != *to.Index {
			w.fail("it reads a peer's memory at another offset than it writes its own, which MSCCL++'s executor mixes up")
		}
	}
	w.add(o)
	w.dirty = true
}

func (w *writer) reduce(c *plan.Cmd) {
	w.sync()
	o := mscclpp.Op{Name: "re", ReduceOp: "sum", Dst: []mscclpp.Chunk{w.chunkOf(&c.Outs[0])}}
	var far []mscclpp.Chunk
	for i := range c.Ins {
		if peer := w.read[c.Ins[i].Buf]; peer.Shape != nil {
			far = append(far, w.chunkOf(&peer))
			continue
		}
		o.Src = append(o.Src, w.chunkOf(&c.Ins[i]))
	}
	if len(far) > 0 {
		o.Name, o.ChannelType = "rre", "memory"
		if len(o.Src) != 1 {
			w.fail("a sum reads %d local operands and %d operands of peers, but in a plan a sum has one local operand",
				len(o.Src), len(far))
		}
	}
	o.Src = append(o.Src, far...)
	w.add(o)
	w.dirty = true
}
