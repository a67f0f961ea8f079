// Package abacus is a machine for tests of what measures: the CPU machine with launches of its
// own for whole collectives. It is registered as "abacus-with-teams".
package abacus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/world"
)

// Abacus is the CPU machine, by the name of which sizes stay small, with graphs and with
// launches of its own for whole collectives, each carried out by a schedule: "quick" as it is, "slow" after a
// pause, "nccl" only where order does not matter, "wrong" with one element
// changed.
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
	return &Beads{World: w}, nil
}

// Beads is a world of an Abacus.
type Beads struct{ device.World }

func (w *Beads) Device(rank int) device.Device { return rod{w.World.Device(rank)} }
func (w *Beads) TeamAlgorithms() []string      { return []string{"quick", "slow", "nccl", "wrong"} }
func (w *Beads) Guesses() []string             { return []string{"40x24x32 bf16"} }
func (w *Beads) Identity() string              { return "abacus sm_123" }

// Capture makes a graph that issues its work again at each launch.
func (w *Beads) Capture(issue func() error) (device.Graph, error) { return again{issue: issue}, nil }

type again struct {
	device.DefaultGraph
	issue func() error
}

func (g again) Launch(context.Context) error { return g.issue() }
func (again) Close() error                   { return nil }

type rod struct{ device.Device }

func (d rod) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return wire{s}, err
}

type wire struct{ device.Stream }

func (s wire) Launch(l device.Launch) error {
	b, ok := l.(*bead)
	if !ok {
		return s.Stream.Launch(l)
	}
	b.run++
	if err := b.ch.Issue(0, b.member, b.run-1); err != nil {
		return err
	}
	switch b.algo {
	case "slow":
		return s.Call(func() {
			for began := time.Now(); time.Since(began) < 500*time.Microsecond; { // sleeping is for a millisecond or more; what runs beside the test takes some hundred
			}
		})
	case "wrong":
		first := b.out
		first.Shape = []int64{1}
		return s.Copy(first, contest.Vector(b.out.Mem, b.out.Off+first.DType.Size(), first.DType, 1))
	}
	return nil
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
	if u.Algo == "nccl" && !c.AnyOrder {
		return fmt.Errorf("%w: it adds in an order of its own", device.ErrUnsupported)
	}
	return nil
}

func (t *beadTeam) Prepare(u device.Tuning, c *device.Collective) ([]device.Launch, error) {
	d := comm.NewDispatch(t.w.World, device.Caps{}, nil, comm.Policy{})
	ch, err := d.Design(t.members, []comm.Instance{{Collective: *c, Pin: device.Tuning{Algo: "staged"}}})
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
	device.Register("abacus-with-teams", func(*world.World) (device.Machine, error) { return Abacus{cpu.New(cpu.Options{})}, nil })
}
