package tape

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Machine is a machine whose worlds are tapes, which record work instead of executing it.
type Machine struct {
	device.DefaultMachine
	Opened *Tape
}

// Name returns "tape".
func (*Machine) Name() string { return "tape" }

// Caps returns the features of a machine that only executes streams.
func (*Machine) Caps() device.Caps {
	return device.Caps{MaxRanks: 64, DTypes: ir.DTypes(), Concurrent: true, Deadlocks: true, HostCalls: true,
		Poison: true}
}

// Open returns a new tape, and stores it in Opened.
func (m *Machine) Open(_ context.Context, ranks int) (device.World, error) {
	m.Opened = New(ranks)
	return m.Opened, nil
}

// Tape is a world that executes nothing. It records the work on its streams as the commands of a plan, and the plan
// checker proves properties of the plan. The proof therefore covers the operations that a channel issues in its actual
// runs.
//
// A command of a plan computes only on its own rank's memory. A launch that accesses peers' memory is therefore
// recorded as several commands: one copies each of these operands to temporary memory, and the last one computes on the
// copies. The stream signals nothing between the commands of one launch, so other streams see them as one command.
// Counters keep their values from run to run, as on a device.
type Tape struct {
	device.DefaultWorld
	// Cmds holds the commands issued since the tape was last rewound.
	Cmds []plan.Cmd
	// Nodes holds the ranks' nodes; nil if there is only one node. Between several nodes, teams move bytes, as
	// collectives of the plan.
	Nodes []int

	ranks   int
	streams []*tapeStream
	mains   []*tapeStream  // by rank
	mems    []*tapeMemory  // by index of the buffer
	lens    []int32        // by counter
	sites   map[string]int // indices of descriptions, by text
	texts   []string
	events  int
	doing   int32 // index of the description that is stored in new commands
	played  int   // number of times that the tape was rewound
	inCall  *tapeStream

	teams []plan.Channel
	calls [][]int32 // by team: indices of the team's collectives that were recorded since the tape was last rewound
	colls []plan.Coll
}

// New returns a world with the given number of ranks.
func New(ranks int) *Tape {
	t := &Tape{ranks: ranks, sites: map[string]int{}, played: 1}
	t.At("setting up")
	for r := range ranks {
		t.mains = append(t.mains, t.stream(r, "main"))
	}
	return t
}

// At sets the description that is stored in the commands recorded from now on.
func (t *Tape) At(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	n, known := t.sites[text]
	if !known {
		n = len(t.texts)
		t.sites[text], t.texts = n, append(t.texts, text)
	}
	t.doing = int32(n)
}

// Rewind removes all commands.
func (t *Tape) Rewind() {
	t.Cmds, t.events, t.colls = nil, 0, nil
	for i := range t.calls {
		t.calls[i] = nil
	}
	t.played++
}

func (t *Tape) stream(rank int, name string) *tapeStream {
	s := &tapeStream{t: t, rank: int32(rank), index: int32(len(t.streams)), name: name}
	t.streams = append(t.streams, s)
	return s
}

// Alloc is like Device.Alloc on a rank's device. The name identifies the buffer in the checker's findings.
func (t *Tape) Alloc(rank int, bytes int64, kind device.MemKind, name string) device.Memory {
	m := &tapeMemory{t: t, rank: int32(rank), kind: kind, bytes: bytes, buf: int32(len(t.mems)), name: name}
	t.mems = append(t.mems, m)
	return m
}

// Write records that a stream writes to a view, as a program does that reuses the memory of its results.
func (t *Tape) Write(s device.Stream, v device.View) { s.(*tapeStream).write(v) }

