package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// arena is a world with memory for collectives of up to some size, and a
// channel's stream on each rank.
type arena struct {
	world    device.World
	graphs   bool // the machine records them
	dispatch *comm.Dispatch
	dt       ir.DType
	cold     bool
	marks    *marks
	members  []comm.Member
	in, out  []device.Memory
	pattern  []*tensor.Tensor // of each rank's input, repeated
	scratch  []device.Memory  // four words to bring a stream behind a graph
}

// patternLength is the period of inputs, in elements: no shard is likely to be
// a multiple of it, so that blocks in the wrong place show.
const patternLength = 499_980

// coldBytes is what operands used in turn take together at least: more than a
// GPU's cache holds.
const coldBytes = 256 << 20

// openArena opens a world with room for each of the calls.
func openArena(ctx context.Context, m device.Machine, ranks int, calls []call, dt ir.DType, cold bool) (*arena, error) {
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	a := &arena{world: w, graphs: m.Caps().Graphs, dt: dt, cold: cold}
	a.dispatch = comm.NewDispatch(w, m.Caps(), nil, comm.Policy{})
	bytes := int64(256)
	for _, c := range calls {
		bytes = max(bytes, int64(a.slots(c))*alignUp(c.bytes))
	}
	if err := a.fill(ctx, bytes); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return a, nil
}

func (a *arena) close(err error) error { return errors.Join(err, a.world.Close()) }

// fill makes streams and operands.
func (a *arena) fill(ctx context.Context, bytes int64) error {

	a.marks = observe(a.world)
	for r := range a.world.Ranks() {
		d := a.world.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "collectives"})
		if err != nil {
			return err
		}
		a.members = append(a.members, comm.Member{Rank: r, Stream: s})
		for _, x := range []struct {
			list  *[]device.Memory
			bytes int64
		}{{&a.in, bytes}, {&a.out, bytes}, {&a.scratch, 16}} {
			mem, err := d.Alloc((x.bytes+3)&^3, device.Shared)
			if err != nil {
				return fmt.Errorf("an operand of %s: %w", bytesText(x.bytes), err)
			}
			*x.list = append(*x.list, mem)
		}
	}
	return a.pour(ctx, a.dt)
}

// dress has the inputs be of another type.
func (a *arena) dress(ctx context.Context, dt ir.DType) error {
	if a.dt == dt {
		return nil
	}
	return a.pour(ctx, dt)
}

// pour fills the inputs with small integers of a type.
func (a *arena) pour(ctx context.Context, dt ir.DType) error {
	a.dt, a.pattern = dt, nil
	for r, m := range a.members {
		p, err := a.randomPattern(r, a.in[r].Bytes())
		if err != nil {
			return err
		}
		a.pattern = append(a.pattern, p)
		if err := spread(m.Stream, a.in[r], p.Data); err != nil {
			return err
		}
	}
	return a.world.Sync(ctx)
}

