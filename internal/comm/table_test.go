package comm

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// TestShipped checks that the shipped table is valid, and has a choice for each size of each collective that is tuned.
func TestShipped(t *testing.T) {
	tab := Shipped()
	if err := tab.Check(); err != nil {
		t.Fatal(err)
	}
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast} {
		for _, n := range []int{2, 3, 4, 8} {
			for _, count := range []int64{1, 1 << 10, 1 << 16, 1 << 20, 1 << 27} {
				in := &Instance{Collective: device.Collective{Op: op, Red: ir.Sum}}
				for range n {
					v := device.View{DType: ir.BF16, Shape: []int64{count}, Strides: []int64{1}}
					in.Parts = append(in.Parts, Part{In: v, Out: v, Reads: true, Writes: true})
				}
				if e := tab.find(in); e == nil || n != 3 && e.Members != min(n, 4) {
					t.Fatalf("%s of %d members uses entry %+v", op, n, e)
				}
				if len(tab.best(in, false)) == 0 {
					t.Errorf("%s: no tuning for %d elements on %d ranks", op, count, n)
				}
			}
		}
	}
}

// TestShippedFew checks that the shipped table chooses the SM-limited kernels for large sums if the number of blocks is
// limited, and other kernels otherwise.
func TestShippedFew(t *testing.T) {
	for _, tc := range []struct {
		op   ir.Op
		n    int
		want string
	}{{ir.OpAllReduce, 2, "few"}, {ir.OpAllReduce, 4, "few"}, {ir.OpAllReduce, 8, "few"}, {ir.OpReduceScatter, 2, "move-few"}, {ir.OpReduceScatter, 4, "move-few"}, {ir.OpReduce, 2, "move-few"}} {
		in := &Instance{Collective: device.Collective{Op: tc.op, Red: ir.Sum}}
		for range tc.n {
			v := device.View{DType: ir.BF16, Shape: []int64{32 << 20}, Strides: []int64{1}}
			in.Parts = append(in.Parts, Part{In: v, Out: v, Reads: true, Writes: true})
		}
		for ctas, few := range map[int]bool{0: false, 4: true, 8: true} {
			in.CTAs = ctas
			if got := in.modestFirst(Shipped().best(in, false))[0]; (got.Algo == tc.want) != few {
				t.Errorf("%s of %d with at most %d blocks: %+v", tc.op, tc.n, ctas, got)
			}
		}
	}
}

func row(upTo int64, names ...string) Bracket {
	b := Bracket{UpTo: upTo}
	for _, n := range names {
		b.Best = append(b.Best, Timed{Tuning: device.Tuning{Algo: n}})
	}
	return b
}