// Plan adds a synchronisation of all streams of all ranks, and returns the recorded commands as a plan. The checker
// simulates two runs of any plan. One run of this plan contains all runs of the channel that the tape recorded.
func (t *Tape) Plan() *plan.Plan {
	t.At("the end")
	for _, s := range t.streams {
		if main := t.mains[s.rank]; s != main {
			main.waitFor(s)
		}
	}
	p := &plan.Plan{Ranks: t.ranks, Events: t.events}
	barrier := plan.Coll{Op: ir.OpBarrier, Parts: make([]plan.CollPart, t.ranks)}
	var all plan.Channel
	for r, main := range t.mains {
		none := plan.Absent()
		barrier.Parts[r] = plan.CollPart{In: none, Out: none, To: -1, From: -1}
		all.Team, all.Streams = append(all.Team, int32(r)), append(all.Streams, main.index)
		p.Main = append(p.Main, main.index)
		main.add(plan.Cmd{Kind: plan.Collective, Part: int32(r), Coll: int32(len(t.colls))})
	}
	for _, s := range t.streams {
		p.Streams = append(p.Streams, plan.Stream{Rank: s.rank, Name: s.name})
		if main := t.mains[s.rank]; s != main {
			s.waitFor(main)
		}
	}
	barrier.Channel = int32(len(t.teams))
	p.Channels, p.Colls = append(t.teams[:len(t.teams):len(t.teams)], all),
		append(t.colls[:len(t.colls):len(t.colls)], barrier)
	p.Cmds, p.Events = t.Cmds, t.events
	for i, text := range t.texts {
		p.Sites = append(p.Sites, plan.Site{Pos: ir.Pos{Line: int32(i + 1), Col: 1}, Text: text})
	}
	for _, m := range t.mems {
		p.Buffers = append(p.Buffers, plan.Buffer{Name: m.name, Role: plan.RoleAlloc,
			Symmetric: m.kind == device.Shared, Offset: p.ArenaBytes, Bytes: m.bytes})
		p.ArenaBytes += plan.Aligned(m.bytes)
	}
	for i, n := range t.lens {
		p.Counters = append(p.Counters, plan.Counter{Name: fmt.Sprint("counters ", i), Len: n,
			PerRun: make([]int64, int(n)*t.ranks)})
	}
	for i := range p.Cmds {
		if c := &p.Cmds[i]; c.Kind == plan.Signal {
			p.Counters[c.Counter].PerRun[c.Peer*t.lens[c.Counter]+c.Elem]++
		}
	}
	return p
}

// Ranks returns the number of ranks.
func (t *Tape) Ranks() int { return t.ranks }

// Device returns a rank's device.
func (t *Tape) Device(rank int) device.Device { return tapeDevice{t: t, rank: rank} }

// Sync does nothing.
func (t *Tape) Sync(context.Context) error { return nil }

// Abort does nothing.
func (t *Tape) Abort(error) {}

// Close does nothing.
func (t *Tape) Close() error { return nil }

type tapeDevice struct {
	device.DefaultDevice
	t    *Tape
	rank int
}

func (d tapeDevice) Rank() int { return d.rank }

func (d tapeDevice) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	return d.t.Alloc(d.rank, bytes, kind, fmt.Sprint("memory ", len(d.t.mems))), nil
}

func (d tapeDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	return d.t.stream(d.rank, o.Name), nil
}

func (d tapeDevice) NewEvent() (device.Event, error) { return new(tapeEvent), nil }

func (d tapeDevice) NewCounters(n int) (device.Counters, error) {
	d.t.lens = append(d.t.lens, int32(n))
	return tapeCounters{int32(len(d.t.lens) - 1), int32(d.rank), n}, nil
}

// Prepare allocates memory for the operands of the kernel that belong to peers.
func (d tapeDevice) Prepare(k device.Kernel) (device.Launch, error) {
	l := &tapeLaunch{k: k, op: device.Code(k.Op)}
	if _, ok := k.Op.(device.ReduceOperands); ok {
		l.op = ir.OpAdd // elementwise, so that the result may share memory with an operand
	}
	for _, v := range k.Ins {
		m := v.Mem.(*tapeMemory)
		if int(m.rank) == d.rank {
			l.near = append(l.near, v)
			continue
		}
		if !k.Reaches() {
			return nil, fmt.Errorf("%s of a peer's memory", device.Name(k.Op))
		}
		l.far = append(l.far, v)
		place := d.t.Alloc(d.rank, v.Elements()*v.DType.Size(), device.Private, "what a launch reads of "+m.name)
		place.(*tapeMemory).temporary = true
		l.places = append(l.places, device.View{Mem: place, DType: v.DType, Shape: v.Shape,
			Strides: tensor.Strides(v.Shape)})
	}
	return l, nil
}

type tapeLaunch struct {
	k                 device.Kernel
	op                ir.Op // an operation with the same memory accesses as the kernel
	near, far, places []device.View
}

func (*tapeLaunch) Release() {}

// tapeMemory is a buffer of one rank.
type tapeMemory struct {
	device.DefaultMemory
	t     *Tape
	rank  int32
	kind  device.MemKind
	bytes int64
	buf   int32
	name  string
	// temporary reports that the memory receives a copy of a peer's operand for a launch.
	temporary bool
}

func (m *tapeMemory) Bytes() int64 { return m.bytes }
func (m *tapeMemory) Free() error  { return nil }

// Poison adds a write to the stream that makes the host call.
func (m *tapeMemory) Poison(off, n int64) {
	m.t.inCall.write(device.View{Mem: m, Off: off, DType: ir.BF16, Shape: []int64{n / 2}, Strides: []int64{1}})
}

// tapeEvent counts as recorded only if it was recorded after the last Rewind.
type tapeEvent struct {
	number   int32
	recorded int // value of the tape's field played when the event was recorded
}

func (*tapeEvent) Release() {}

