package compile

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// h200s is the GPU model of the machine h200x4, with which identities of such worlds begin.
const h200s = "NVIDIA H200 sm_90a"

// tune stores a tuned table for four ranks on a machine. In the table, op with the given number of members takes us
// microseconds for every message size.
func tune(t *testing.T, identity string, op ir.Op, members int, us float64) *comm.Table {
	t.Helper()
	e := comm.Entry{Op: op.String(), Elem: 2, Members: members}
	if op != ir.OpAllGather {
		e.Reduction = "sum"
	}
	for _, at := range []int64{1 << 10, 1 << 30} {
		b := comm.Bracket{At: at, Best: []comm.Timed{{Tuning: device.Tuning{Algo: "staged"}, Micros: us}}}
		if at == 1<<10 {
			b.UpTo = 1 << 20
		}
		e.Brackets = append(e.Brackets, b)
	}
	tab := &comm.Table{Version: comm.TableVersion, Identity: identity, Ranks: 4, Entries: []comm.Entry{e}}
	path, err := comm.Path(identity, 4)
	if err == nil {
		err = tab.Write(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// chosen returns the explanation of the program mlp under the strategy auto. It also returns, as text, the source of
// the times of its two pairs.
func chosen(t *testing.T, o Options, dt string) (*Explanation, string) {
	t.Helper()
	o.Strategy = Auto
	u, err := Build(check(t, strings.ReplaceAll(tensorParallel, "bf16", dt)), o)
	if err != nil {
		t.Fatal(err)
	}
	b := ir.Binding{Func: "mlp", Dims: map[string]int64{"T": 2048, "H": 4096, "F": 14336}}
	e, err := u.Explain(b)
	if err != nil {
		t.Fatal(err)
	}
	res, err := u.LoweredFor(b)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for i, p := range e.Pairs {
		words = append(words, p.Chosen)
		if got := res.Choices[i].Strategy.String(); got != p.Chosen {
			t.Errorf("it is explained by %s, and lowered by %s", p.Chosen, got)
		}
	}
	return e, strings.Join(words, " ")
}

// TestAutoAsksTheTable checks that auto uses a tuned table: if a gather is fast by the table, it is left sequential,
// and if it is slow, it is overlapped. Times that the table does not contain come from the description: those of
// another collective, of other types, of other teams and of other machines.
func TestAutoAsksTheTable(t *testing.T) {
	here := h200s + ", 4 GPUs, links nnnn"
	gather := ir.OpAllGather
	bare, by := chosen(t, Options{Machine: untabled(t)}, "bf16")
	if by != "exchange exchange" || bare.Table != "" || bare.Pairs[0].Tabled || bare.Reshards[0].Tabled {
		t.Fatalf("by the description alone it is by %s: %+v", by, bare)
	}
	for _, c := range []struct {
		what     string
		identity string
		op       ir.Op
		members  int
		us       float64
		dt       string
		want     string
		tabled   [2]bool
	}{
		{"a fast gather", here, gather, 4, 2, "bf16", "sequential exchange", [2]bool{true, false}},
		{"a slow gather", here, gather, 4, 5000, "bf16", "exchange exchange", [2]bool{true, false}},
		{"a fast sum", here, ir.OpReduceScatter, 4, 2, "bf16", "exchange sequential", [2]bool{false, true}},
		{"a sum of other elements", here, ir.OpReduceScatter, 4, 2, "f32", "", [2]bool{}},
		{"a gather of other elements", here, gather, 4, 1, "f32", "", [2]bool{true, false}}, // only moves
		{"another team", here, gather, 2, 2, "bf16", "exchange exchange", [2]bool{}},
	} {
		t.Setenv("HOCKET_CACHE", t.TempDir())
		tab := tune(t, c.identity, c.op, c.members, c.us)
		for where, o := range map[string]Options{
			"described": {Machine: "h200x4"},
			"here":      {Machine: "h200x4", Device: sketcher{name: "cuda", identity: here}},
		} {
			e, by := chosen(t, o, c.dt)
			if c.want != "" && by != c.want {
				t.Errorf("%s, %s: by %s, want %s", c.what, where, by, c.want)
			}
			if e.TableHash != tab.Hash() || !strings.HasSuffix(e.Table, ".json") ||
				!strings.Contains(e.Measured(), e.Table) {
				t.Errorf("%s, %s: by table %s, hash %s", c.what, where, e.Table, e.TableHash)
			}
			for i, want := range c.tabled {
				r := &e.Reshards[i]
				if e.Pairs[i].Tabled != want || r.Tabled != want || want && r.Time != c.us {
					t.Errorf("%s, %s: %+v and %+v", c.what, where, e.Pairs[i], r)
				}
				if text := e.By(r.Tabled, false); want && text != " as measured" || !want && text != " as described" {
					t.Errorf("%s, %s: it is%s", c.what, where, text)
				}
				if !want && c.dt == "bf16" && r.Time != bare.Reshards[i].Time {
					t.Errorf("%s, %s: %v µs, described are %v", c.what, where, r.Time, bare.Reshards[i].Time)
				}
			}
		}
	}
}

// TestAutoWhereItRuns checks which table is used for a given device machine: its own table and not that of another
// machine; the shipped table if it has none; and no table if it has no GPUs.
func TestAutoWhereItRuns(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	tune(t, h200s+", elsewhere", ir.OpAllGather, 4, 2)
	shipped := comm.Shipped()
	e, _ := chosen(t, Options{Machine: "h200x4", Device: sketcher{name: "cuda", identity: h200s + ", here"}}, "bf16")
	if e.Table != "shipped" || e.TableHash != shipped.Hash() ||
		e.Measured() != "the shipped table, hash "+shipped.Hash() || !e.Pairs[0].Tabled || !e.Pairs[1].Tabled {
		t.Errorf("on a machine that was not tuned: %+v", e)
	}
	found := comm.Found{Table: shipped}
	for i, op := range []ir.Op{ir.OpAllGather, ir.OpReduceScatter} {
		c := &machine.Collective{Op: op, DType: ir.BF16, Members: 4, Message: 2048 * 4096 * 2}
		if c.Op != ir.OpAllGather {
			c.Red = ir.Sum
		}
		if want := between(found.Points(c), float64(c.Message)); math.Abs(e.Reshards[i].Time-want) > 1e-6 {
			t.Errorf("%s: %v µs, the table has %v", op, e.Reshards[i].Time, want)
		}
	}
	for what, o := range map[string]Options{"the CPU machine": {},
		"one that is opened first": {Machine: "h200x4", Device: unsketched{}},
		"one that fails":           {Machine: "h200x4", Device: sketcher{name: "cuda"}}} {
		if e, _ := chosen(t, o, "bf16"); e.Table != "" || e.TableHash != "" || e.Measured() != "" ||
			e.By(false, false) != "" || e.Pairs[0].Tabled {
			t.Errorf("%s: %+v", what, e)
		}
	}
}

// between interpolates between measured points, by a different method from the one in package machine.
func between(list []machine.Point, x float64) float64 {
	for i := range list[1:] {
		a, b := list[i], list[i+1]
		if x >= a[0] && x <= b[0] {
			part := (x - a[0]) / (b[0] - a[0])
			return (1-part)*a[1] + part*b[1]
		}
	}
	return math.NaN()
}

// TestAutoScales checks, for a plan and for an explanation, that the time of a collective with a size between two sizes
// of the table is between their times.
func TestAutoScales(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	tab := tune(t, h200s+", here", ir.OpAllGather, 4, 10)
	tab.Entries[0].Brackets[1].Best[0].Micros = 1034 // so that the time increases by 1 µs for each MiB above 1 KiB
	path, err := comm.Path(tab.Identity, 4)
	if err == nil {
		err = tab.Write(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	source := "mesh tp[4]\nfunc f(%x: bf16[T/tp, 1024]) -> bf16[T, 1024] {\n  return %x\n}\n"
	u, err := Build(check(t, source), Options{Machine: "h200x4"})
	if err != nil {
		t.Fatal(err)
	}
	for _, rows := range []int64{512, 4096, 65536} { // 2 KiB each
		b := ir.Binding{Ranks: 4, Dims: map[string]int64{"T": rows}}
		e, err := u.Explain(b)
		if err != nil {
			t.Fatal(err)
		}
		want := 10 + 1024*float64(rows*2048-1<<10)/float64(1<<30-1<<10)
		if got := e.Reshards[0].Time; math.Abs(got-want) > 1e-6 || math.Abs(e.Time-want) > 1e-6 ||
			math.Abs(simulated(t, u, b)-want) > 1e-6 {
			t.Errorf("%d rows: %v µs explained, %v in all, %v simulated; want %v", rows, got, e.Time,
				simulated(t, u, b), want)
		}
	}
}

// sketcher is a machine that has only dry runs, and none for a world without an identity.
type sketcher struct {
	device.Machine
	name, identity string
}

func (d sketcher) Name() string { return d.name }

func (d sketcher) Caps() device.Caps { return device.Caps{OnHost: d.name == "cpu"} }

func (sketcher) Peers() *world.World { return nil }

func (d sketcher) DryRun(ranks int) (device.World, error) {
	if d.identity == "" {
		return nil, fmt.Errorf("no sketch of %d ranks", ranks)
	}
	return sketchedWorld{ranks: ranks, identity: d.identity}, nil
}

type sketchedWorld struct {
	device.World
	ranks    int
	identity string
}

func (w sketchedWorld) Ranks() int                         { return w.ranks }
func (w sketchedWorld) Identity() string                   { return w.identity }
func (w sketchedWorld) TeamAlgorithms() []device.Algorithm { return nil }
func (w sketchedWorld) Transport() string                  { return "" }

// unsketched is a machine without dry runs.
type unsketched struct{ device.Machine }

func (unsketched) Peers() *world.World { return nil }

func (unsketched) DryRun(int) (device.World, error) { return device.DefaultMachine{}.DryRun(0) }
