package exec

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// builder builds plans for tests. All tensors have one element type. Buffers never share bytes.
type builder struct {
	p     *plan.Plan
	dt    ir.DType
	iter  []int64
	where map[string]int32 // stream by rank and name
}

func newBuilder(ranks int, dt ir.DType) *builder {
	b := &builder{p: &plan.Plan{Program: "hand.hkt", Func: "f", Ranks: ranks}, dt: dt, where: map[string]int32{}}
	for r := range ranks {
		b.p.Main = append(b.p.Main, b.stream(r, "main"))
	}
	return b
}

func (b *builder) stream(rank int, name string) int32 {
	key := fmt.Sprint(rank, name)
	if s, ok := b.where[key]; ok {
		return s
	}
	b.where[key] = int32(len(b.p.Streams))
	b.p.Streams = append(b.p.Streams, plan.Stream{Rank: int32(rank), Name: name})
	return b.where[key]
}

func (b *builder) buffer(name string, role plan.Role, shape ...int64) int32 {
	n, err := tensor.Bytes(b.dt, shape)
	if err != nil {
		panic(err)
	}
	b.p.Buffers = append(b.p.Buffers, plan.Buffer{Name: name, Role: role, Offset: b.p.ArenaBytes, Bytes: n, Symmetric: true})
	b.p.ArenaBytes += plan.Aligned(n)
	return int32(len(b.p.Buffers) - 1)
}

func (b *builder) ref(rank int, buf int32, shape ...int64) plan.Ref {
	return plan.Ref{Rank: int32(rank), Buf: buf, DType: b.dt, Shape: shape, Strides: tensor.Strides(shape)}
}

// rows returns the rows [lo, hi) of a reference r.
func rows(r plan.Ref, lo, hi int64) plan.Ref {
	r.Shape = slices.Clone(r.Shape)
	r.Shape[0] = hi - lo
	r.Off += lo * r.Strides[0] * r.DType.Size()
	return r
}

// emit appends a command whose statement has the given text; the statement's line is its number.
func (b *builder) emit(rank int, stream string, op ir.Op, text string, c plan.Cmd) {
	b.p.Sites = append(b.p.Sites, plan.Site{Pos: ir.Pos{Line: int32(len(b.p.Sites) + 1), Col: 3}, Op: op, Text: text})
	c.Rank, c.Stream, c.Site, c.Iter = int32(rank), b.stream(rank, stream), int32(len(b.p.Sites)-1), b.iter
	if c.Kind != plan.Copy && c.Kind != plan.Signal {
		c.Peer = -1
	}
	b.p.Cmds = append(b.p.Cmds, c)
}

func (b *builder) compute(rank int, stream string, op ir.Op, out plan.Ref, ins ...plan.Ref) {
	b.emit(rank, stream, op, op.String(), plan.Cmd{Kind: plan.Compute, Op: op, Ins: ins, Outs: []plan.Ref{out}})
}

func (b *builder) put(rank int, stream string, dst, src plan.Ref) {
	b.emit(rank, stream, ir.OpPut, "put %x into %all", plan.Cmd{Kind: plan.Copy, Ins: []plan.Ref{src}, Outs: []plan.Ref{dst}, Peer: dst.Rank})
}

func (b *builder) record(rank int, stream string) int32 {
	e := int32(b.p.Events)
	b.p.Events++
	b.emit(rank, stream, ir.OpRecord, "record", plan.Cmd{Kind: plan.Record, Event: e})
	return e
}

func (b *builder) wait(rank int, stream string, event int32) {
	b.emit(rank, stream, ir.OpWait, "wait", plan.Cmd{Kind: plan.WaitEvent, Event: event})
}

// after makes stream wait for all work that was issued to other.
func (b *builder) after(rank int, stream, other string) {
	b.wait(rank, stream, b.record(rank, other))
}

func (b *builder) counter(name string, n int) int32 {
	b.p.Counters = append(b.p.Counters, plan.Counter{Name: name, Len: int32(n), PerRun: make([]int64, n*b.p.Ranks)})
	return int32(len(b.p.Counters) - 1)
}

func (b *builder) signal(rank int, stream string, counter int32, elem, peer int) {
	c := &b.p.Counters[counter]
	c.PerRun[peer*int(c.Len)+elem]++
	b.emit(rank, stream, ir.OpSignal, fmt.Sprintf("signal %%%s[%d]", c.Name, elem),
		plan.Cmd{Kind: plan.Signal, Counter: counter, Elem: int32(elem), Peer: int32(peer)})
}

func (b *builder) waitCounter(rank int, stream string, counter int32, elem int, least int64) {
	b.emit(rank, stream, ir.OpWait, fmt.Sprintf("wait %%%s[%d] >= %d", b.p.Counters[counter].Name, elem, least),
		plan.Cmd{Kind: plan.WaitCounter, Counter: counter, Elem: int32(elem), Value: least})
}

