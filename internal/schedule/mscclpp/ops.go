package mscclpp

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/schedule"
)

// emit converts the current operation and adds it to the plan.
func (b *builder) emit() error {
	o := b.op
	out := schedule.Op{Name: o.Name, Index: b.index, Inner: b.inner, Turn: b.turn}
	var err error
	switch o.Name {
	case "nop":
		out.Kind = schedule.Join
	case "barrier":
		err = b.barrier(&out)
	case "signal", "wait", "rlxsignal", "rlxwait", "flush":
		out.Kind = schedule.Sync
		out.Lanes, err = b.signals(o.Name)
	case "sem_release", "sem_acquire":
		out.Kind = schedule.Sync
		for lane, i := range o.Semaphores {
			c, ok := b.counters[counterKey{"semaphore", b.rank, i}]
			if !ok {
				return b.errorf("there is no semaphore %d", i)
			}
			kind := schedule.Add
			if o.Name == "sem_acquire" {
				kind = schedule.Take
			}
			out.Lanes = append(out.Lanes, schedule.Lane{Kind: kind, Thread: lane, Counter: c, Engine: -1})
		}
	default:
		err = b.data(&out)
	}
	if err != nil {
		return err
	}
	if out.Kind == schedule.Sync && len(out.Lanes) == 0 {
		return b.errorf("it names no channel or semaphore")
	}
	if err := b.p.Add(out); err != nil {
		return b.errorf("%w", err)
	}
	return nil
}

func (b *builder) barrier(out *schedule.Op) error {
	o := b.op
	if *o.Blocks < 1 {
		return b.errorf("num_threadblocks is %d, want at least 1", *o.Blocks)
	}
	if *o.Blocks == 1 {
		out.Kind = schedule.Join
		return nil
	}
	key := [2]int{b.rank, *o.BarrierID}
	if _, ok := b.meets[key]; !ok {
		b.meets[key] = len(b.meets)
	}
	out.Kind, out.Meet, out.Size = schedule.Gather, b.meets[key], *o.Blocks
	return nil
}

// channel returns the number, in the rank's list, of channel i of the thread block.
func (b *builder) channel(kind string, i int) (int, error) {
	for _, c := range b.tb.Channels {
		if c.Type != kind {
			continue
		}
		if i < 0 || i >= len(c.IDs) {
			return 0, b.errorf("the thread block has %d %s channels, and it names number %d", len(c.IDs), kind, i)
		}
		return c.IDs[i], nil
	}
	return 0, b.errorf("the thread block has no %s channels", kind)
}

