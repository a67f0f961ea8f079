package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// abacus is the CPU machine, by the name of which sizes stay small, with graphs and with launches of its own for whole
// collectives, each carried out by a schedule: "quick" as it is, "slow" after a
// pause, "nccl" only where order does not matter, "wrong" with one element
// changed.
type abacus struct{ device.Machine }

func (a abacus) Caps() device.Caps {
	c := a.Machine.Caps()
	c.Graphs = true
	return c
}

func (a abacus) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := a.Machine.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	return &beads{World: w}, nil
}

type beads struct{ device.World }

func (w *beads) Device(rank int) device.Device { return rod{w.World.Device(rank)} }
func (w *beads) TeamAlgorithms() []string      { return []string{"quick", "slow", "nccl", "wrong"} }
func (w *beads) Guesses() []string             { return []string{"40x24x32 bf16"} }
func (w *beads) Identity() string              { return "abacus sm_123" }

// Capture makes a graph that issues its work again at each launch.
func (w *beads) Capture(issue func() error) (device.Graph, error) { return again{issue: issue}, nil }

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
		return s.Copy(first, vector(b.out.Mem, b.out.Off+first.DType.Size(), first.DType, 1))
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

func (w *beads) OpenTeam(members []device.Member) (device.Team, error) {
	t := &beadTeam{w: w}
	for _, m := range members {
		t.members = append(t.members, device.Member{Rank: m.Rank, Stream: m.Stream.(wire).Stream})
	}
	return t, nil
}

type beadTeam struct {
	device.DefaultTeam
	w        *beads
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
	device.Register("abacus-with-teams", func() (device.Machine, error) { return abacus{cpu.New(cpu.Options{})}, nil })
}

