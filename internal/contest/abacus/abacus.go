// Package abacus is a machine for tests of measurements. Abacus is the CPU machine with launches for whole collectives,
// and with a simulated clock that advances with the issued work. Measurements therefore do not depend on the speed or
// load of the host. It is registered as "abacus-with-teams".
package abacus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/world"
)

// Abacus is the CPU machine under another name, for which benchmarks choose small sizes. An Abacus also has graphs, and
// launches for whole collectives. A launch executes the commands of a schedule. The launches are "quick" and "slow";
// "nccl", which only applies if the order of sums does not matter; and "wrong", which changes one element of the
// result.
type Abacus struct{ device.Machine }

func (a Abacus) Caps() device.Caps {
	c := a.Machine.Caps()
	c.Graphs = true
	return c
}

func (a Abacus) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := a.Machine.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	return &Beads{World: w, clock: &clock{at: map[int64][2]int64{}}}, nil
}

// Beads is a world of an Abacus.
type Beads struct {
	device.World
	clock *clock
}

// clock provides the times of marks. Each command takes a fixed time, which depends on its kind, and begins when
// the previous command of its stream has ended. Whenever the world becomes idle, the clocks of all streams advance
// to the same time.
type clock struct {
	mu    sync.Mutex
	lanes []*lane            // clocks by stream
	at    map[int64][2]int64 // begin and end of each mark, in nanoseconds
	tells device.Observer
}

// lane is the clock of a stream: the time when all issued work has ended, in nanoseconds.
type lane struct {
	*clock
	now int64
}

const (
	ofCommand    = 5000 // time of a command of a schedule, or of a kernel
	ofQuick      = 2000
	ofUnordered  = 1500
	ofSlow       = 500_000
	ofWrong      = 2500
	betweenMarks = 1
)

func (l *lane) takes(ns int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += ns
}

func (l *lane) mark(id int64, end int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += betweenMarks
	span := l.at[id]
	span[end] = l.now
	l.at[id] = span
}

// Began implements device.Observer.
func (c *clock) Began(rank int, stream string, id, _ int64) {
	c.mu.Lock()
	o, ns := c.tells, c.at[id][0]
	c.mu.Unlock()
	o.Began(rank, stream, id, ns)
}

// Ended implements device.Observer.
func (c *clock) Ended(rank int, stream string, id, _ int64) {
	c.mu.Lock()
	o, ns := c.tells, c.at[id][1]
	c.mu.Unlock()
	o.Ended(rank, stream, id, ns)
}

func (w *Beads) Observe(o device.Observer) {
	w.clock.mu.Lock()
	w.clock.tells = o
	w.clock.mu.Unlock()
	if o != nil {
		o = w.clock
	}
	w.World.Observe(o)
}

func (w *Beads) Sync(ctx context.Context) error {
	err := w.World.Sync(ctx)
	w.clock.mu.Lock()
	defer w.clock.mu.Unlock()
	latest := int64(0)
	for _, l := range w.clock.lanes {
		latest = max(latest, l.now)
	}
	for _, l := range w.clock.lanes {
		l.now = latest
	}
	return err
}

func (w *Beads) Device(rank int) device.Device { return rod{w.World.Device(rank), w.clock} }
func (w *Beads) Guesses() []string             { return []string{"40x24x32 bf16"} }
func (w *Beads) Identity() string              { return "abacus sm_123" }

// library is the algorithm that represents a vendor's library.
const library = "nccl"

// TeamAlgorithms implements device.Teams.
func (w *Beads) TeamAlgorithms() []device.Algorithm {
	return []device.Algorithm{{Name: "quick", Ops: device.Even}, {Name: "slow", Ops: device.Even},
		{Name: library, Ops: device.Even, FreeOrder: true, Library: true}, {Name: "wrong", Ops: device.Even}}
}

// Capture returns a graph. Each launch of the graph issues its work again.
func (w *Beads) Capture(issue func() error) (device.Graph, error) { return again{issue: issue}, nil }

