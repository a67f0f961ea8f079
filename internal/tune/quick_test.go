package tune

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/contest/abacus"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// bracketOf returns a size bracket with algorithms and their times in microseconds.
func bracketOf(upTo int64, best ...any) comm.Bracket {
	b := comm.Bracket{UpTo: upTo}
	for i := 0; i < len(best); i += 2 {
		b.Best = append(b.Best, comm.Timed{Tuning: device.Tuning{Algo: best[i].(string)}, Micros: best[i+1].(float64)})
	}
	return b
}

// measuredAt returns b with the size at which it was measured.
func measuredAt(bytes int64, b comm.Bracket) comm.Bracket {
	b.At = bytes
	return b
}

// TestContenders checks that all tunings that might be the fastest are measured, and that both lists are empty for a
// size bracket without measurements.
func TestContenders(t *testing.T) {
	for _, c := range []struct {
		b            comm.Bracket
		near, slower string
	}{
		{bracketOf(0, "a", 10.0, "b", 11.4, "c", 11.6, "d", 20.0), "a b", "c d"},
		{bracketOf(0, "a", 10.0), "a", ""},
		{bracketOf(0, "a", 10.0, "b", 0.0, "c", 12.0), "a b", "c"}, // b is unknown
		{bracketOf(0, "a", 10.0, "b", 12.0, "c", 0.0), "a", "b c"},
		{bracketOf(0, "a", 0.0, "b", 10.0, "c", 12.0), "a b", "c"},
		{bracketOf(0, "a", 0.0, "b", 0.0), "", ""},
		{bracketOf(0), "", ""},
	} {
		near, slower := contenders(&c.b)
		var got [2]string
		for _, x := range near {
			got[0] += " " + x.Algo
		}
		for _, x := range slower {
			got[1] += " " + x.Algo
		}
		if strings.TrimSpace(got[0]) != c.near || strings.TrimSpace(got[1]) != c.slower {
			t.Errorf("%+v: %q", c.b.Best, got)
		}
	}
}

