// Package contest compares algorithms of a collective by measurement. The package opens a world with memory for the
// calls, checks the result of each algorithm, runs the algorithms alternately, and compares their times.
package contest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Arena is a world with memory for collectives up to some size, and a stream on each rank.
type Arena struct {
	World    device.World
	graphs   bool // whether the machine records graphs
	Dispatch *comm.Dispatch
	Type     ir.DType
	cold     bool
	Marks    *Marks
	Members  []comm.Member
	In, Out  []device.Memory
	pattern  []*tensor.Tensor // the random elements of each rank that are repeated to fill its input
	scratch  []device.Memory  // memory for four words on each rank; a copy of these words orders a stream after a graph
}

// PatternLength is the period of the inputs, in elements. The period rarely divides the size of a shard, so a block in
// the wrong place is detected.
const PatternLength = 499_980

// coldBytes is the smallest total size of operands that are used alternately so that they are not in a cache. This size
// exceeds that of a GPU's cache.
const coldBytes = 256 << 20

// OpenArena opens a world with enough memory for each of the calls.
func OpenArena(ctx context.Context, m device.Machine, ranks int, calls []Call, dt ir.DType, cold bool) (*Arena, error) {
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	a := &Arena{World: w, graphs: m.Caps().Graphs, Type: dt, cold: cold}
	a.Dispatch = comm.NewDispatch(w, m.Caps(), nil, comm.Policy{})
	bytes := int64(256)
	for _, c := range calls {
		bytes = max(bytes, int64(a.slots(c))*alignUp(c.Bytes))
	}
	if err := Within(ctx, w, func() error { return a.fill(ctx, bytes) }); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return a, nil
}

// Within calls f, which uses the world w, and returns the error of f. If a call of the machine's driver does not
// return, Within returns the world's error, and the world can no longer be used (see device.World.Do).
func Within(ctx context.Context, w device.World, f func() error) (err error) {
	var got error // a local variable, because f may set it after Do and Within have returned
	if lost := w.Do(ctx, func() { got = f() }); lost != nil {
		return lost
	}
	return got
}

func (a *Arena) Close(err error) error { return errors.Join(err, a.World.Close()) }

// fill creates the arena's streams and allocates its operands.
func (a *Arena) fill(ctx context.Context, bytes int64) error {
	a.Marks = Observe(a.World)
	for r := range a.World.Ranks() {
		d := a.World.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "collectives"})
		if err != nil {
			return err
		}
		a.Members = append(a.Members, comm.Member{Rank: r, Stream: s})
		for _, x := range []struct {
			list  *[]device.Memory
			bytes int64
		}{{&a.In, bytes}, {&a.Out, bytes}, {&a.scratch, 16}} {
			mem, err := d.Alloc((x.bytes+3)&^3, device.Shared)
			if err != nil {
				return fmt.Errorf("an operand of %s: %w", BytesText(x.bytes), err)
			}
			*x.list = append(*x.list, mem)
		}
	}
	return a.pour(ctx, a.Type)
}

// Dress fills the inputs again, with elements of another type.
func (a *Arena) Dress(ctx context.Context, dt ir.DType) error {
	if a.Type == dt {
		return nil
	}
	return a.pour(ctx, dt)
}

// pour fills the inputs of all ranks with small integers of the element type dt.
func (a *Arena) pour(ctx context.Context, dt ir.DType) error {
	a.Type, a.pattern = dt, nil
	for r, m := range a.Members {
		p, err := a.randomPattern(r, a.In[r].Bytes())
		if err != nil {
			return err
		}
		a.pattern = append(a.pattern, p)
		if err := Spread(m.Stream, a.In[r], p.Data); err != nil {
			return err
		}
	}
	return a.World.Sync(ctx)
}

// randomPattern returns random integers from -2 to 2. Sums of such integers over ranks are exact.
func (a *Arena) randomPattern(rank int, bytes int64) (*tensor.Tensor, error) {
	n := min(PatternLength, (bytes+3)&^3/a.Type.Size())
	t, err := tensor.New(a.Type, []int64{n})
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(uint64(rank), 3))
	for i := range t.Len() {
		t.SetFloat64(i, float64(rng.IntN(5)-2))
	}
	return t, nil
}