// TestLookup checks that a lookup finds the nearest entry, and the bracket that contains the size.
func TestLookup(t *testing.T) {
	tab := &Table{Version: TableVersion, Entries: []Entry{
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2, Brackets: []Bracket{row(0, "pair")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 4, Brackets: []Bracket{row(16, "a"), row(64, "b"), row(0, "c")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: 4, Brackets: []Bracket{row(0, "wide")}},
		{Op: "all_gather", Elem: 2, Members: 2, Brackets: []Bracket{row(0, "together")}},
		{Op: "all_reduce", Reduction: "minmax", Elem: 2, Members: 4, Brackets: []Bracket{row(0, "extremes")}},
	}}
	if err := tab.Check(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		op    ir.Op
		red   ir.Red
		dt    ir.DType
		n     int
		count int64
		want  string
	}{
		{ir.OpAllReduce, ir.Sum, ir.BF16, 4, 8, "a"},
		{ir.OpAllReduce, ir.Sum, ir.BF16, 4, 9, "b"},
		{ir.OpAllReduce, ir.Avg, ir.F16, 4, 32, "b"},
		{ir.OpAllReduce, ir.Sum, ir.BF16, 4, 33, "c"},
		{ir.OpAllReduce, ir.Sum, ir.F32, 4, 1, "wide"},
		{ir.OpAllReduce, ir.Sum, ir.F64, 4, 1, "wide"},
		{ir.OpAllReduce, ir.Max, ir.BF16, 4, 1, "extremes"},
		{ir.OpAllReduce, ir.Sum, ir.BF16, 2, 99, "pair"},
		{ir.OpAllReduce, ir.Sum, ir.BF16, 8, 1, "a"},
		{ir.OpAllReduce, ir.Sum, ir.BF16, 3, 1, "a"},
		{ir.OpReduceScatter, ir.Sum, ir.BF16, 4, 1, ""},
		{ir.OpAllGather, ir.NoRed, ir.BF16, 4, 1, "together"},
		{ir.OpGather, ir.NoRed, ir.BF16, 4, 1, "together"},
		{ir.OpScatter, ir.NoRed, ir.BF16, 4, 1, ""},
	} {
		in := &Instance{Collective: device.Collective{Op: tc.op, Red: tc.red}}
		v := device.View{DType: tc.dt, Shape: []int64{tc.count}, Strides: []int64{1}}
		for range tc.n {
			in.Parts = append(in.Parts, Part{In: v, Out: v, Reads: true, Writes: true})
		}
		got := ""
		if list := tab.best(in, false); len(list) > 0 {
			got = list[0].Algo
		}
		if got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
	if (*Table)(nil).best(&Instance{}, false) != nil || (*Table)(nil).Hash() != "" {
		t.Error("no table says something")
	}
}

// TestPolicy checks that an algorithm that the policy names has precedence over the table, that a pinned algorithm has
// precedence over both, and that a fixed policy uses one algorithm for all sizes.
func TestPolicy(t *testing.T) {
	w := teams(t, cpu.Concurrent, 0, 4)
	small := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 4, shape: []int64{2}}
	large := small
	large.shape = []int64{1 << 16}
	r := newRig(t, w, "s", teamOf(4), []spec{small, large})
	tab := &Table{Version: TableVersion, Entries: []Entry{{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: 4, Fixed: &device.Tuning{Algo: "staged"},
		Brackets: []Bracket{{UpTo: 100, Best: []Timed{{Tuning: device.Tuning{Algo: "ll", Blocks: 3}}}}, row(0, "two-shot", "ll")}}}}
	for _, tc := range []struct {
		policy       Policy
		pin          string
		small, large device.Tuning
		by           string
	}{
		{Policy{}, "", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "two-shot"}, "table"},
		{Policy{Fixed: true}, "", device.Tuning{Algo: "staged"}, device.Tuning{Algo: "staged"}, "table"},
		{Policy{Fixed: true, Algorithm: "two-shot-push"}, "", device.Tuning{Algo: "two-shot-push"}, device.Tuning{Algo: "two-shot-push"}, "policy"},
		{Policy{Algorithm: "ll"}, "", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "ll"}, "policy"},
		{Policy{Algorithm: "direct"}, "", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "two-shot"}, "table"}, // operands are private
		{Policy{Algorithm: "ll", Fixed: true}, "two-shot-push", device.Tuning{Algo: "two-shot-push"}, device.Tuning{Algo: "two-shot-push"}, "pinned"},
		{Policy{}, "ll", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "ll"}, "pinned"},
		// The operand is too large for chunked.
		{Policy{Sparing: true}, "", device.Tuning{Algo: "chunked"}, device.Tuning{Algo: "two-shot"}, "default"},
		{Policy{Sparing: true, Algorithm: "ll"}, "", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "ll"},
			"policy"},
		{Policy{Sparing: true}, "ll", device.Tuning{Algo: "ll", Blocks: 3}, device.Tuning{Algo: "ll"}, "pinned"},
	} {
		a, b := small.instance(), large.instance()
		a.Parts, b.Parts, a.Pin.Algo, b.Pin.Algo = r.parts[0], r.parts[1], tc.pin, tc.pin
		ch, err := NewDispatch(w, device.Caps{}, tab, tc.policy).Design(r.ch.members, []Instance{a, b})
		r.must(err)
		if x, y := ch.Choice(0), ch.Choice(1); x.Tuning != tc.small || y.Tuning != tc.large || x.By != tc.by {
			t.Errorf("%+v pinned %q: %+v and %+v, want %+v and %+v by %s", tc.policy, tc.pin, x, y, tc.small, tc.large, tc.by)
		}
		r.must(ch.Close())
	}
	declining := &Table{Version: TableVersion, Entries: []Entry{{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: 4, Fixed: &device.Tuning{Algo: "direct"},
		Brackets: []Bracket{row(0, "nccl", "ll")}}}}
	fixed := small.instance()
	fixed.Parts = r.parts[0]
	ch, err := NewDispatch(w, device.Caps{}, declining, Policy{Fixed: true}).Design(r.ch.members, []Instance{fixed})
	r.must(err)
	if got := ch.Choice(0); got.Tuning.Algo != "ll" || len(got.Declined) != 1 {
		t.Errorf("with a fixed algorithm that declines: %+v", got)
	}
	r.must(ch.Close())
	a := small.instance()
	a.Parts, a.CTAs = r.parts[0], 2
	few := tableFor(ir.OpAllReduce, 4, "ll", "even")
	best := few.Entries[0].Brackets[0].Best
	for _, tc := range []struct {
		pin      string
		ll, even int // these numbers of blocks occur in the table
		want     device.Tuning
	}{
		{"", 0, 1, device.Tuning{Algo: "even", Blocks: 1}},
		{"", 9, 3, device.Tuning{Algo: "even", Blocks: 2}},
		{"", 9, 0, device.Tuning{Algo: "ll", Blocks: 2}},
		{"ll", 0, 1, device.Tuning{Algo: "ll", Blocks: 2}},
		{"staged", 0, 1, device.Tuning{Algo: "staged"}},
	} {
		best[0].Blocks, best[1].Blocks, a.Pin.Algo = tc.ll, tc.even, tc.pin
		ch, err := NewDispatch(w, device.Caps{}, few, Policy{}).Design(r.ch.members, []Instance{a})
		r.must(err)
		if got := ch.Choice(0).Tuning; got != tc.want {
			t.Errorf("%+v with at most 2 blocks: %+v", tc, got)
		}
		r.must(ch.Close())
	}
	if err := NewDispatch(w, device.Caps{}, nil, Policy{}).Check("abacus"); err == nil || !strings.Contains(err.Error(), "staged") || !strings.Contains(err.Error(), "late") {
		t.Errorf("%v: want schedules and the machine's own listed", err)
	}
}

