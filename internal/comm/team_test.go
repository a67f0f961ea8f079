package comm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// teamWorld is a CPU world that has launches for whole collectives. Each launch runs a channel of one instance, so its
// results are as correct as those of the schedules. The name of an algorithm determines the collectives that it
// supports and the call in which it fails.
type teamWorld struct {
	device.World
	opened, closed int
	refuse         error // the error that OpenTeam returns
}

func (*teamWorld) TeamAlgorithms() (list []device.Algorithm) {
	for _, name := range []string{"ll", "even", "late", "broken", "short"} {
		list = append(list, device.Algorithm{Name: name, Ops: device.Even, OneShot: name == "ll"})
	}
	return list
}
func (*teamWorld) Identity() string { return "abacus, 2 beads" }

func (w *teamWorld) Device(rank int) device.Device { return teamDevice{w.World.Device(rank)} }

func (w *teamWorld) OpenTeam(members []Member) (device.Team, error) {
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.opened++
	t := &fakeTeam{w: w}
	for _, m := range members {
		t.members = append(t.members, Member{Rank: m.Rank, Stream: m.Stream.(teamStream).Stream})
	}
	return t, nil
}

// teamDevice creates streams that accept the team's launches.
type teamDevice struct{ device.Device }

func (d teamDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	if err != nil {
		return nil, err
	}
	return teamStream{s}, nil
}

type teamStream struct{ device.Stream }

func (s teamStream) Launch(l device.Launch) error {
	if f, ok := l.(*fakeLaunch); ok {
		f.run++
		return f.ch.Issue(0, f.member, f.run-1)
	}
	return s.Stream.Launch(l)
}

// fakeLaunch counts its runs, as real kernels count their executions (epochs).
type fakeLaunch struct {
	ch       *Channel
	member   int
	run      int64
	released *int
}

func (l *fakeLaunch) Release() { *l.released++ }

type fakeTeam struct {
	device.DefaultTeam
	w        *teamWorld
	members  []Member
	channels []*Channel
	made     int
	released int
}

var errBroken = errors.New("a bead is missing")

func (t *fakeTeam) Supports(u device.Tuning, c *device.Collective) error {
	odd := slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Writes && p.Out.Elements()%2 == 1 })
	if u.Algo == "even" && odd {
		return fmt.Errorf("%w: it takes even counts", device.ErrUnsupported)
	}
	return nil
}

func (t *fakeTeam) Prepare(u device.Tuning, c *device.Collective) ([]device.Launch, error) {
	switch u.Algo {
	case "late":
		return nil, fmt.Errorf("%w: no compiler", device.ErrUnsupported)
	case "broken":
		return nil, errBroken
	case "short":
		return nil, nil
	}
	ch, err := plain(t.w.World).Design(t.members, []Instance{{Collective: *c, Pin: device.Tuning{Algo: "staged"}}})
	if err == nil {
		err = ch.Open()
	}
	if err != nil {
		return nil, err
	}
	t.channels = append(t.channels, ch)
	var ls []device.Launch
	for m := range t.members {
		if len(ch.plans[0][m]) == 0 {
			ls = append(ls, nil)
			continue
		}
		t.made++
		ls = append(ls, &fakeLaunch{ch: ch, member: m, released: &t.released})
	}
	return ls, nil
}

func (t *fakeTeam) Bytes() int64 { return 1000 * int64(len(t.channels)) }

func (t *fakeTeam) Close() error {
	t.w.closed++
	if t.made != t.released {
		return fmt.Errorf("%d of %d launches are released", t.released, t.made)
	}
	var errs []error
	for _, ch := range t.channels {
		errs = append(errs, ch.Close())
	}
	return errors.Join(errs...)
}

// teams opens a world with teams.
func teams(t testing.TB, mode cpu.Mode, seed int64, ranks int) *teamWorld {
	return &teamWorld{World: open(t, mode, seed, ranks)}
}

// tableFor returns a table with one list of algorithms for all sizes of an op.
func tableFor(op ir.Op, members int, names ...string) *Table {
	var best []Timed
	for _, n := range names {
		best = append(best, Timed{Tuning: device.Tuning{Algo: n, Blocks: 8}})
	}
	e := Entry{Op: op.String(), Reduction: ReductionOf(ir.Sum, op), Elem: 4, Members: members, Brackets: []Bracket{{Best: best}}}
	return &Table{Version: TableVersion, Entries: []Entry{e}}
}