// value returns element i of a rank's input.
func (a *Arena) value(rank int, i int64) float64 {
	p := a.pattern[rank]
	return p.Float64(i % int64(p.Len()))
}

// Call is a collective to measure: its op and its message size.
type Call struct {
	Op    ir.Op
	Red   ir.Red // reduction, for ops that reduce; sum if unset
	Bytes int64
}

// NewCall returns a call of about the given size. For ops that split tensors, the size is divisible
// by the number of members.
func NewCall(op ir.Op, bytes int64, members int, dt ir.DType) Call {
	unit := dt.Size()
	if op != ir.OpAllReduce && op != ir.OpBroadcast {
		unit *= int64(members)
	}
	return Call{Op: op, Bytes: bytes / unit * unit}
}

// Slots returns the number of operands that are used alternately. The number is 1 or, for a cold call, a divisor of the
// chain's length such that the operands together exceed the cache.
func (a *Arena) slots(c Call) int {
	if !a.cold {
		return 1
	}
	for _, k := range []int{1, 2, 5, 10} {
		if int64(k)*c.Bytes*2 >= coldBytes {
			return k
		}
	}
	return 10
}

// Instance returns the call c with the operands of one slot.
func (a *Arena) Instance(c Call, slot int, pin device.Tuning, anyOrder bool) comm.Instance {
	n := int64(len(a.Members))
	whole := c.Bytes / a.Type.Size()
	in := comm.Instance{Pin: pin, Shared: true,
		Collective: device.Collective{Op: c.Op, AnyOrder: anyOrder, Together: true}}
	lenIn, lenOut := whole, whole
	switch c.Op {
	case ir.OpAllReduce:
		in.Red = cmp.Or(c.Red, ir.Sum)
	case ir.OpReduceScatter:
		in.Red, lenOut = cmp.Or(c.Red, ir.Sum), whole/n
	case ir.OpAllGather:
		lenIn = whole / n
	}
	for m := range a.Members {
		off := int64(slot) * alignUp(c.Bytes)
		p := comm.Part{To: -1, From: -1, Writes: true, Reads: c.Op != ir.OpBroadcast || m == in.Root}
		p.Out = Vector(a.Out[m], off, a.Type, lenOut)
		if p.Reads {
			p.In = Vector(a.In[m], off, a.Type, lenIn)
		}
		in.Parts = append(in.Parts, p)
	}
	return in
}

func alignUp(n int64) int64 { return (n + 255) &^ 255 }

func Vector(mem device.Memory, off int64, dt ir.DType, n int64) device.View {
	return device.View{Mem: mem, Off: off, DType: dt, Shape: []int64{n}, Strides: []int64{1}}
}

// Entrant is an algorithm that takes part in the comparison for a call, with its measurements.
type Entrant struct {
	Way     Way
	Call    Call
	Slots   int
	Channel *comm.Channel
	Done    int64 // number of calls that were run
	// Short and Long are graphs of chains of calls; nil if there are none.
	Short, Long            device.Graph
	Chains                 Chains
	byGraph, byCall, skews []float64
}

// Chains holds the lengths of the chains of calls: in the short graph, in the long graph, and in the chain that is
// issued call by call.
type Chains struct{ Short, Long, Eager int }

// ChainsOf returns lengths that differ so much that the difference of their times can be measured. If copy engines are
// used, the times of replays of one graph vary by half a millisecond on four GPUs: with a difference of ten calls of 64
// MiB, one measured time was shorter than the links allow.
func ChainsOf(bytes int64) Chains {
	if bytes >= 4<<20 {
		return Chains{10, 40, 10}
	}
	return Chains{10, 50, 20}
}

