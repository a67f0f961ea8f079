package comm

import (
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// took returns a bracket that lists algorithms with their times in microseconds, measured at the given size.
func took(upTo, at int64, best ...any) Bracket {
	b := Bracket{UpTo: upTo, At: at}
	for i := 0; i < len(best); i += 2 {
		b.Best = append(b.Best, Timed{Tuning: device.Tuning{Algo: best[i].(string)}, Micros: best[i+1].(float64)})
	}
	return b
}

// TestPoints checks that Points returns the times of the chosen algorithms, only for collectives of exactly the
// measured kind, at the sizes at which they were measured.
func TestPoints(t *testing.T) {
	f := &Found{Unknown: []string{"gone"}, Table: &Table{Version: TableVersion, Entries: []Entry{
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 4, Brackets: []Bracket{
			took(20, 10, "nccl", 1.0, "ll", 2.0), took(200, 100, "gone", 1.0, "multimem", 2.0, "pull", 3.0), took(2000, 1000, "few", 0.0, "pull", 9.0), took(0, 5000, "push", 40.0, "nccl", 50.0)}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2, Brackets: []Bracket{took(0, 64, "nccl", 1.0, "ll", 2.0)}},
		{Op: "all_reduce", Reduction: "minmax", Elem: 2, Members: 4, Brackets: []Bracket{took(0, 64, "ll", 5.0)}},
		// the range of the second bracket was reduced after its measurement
		{Op: "all_gather", Elem: 2, Members: 4, Brackets: []Bracket{took(128, 64, "nccl", 1.0, "ll", 2.0), took(0, 64, "ll", 7.0)}},
		{Op: "broadcast", Elem: 2, Members: 4, Brackets: []Bracket{took(0, 64, "ll", 0.0)}},
	}}}
	if err := f.Table.Check(); err != nil {
		t.Fatal(err)
	}
	sum := machine.Collective{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Members: 4}
	with := func(change func(c *machine.Collective)) *machine.Collective {
		c := sum
		change(&c)
		return &c
	}
	for what, c := range map[string]struct {
		of   *machine.Collective
		want []machine.Point
	}{
		"a sum in order":    {&sum, []machine.Point{{10, 2}, {100, 3}, {5000, 40}}},
		"an average":        {with(func(c *machine.Collective) { c.Red = ir.Avg }), []machine.Point{{10, 2}, {100, 3}, {5000, 40}}},
		"in any order":      {with(func(c *machine.Collective) { c.AnyOrder = true }), []machine.Point{{10, 1}, {100, 2}, {5000, 40}}},
		"pinned":            {with(func(c *machine.Collective) { c.Algorithm = "nccl" }), []machine.Point{{10, 1}, {5000, 50}}},
		"pinned to another": {with(func(c *machine.Collective) { c.Algorithm = "staged" }), nil},
		"f16":               {with(func(c *machine.Collective) { c.DType = ir.F16 }), []machine.Point{{10, 2}, {100, 3}, {5000, 40}}},
		"f32":               {with(func(c *machine.Collective) { c.DType = ir.F32 }), nil},
		"a maximum":         {with(func(c *machine.Collective) { c.Red = ir.Max }), []machine.Point{{64, 5}}},
		// a sum of two operands has the same bits in any order
		"of two":                {with(func(c *machine.Collective) { c.Members = 2 }), []machine.Point{{64, 1}}},
		"an average of two":     {with(func(c *machine.Collective) { c.Members, c.Red = 2, ir.Avg }), []machine.Point{{64, 2}}},
		"of three":              {with(func(c *machine.Collective) { c.Members = 3 }), nil},
		"gathered, of f32":      {with(func(c *machine.Collective) { c.Op, c.Red, c.DType = ir.OpAllGather, ir.NoRed, ir.F32 }), []machine.Point{{64, 1}}},
		"never measured":        {with(func(c *machine.Collective) { c.Op, c.Red = ir.OpBroadcast, ir.NoRed }), nil},
		"only its kin's":        {with(func(c *machine.Collective) { c.Op, c.Red = ir.OpGather, ir.NoRed }), nil},
		"one that is not in it": {with(func(c *machine.Collective) { c.Op = ir.OpReduceScatter }), nil},
	} {
		if diff := cmp.Diff(c.want, f.Points(c.of)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	if got := (&Found{}).Points(&sum); got != nil {
		t.Errorf("no table has %v", got)
	}
}

// TestOldTables checks that tables that do not record their measured sizes can be read, and that the measured sizes are
// recovered if the ratio of successive sizes is constant.
func TestOldTables(t *testing.T) {
	const old = `{"version": 1, "identity": "abacus", "ranks": 4, "made": "", "entries": [{"op": "all_gather", "element_bytes": 2, "members": 4,
 "brackets": [{"up_to": 2048, "best": [{"algorithm": "ll", "us": 1}]}, {"up_to": 8192, "best": [{"algorithm": "ll", "us": 2}]}, {"best": [{"algorithm": "ll", "us": 3}]}]}]}`
	tab, err := ReadTable([]byte(old))
	if err != nil {
		t.Fatal(err)
	}
	c := &machine.Collective{Op: ir.OpAllGather, DType: ir.BF16, Members: 4}
	points := func() []machine.Point { return (&Found{Table: tab}).Points(c) }
	if diff := cmp.Diff([]machine.Point{{1024, 1}, {4096, 2}, {16384, 3}}, points()); diff != "" {
		t.Error(diff)
	}
	e := &tab.Entries[0]
	e.Checked = []int64{6000, 40000}
	if diff := cmp.Diff([]machine.Point{{1024, 1}, {6000, 2}, {40000, 3}}, points()); diff != "" {
		t.Error(diff)
	}
	e.Checked, e.Brackets = nil, e.Brackets[1:]
	if diff := cmp.Diff([]machine.Point{{4096, 2}, {16384, 3}}, points()); diff != "" {
		t.Error(diff)
	}
	if e.Brackets = e.Brackets[1:]; points() != nil {
		t.Errorf("one bracket: its size cannot be known: %v", points())
	}
}

// TestShippedPoints checks that every measured bracket of the shipped table records its size, that the size is within
// the bracket, and that times grow with sizes.
func TestShippedPoints(t *testing.T) {
	found := &Found{Table: Shipped()}
	for i := range Shipped().Entries {
		e := &Shipped().Entries[i]
		for k, b := range e.Brackets {
			if at := e.measuredAt(k); b.At != 0 && at != float64(b.At) {
				t.Errorf("%s of %d members: the bracket up to %d bytes was measured at %d", e.Op, e.Members, b.UpTo, b.At)
			}
		}
		op, _ := ir.ParseOp(e.Op)
		c := &machine.Collective{Op: op, DType: ir.BF16, Members: int64(e.Members)}
		if e.Reduction != "" {
			c.Red = ir.Sum
		}
		last := machine.Point{}
		for _, p := range found.Points(c) {
			if p[0] <= last[0] || p[1] < 0.8*last[1] {
				t.Errorf("%s of %d members: time %v follows %v", e.Op, e.Members, p, last)
			}
			last = p
		}
	}
}

// TestFindFor checks that FindFor, for GPUs that are not in this machine, returns the most recent table that was tuned
// on such GPUs, or else the shipped table without the algorithms that other GPUs cannot use, and no table for devices
// of other makers.
func TestFindFor(t *testing.T) {
	t.Setenv(files.CacheVariable, t.TempDir())
	gpu := Shipped().Identity
	keep := func(identity string, ranks int, us float64, age time.Duration) string {
		tab := &Table{Version: TableVersion, Identity: identity, Ranks: ranks, Entries: []Entry{{Op: "all_gather", Elem: 2, Members: 2, Brackets: []Bracket{took(0, 64, "ll", us)}}}}
		path, err := Path(identity, ranks)
		when := time.Now().Add(-age)
		if err = errors.Join(err, tab.Write(path), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if f := FindFor(gpu, 2); !f.Shipped() || f.Table != Shipped() {
		t.Errorf("%+v", f)
	}
	if f := FindFor("NVIDIA H100 80GB HBM3 sm_90a", 2); !f.Shipped() || f.Table != shippedElsewhere() {
		t.Errorf("%+v", f)
	}
	for _, other := range []string{"", "abacus"} {
		if f := FindFor(other, 2); f.Table != nil || f.From != "" {
			t.Errorf("%q: %+v", other, f)
		}
	}
	keep(gpu+", driver 1", 2, 1, 3*time.Hour)
	latest := keep(gpu+", driver 2", 2, 2, time.Hour)
	keep(gpu+", driver 0", 2, 3, 2*time.Hour)
	four := keep(gpu+", driver 2", 4, 4, 0)
	abacus := keep("abacus", 2, 5, 0)
	for want, f := range map[string]Found{latest: FindFor(gpu, 2), four: FindFor(gpu, 4), abacus: FindFor("abacus", 2), "shipped": FindFor(gpu, 8)} {
		if f.From != want || f.Table == nil {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	if err := os.WriteFile(latest, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := FindFor(gpu, 2); f.Table == nil || math.Abs(f.Table.Entries[0].Brackets[0].Best[0].Micros-3) > 0 {
		t.Errorf("Find returns %+v, want the latest readable table", f)
	}
}