type again struct {
	device.DefaultGraph
	issue func() error
}

func (g again) Launch(context.Context) error { return g.issue() }
func (again) Close() error                   { return nil }

type rod struct {
	device.Device
	clock *clock
}

func (d rod) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	l := &lane{clock: d.clock}
	d.clock.mu.Lock()
	defer d.clock.mu.Unlock()
	for _, other := range d.clock.lanes {
		l.now = max(l.now, other.now)
	}
	d.clock.lanes = append(d.clock.lanes, l)
	return wire{s, l}, err
}

type wire struct {
	device.Stream
	lane *lane
}

func (s wire) Begin(id int64) error { s.lane.mark(id, 0); return s.Stream.Begin(id) }
func (s wire) End(id int64) error   { s.lane.mark(id, 1); return s.Stream.End(id) }

func (s wire) Copy(dst, src device.View) error {
	s.lane.takes(ofCommand)
	return s.Stream.Copy(dst, src)
}

func (s wire) Wait(e device.Event) error {
	s.lane.takes(ofCommand)
	return s.Stream.Wait(e)
}

func (s wire) WaitCounter(c device.Counters, i int, atLeast int64) error {
	s.lane.takes(ofCommand)
	return s.Stream.WaitCounter(c, i, atLeast)
}

func (s wire) Launch(l device.Launch) error {
	b, ok := l.(*bead)
	if !ok {
		s.lane.takes(ofCommand)
		return s.Stream.Launch(l)
	}
	s.lane.takes(map[string]int64{"quick": ofQuick, "slow": ofSlow, library: ofUnordered, "wrong": ofWrong}[b.algo])
	b.run++
	if err := b.ch.Issue(0, b.member, b.run-1); err != nil || b.algo != "wrong" {
		return err
	}
	first := b.out
	first.Shape = []int64{1}
	return s.Stream.Copy(first, contest.Vector(b.out.Mem, b.out.Off+first.DType.Size(), first.DType, 1))
}

type bead struct {
	ch     *comm.Channel
	member int
	run    int64
	algo   string
	out    device.View
}

func (*bead) Release() {}

func (w *Beads) OpenTeam(members []device.Member) (device.Team, error) {
	t := &beadTeam{w: w}
	for _, m := range members {
		t.members = append(t.members, device.Member{Rank: m.Rank, Stream: m.Stream.(wire).Stream})
	}
	return t, nil
}

type beadTeam struct {
	device.DefaultTeam
	w        *Beads
	members  []device.Member
	channels []*comm.Channel
}

func (t *beadTeam) Supports(u device.Tuning, c *device.Collective) error {
	if u.Algo == library && !c.AnyOrder {
		return fmt.Errorf("%w: it does not add in the order of the members", device.ErrUnsupported)
	}
	return nil
}

func (t *beadTeam) Prepare(u device.Tuning, c *device.Collective) ([]device.Launch, error) {
	d := comm.NewDispatch(t.w.World, device.Caps{}, nil, comm.Policy{})
	ch, err := d.Design(t.members, []comm.Instance{{Collective: *c, Pin: device.Tuning{Algo: comm.Schedules()[0]}}})
	if err == nil {
		err = ch.Open()
	}
	if err != nil {
		return nil, err
	}
	t.channels = append(t.channels, ch)
	var ls []device.Launch
	for m := range t.members {
		ls = append(ls, &bead{ch: ch, member: m, algo: u.Algo, out: c.Parts[m].Out})
	}
	return ls, nil
}

func (*beadTeam) Bytes() int64 { return 0 }

func (t *beadTeam) Close() error {
	var errs []error
	for _, ch := range t.channels {
		errs = append(errs, ch.Close())
	}
	return errors.Join(errs...)
}

func init() {
	device.Register(device.Kind{Name: "abacus-with-teams", Open: func(*world.World) (device.Machine, error) { return Abacus{cpu.New(cpu.Options{})}, nil }})
}