// Enter opens a channel for the call c with one algorithm and its launch parameters. After an error other than
// ErrUnsupported, the world may have ended.
func (a *Arena) Enter(c Call, d *comm.Dispatch, pin device.Tuning, anyOrder bool) (*Entrant, error) {
	e := &Entrant{Call: c, Slots: a.slots(c), Chains: ChainsOf(c.Bytes)}
	if slices.Contains(comm.Schedules(), pin.Algo) { // shorter chains, because each call of a schedule is many commands
		e.Chains = Chains{e.Slots, 3 * e.Slots, 2 * e.Slots}
		if e.Slots == 1 {
			e.Chains = Chains{2, 6, 10}
		}
	}
	var insts []comm.Instance
	for s := range e.Slots {
		insts = append(insts, a.Instance(c, s, pin, anyOrder))
	}
	ch, err := d.Design(a.Members, insts)
	if err == nil {
		err = ch.Open()
	}
	if err != nil {
		return nil, err
	}
	e.Channel = ch
	x := ch.Choice(0)
	e.Way = Way{Algorithm: x.Tuning.Algo, Tuning: x.Tuning, By: x.By, Declined: x.Declined,
		Library: d.Info(x.Tuning.Algo).Library}
	return e, nil
}

// Leave releases an entrant's resources. Its work must have ended.
func (e *Entrant) Leave() error {
	var errs []error
	for _, g := range []device.Graph{e.Short, e.Long} {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(append(errs, e.Channel.Close())...)
}

// issue enqueues count calls on all ranks.
func (e *Entrant) issue(members, count int) error {
	for i := range int64(count) {
		t := e.Done + i
		for m := range members {
			if err := e.Channel.Issue(int(t%int64(e.Slots)), m, t/int64(e.Slots)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run issues count calls.
func (a *Arena) Run(e *Entrant, count int) error {
	err := e.issue(len(a.Members), count)
	e.Done += int64(count)
	return err
}

// Capture records the entrant's chains as graphs. Before each recording it waits until the world is idle.
func (a *Arena) Capture(ctx context.Context, e *Entrant) error {
	if !a.graphs {
		return nil
	}
	for _, x := range []struct {
		g *device.Graph
		n int
	}{{&e.Short, e.Chains.Short}, {&e.Long, e.Chains.Long}} {
		if x.n == 0 {
			continue
		}
		if err := a.World.Sync(ctx); err != nil {
			return err
		}
		g, err := a.World.Capture(func() error { return e.issue(len(a.Members), x.n) })
		if err != nil {
			return err
		}
		*x.g = g
	}
	return nil
}

// Choose selects the fastest form of the entrant's graphs, if they have several forms.
func (a *Arena) Choose(ctx context.Context, e *Entrant) error {
	short, long := e.Short, e.Long
	if short == nil || long == nil {
		return nil
	}
	names := short.Forms()
	if len(names) == 0 || !slices.Equal(names, long.Forms()) {
		return nil // the graphs of the two lengths have different forms, so their times cannot be compared
	}
	best, least := 0, math.Inf(1)
	for i := range names {
		short.Choose(i)
		long.Choose(i)
		for range 2 { // the first round is a warm-up
			us, err := a.timeGraph(ctx, e)
			if err != nil {
				return err
			}
			if us < least {
				best, least = i, us
			}
		}
	}
	e.Way.Form = names[best]
	return errors.Join(short.Keep(best), long.Keep(best))
}

// Replay launches one of the entrant's graphs, which contains count calls, and makes every rank's stream wait for it.
func (a *Arena) Replay(ctx context.Context, e *Entrant, g device.Graph, count int) error {
	if err := g.Launch(ctx); err != nil {
		return err
	}
	e.Done += int64(count)
	for m, x := range a.Members {
		if err := x.Stream.Copy(Words(a.scratch[m], 0, 4), Words(a.scratch[m], 8, 4)); err != nil {
			return err
		}
	}
	return nil
}

// Window puts marks before and after the work that the function issue enqueues on every rank's stream, and returns
// the ids of the marks.
func (a *Arena) Window(issue func() error) ([]int64, error) {
	var ids []int64
	for _, m := range a.Members {
		id, err := a.Marks.Begin(m.Stream)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := issue(); err != nil {
		return nil, err
	}
	for i, m := range a.Members {
		if err := m.Stream.End(ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// TimeEager measures a chain that is issued call by call. TimeEager returns the microseconds per call on the slowest
// rank.
func (a *Arena) TimeEager(ctx context.Context, e *Entrant) (float64, error) {
	if err := a.Run(e, e.Slots); err != nil {
		return 0, err
	}
	ids, err := a.Window(func() error { return a.Run(e, e.Chains.Eager) })
	if err != nil {
		return 0, err
	}
	us, err := a.Marks.Take(ctx, a.World, ids...)
	if err != nil {
		return 0, err
	}
	e.skews = append(e.skews, (slices.Max(us)-slices.Min(us))/float64(e.Chains.Eager))
	return slices.Max(us) / float64(e.Chains.Eager), nil
}

// timeGraph returns microseconds per call within a graph, on the slowest rank. timeGraph divides the difference between
// the times of a long and a short chain, in which the time of a launch cancels out. An additional launch before the two
// hides the host's time.
func (a *Arena) timeGraph(ctx context.Context, e *Entrant) (float64, error) {
	if err := a.Replay(ctx, e, e.Long, e.Chains.Long); err != nil {
		return 0, err
	}
	short, err := a.Window(func() error { return a.Replay(ctx, e, e.Short, e.Chains.Short) })
	if err != nil {
		return 0, err
	}
	long, err := a.Window(func() error { return a.Replay(ctx, e, e.Long, e.Chains.Long) })
	if err != nil {
		return 0, err
	}
	us, err := a.Marks.Take(ctx, a.World, append(short, long...)...)
	if err != nil {
		return 0, err
	}
	n := len(short)
	most := 0.0
	for m := range n {
		most = max(most, (us[n+m]-us[m])/float64(e.Chains.Long-e.Chains.Short))
	}
	return most, nil
}

// sample measures the entrant once and records the times.
func (a *Arena) sample(ctx context.Context, e *Entrant, eager bool) error {
	if e.Short != nil {
		us, err := a.timeGraph(ctx, e)
		if err != nil {
			return err
		}
		e.byGraph = append(e.byGraph, us)
	}
	if eager || e.Short == nil {
		us, err := a.TimeEager(ctx, e)
		if err != nil {
			return err
		}
		e.byCall = append(e.byCall, us)
	}
	return nil
}

// Race measures all entrants alternately, for one warm-up round and the given number of rounds. It then computes
// their figures.
func (a *Arena) Race(ctx context.Context, list []*Entrant, rounds int, eager bool) error {
	for round := range rounds + 1 {
		for _, e := range list {
			if err := a.sample(ctx, e, eager); err != nil {
				return fmt.Errorf("%s of %s by %s: %w", e.Call.Op, BytesText(e.Call.Bytes), e.Way.Algorithm, err)
			}
			if round == 0 {
				e.byGraph, e.byCall, e.skews = e.byGraph[:0], e.byCall[:0], e.skews[:0]
			}
		}
	}
	for _, e := range list {
		if len(e.byGraph) > 0 {
			f := FigureOf(e.byGraph)
			e.Way.Graph = &f
		}
		if len(e.byCall) > 0 {
			f := FigureOf(e.byCall)
			e.Way.Eager = &f
			e.Way.Skew = FigureOf(e.skews).Median
		}
	}
	return nil
}

// Spread fills mem with repetitions of block, by doubling.
func Spread(s device.Stream, mem device.Memory, block []byte) error {
	n := int64(len(block))
	if err := s.Upload(Words(mem, 0, n), block); err != nil {
		return err
	}
	for total := mem.Bytes() &^ 3; n < total; {
		more := min(n, total-n)
		if err := s.Copy(Words(mem, n, more), Words(mem, 0, more)); err != nil {
			return err
		}
		n += more
	}
	return nil
}

// Words returns a view of n bytes of mem, beginning at byte off.
func Words(mem device.Memory, off, n int64) device.View {
	return device.View{Mem: mem, Off: off, DType: ir.I32, Shape: []int64{n / 4}, Strides: []int64{1}}
}

func NamesOnly(names []string) []device.Tuning {
	var list []device.Tuning
	for _, n := range names {
		list = append(list, device.Tuning{Algo: n})
	}
	return list
}

// Ended reports whether the world has ended.
func (a *Arena) Ended(ctx context.Context) bool { return a.World.Sync(ctx) != nil }

// Team returns an arena that consists of the first members of this one.
func (a *Arena) Team(members int) *Arena {
	b := *a
	b.Members = a.Members[:members]
	return &b
}