// signals returns the lanes of a signal, wait or flush operation, one for each channel.
func (b *builder) signals(name string) ([]schedule.Lane, error) {
	o := b.op
	if o.ChannelType != "memory" && o.ChannelType != "port" {
		return nil, b.errorf("channels of type %.40q cannot signal", o.ChannelType)
	}
	var out []schedule.Lane
	for lane, i := range o.ChannelIDs {
		ch, err := b.channel(o.ChannelType, i)
		if err != nil {
			return nil, err
		}
		there, ok := b.other[counterKey{o.ChannelType, b.rank, ch}]
		l := schedule.Lane{Thread: lane, Engine: -1, Relaxed: name == "rlxsignal" || name == "rlxwait"}
		switch name {
		case "wait", "rlxwait":
			l.Kind = schedule.Take
			if l.Counter, ok = b.counters[counterKey{o.ChannelType, b.rank, ch}]; !ok {
				return nil, b.errorf("rank %d has no %s channel %d", b.rank, o.ChannelType, ch)
			}
		case "flush":
			l.Kind = schedule.Flush
			if l.Engine, ok = b.engines[[2]int{b.rank, ch}]; !ok || o.ChannelType != "port" {
				return nil, b.errorf("only port channels are flushed")
			}
		default:
			if !ok {
				return nil, b.errorf("%s channel %d of rank %d has no other side", o.ChannelType, ch, b.rank)
			}
			l.Kind = schedule.Add
			l.Counter = b.counters[there]
			if o.ChannelType == "port" {
				l.Engine = b.engines[[2]int{b.rank, ch}]
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// span returns the cells of an operand in a buffer.
func (b *builder) span(rank int, kind string, index, size int, mode schedule.Mode) (schedule.Span, error) {
	var k schedule.BufferKind
	switch kind {
	case "i":
		k = schedule.Input
	case "o":
		k = schedule.Output
	case "s":
		k = schedule.Scratch
	default:
		return schedule.Span{}, b.errorf("there is no buffer type %.40q", kind)
	}
	if k == schedule.Scratch && b.f.GPUs[rank].ScratchChunks == nil {
		return schedule.Span{}, b.errorf("an operand is in the scratch memory of rank %d, but gpus[%d] lacks the key scratch_chunks", rank, rank)
	}
	if mode != schedule.Plain && k != schedule.Scratch {
		return schedule.Span{}, b.errorf("packets are in scratch only, and it names the %s buffer", k)
	}
	if size < 1 || index < 0 || size > maxChunks || index > maxChunks {
		return schedule.Span{}, b.errorf("an operand has size %d and index %d (its first chunk), "+
			"want a size from 1 to %d and an index from 0 to %[3]d", size, index, maxChunks)
	}
	buf := b.buffer(rank, k)
	parts := b.p.Parts
	at, n := index*parts, size*parts
	if s := b.op.Slice; s != nil {
		at, n = at + n / *s.Size * *s.ID, n / *s.Size
	}
	if b.inner >= 0 && mode == schedule.Plain {
		from := b.turn * b.turnCells
		if from >= n {
			b.fault("in iteration %d the pipeline is past the end of an operand of %d chunks, "+
				"but the executor does not stop", b.turn, size)
			return schedule.Span{Cell: buf.Base}, nil
		}
		at, n = at+from, min(b.turnCells, n-from)
	}
	if mode != schedule.Plain {
		at *= 2
	}
	width := 1
	if mode != schedule.Plain {
		width = 2
	}
	if at+n*width > buf.Cells {
		b.fault("its operand, chunks %d to %d, is outside the %s buffer of rank %d, which has %d", index, index+size-1,
			k, rank, b.chunks(rank, k))
		return schedule.Span{Cell: buf.Base}, nil
	}
	return schedule.Span{Cell: buf.Base + at, N: n, Mode: mode}, nil
}

// buffer returns rank's buffer of kind k. The plan lists the input and output of each rank, and then all scratch
// buffers.
func (b *builder) buffer(rank int, k schedule.BufferKind) *schedule.Buffer {
	switch k {
	case schedule.Input:
		return &b.p.Buffers[2*rank]
	case schedule.Output:
		return &b.p.Buffers[2*rank+1]
	}
	return &b.p.Buffers[2*b.p.Ranks+rank]
}

func (b *builder) chunks(rank int, k schedule.BufferKind) int {
	g := &b.f.GPUs[rank]
	switch k {
	case schedule.Input:
		return *g.InputChunks
	case schedule.Output:
		return *g.OutputChunks
	}
	return g.scratch()
}

func (b *builder) fault(format string, args ...any) {
	if b.p.Fault == nil {
		b.p.Fault = &schedule.Finding{Kind: schedule.Wrong, Message: b.where() + ": " + fmt.Sprintf(format, args...),
			Places: []schedule.Place{b.place()}}
	}
}

// local returns an operand in the rank's own memory.
func (b *builder) local(c Chunk, mode schedule.Mode) (schedule.Span, error) {
	if c.Buffer != nil || c.Switch != nil {
		return schedule.Span{}, b.errorf("an operand is remote where it has to be local")
	}
	return b.span(b.rank, c.Type, *c.Index, *c.Size, mode)
}

// remote returns an operand in the memory of another rank.
func (b *builder) remote(c Chunk, mode schedule.Mode) (schedule.Span, error) {
	if c.Buffer == nil {
		return schedule.Span{}, b.errorf("an operand is local where it has to be remote")
	}
	for _, ref := range b.tb.Remote {
		if ref.Type != b.op.ChannelType {
			continue
		}
		if *c.Buffer < 0 || *c.Buffer >= len(ref.IDs) {
			return schedule.Span{}, b.errorf("the thread block has %d remote buffers, and it names number %d",
				len(ref.IDs), *c.Buffer)
		}
		id := ref.IDs[*c.Buffer]
		list := b.f.GPUs[b.rank].RemoteBuffers
		if id < 0 || id >= len(list) {
			return schedule.Span{}, b.errorf("rank %d has %d remote buffers, and it names number %d", b.rank, len(list),
				id)
		}
		if q := *list[id].Rank; q < 0 || q >= len(b.f.GPUs) {
			return schedule.Span{}, b.errorf("remote buffer %d is on rank %d, but the ranks are 0 to %d", id, q,
				len(b.f.GPUs)-1)
		}
		return b.span(*list[id].Rank, list[id].Type, *c.Index, *c.Size, mode)
	}
	return schedule.Span{}, b.errorf("the thread block has no remote buffers of type %.40q", b.op.ChannelType)
}

// group returns the ranks and the buffer type of switch channel i of the thread block.
func (b *builder) group(i int) ([]int, string, error) {
	ch, err := b.channel("switch", i)
	if err != nil {
		return nil, "", err
	}
	for _, c := range b.f.GPUs[b.rank].Channels {
		if c.Type != "switch" {
			continue
		}
		if ch >= len(c.Groups) {
			ch -= len(c.Groups)
			continue
		}
		kind := c.BufferType
		if kind == "" {
			b.note("rank %d has a switch channel without buffer_type: MSCCL++'s executor refuses it", b.rank)
			if kind = c.Buff; kind == "" {
				return nil, "", b.errorf("the switch channel lacks the key buffer_type")
			}
		}
		for _, q := range c.Groups[ch].Ranks {
			if q < 0 || q >= len(b.f.GPUs) {
				return nil, "", b.errorf("the switch channel has rank %d, but the ranks are 0 to %d", q,
					len(b.f.GPUs)-1)
			}
		}
		if len(c.Groups[ch].Ranks) == 0 {
			return nil, "", b.errorf("the switch channel has no ranks")
		}
		return c.Groups[ch].Ranks, kind, nil
	}
	return nil, "", b.errorf("rank %d has no switch channel %d", b.rank, ch)
}

// switched returns an operand in the memory of every rank of a switch channel.
func (b *builder) switched(c Chunk, mode schedule.Mode) ([]schedule.Span, error) {
	if c.Switch == nil {
		return nil, b.errorf("an operand names no switch channel")
	}
	ranks, kind, err := b.group(*c.Switch)
	if err != nil {
		return nil, err
	}
	var out []schedule.Span
	for _, q := range ranks {
		sp, err := b.span(q, kind, *c.Index, *c.Size, mode)
		if err != nil {
			return nil, err
		}
		out = append(out, sp)
	}
	return out, nil
}

// operand describes how the k-th source or destination of an operation is accessed.
type operand struct {
	remote bool
	mode   schedule.Mode
}

// shape describes an operation that computes one sum: how it accesses its first source, its first destination, and its
// other operands.
type shape struct {
	src, srcs operand
	dst, dsts operand
	second    *operand // how the second destination is accessed, if it differs from dsts
	minSrc    int
	minDst    int
}

var (
	here       = operand{}
	there      = operand{remote: true}
	packet     = operand{mode: schedule.Packet}
	packetSent = operand{remote: true, mode: schedule.Packet}
)

// sums lists the operations that store the sum of their sources in each destination.
var sums = map[string]shape{
	"re":      {src: here, srcs: here, dst: here, minSrc: 1, minDst: 1},
	"res":     {src: here, srcs: here, dst: here, dsts: there, minSrc: 1, minDst: 1},
	"rre":     {src: here, srcs: there, dst: here, minSrc: 1, minDst: 1},
	"rres":    {src: here, srcs: there, dst: here, dsts: there, minSrc: 1, minDst: 1},
	"repkt":   {src: here, srcs: packet, dst: here, minSrc: 1, minDst: 1},
	"respkt":  {src: here, srcs: packet, dst: here, dsts: packetSent, minSrc: 1, minDst: 1},
	"recpkt":  {src: here, srcs: packet, dst: here, second: &packet, minSrc: 1, minDst: 2},
	"recspkt": {src: here, srcs: packet, dst: here, second: &packet, dsts: packetSent, minSrc: 1, minDst: 2},
}

// pairs lists the operations that copy the k-th source to the k-th destination.
var pairs = map[string][2]operand{
	"copy": {here, here}, "cpkt": {here, packet}, "upkt": {packet, here},
	"put": {here, there}, "pws": {here, there}, "pwsf": {here, there}, "get": {there, here},
	"ppkt": {here, packetSent},
}

func (b *builder) span1(c Chunk, how operand) (schedule.Span, error) {
	if how.remote {
		return b.remote(c, how.mode)
	}
	return b.local(c, how.mode)
}

// data reads an operation that moves data.
func (b *builder) data(out *schedule.Op) error {
	o := b.op
	if o.ReduceOp != "" && o.ReduceOp != "sum" {
		return b.errorf("reduce_op is %.40q, but only sum is supported", o.ReduceOp)
	}
	switch o.Name {
	case "glres", "gstore", "gstorepkt", "glre":
		return b.multicast(out)
	case "rppkt":
		return b.forward(out)
	}
	if how, ok := pairs[o.Name]; ok {
		return b.copies(out, how)
	}
	how, ok := sums[o.Name]
	if !ok {
		names := slices.Concat(syncs, slices.Collect(maps.Keys(sums)), slices.Collect(maps.Keys(pairs)),
			[]string{"glre", "glres", "gstore", "gstorepkt", "pipeline", "rppkt"})
		slices.Sort(names)
		return b.errorf("unknown operation %.40q: the known ones are %s", o.Name, strings.Join(names, ", "))
	}
	if len(o.Src) < how.minSrc || len(o.Dst) < how.minDst {
		return b.errorf("src_buff has length %d and dst_buff %d, want at least %d and %d", len(o.Src), len(o.Dst),
			how.minSrc, how.minDst)
	}
	m := schedule.Move{Engine: -1}
	for k, c := range o.Src {
		h := how.srcs
		if k == 0 {
			h = how.src
		}
		sp, err := b.span1(c, h)
		if err != nil {
			return err
		}
		m.From = append(m.From, sp)
	}
	for k, c := range o.Dst {
		h := how.dsts
		switch {
		case k == 0:
			h = how.dst
		case k == 1 && how.second != nil:
			h = *how.second
		case how.dsts == here:
			return b.errorf("it has %d destinations", len(o.Dst))
		}
		sp, err := b.span1(c, h)
		if err != nil {
			return err
		}
		m.To = append(m.To, sp)
	}
	return b.add(out, m)
}

// add adds a move, or fails if the move's operands do not have the same length.
func (b *builder) add(out *schedule.Op, m schedule.Move) error {
	n := m.To[0].N
	for _, list := range [][]schedule.Span{m.From, m.To} {
		for _, sp := range list {
			if sp.N != n {
				if b.p.Fault != nil {
					return nil
				}
				return b.errorf("its operands are of different sizes")
			}
		}
	}
	out.Moves = append(out.Moves, m)
	return nil
}

// copies reads an operation that copies each source to its destination. If the operation includes a signal, the signal
// follows the copy.
func (b *builder) copies(out *schedule.Op, how [2]operand) error {
	o := b.op
	if len(o.Src) == 0 || len(o.Src) != len(o.Dst) {
		return b.unequal()
	}
	port := o.ChannelType == "port"
	if port && o.Name == "get" {
		return b.errorf("there is no get on port channels")
	}
	if !port && (o.Name == "pws" || o.Name == "pwsf") {
		return b.errorf("it is known on port channels only, and its channel_type is %.40q", o.ChannelType)
	}
	if port && o.Name == "ppkt" {
		how[0].mode, how[1].mode = schedule.Raw, schedule.Raw
	}
	for k := range o.Src {
		from, err := b.span1(o.Src[k], how[0])
		if err != nil {
			return err
		}
		to, err := b.span1(o.Dst[k], how[1])
		if err != nil {
			return err
		}
		m := schedule.Move{From: []schedule.Span{from}, To: []schedule.Span{to}, Engine: -1}
		if port {
			if err := b.onEngine(&m, k); err != nil {
				return err
			}
		}
		if err := b.add(out, m); err != nil {
			return err
		}
	}
	if o.Name == "pws" || o.Name == "pwsf" {
		lanes, err := b.signals("signal")
		if err != nil {
			return err
		}
		out.Lanes = lanes
		if o.Name == "pwsf" {
			flush, err := b.signals("flush")
			if err != nil {
				return err
			}
			out.Lanes = append(out.Lanes, flush...)
		}
	}
	return nil
}

// unequal returns the error about an operation that does not have one destination for each source.
func (b *builder) unequal() error {
	return b.errorf("src_buff has length %d and dst_buff %d, want equal lengths of at least 1", len(b.op.Src),
		len(b.op.Dst))
}

// onEngine assigns m to the proxy of the operation's k-th channel.
func (b *builder) onEngine(m *schedule.Move, k int) error {
	if k >= len(b.op.ChannelIDs) {
		return b.errorf("it has %d channels for its operand %d", len(b.op.ChannelIDs), k)
	}
	ch, err := b.channel("port", b.op.ChannelIDs[k])
	if err != nil {
		return err
	}
	e, ok := b.engines[[2]int{b.rank, ch}]
	if !ok {
		return b.errorf("rank %d has no port channel %d", b.rank, ch)
	}
	m.Engine, m.Lane = e, k
	return nil
}

// forward reads the operation rppkt, which waits for packets and sends their data to further ranks as packets.
func (b *builder) forward(out *schedule.Op) error {
	o := b.op
	if len(o.Src) == 0 || len(o.Dst) == 0 {
		return b.errorf("src_buff has length %d and dst_buff %d, want at least 1", len(o.Src), len(o.Dst))
	}
	from, err := b.span1(o.Src[0], packet)
	if err != nil {
		return err
	}
	m := schedule.Move{From: []schedule.Span{from}, Engine: -1}
	for k, c := range o.Dst {
		to, err := b.span1(c, packetSent)
		if err != nil {
			return err
		}
		if o.ChannelType != "port" {
			m.To = append(m.To, to)
			continue
		}
		one := schedule.Move{From: []schedule.Span{from}, To: []schedule.Span{to}}
		if err := b.onEngine(&one, k); err != nil {
			return err
		}
		if err := b.add(out, one); err != nil {
			return err
		}
	}
	if len(m.To) > 0 {
		return b.add(out, m)
	}
	return nil
}

// multicast reads an operation on the memory of all ranks of a switch channel.
func (b *builder) multicast(out *schedule.Op) error {
	o := b.op
	m := schedule.Move{Engine: -1}
	if o.Name == "glre" {
		b.note("glre is what the language emits before fusion: MSCCL++'s executor has no such operation")
		if len(o.ChannelIDs) != 1 {
			return b.errorf("it has %d channels, want one", len(o.ChannelIDs))
		}
		ranks, _, err := b.group(o.ChannelIDs[0])
		if err != nil {
			return err
		}
		for _, q := range ranks {
			sp, err := b.span(q, o.BufferType, *o.BufferOffset, *o.Size, schedule.Plain)
			if err != nil {
				return err
			}
			m.From = append(m.From, sp)
		}
		to, err := b.local(*o.DstChunk, schedule.Plain)
		if err != nil {
			return err
		}
		m.To = []schedule.Span{to}
		return b.add(out, m)
	}
	if len(o.Src) != len(o.Dst) || len(o.Src) == 0 {
		return b.unequal()
	}
	for k := range o.Src {
		m := schedule.Move{Engine: -1}
		mode := schedule.Plain
		if o.Name == "gstorepkt" {
			mode = schedule.Packet
		}
		if o.Name == "glres" {
			from, err := b.switched(o.Src[k], mode)
			if err != nil {
				return err
			}
			m.From = from
		} else {
			from, err := b.local(o.Src[k], mode)
			if err != nil {
				return err
			}
			m.From = []schedule.Span{from}
		}
		to, err := b.switched(o.Dst[k], mode)
		if err != nil {
			return err
		}
		m.To = to
		if err := b.add(out, m); err != nil {
			return err
		}
	}
	return nil
}