// TestTuneTeams wants a machine's own launches tuned and chosen, by graph, those
// with wrong results left out and said to be, and one that sums in order listed
// where NCCL is the fastest.
func TestTuneTeams(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	file, err := TableFile(foundFor(t, "abacus-with-teams"), 2)
	if err != nil {
		t.Fatal(err)
	}
	u, err := Tune(context.Background(), TuneOptions{Machine: "abacus-with-teams", Ranks: 2, Sizes: []int64{4096, 16384}, File: file})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Table.Entries) != len(TunedOps) || u.Table.Identity != "abacus sm_123" {
		t.Fatalf("%+v", u.Table)
	}
	for _, e := range u.Table.Entries {
		for _, b := range e.Brackets {
			var names []string
			for _, x := range b.Best {
				names = append(names, x.Algo)
			}
			if slices.Contains(names, "wrong") || !slices.Contains(names, "quick") || !slices.Contains([]string{"quick", "nccl"}, names[0]) {
				t.Errorf("%s up to %d: %v", e.Op, b.UpTo, names)
			}
		}
		if e.Fixed == nil || e.Fixed.Algo == "nccl" {
			t.Errorf("%s: fixed is %+v", e.Op, e.Fixed)
		}
	}
	if !strings.Contains(strings.Join(u.Notes, "\n"), "by wrong: ") {
		t.Errorf("notes %q do not tell of what is wrong", u.Notes)
	}
	rep, err := Run(context.Background(), "allreduce", Options{Machine: "abacus-with-teams", Ranks: 2, Rounds: 1, Sizes: []int64{4096}, Algorithms: []string{"all"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range rep.Collectives[0].Ways {
		if w.Graph == nil || w.Eager == nil || (w.Wrong > 0) != (w.Algorithm == "wrong") {
			t.Errorf("%+v", w)
		}
		if w.By == "table" && w.Algorithm != "quick" {
			t.Errorf("the sum in order is by %s", w.Algorithm)
		}
	}
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil || !strings.Contains(text.String(), "chosen against the best of the others") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestTuneGoesOn wants only what a table lacks measured: nothing of one that has
// all, one entry of one that lacks it, what there is once more where that is asked
// for, and what is shipped where nothing was measured.
func TestTuneGoesOn(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	ctx := context.Background()
	tune := func(o TuneOptions) *Tuned {
		t.Helper()
		o.Machine, o.Ranks, o.Base = "abacus-with-teams", 2, foundFor(t, "abacus-with-teams")
		var err error
		if o.File, err = TableFile(o.Base, 2); err != nil {
			t.Fatal(err)
		}
		u, err := Tune(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	here := func(u *Tuned) (names []string) {
		for _, e := range u.Table.Entries {
			if !e.Shipped {
				names = append(names, fmt.Sprintf("%s %s %d", e.Op, e.Reduction, e.Elem))
			}
		}
		slices.Sort(names)
		return names
	}
	first := tune(TuneOptions{Ops: []ir.Op{ir.OpBroadcast}, Sizes: []int64{1024}})
	if got := here(first); !slices.Equal(got, []string{"broadcast  2"}) || len(first.Table.Entries) < 6 {
		t.Errorf("measured %q of %d entries", got, len(first.Table.Entries))
	}
	var text bytes.Buffer
	if err := first.WriteText(&text); err != nil || !strings.Contains(text.String(), "; as shipped, not measured here") {
		t.Errorf("%v\n%s", err, text.String())
	}
	two := []ir.Op{ir.OpBroadcast, ir.OpAllGather}
	second := tune(TuneOptions{Ops: two})
	if got := here(second); len(got) != 2 || second.Table.Hash() == first.Hash {
		t.Errorf("measured %q", got)
	}
	key := kind{op: ir.OpBroadcast, dt: ir.BF16, members: 2}.entry()
	if diff := cmp.Diff(first.Table.Entry(key), second.Table.Entry(key)); diff != "" {
		t.Errorf("measured again: %s", diff)
	}
	if u := tune(TuneOptions{Ops: two}); u.Fresh || u.Hash != second.Hash {
		t.Errorf("measured what there was: %+v", here(u))
	}
	base := foundFor(t, "abacus-with-teams")
	for _, c := range []struct {
		o    TuneOptions
		want bool
	}{{TuneOptions{}, true}, {TuneOptions{Again: true}, false}, {TuneOptions{Sizes: []int64{4}}, false}, {TuneOptions{Full: true}, false}} {
		c.o.Base = base
		if got := (&tuner{TuneOptions: c.o}).known(kind{op: ir.OpBroadcast, dt: ir.BF16, members: 2}); got != c.want {
			t.Errorf("%+v: known %v", c.o, got)
		}
	}
	// What is shipped for other GPUs goes when all has been measured, and not before.
	if n := len(second.Table.Entries); n < 6 {
		t.Errorf("%d entries are left", n)
	}
	third := tune(TuneOptions{Ops: []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllToAll}})
	if got := here(third); len(got) != 5 || len(third.Table.Entries) != 5 {
		t.Errorf("measured %q of %d entries", got, len(third.Table.Entries))
	}
}

// TestTuneFull wants maxima and types of 4 bytes among what is tuned fully, and
// entries measured at sizes of one's own not taken for that.
func TestTuneFull(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	o := TuneOptions{Machine: "abacus-with-teams", Ranks: 2, Full: true, Ops: []ir.Op{ir.OpAllReduce, ir.OpAllGather}, Sizes: []int64{4096}}
	u, err := Tune(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range u.Table.Entries {
		got = append(got, fmt.Sprintf("%s %s %d %t", e.Op, e.Reduction, e.Elem, e.Full))
		for _, b := range e.Brackets {
			if len(b.Best) == 0 || slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return x.Algo == "wrong" }) {
				t.Errorf("%s %s: %+v", e.Op, e.Reduction, b.Best)
			}
		}
	}
	if want := []string{"all_reduce sum 2 false", "all_gather  2 false", "all_reduce minmax 2 false", "all_reduce sum 4 false"}; !slices.Equal(got, want) {
		t.Errorf("entries %q, want %q", got, want)
	}
	// Three ranks of two bytes each: of what is cut, 4 bytes are none, and 8 are 6.
	if u, err = Tune(context.Background(), TuneOptions{Machine: "abacus-with-teams", Ranks: 3, Ops: []ir.Op{ir.OpAllReduce, ir.OpAllToAll}, Sizes: []int64{4, 8}}); err != nil {
		t.Fatal(err)
	}
	if n := []int{len(u.Table.Entries[0].Brackets), len(u.Table.Entries[1].Brackets)}; n[0] != 2 || n[1] != 1 {
		t.Errorf("%d brackets", n)
	}
	if _, err := Tune(context.Background(), TuneOptions{Ranks: 2, Sizes: []int64{3}}); !errors.Is(err, ErrUsage) {
		t.Errorf("3 bytes: %v", err)
	}
	var unkept *KeepError
	if _, err := Tune(context.Background(), TuneOptions{Ranks: 2, File: t.TempDir()}); !errors.As(err, &unkept) || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("a folder as file: %v", err)
	}
}