// randomPattern returns integers from -2 to 2: sums over ranks are exact.
func (a *arena) randomPattern(rank int, bytes int64) (*tensor.Tensor, error) {
	n := min(patternLength, (bytes+3)&^3/a.dt.Size())
	t, err := tensor.New(a.dt, []int64{n})
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
func (a *arena) value(rank int, i int64) float64 {
	p := a.pattern[rank]
	return p.Float64(i % int64(p.Len()))
}

// call is a collective to be measured: an op and the bytes of its message.
type call struct {
	op    ir.Op
	red   ir.Red // of ops that reduce; sum where it is not set
	bytes int64
}

// newCall makes a call of about so many bytes: of ops that cut tensors, what
// divides over the members.
func newCall(op ir.Op, bytes int64, members int, dt ir.DType) call {
	unit := dt.Size()
	if op != ir.OpAllReduce && op != ir.OpBroadcast {
		unit *= int64(members)
	}
	return call{op: op, bytes: bytes / unit * unit}
}

// slots returns how many operands are used in turn: 1, or of a cold call as
// many as a chain divides into that together exceed the cache.
func (a *arena) slots(c call) int {
	if !a.cold {
		return 1
	}
	for _, k := range []int{1, 2, 5, 10} {
		if int64(k)*c.bytes*2 >= coldBytes {
			return k
		}
	}
	return 10
}

// instance returns the call on the operands of one slot.
func (a *arena) instance(c call, slot int, pin device.Tuning, anyOrder bool) comm.Instance {
	n := int64(len(a.members))
	whole := c.bytes / a.dt.Size()
	in := comm.Instance{Pin: pin, Shared: true, Collective: device.Collective{Op: c.op, AnyOrder: anyOrder, Together: true}}
	lenIn, lenOut := whole, whole
	switch c.op {
	case ir.OpAllReduce:
		in.Red = cmp.Or(c.red, ir.Sum)
	case ir.OpReduceScatter:
		in.Red, lenOut = cmp.Or(c.red, ir.Sum), whole/n
	case ir.OpAllGather:
		lenIn = whole / n
	}
	for m := range a.members {
		off := int64(slot) * alignUp(c.bytes)
		p := comm.Part{To: -1, From: -1, Writes: true, Reads: c.op != ir.OpBroadcast || m == in.Root}
		p.Out = vector(a.out[m], off, a.dt, lenOut)
		if p.Reads {
			p.In = vector(a.in[m], off, a.dt, lenIn)
		}
		in.Parts = append(in.Parts, p)
	}
	return in
}

func alignUp(n int64) int64 { return (n + 255) &^ 255 }

func vector(mem device.Memory, off int64, dt ir.DType, n int64) device.View {
	return device.View{Mem: mem, Off: off, DType: dt, Shape: []int64{n}, Strides: []int64{1}}
}

// entrant is one way to run a call, with what was measured of it.
type entrant struct {
	way   Way
	call  call
	slots int
	ch    *comm.Channel
	done  int64 // calls run so far
	// short and long are chains of calls as graphs; nil where there are none.
	short, long            device.Graph
	chains                 chains
	byGraph, byCall, skews []float64
}

// chains are lengths of chains of calls.
type chains struct{ short, long, eager int }

// chainsOf makes the difference of two chains long enough to be told. Where copy
// engines take part, replays of one graph differ by half a millisecond on four GPUs:
// with ten calls of 64 MiB between the chains one was timed faster than the links.
func chainsOf(bytes int64) chains {
	if bytes >= 4<<20 {
		return chains{10, 40, 10}
	}
	return chains{10, 50, 20}
}

// enter opens a channel for a way to run a call. An error that is not
// ErrUnsupported may have ended the world.
func (a *arena) enter(c call, d *comm.Dispatch, pin device.Tuning, anyOrder bool) (*entrant, error) {
	e := &entrant{call: c, slots: a.slots(c), chains: chainsOf(c.bytes)}
	if slices.Contains(comm.Schedules(), pin.Algo) { // many commands each
		e.chains = chains{e.slots, 3 * e.slots, 2 * e.slots}
		if e.slots == 1 {
			e.chains = chains{2, 6, 10}
		}
	}
	var insts []comm.Instance
	for s := range e.slots {
		insts = append(insts, a.instance(c, s, pin, anyOrder))
	}
	ch, err := d.Design(a.members, insts)
	if err == nil {
		err = ch.Open()
	}
	if err != nil {
		return nil, err
	}
	e.ch = ch
	x := ch.Choice(0)
	e.way = Way{Algorithm: x.Tuning.Algo, Tuning: x.Tuning, By: x.By, Declined: x.Declined}
	return e, nil
}

// leave gives back what an entrant holds; nothing of it may still run.
func (e *entrant) leave() error {
	var errs []error
	for _, g := range []device.Graph{e.short, e.long} {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(append(errs, e.ch.Close())...)
}

// issue enqueues count calls on all ranks.
func (e *entrant) issue(members, count int) error {
	for i := range int64(count) {
		t := e.done + i
		for m := range members {
			if err := e.ch.Issue(int(t%int64(e.slots)), m, t/int64(e.slots)); err != nil {
				return err
			}
		}
	}
	return nil
}

// run issues count calls.
func (a *arena) run(e *entrant, count int) error {
	err := e.issue(len(a.members), count)
	e.done += int64(count)
	return err
}

// capture records the entrant's chains, each while the world is at rest.
func (a *arena) capture(ctx context.Context, e *entrant) error {
	if !a.graphs {
		return nil
	}
	for _, x := range []struct {
		g *device.Graph
		n int
	}{{&e.short, e.chains.short}, {&e.long, e.chains.long}} {
		if x.n == 0 {
			continue
		}
		if err := a.world.Sync(ctx); err != nil {
			return err
		}
		g, err := a.world.Capture(func() error { return e.issue(len(a.members), x.n) })
		if err != nil {
			return err
		}
		*x.g = g
	}
	return nil
}

// choose has the entrant's graphs launched in the way that is the fastest, where
// they can be in several.
func (a *arena) choose(ctx context.Context, e *entrant) error {
	short, long := e.short, e.long
	if short == nil || long == nil {
		return nil
	}
	names := short.Forms()
	if len(names) == 0 || !slices.Equal(names, long.Forms()) {
		return nil // no call is known to be recorded in other ways when there are more of it
	}
	best, least := 0, math.Inf(1)
	for i := range names {
		short.Choose(i)
		long.Choose(i)
		for range 2 { // once to warm up
			us, err := a.timeGraph(ctx, e)
			if err != nil {
				return err
			}
			if us < least {
				best, least = i, us
			}
		}
	}
	e.way.Form = names[best]
	return errors.Join(short.Keep(best), long.Keep(best))
}

// replay launches one of the entrant's graphs of count calls, and brings every
// rank's stream behind it.
func (a *arena) replay(ctx context.Context, e *entrant, g device.Graph, count int) error {
	if err := g.Launch(ctx); err != nil {
		return err
	}
	e.done += int64(count)
	for m, x := range a.members {
		if err := x.Stream.Copy(words(a.scratch[m], 0, 4), words(a.scratch[m], 8, 4)); err != nil {
			return err
		}
	}
	return nil
}

// window brackets what issue does on every rank's stream and returns the
// brackets' numbers.
func (a *arena) window(issue func() error) ([]int64, error) {
	var ids []int64
	for _, m := range a.members {
		id, err := a.marks.begin(m.Stream)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := issue(); err != nil {
		return nil, err
	}
	for i, m := range a.members {
		if err := m.Stream.End(ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// timeEager returns microseconds a call of a chain issued call by call, on the
// slowest rank.
func (a *arena) timeEager(ctx context.Context, e *entrant) (float64, error) {
	if err := a.run(e, e.slots); err != nil {
		return 0, err
	}
	ids, err := a.window(func() error { return a.run(e, e.chains.eager) })
	if err != nil {
		return 0, err
	}
	us, err := a.marks.take(ctx, a.world, ids...)
	if err != nil {
		return 0, err
	}
	e.skews = append(e.skews, (slices.Max(us)-slices.Min(us))/float64(e.chains.eager))
	return slices.Max(us) / float64(e.chains.eager), nil
}

// timeGraph returns microseconds a call within a graph, on the slowest rank: a
// long chain less a short one, so that what a launch costs falls out. A launch
// before hides the host behind it.
func (a *arena) timeGraph(ctx context.Context, e *entrant) (float64, error) {
	if err := a.replay(ctx, e, e.long, e.chains.long); err != nil {
		return 0, err
	}
	short, err := a.window(func() error { return a.replay(ctx, e, e.short, e.chains.short) })
	if err != nil {
		return 0, err
	}
	long, err := a.window(func() error { return a.replay(ctx, e, e.long, e.chains.long) })
	if err != nil {
		return 0, err
	}
	us, err := a.marks.take(ctx, a.world, append(short, long...)...)
	if err != nil {
		return 0, err
	}
	n := len(short)
	most := 0.0
	for m := range n {
		most = max(most, (us[n+m]-us[m])/float64(e.chains.long-e.chains.short))
	}
	return most, nil
}

// sample measures the entrant once more.
func (a *arena) sample(ctx context.Context, e *entrant, eager bool) error {
	if e.short != nil {
		us, err := a.timeGraph(ctx, e)
		if err != nil {
			return err
		}
		e.byGraph = append(e.byGraph, us)
	}
	if eager || e.short == nil {
		us, err := a.timeEager(ctx, e)
		if err != nil {
			return err
		}
		e.byCall = append(e.byCall, us)
	}
	return nil
}

// race measures all entrants in turns, rounds times after one to warm up, and
// fills in their figures.
func (a *arena) race(ctx context.Context, list []*entrant, rounds int, eager bool) error {
	for round := range rounds + 1 {
		for _, e := range list {
			if err := a.sample(ctx, e, eager); err != nil {
				return fmt.Errorf("%s of %s by %s: %w", e.call.op, bytesText(e.call.bytes), e.way.Algorithm, err)
			}
			if round == 0 {
				e.byGraph, e.byCall, e.skews = e.byGraph[:0], e.byCall[:0], e.skews[:0]
			}
		}
	}
	for _, e := range list {
		if len(e.byGraph) > 0 {
			f := figure(e.byGraph)
			e.way.Graph = &f
		}
		if len(e.byCall) > 0 {
			f := figure(e.byCall)
			e.way.Eager = &f
			e.way.Skew = figure(e.skews).Median
		}
	}
	return nil
}

// named lists the algorithms of a world whose names begin so.
func named(d *comm.Dispatch, prefix string) []string {
	return slices.DeleteFunc(d.Algorithms(), func(s string) bool { return !strings.HasPrefix(s, prefix) })
}