// TestEntryUpon checks that the entry has the measured times of the shipped tunings at sizes where the shipped table is
// right, and the measured tunings around the other sizes.
func TestEntryUpon(t *testing.T) {
	shipped := comm.Entry{Op: "all_reduce", Members: 2, Elem: 2, Shipped: true, Full: true,
		Fixed: &device.Tuning{Algo: "b"}, Brackets: []comm.Bracket{
			bracketOf(100, "a", 1.0, "b", 2.0), bracketOf(1000, "b", 3.0, "a", 4.0), bracketOf(10000, "c", 5.0),
			bracketOf(0, "d", 6.0)}}
	before := shipped.Clone()
	at := func(bytes int64, right bool, best ...any) measured {
		m := measured{call: contest.Call{Bytes: bytes}, confirmed: right}
		for _, x := range bracketOf(0, best...).Best {
			m.best = append(m.best, timed{x, true})
		}
		return m
	}
	for _, c := range []struct {
		what string
		list []measured
		want []comm.Bracket
	}{
		{"right", []measured{at(50, true, "a", 1.234), at(5000, true, "c", 7.0)},
			[]comm.Bracket{measuredAt(50, bracketOf(100, "a", 1.23, "b", 2.0)), bracketOf(1000, "b", 3.0, "a", 4.0),
				measuredAt(5000, bracketOf(10000, "c", 7.0)), bracketOf(0, "d", 6.0)}},
		{"wrong at the first", []measured{at(50, false, "x", 1.0), at(5000, true)},
			[]comm.Bracket{measuredAt(50, bracketOf(500, "x", 1.0)), bracketOf(1000, "b", 3.0, "a", 4.0),
				bracketOf(10000, "c", 5.0), bracketOf(0, "d", 6.0)}},
		{"wrong at the second", []measured{at(50, true), at(800, false, "x", 1.0), at(20000, true)},
			[]comm.Bracket{bracketOf(100, "a", 1.0, "b", 2.0), bracketOf(200, "b", 3.0, "a", 4.0),
				measuredAt(800, bracketOf(4000, "x", 1.0)), bracketOf(10000, "c", 5.0), bracketOf(0, "d", 6.0)}},
		{"wrong at the last", []measured{at(50, true), at(20000, false, "x", 1.0)},
			[]comm.Bracket{bracketOf(100, "a", 1.0, "b", 2.0), bracketOf(1000, "b", 3.0, "a", 4.0),
				measuredAt(20000, bracketOf(0, "x", 1.0))}},
		{"wrong where a bracket ends", []measured{at(10, true), at(1000, false, "x", 1.0), at(100000, true)},
			[]comm.Bracket{bracketOf(100, "a", 1.0, "b", 2.0), measuredAt(1000, bracketOf(10000, "x", 1.0)),
				bracketOf(0, "d", 6.0)}},
		{"wrong everywhere", []measured{at(50, false, "x", 1.0), at(800, false, "y", 2.0)},
			[]comm.Bracket{measuredAt(50, bracketOf(200, "x", 1.0)), measuredAt(800, bracketOf(0, "y", 2.0))}},
	} {
		got := entryUpon(&shipped, c.list)
		if diff := cmp.Diff(c.want, got.Brackets); diff != "" {
			t.Errorf("%s: %s", c.what, diff)
		}
		if got.Shipped || got.Full || len(got.Checked) != len(c.list) || got.Fixed.Algo != "b" {
			t.Errorf("%s: %+v", c.what, got)
		}
		if err := (&comm.Table{Version: comm.TableVersion, Entries: []comm.Entry{got}}).Check(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if diff := cmp.Diff(before, shipped); diff != "" {
		t.Errorf("the shipped entry was modified: %s", diff)
	}
}

// TestTuneUpon tunes a machine whose model is that of the shipped table. Right entries must be kept with times of this
// machine, and missing entries must be measured. After a wrong result all tunings must be measured.
func TestTuneUpon(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	const never = 9e8 // µs: longer than any measured time
	right := []any{"quick", 1.0, "slow", never}
	for what, c := range map[string]struct {
		small, medium []any // the shipped tunings for sizes up to 2 KiB, and for larger sizes
		// kept reports that a shipped entry is kept. all reports that all algorithms, including NCCL, are measured at 1
		// KiB.
		kept, all bool
	}{
		// at the largest size NCCL is faster on this machine
		"right":                    {right, right, true, false},
		"another is faster":        {[]any{"slow", 1.0, "quick", 1.1}, right, true, false}, // another of the best ones
		"all take longer here":     {[]any{"quick", 0.0001, "slow", 0.0002}, right, true, true},
		"the first is not there":   {[]any{"none", 1.0, "quick", 1.1, "slow", never}, right, true, true},
		"never measured":           {[]any{"quick", 0.0, "slow", 0.0}, right, true, true},
		"the first gives wrong":    {[]any{"wrong", 1.0, "quick", 1.1, "slow", never}, right, false, true},
		"hardly anywhere is right": {[]any{"none", 1.0, "quick", 1.1}, []any{"none", 1.0, "quick", 1.1}, false, true},
	} {
		shipped := &comm.Table{Version: comm.TableVersion, Identity: "abacus"}
		for _, op := range []ir.Op{ir.OpAllReduce, ir.OpBroadcast} {
			e := kind{op: op, red: ir.Sum, dt: ir.BF16, members: 2}.entry()
			e.Brackets = []comm.Bracket{bracketOf(2<<10, c.small...), bracketOf(6<<10, c.medium...),
				bracketOf(7<<10, "quick", 1.0, "far", never), bracketOf(0, c.medium...)}
			e.Fixed = &device.Tuning{Algo: "slow"}
			shipped.Entries = append(shipped.Entries, e)
		}
		before := shipped.Clone()
		o := Options{Machine: "abacus-with-teams", Ranks: 2, Ops: []ir.Op{ir.OpAllReduce, ir.OpAllGather},
			shipped: shipped, sizes: []int64{1 << 10, 3 << 10, 4 << 10, 5 << 10}}
		u, err := Tune(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, shipped); diff != "" {
			t.Errorf("%s: the shipped table was modified: %s", what, diff)
		}
		e := u.Table.Entry(shipped.Entries[0])
		text := fmt.Sprint(e.Brackets)
		if kept := e.Checked != nil; kept != c.kept || kept && !slices.Equal(e.Checked, o.sizes) ||
			strings.Contains(text, "wrong") || kept != (e.Fixed.Algo == "slow") {
			t.Errorf("%s: %+v", what, e)
		}
		first := e.Brackets[0].Best
		nccl := slices.ContainsFunc(first, func(x comm.Timed) bool { return x.Algo == "nccl" })
		if first[0].Algo != "quick" && first[0].Algo != "nccl" || first[0].Micros <= 1 || nccl != c.all {
			t.Errorf("%s: %+v", what, e)
		}
		// A collective without an entry in the shipped table must be measured.
		if g := u.Table.Entry(kind{op: ir.OpAllGather, dt: ir.BF16, members: 2}.entry()); g == nil ||
			g.Checked != nil || len(g.Brackets) != len(o.sizes) {
			t.Errorf("%s: the other collective is %+v", what, g)
		}
		var out bytes.Buffer
		if err := u.WriteText(&out); err != nil ||
			strings.Contains(out.String(), "; from the shipped table, checked on this machine at 1 KiB, 3 KiB, 4 "+
				"KiB, 5 KiB\n") != c.kept {
			t.Errorf("%s: %v\n%s", what, err, out.String())
		}
	}
	for _, o := range []Options{{Full: true}, {Sizes: []int64{1}}} {
		u := newTuner(o, nil)
		u.identity = u.shipped.Identity
		if e := u.upon(kind{ir.OpAllReduce, ir.Sum, ir.BF16, 4}); e != nil {
			t.Errorf("tuning with %+v uses the shipped entry", o)
		}
		u.Full, u.Sizes = false, nil
		if e := u.upon(kind{ir.OpAllReduce, ir.Sum, ir.BF16, 4}); e == nil || e.Members != 4 {
			t.Errorf("a quick tuning starts from %+v", e)
		}
	}
}

// TestTuneWithin checks that the first collective is measured however little time there is, and the others only while
// there is time. The entries of the remaining collectives must be left unchanged, with a note, and a second tuning must
// continue with these.
func TestTuneWithin(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	clock := time.Unix(0, 0)
	o := Options{Machine: "abacus-with-teams", Ranks: 2, Base: foundFor(t, "abacus-with-teams"),
		sizes: []int64{1 << 10, 4 << 10}, Begun: clock, Within: 3 * time.Second,
		now: func() time.Time { clock = clock.Add(100 * time.Millisecond); return clock }}
	var err error
	if o.File, err = TableFile(o.Base, 2); err != nil {
		t.Fatal(err)
	}
	measured := func(u *Tuned) (ops []string) {
		for _, op := range contest.TunedOps {
			if e := u.Table.Entry(kind{op: op, red: ir.Sum, dt: ir.BF16, members: 2}.entry()); e != nil && !e.Shipped {
				ops = append(ops, op.String())
			}
		}
		return ops
	}
	u, err := Tune(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	const late = "not measured within 3.0 s, so left unchanged: reduce_scatter, all_gather, all_to_all, broadcast; "
	if got := measured(u); !slices.Equal(got, []string{"all_reduce"}) ||
		!strings.Contains(strings.Join(u.Notes, "\n"), late) {
		t.Errorf("measured %q, notes %q", got, u.Notes)
	}
	p := u.Phases
	if sum := p.Opening + p.Preparing + p.Measuring; sum < u.Took-0.2 || sum > u.Took+0.2 || p.Opening != 0.1 ||
		p.Preparing < 1 || p.Measuring < 1 {
		t.Errorf("%+v of %v s", p, u.Took)
	}
	o.Base, o.Within = foundFor(t, "abacus-with-teams"), time.Hour
	if u, err = Tune(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if got := measured(u); len(got) != len(contest.TunedOps) ||
		strings.Contains(strings.Join(u.Notes, "\n"), "no time") {
		t.Errorf("the second tuning measured %q, notes %q", got, u.Notes)
	}
}

// TestPace checks whether calls may begin at given times.
func TestPace(t *testing.T) {
	start := time.Unix(100, 0)
	for _, c := range []struct {
		within, opened, now float64
		ends                []float64 // when calls ended
		more                int
		want                bool
	}{
		{0, 90, 99, []float64{95, 99}, 100, true}, // exactly all the remaining time
		{5, 3, 30, nil, 3, true},                  // nothing measured yet
		{5, 3, 30, []float64{30}, 3, true},
		{5, 3, 4.4, []float64{4, 4.2, 4.4}, 3, false}, // 0.9 s are needed, and 0.6 s are left
		{5, 3, 4, []float64{3.9, 3.95, 4}, 3, true},
		{5, 3, 4, []float64{3.9, 3.95, 4}, 14, false},
		{3, 6, 6.7, []float64{6.5, 6.6, 6.7}, 2, true}, // the limit is exceeded, but hardly any call has been measured
		{3, 6, 6.7, []float64{6.5, 6.6, 6.7}, 3, false},
	} {
		at := func(s float64) time.Time { return start.Add(time.Duration(s * 1e9)) }
		now := at(0)
		p := &pace{now: func() time.Time { return now }, begun: start, opened: at(c.opened),
			within: time.Duration(c.within * 1e9)}
		for _, end := range c.ends {
			now = at(end)
			p.measured()
		}
		now = at(c.now)
		if got := p.hasTime(c.more); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := (&Phases{2.71, 0.44, 1.25}).String(); got != "opening 2.7, preparing 0.4, measuring 1.2" {
		t.Error(got)
	}
}

// draftsman is an abacus with dry runs. asked records the launches that are prepared in advance, and the opening of the
// machine.
type draftsman struct {
	abacus.Abacus
	asked *[]string
}

func (d draftsman) Open(ctx context.Context, ranks int) (device.World, error) {
	*d.asked = append(*d.asked, "open")
	return d.Abacus.Open(ctx, ranks)
}

func (d draftsman) DryRun(ranks int) (device.World, error) {
	w, err := d.Abacus.Open(context.Background(), ranks)
	if err != nil {
		return nil, err
	}
	return &drawnBeads{w.(*abacus.Beads), d.asked}, nil
}

type drawnBeads struct {
	*abacus.Beads
	asked *[]string
}

func (w *drawnBeads) OpenTeam(members []device.Member) (device.Team, error) {
	t, err := w.Beads.OpenTeam(members)
	return &drawnTeam{t, w.asked}, err
}

type drawnTeam struct {
	device.Team
	asked *[]string
}

func (t *drawnTeam) PrepareAhead(u device.Tuning, c *device.Collective) {
	*t.asked = append(*t.asked, fmt.Sprintf("%s by %s", c.Op, u.Algo))
}

// TestTuneForesees checks that the first launches of a quick tuning are prepared before the machine
// is opened, and that finding the table and tuning open the machine only once.
func TestTuneForesees(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	var asked []string
	made := 0
	device.Register(device.Kind{Name: "draftsman", Open: func(*world.World) (device.Machine, error) {
		made++
		return draftsman{abacus.Abacus{Machine: cpu.New(cpu.Options{})}, &asked}, nil
	}})
	shipped := &comm.Table{Version: comm.TableVersion, Identity: "abacus"}
	e := kind{op: ir.OpAllReduce, red: ir.Sum, dt: ir.BF16, members: 2}.entry()
	e.Brackets = []comm.Bracket{bracketOf(0, "quick", 1.0, "slow", 9e8)}
	shipped.Entries = []comm.Entry{e}
	o := Options{Machine: "draftsman", Ranks: 2, Ops: []ir.Op{ir.OpAllReduce, ir.OpBroadcast}, shipped: shipped,
		sizes: []int64{1 << 10, 4 << 10}}
	if err := o.Find(context.Background()); err != nil {
		t.Fatal(err)
	}
	// The first shipped algorithm and NCCL, at the largest size, must be prepared first.
	want := []string{"all_reduce by quick", "all_reduce by nccl", "all_reduce by quick"}
	all := []string{"broadcast by nccl", "broadcast by quick", "broadcast by slow", "broadcast by wrong"}
	want = append(slices.Concat(want, all, all), "open")
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
	if _, err := Tune(context.Background(), o); err != nil || made != 1 || len(o.Base.Identity) == 0 {
		t.Errorf("%d machines were made for %q, %v", made, o.Base.Identity, err)
	}
}