// TestTableCheck checks that tables are refused if a lookup in them could fail.
func TestTableCheck(t *testing.T) {
	good := func() *Table {
		return &Table{Version: TableVersion, Entries: []Entry{{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2, Brackets: []Bracket{row(16, "a"), row(0, "b")}}}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Table){
		"version":     func(x *Table) { x.Version++ },
		"one member":  func(x *Table) { x.Entries[0].Members = 1 },
		"no element":  func(x *Table) { x.Entries[0].Elem = 0 },
		"no brackets": func(x *Table) { x.Entries[0].Brackets = nil },
		"no end":      func(x *Table) { x.Entries[0].Brackets[1].UpTo = 99 },
		"early end":   func(x *Table) { x.Entries[0].Brackets[0].UpTo = 0 },
		"descending": func(x *Table) {
			x.Entries[0].Brackets = []Bracket{row(16, "a"), row(8, "b"), row(0, "c")}
		},
		"no name":            func(x *Table) { x.Entries[0].Brackets[0].Best[0].Algo = "" },
		"blocks":             func(x *Table) { x.Entries[0].Brackets[0].Best[0].Blocks = -1 },
		"no time":            func(x *Table) { x.Entries[0].Brackets[0].Best[0].Micros = math.NaN() },
		"negative":           func(x *Table) { x.Entries[0].Brackets[0].UpTo = -4 },
		"misspelt op":        func(x *Table) { x.Entries[0].Op = "all_redcue" },
		"no collective":      func(x *Table) { x.Entries[0].Op, x.Entries[0].Reduction = "linear", "" },
		"misspelt reduction": func(x *Table) { x.Entries[0].Reduction = "summ" },
		"nothing to reduce":  func(x *Table) { x.Entries[0].Op = "all_gather" },
		"negative time":      func(x *Table) { x.Entries[0].Brackets[0].Best[0].Micros = -1 },
		"endless time":       func(x *Table) { x.Entries[0].Brackets[0].Best[0].Micros = 1e308 },
		"large end":          func(x *Table) { x.Entries[0].Brackets[0].UpTo = 1 << 60 },
		"large size":         func(x *Table) { x.Entries[0].Brackets[1].At = 1 << 60 },
		"fixed to nothing":   func(x *Table) { x.Entries[0].Fixed = &device.Tuning{} },
	} {
		x := good()
		change(x)
		if x.Check() == nil {
			t.Errorf("%s: no error", name)
		}
		if err := x.Write(filepath.Join(t.TempDir(), "x")); err == nil {
			t.Errorf("%s: it is written", name)
		}
	}
	a, b := good(), good()
	b.Made, b.Identity = "elsewhere", "another"
	if a.Hash() != b.Hash() {
		t.Error("the hash depends on the table's source")
	}
	b.Entries[0].Brackets[0].Best[0].Blocks = 7
	if a.Hash() == b.Hash() {
		t.Error("two different tables have the same hash")
	}
}

// TestReadTable checks that only white space may follow a table, and that unknown ops and reductions are refused.
func TestReadTable(t *testing.T) {
	const good = `{"version": 1, "identity": "abacus", "ranks": 2, "made": "", "entries": []}`
	for text, want := range map[string]string{
		good:                      "",
		good + " \n\t\n":          "",
		good + "}":                "line 1, column 76: there is text after the end",
		good + good:               "there is text after the end",
		good + "\n<<<<<<< theirs": "there is text after the end",
		good[:len(good)-1]:        "not a table of collectives",
		`[]`:                      "not a table of collectives",
		strings.Replace(good, "[]", `[{"op": "allreduce", "reduction": "sum", "element_bytes": 2, "members": 2, "brackets": [{"best": []}]}]`, 1): `unknown collective "allreduce"`,
		strings.Replace(good, "[]", `[{"op": "reduce", "reduction": "avg", "element_bytes": 2, "members": 2, "brackets": [{"best": []}]}]`, 1):    `unknown reduction "avg"; the reductions are sum, minmax`,
		strings.Replace(good, "[]", `[{"op": "scatter", "reduction": "sum", "element_bytes": 2, "members": 2, "brackets": [{"best": []}]}]`, 1):   "reduces nothing",
	} {
		if _, err := ReadTable([]byte(text)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute} {
		for _, red := range []ir.Red{ir.Sum, ir.Avg, ir.Max, ir.Min} {
			e := Entry{Op: op.String(), Reduction: ReductionOf(red, op), Elem: 2, Members: 2, Brackets: []Bracket{row(0, "a")}}
			if err := e.check(); err != nil {
				t.Errorf("%s %s: %v", e.Op, e.Reduction, err)
			}
		}
	}
}

// TestShippedFor checks that the table for GPUs other than the measured ones, including those with similar names,
// contains no algorithm that uses host memory.
func TestShippedFor(t *testing.T) {
	for identity, want := range map[string]bool{
		"NVIDIA H200 sm_90a, 2 GPUs":        true,
		"NVIDIA H200 NVL sm_90a, 2 GPUs":    false,
		"NVIDIA GH200 480GB sm_90a, 2 GPUs": false,
		"NVIDIA L40S sm_89, 2 GPUs":         false,
	} {
		table := shippedFor(identity)
		n := 0
		for _, e := range table.Entries {
			for _, b := range e.Brackets {
				if len(b.Best) == 0 {
					t.Errorf("%s: %v, up to %d bytes: no tuning", identity, e.Op, b.UpTo)
				}
				if slices.ContainsFunc(b.Best, func(x Timed) bool { return strings.HasSuffix(x.Algo, "-host") }) {
					n++
				}
			}
		}
		if err := table.Check(); err != nil || (n > 0) != want {
			t.Errorf("%s: algorithms through host memory in %d brackets, %v", identity, n, err)
		}
	}
}

// TestFind checks that Find prefers a tuned table to the shipped one, returns the shipped one only for worlds with
// teams, and reports the reason why a table cannot be used.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(files.CacheVariable, dir)
	w := teams(t, cpu.Concurrent, 0, 2)
	if f := Find("cpu", w.World); !*onCUDA && f.Table != nil || !strings.Contains(f.Ignored, "hocket tune") {
		t.Errorf("a CPU has %+v", f)
	}
	if f := Find("abacus", w); f.From != "shipped" || f.Ignored == "" {
		t.Errorf("on an untuned machine with teams Find returns %+v", f)
	}
	tab := tableFor(ir.OpAllReduce, 2, "ll")
	tab.Identity, tab.Ranks = w.Identity(), 2
	path, err := Path(tab.Identity, tab.Ranks)
	if err == nil {
		err = errors.Join(Writable(path), tab.Write(path))
	}
	if err != nil {
		t.Fatal(err)
	}
	if f := Find("abacus", w); f.From != path || f.Table.Hash() != tab.Hash() || f.Ignored != "" {
		t.Errorf("on a tuned machine Find returns %+v", f)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "collectives", "new-*")); len(left) > 0 {
		t.Errorf("files remain: %v", left)
	}
	if kept := Kept(); len(kept) != 1 || kept[0].From != path || kept[0].Table.Identity != w.Identity() || kept[0].Ignored != "" {
		t.Errorf("kept are %+v", kept)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := Find("abacus", w); f.From != "shipped" || !strings.Contains(f.Ignored, path) {
		t.Errorf("with a broken table: %+v", f)
	}
	if kept := Kept(); len(kept) != 1 || kept[0].Table != nil || kept[0].Ignored == "" {
		t.Errorf("kept are %+v", kept)
	}
}

// TestShippedStays checks that callers that change a clone of the shipped table, which is read once and shared, do not
// change the shipped table.
func TestShippedStays(t *testing.T) {
	before := Shipped().Hash()
	c := Shipped().Clone()
	if c.Hash() != before {
		t.Error("a copy differs")
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		e.Shipped, e.Checked = true, []int64{1}
		if e.Fixed != nil {
			e.Fixed.Algo = "other"
		}
		for j := range e.Brackets {
			e.Brackets[j].Best[0].Algo = "other"
		}
	}
	if shippedFor("NVIDIA L40S sm_89").Hash() == before {
		t.Error("other GPUs have the same table")
	}
	if Shipped().Hash() != before {
		t.Error("the shipped table has changed")
	}
}