type tapeCounters struct {
	index, rank int32
	n           int
}

func (c tapeCounters) Len() int { return c.n }
func (tapeCounters) Release()   {}

type tapeStream struct {
	device.DefaultStream
	t           *Tape
	rank, index int32
	name        string
}

func (s *tapeStream) Name() string { return s.name }

func (s *tapeStream) add(c plan.Cmd) {
	c.Rank, c.Stream, c.Site = s.rank, s.index, s.t.doing
	s.t.Cmds = append(s.t.Cmds, c)
}

func refTo(v device.View) plan.Ref {
	m := v.Mem.(*tapeMemory)
	return plan.Ref{Rank: m.rank, Buf: m.buf, DType: v.DType, Off: v.Off, Shape: v.Shape, Strides: v.Strides}
}

func refsTo(vs []device.View) []plan.Ref {
	var out []plan.Ref
	for _, v := range vs {
		out = append(out, refTo(v))
	}
	return out
}

func (s *tapeStream) write(v device.View) {
	s.add(plan.Cmd{Kind: plan.Compute, Op: ir.OpFill, Outs: refsTo([]device.View{v})})
}

func (s *tapeStream) Launch(l device.Launch) error {
	if c, ok := l.(*tapeCall); ok {
		return c.issue(s)
	}
	x := l.(*tapeLaunch)
	for i, v := range x.far {
		if err := s.Copy(x.places[i], v); err != nil {
			return err
		}
	}
	s.add(plan.Cmd{Kind: plan.Compute, Op: x.op, Ins: append(refsTo(x.near), refsTo(x.places)...),
		Outs: refsTo(x.k.Outs)})
	return nil
}

func (s *tapeStream) Copy(dst, src device.View) error {
	c := plan.Cmd{Kind: plan.Copy, Ins: refsTo([]device.View{src}), Outs: refsTo([]device.View{dst}), Peer: -1}
	for _, r := range []int32{c.Ins[0].Rank, c.Outs[0].Rank} {
		if r != s.rank {
			c.Peer = r
		}
	}
	s.add(c)
	return nil
}

func (s *tapeStream) Upload(dst device.View, _ []byte) error {
	s.write(dst)
	return nil
}

func (s *tapeStream) Download(_ []byte, src device.View) error {
	s.add(plan.Cmd{Kind: plan.Compute, Op: ir.OpCopy, Ins: refsTo([]device.View{src})})
	return nil
}

// Record uses a new event of the plan for each call, because only one command of a plan may record an event.
func (s *tapeStream) Record(e device.Event) error {
	x := e.(*tapeEvent)
	x.number, x.recorded = int32(s.t.events), s.t.played
	s.t.events++
	s.add(plan.Cmd{Kind: plan.Record, Event: x.number})
	return nil
}

func (s *tapeStream) Wait(e device.Event) error {
	x := e.(*tapeEvent)
	if x.recorded != s.t.played {
		return errors.New("waits for an event that was never recorded")
	}
	s.add(plan.Cmd{Kind: plan.WaitEvent, Event: x.number})
	return nil
}

func (s *tapeStream) waitFor(o *tapeStream) {
	e := new(tapeEvent)
	_ = o.Record(e)
	_ = s.Wait(e)
}

func (s *tapeStream) Signal(c device.Counters, elem int, by int64) error {
	x := c.(tapeCounters)
	for range by {
		s.add(plan.Cmd{Kind: plan.Signal, Counter: x.index, Elem: int32(elem), Peer: x.rank})
	}
	return nil
}

// WaitCounter marks the command as late, because work that raises a device's counter may be issued after the wait.
func (s *tapeStream) WaitCounter(c device.Counters, elem int, least int64) error {
	x := c.(tapeCounters)
	if x.rank != s.rank {
		return errors.New("waits for a peer's counter")
	}
	s.add(plan.Cmd{Kind: plan.WaitCounter, Counter: x.index, Elem: int32(elem), Value: least, Late: true})
	return nil
}

func (s *tapeStream) Begin(int64) error { return nil }
func (s *tapeStream) End(int64) error   { return nil }

func (s *tapeStream) Call(f func()) error {
	s.t.inCall = s
	f()
	return nil
}

var (
	_ device.World = (*Tape)(nil)
)

// Number returns the index of memory among the buffers of the tape's plans.
func (t *Tape) Number(m device.Memory) int32 { return m.(*tapeMemory).buf }

// Buffers returns the number of buffers.
func (t *Tape) Buffers() int { return len(t.mems) }

// RankOf returns the rank of a buffer.
func (t *Tape) RankOf(buf int32) int { return int(t.mems[buf].rank) }

// Temporary reports whether a buffer receives a copy of a peer's operand for a launch.
func (t *Tape) Temporary(buf int32) bool { return t.mems[buf].temporary }