// TestTeamsRandom mixes launches of teams with schedules on channels, over several runs without a barrier, under many
// orders of execution.
func TestTeamsRandom(t *testing.T) {
	seeds := 60
	if testing.Short() || *onCUDA {
		seeds = 12
	}
	launched := 0
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			for seed := range int64(seeds) {
				rng := rand.New(rand.NewPCG(uint64(seed), 9))
				n := 2 + rng.IntN(4)
				w := teams(t, mode, seed, n)
				specs := randomSpecs(rng, n, 1+rng.IntN(5))
				for i := range specs {
					specs[i].algo = []string{"", "ll", "staged"}[rng.IntN(3)]
					if specs[i].op.Uneven() && specs[i].algo != "" {
						specs[i].algo = "staged"
					}
				}
				r := newRig(t, w, "a", teamOf(n), specs)
				for run := range int64(3) {
					for i := range specs {
						r.issue(i, run)
					}
				}
				settle(t, w)
				r.check()
				launched += w.opened
				r.must(r.ch.Close())
				if w.opened != w.closed {
					t.Fatalf("%d teams opened, %d closed", w.opened, w.closed)
				}
			}
		})
	}
	if launched < seeds/2 {
		t.Errorf("%d channels had a team: the test does not reach them", launched)
	}
}

// TestTeamOpenedLazily checks that no team is opened if schedules run every instance, and that one is opened if the
// table names one of the machine's own algorithms.
func TestTeamOpenedLazily(t *testing.T) {
	s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 3, shape: []int64{4}}
	w := teams(t, cpu.Concurrent, 0, 3)
	r := newRig(t, w, "s", teamOf(3), []spec{s})
	if w.opened != 0 || r.ch.Algorithm(0) != "staged" {
		t.Errorf("%d teams, algorithm %s", w.opened, r.ch.Algorithm(0))
	}
	staging := r.ch.StagingBytes()
	in := s.instance()
	in.Parts = r.parts[0]
	ch, err := NewDispatch(w, device.Caps{}, tableFor(ir.OpAllReduce, 3, "ll"), Policy{}).Design(r.ch.members, []Instance{in, in})
	r.must(err)
	r.must(ch.Open())
	if got := ch.Choice(1); w.opened != 1 || got.Tuning != (device.Tuning{Algo: "ll", Blocks: 8}) || got.By != "table" {
		t.Errorf("%d teams, choice %+v", w.opened, got)
	}
	if got := ch.StagingBytes(); got != 2000 || staging == 0 {
		t.Errorf("%d bytes of staging, want the team's 2000 and no others", got)
	}
	if got := ch.Moved(0, 1); got != 2*4*4 {
		t.Errorf("one shot moves %d bytes to a member, want 32", got)
	}
	r.must(ch.Close())
	if w.closed != 1 {
		t.Errorf("%d teams closed", w.closed)
	}
}

// TestDeclined checks that the next candidate is used if an algorithm is declined, when it is chosen or when it is
// prepared, and that the reasons are recorded.
func TestDeclined(t *testing.T) {
	w := teams(t, cpu.Concurrent, 0, 2)
	s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 2, shape: []int64{3}}
	r := newRig(t, w, "s", teamOf(2), []spec{s})
	in := s.instance()
	in.Parts = r.parts[0]
	for _, tc := range []struct {
		list       []string
		want, says string
	}{
		{[]string{"even", "ll"}, "ll", "even: not supported by this machine: it takes even counts"},
		{[]string{"foreign", "ll"}, "ll", "foreign: not supported by this machine: this machine has no algorithm of that " +
			"name"},
		{[]string{"late", "even", "ll"}, "ll", "algorithm late: not supported by this machine: no compiler"},
		{[]string{"late"}, "staged", "no compiler"},
		{[]string{"even"}, "staged", "it takes even counts"},
	} {
		ch, err := NewDispatch(w, device.Caps{}, tableFor(ir.OpAllReduce, 2, tc.list...), Policy{}).Design(r.ch.members, []Instance{in})
		r.must(err)
		r.must(ch.Open())
		if got := ch.Choice(0); got.Tuning.Algo != tc.want || !strings.Contains(strings.Join(got.Declined, "\n"), tc.says) {
			t.Errorf("%v: %+v, want %s and the reason %q", tc.list, got, tc.want, tc.says)
		}
		r.ch = ch
		r.jobs = nil
		r.issue(0, 0)
		settle(t, w)
		r.check()
		r.must(ch.Close())
	}
}