// channel adds a channel of all ranks.
func (b *builder) channel(stream string) int32 {
	ch := plan.Channel{}
	for r := range b.p.Ranks {
		ch.Team, ch.Streams = append(ch.Team, int32(r)), append(ch.Streams, b.stream(r, stream))
	}
	b.p.Channels = append(b.p.Channels, ch)
	return int32(len(b.p.Channels) - 1)
}

// collective adds the commands of a collective for all ranks, one rank after the other.
func (b *builder) collective(stream string, channel int32, op ir.Op, part func(rank int) plan.CollPart) {
	c := plan.Coll{Op: op, Red: ir.Sum, Channel: channel}
	for _, other := range b.p.Colls {
		if other.Channel == channel {
			c.Seq++
		}
	}
	for r := range b.p.Ranks {
		cp := plan.CollPart{In: plan.Absent(), Out: plan.Absent(), To: -1, From: -1}
		if part != nil {
			cp = part(r)
			cp.To, cp.From = -1, -1
		}
		c.Parts = append(c.Parts, cp)
		b.emit(r, stream, op, op.String()+" over=tp", plan.Cmd{Kind: plan.Collective, Coll: int32(len(b.p.Colls)), Part: int32(r)})
	}
	b.p.Colls = append(b.p.Colls, c)
}

func (b *builder) barrier(channel int32) { b.collective("main", channel, ir.OpBarrier, nil) }

// input declares a parameter and uploads it; split distributes its rows over the ranks.
func (b *builder) input(name string, split bool, shape ...int64) int32 {
	buf, io := b.io(name, plan.RoleInput, split, shape)
	b.p.Inputs = append(b.p.Inputs, io)
	for r := range b.p.Ranks {
		b.emit(r, "main", ir.InvalidOp, "input %"+name, plan.Cmd{Kind: plan.Input, IO: int32(len(b.p.Inputs) - 1)})
	}
	return buf
}

func (b *builder) io(name string, role plan.Role, split bool, shape []int64) (int32, plan.IO) {
	local := slices.Clone(shape)
	if split {
		local[0] /= int64(b.p.Ranks)
	}
	buf := b.buffer("%"+name, role, local...)
	return buf, b.ioOf(name, buf, split, shape, local)
}

func (b *builder) ioOf(name string, buf int32, split bool, shape, local []int64) plan.IO {
	io := plan.IO{Name: name, DType: b.dt, Shape: shape}
	for r := range b.p.Ranks {
		lo := make([]int64, len(shape))
		if split {
			lo[0] = int64(r) * local[0]
		}
		io.Parts = append(io.Parts, plan.IOPart{Ref: b.ref(r, buf, local...), Lo: lo})
	}
	return io
}

// result adds the buffer of an output; the method output adds the command that reads it.
func (b *builder) result(name string, split bool, shape ...int64) int32 {
	buf, io := b.io(name, plan.RoleOutput, split, shape)
	b.p.Outputs = append(b.p.Outputs, io)
	return buf
}

func (b *builder) output() {
	for i := range b.p.Outputs {
		for r := range b.p.Ranks {
			b.emit(r, "main", ir.InvalidOp, "output %"+b.p.Outputs[i].Name, plan.Cmd{Kind: plan.Output, IO: int32(i)})
		}
	}
}

// onCUDA makes the tests load plans on GPUs; up to eight ranks share the available GPUs.
var onCUDA = flag.Bool("cuda", false, "run on the CUDA machine")

func load(t testing.TB, mode cpu.Mode, seed int64, p *plan.Plan, opts Options) *Program {
	t.Helper()
	m := cpu.New(cpu.Options{Mode: mode, Seed: seed})
	if *onCUDA {
		var err error
		if m, err = cuda.New(cuda.Options{RanksPerGPU: 8}); err != nil {
			t.Fatal(err)
		}
	}
	return loadOn(t, m, p, opts)
}

// loadOn loads a plan on a machine for the duration of the test.
func loadOn(t testing.TB, m device.Machine, p *plan.Plan, opts Options) *Program {
	t.Helper()
	prog, err := Load(context.Background(), m, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	})
	return prog
}

// ints returns an input of small integers.
func ints(t testing.TB, dt ir.DType, name string, seed uint64, shape ...int64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	if err := tensor.Fill(x, name, tensor.Spec{Kind: tensor.SpecInts, Seed: seed}); err != nil {
		t.Fatal(err)
	}
	return x
}

var modes = map[string]cpu.Mode{"concurrent": cpu.Concurrent, "scheduled": cpu.Scheduled}

var _ device.Observer = (*tracer)(nil)