// TestTeamFailures checks that errors of teams are reported with the instance, and that nothing remains allocated.
func TestTeamFailures(t *testing.T) {
	s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 2, shape: []int64{3}}
	for _, tc := range []struct {
		pin, table string
		refuse     error
		want       string
	}{
		{pin: "magic", want: `all_reduce: unknown algorithm "magic"; the algorithms are ` + strings.Join(Schedules(), ", ") + `, ll, even, late, broken, short`},
		{pin: "even", want: "all_reduce: algorithm even: not supported by this machine: it takes even counts"},
		{pin: "late", want: "all_reduce: algorithm late: not supported by this machine: no compiler"},
		{pin: "short", want: "all_reduce: algorithm short: the machine prepared 0 launches for a team of 2 members"},
		{table: "broken", want: "all_reduce: algorithm broken: a bead is missing"},
		{pin: "ll", refuse: errBroken, want: "all_reduce: algorithm ll: a bead is missing"},
		{table: "ll", refuse: errBroken}, // a schedule runs the instance instead
	} {
		w := teams(t, cpu.Concurrent, 0, 2)
		r := newRig(t, w, "s", teamOf(2), []spec{s})
		w.refuse = tc.refuse
		good, in := s.instance(), s.instance()
		good.Parts, in.Parts = r.parts[0], r.parts[0]
		if tc.refuse == nil {
			good.Pin.Algo = "ll"
		}
		in.Pin.Algo = tc.pin
		ch, err := NewDispatch(w, device.Caps{}, tableFor(ir.OpAllReduce, 2, tc.table), Policy{}).Design(r.ch.members, []Instance{good, in})
		if err == nil {
			err = ch.Open()
		}
		var ie *InstanceError
		switch {
		case tc.want == "":
			r.must(err)
			r.must(ch.Close())
			if ch.Algorithm(1) != "staged" {
				t.Errorf("%+v: %+v", tc, ch.Choice(1))
			}
		case err == nil || err.Error() != tc.want || !errors.As(err, &ie) || ie.Index != 1:
			t.Errorf("%+v: got %v, want %s of instance 1", tc, err, tc.want)
		}
		if w.opened != w.closed {
			t.Errorf("%+v: %d teams opened, %d closed", tc, w.opened, w.closed)
		}
	}
}

// apartWorld is a world in which ranks 0 and 2 lack peer access to each other.
type apartWorld struct{ device.World }

func (apartWorld) Apart(rank, peer int) error {
	if rank+peer == 2 && rank != peer {
		return fmt.Errorf("%w: a wall", device.ErrUnsupported)
	}
	return nil
}

func (apartWorld) Detours() []string { return []string{"a wall"} }

// TestApart checks that, without a table, members without peer access use schedules that push, and that other members,
// and collectives that cannot be pushed, use the usual schedules.
func TestApart(t *testing.T) {
	w := apartWorld{open(t, cpu.Concurrent, 0, 3)}
	for _, tc := range []struct {
		ranks []int
		op    ir.Op
		elems int64
		want  string
	}{
		{[]int{0, 1}, ir.OpAllReduce, 6, "staged"},
		{[]int{0, 2}, ir.OpAllReduce, 6, "one-shot-push"},
		{[]int{2, 1, 0}, ir.OpAllReduce, 6, "one-shot-push"},
		{[]int{2, 1, 0}, ir.OpAllReduce, twoShotFrom, "two-shot-push"},
		{[]int{1, 2}, ir.OpAllGather, 6, "staged"},
		{[]int{0, 2}, ir.OpAllGather, 6, "one-shot-push"},
		{[]int{0, 2}, ir.OpBarrier, 0, "staged"},
	} {
		s := spec{op: tc.op, red: ir.Sum, dt: ir.F32, n: len(tc.ranks), shape: []int64{tc.elems}}
		r := newRig(t, w, "s", tc.ranks, []spec{s})
		if got := r.ch.Choice(0); got.Tuning.Algo != tc.want || got.By != "default" {
			t.Errorf("%s over %v: %+v, want %s", tc.op, tc.ranks, got, tc.want)
		}
		for run := range int64(3) {
			r.issue(0, run)
		}
		settle(t, w)
		r.check()
		r.must(r.ch.Close())
	}
}
