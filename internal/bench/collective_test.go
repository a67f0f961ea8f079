package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// TestCollectivesAreRight wants every way of every op checked and right, hot and
// cold, with counts that do not divide.
func TestCollectivesAreRight(t *testing.T) {
	for _, b := range benches() {
		if !b.comm {
			continue
		}
		for _, dt := range []ir.DType{ir.BF16, ir.F32, ir.I32} {
			o := Options{Ranks: 3, Rounds: 1, Algorithms: []string{"all"}, DType: dt, Sizes: []int64{12, 4000, 300_004}, Cold: dt == ir.F32}
			if o.Cold {
				o.Sizes = o.Sizes[:2]
			}
			rep, err := Run(context.Background(), b.name, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rep.Collectives {
				for k, w := range row.Ways {
					if (w.By == "asked") != (k > 0) {
						t.Errorf("way %d of %s is by %q", k, b.name, w.By)
					}
					if w.Refused != "" {
						continue
					}
					if w.Wrong != 0 || w.Checked == 0 || w.Best() <= 0 {
						t.Errorf("%s %s of %d bytes by %s: %d wrong of %d, %v µs", b.name, dt, row.Bytes, w.Algorithm, w.Wrong, w.Checked, w.Best())
					}
				}
			}
		}
	}
}

// TestCheckSees wants each kind of misplaced or stale element to be counted.
func TestCheckSees(t *testing.T) {
	ctx := context.Background()
	c := call{op: ir.OpAllGather, bytes: 64}
	a, err := openArena(ctx, cpu.New(cpu.Options{}), 2, []call{c}, ir.F32, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close(nil)
	e, err := a.enter(c, a.dispatch, device.Tuning{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer e.leave()
	for name, tc := range map[string]struct {
		run  func() error
		want int64
	}{
		"right": {func() error { return a.run(e, 1) }, 0},
		"none":  {func() error { return nil }, 32},
		"one": {func() error {
			if err := a.run(e, 1); err != nil {
				return err
			}
			return a.members[1].Stream.Upload(vector(a.out[1], 8, ir.F32, 1), []byte{1, 2, 3, 4})
		}, 1},
	} {
		wrong, looked, err := a.check(ctx, e, tc.run)
		if err != nil || wrong != tc.want || looked != 32 {
			t.Errorf("%s: %d wrong of %d, %v; want %d of 32", name, wrong, looked, err, tc.want)
		}
	}
}

// someReport is a report with known figures.
func someReport() *Report {
	f := func(v float64) *Figure { return &Figure{Median: v, Spread: 0.1} }
	way := func(name, by string, us float64) Way {
		return Way{Algorithm: name, Tuning: device.Tuning{Algo: name, Blocks: 24, Threads: 512}, By: by, Graph: f(us), Eager: f(us + 3), Checked: 10}
	}
	return &Report{Bench: "allreduce", Machine: "cuda", Ranks: 4, Method: []string{"by hand"}, Wire: f(396), Table: &TableUse{From: "shipped", Hash: "0123456789ab"},
		Collectives: []Collective{
			{Op: "all_reduce", DType: "bf16", Bytes: 32 * rowBytes, Bound: 2, Ways: []Way{way("pull-push", "table", 8.2), way("nccl", "asked", 14.4), {Algorithm: "magic", Refused: "no wand"}},
				Peers: map[string]float64{"torch two-shot": 9.84}},
			{Op: "all_reduce", DType: "bf16", Bytes: 64 * rowBytes, Bound: 4, Ways: []Way{way("pull-push", "table", 20), way("nccl", "asked", 18.1)}},
		}}
}

const wantVLLM = `
==================================================================================================================================
Device Communicator Benchmark Results
World Size: 4, Data Type: torch.bfloat16, Hidden Size: 8192
==================================================================================================================================
Tensor Shape        Tensor Size    hocket              pynccl              torch two-shot      Best (Speedup vs PyNccl)      
-----------------------------------------------------------------------------------------------------------------------------
(32, 8192)          0.50 MB        0.008               0.014               0.010               hocket (1.76x)                
(64, 8192)          1.00 MB        0.020               0.018               N/A                 pynccl (1.00x)                
==================================================================================================================================
All times are in milliseconds (ms) per allreduce operation
Speedup column shows: fastest_algorithm (speedup_vs_pynccl)
`

func TestWriteVLLM(t *testing.T) {
	var b bytes.Buffer
	if err := someReport().WriteVLLM(&b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantVLLM, b.String()); diff != "" {
		t.Error(diff)
	}
	// vLLM's own figures of NCCL keep their name, eager ones are not of that table,
	// and without NCCL there is no speedup.
	b.Reset()
	r := someReport()
	r.Collectives[0].Peers = map[string]float64{"pynccl": 15, "torch two-shot, eager": 1}
	r.Collectives[1].Ways = r.Collectives[1].Ways[:1]
	if err := r.WriteVLLM(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Tensor Shape        Tensor Size    hocket              nccl                pynccl              Best (Speedup vs PyNccl)      \n",
		"(32, 8192)          0.50 MB        0.008               0.014               0.015               hocket (1.83x)                \n",
		"(64, 8192)          1.00 MB        0.020               N/A                 N/A                 hocket (N/A)                  \n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if err := (&Report{}).WriteVLLM(&b); !errors.Is(err, ErrUsage) {
		t.Errorf("a report without collectives: %v", err)
	}
}

func TestCollectiveText(t *testing.T) {
	var b bytes.Buffer
	if err := someReport().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- table: shipped, hash 0123456789ab; * is what it chooses\n",
		"  512 KiB  pull-push 24×512 *   8.20 ±0.10  11.20 ±0.10  0.00  63.9       2.0     4.10       1.76      0            9.84\n",
		"nccl 24×512  14.40 ±0.10  17.40 ±0.10  0.00  36.4       2.0     7.20                 0                \n",
		"chosen against the best of the others: geometric mean 1.04×, faster at 1 of 2 sizes\n",
		"512 KiB by magic: no wand\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestReadPeers(t *testing.T) {
	peers, err := ReadPeers(strings.NewReader(`W1122 torchrun says hello
{"op": "all_reduce", "name": "nccl", "ranks": 2, "bytes": 1024, "issued": "graph", "us": 7.5}
{"op": "all_reduce", "name": "nccl", "ranks": 2, "bytes": 1024, "issued": "eager", "us": 20}

{"op": "all_reduce", "name": "torch two-shot", "ranks": 4, "bytes": 1024, "issued": "graph", "us": 9}
`))
	if err != nil || len(peers) != 3 {
		t.Fatalf("%v, %v", peers, err)
	}
	got := peersOf(peers, call{op: ir.OpAllReduce, bytes: 1024}, 2)
	if diff := cmp.Diff(map[string]float64{"nccl": 7.5, "nccl, eager": 20}, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "no figures\n", "{\n", `{"op": "all_reduce", "name": "x", "ranks": 2}`, `{"op": "all_reduce", "ranks": 2, "us": 1}`} {
		if _, err := ReadPeers(strings.NewReader(bad)); !errors.Is(err, ErrUsage) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// foundFor looks for a table of a machine with two ranks.
func foundFor(t *testing.T, machine string) comm.Found {
	t.Helper()
	f, err := TableOf(context.Background(), machine, 2)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestSizesOfManyRanks: a quick tuning of many ranks that share the host leaves out what would
// take it minutes.
func TestSizesOfManyRanks(t *testing.T) {
	for ranks, want := range map[int]int{2: 3, 16: 3, 40: 2, 100: 1, 256: 1} {
		u := newTuner(TuneOptions{Ranks: ranks}, cpu.New(cpu.Options{}))
		if got := u.sizes(kind{op: ir.OpAllReduce, dt: ir.BF16, members: ranks}); len(got) != want {
			t.Errorf("%d ranks: sizes %v, want %d", ranks, got, want)
		}
	}
}

// TestTune wants a table that says something of every op, that worlds find
// afterwards, and that is passed over with a reason once it is broken or foreign.
func TestTune(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	ctx := context.Background()
	if f, err := TableOf(ctx, "cpu", 2); err != nil || f.Table != nil || !strings.Contains(f.Ignored, "has not been tuned") {
		t.Fatalf("before: %+v, %v", f, err)
	}
	var said []string
	file, err := TableFile(foundFor(t, "cpu"), 2)
	if err != nil {
		t.Fatal(err)
	}
	u, err := Tune(ctx, TuneOptions{Ranks: 2, Made: "a test", Sizes: []int64{65536, 4096}, File: file,
		Progress: func(s string) { said = append(said, s) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Table.Entries) != len(TunedOps) || !u.Fresh || len(u.Notes) > 0 {
		t.Errorf("%d entries, notes %q", len(u.Table.Entries), u.Notes)
	}
	for _, e := range u.Table.Entries {
		for _, b := range e.Brackets {
			if len(b.Best) == 0 || b.Best[0].Micros <= 0 {
				t.Errorf("%s up to %d: %+v", e.Op, b.UpTo, b.Best)
			}
		}
	}
	last := len(said) - 1
	if last < 10*len(comm.Schedules()) || said[0] != "1 of 10: all_reduce of 64 KiB, bf16, on 2 ranks, by staged" || said[1] != "1 of 10: all_reduce of 64 KiB, bf16, on 2 ranks, by two-shot" ||
		said[last] != "10 of 10: broadcast of 4 KiB, bf16, on 2 ranks, by those in front, in turns" {
		t.Errorf("said %q", said)
	}
	f, err := TableOf(ctx, "cpu", 2)
	if err != nil || f.From != u.File || f.Table.Hash() != u.Hash || f.Ignored != "" {
		t.Fatalf("after: %+v, %v", f, err)
	}
	rep, err := Run(ctx, "allreduce", Options{Ranks: 2, Rounds: 1, Sizes: []int64{1024}})
	if err != nil || rep.Table.Hash != u.Hash || rep.Collectives[0].Ways[0].By != "table" {
		t.Errorf("a bench uses %+v, %v", rep.Table, err)
	}
	if f, _ := TableOf(ctx, "cpu", 3); f.Table != nil {
		t.Error("a table for 2 ranks serves 3")
	}
	data, err := os.ReadFile(u.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"cut short", string(data[:len(data)/2]), "no table of collectives"},
		{"another version", strings.Replace(string(data), `"version": 1`, `"version": 99`, 1), "version 99"},
		{"foreign", strings.Replace(string(data), `"identity": "`, `"identity": "abacus `, 1), "made on abacus"},
		{"an end that is not", strings.Replace(string(data), `"up_to"`, `"upto"`, 1), "unknown field"},
	} {
		if err := os.WriteFile(u.File, []byte(tc.text), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := TableOf(ctx, "cpu", 2)
		if err != nil || f.Table != nil || !strings.Contains(f.Ignored, tc.want) || !strings.Contains(f.Ignored, filepath.Base(u.File)) {
			t.Errorf("%s: %+v, %v", tc.name, f, err)
		}
	}
}

// TestRanked wants the fewest blocks among those alike, and each algorithm once.
func TestRanked(t *testing.T) {
	at := func(name string, blocks int, us float64) timed {
		return timed{comm.Timed{Tuning: device.Tuning{Algo: name, Blocks: blocks}, Micros: us}, true}
	}
	got := ranked([]timed{at("a", 64, 10), at("b", 0, 30), at("a", 16, 10.1), at("a", 8, 10.5), at("c", 0, 20), at("b", 0, 12), at("b", 8, 12.1)})
	want := []string{"a 16", "b 8", "c 0"}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	if got[0].Blocks != 16 || got[1].Algo != "b" || got[1].Blocks != 8 || got[2].Algo != "c" {
		t.Errorf("%+v, want %v", got, want)
	}
	if got := ranked([]timed{at("a", 4, 10), at("move-copy", 0, 10.1), at("b", 0, 10)}); got[0].Algo != "move-copy" {
		t.Errorf("copy engines take no blocks: %+v", got)
	}
	if ranked(nil) != nil {
		t.Error("nothing has a rank")
	}
}

// TestDescend wants the best launch of each algorithm found without all being
// tried, one that is refused passed over, and those of others left as they are.
func TestDescend(t *testing.T) {
	cost := func(u device.Tuning) float64 {
		away := func(v, best int) float64 { return math.Abs(math.Log2(float64(max(v, 1)) / float64(best))) }
		return 2 + away(u.Blocks, 32) + away(u.Unroll, 2) + away(u.Threads, 256)
	}
	tried := map[device.Tuning]bool{}
	all, err := descend([]timed{
		{comm.Timed{Tuning: device.Tuning{Algo: "push"}, Micros: cost(device.Tuning{})}, true},
		{comm.Timed{Tuning: device.Tuning{Algo: "nccl"}, Micros: 5}, false},
		{comm.Timed{Tuning: device.Tuning{Algo: "push", Blocks: 132}, Micros: 30}, true},
		{comm.Timed{Tuning: device.Tuning{Algo: "staged"}, Micros: 9}, true},
	}, func(list []device.Tuning) (got []timed, err error) {
		for _, u := range list {
			if tried[u] {
				t.Errorf("%+v twice", u)
			}
			tried[u] = true
			if u.Unroll != 8 {
				got = append(got, timed{comm.Timed{Tuning: u, Micros: cost(u)}, true})
			}
		}
		return got, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if best := within(all, 1)[0]; best.Tuning != (device.Tuning{Algo: "push", Blocks: 32, Threads: 256, Unroll: 2}) || best.Micros != 2 {
		t.Errorf("found %+v", best)
	}
	if len(tried) > 21 || len(all) != 4+len(tried)-1 {
		t.Errorf("%d launches were tried, %d are in the result", len(tried), len(all))
	}
	bad := errors.New("no more")
	if _, err := descend(all, func([]device.Tuning) ([]timed, error) { return nil, bad }); err != bad {
		t.Error(err)
	}
}

// TestEntryOf wants brackets that meet halfway, one in each that sums in order,
// and as fixed what all sizes share.
func TestEntryOf(t *testing.T) {
	way := func(name string, us float64, ordered bool) timed {
		return timed{comm.Timed{Tuning: device.Tuning{Algo: name, Blocks: 8}, Micros: us}, ordered}
	}
	e := entryOf(kind{ir.OpAllReduce, ir.Sum, ir.BF16, 4}, []measured{
		{call: call{op: ir.OpAllReduce, bytes: 1 << 10}, best: []timed{way("ll", 2, true), way("push", 5, true)}},
		{call: call{op: ir.OpAllReduce, bytes: 1 << 14}, best: []timed{way("nccl", 3, false), way("x", 4, false), way("y", 5, false), way("z", 6, false), way("push", 7, true)}},
		{call: call{op: ir.OpAllReduce, bytes: 1 << 20}, best: []timed{way("push", 30, true), way("ll", 60, true)}},
	})
	tab := &comm.Table{Version: comm.TableVersion, Entries: []comm.Entry{e}}
	if err := tab.Check(); err != nil {
		t.Fatal(err)
	}
	if e.Brackets[0].UpTo != 1<<12 || e.Brackets[1].UpTo != 1<<17 || e.Brackets[2].UpTo != 0 {
		t.Errorf("brackets end at %d, %d, %d", e.Brackets[0].UpTo, e.Brackets[1].UpTo, e.Brackets[2].UpTo)
	}
	if b := e.Brackets[1].Best; len(b) != 4 || b[0].Algo != "nccl" || b[3].Algo != "push" {
		t.Errorf("the middle bracket lists %+v", b)
	}
	if e.Fixed == nil || e.Fixed.Algo != "push" || e.Fixed.Blocks != 0 {
		t.Errorf("fixed is %+v", e.Fixed)
	}
}

func TestExportVLLM(t *testing.T) {
	br := func(upTo int64, name string) comm.Bracket {
		return comm.Bracket{UpTo: upTo, Best: []comm.Timed{{Tuning: device.Tuning{Algo: name}, Micros: 3}}}
	}
	guess := comm.Bracket{Best: []comm.Timed{{Tuning: device.Tuning{Algo: "push"}}}}
	u := &Tuned{Table: &comm.Table{Identity: "NVIDIA H200 sm_90a, 4 GPUs", Entries: []comm.Entry{
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 4, Brackets: []comm.Bracket{br(1<<20, "ll"), br(3<<19, "push"), br(0, "nccl")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: 4, Brackets: []comm.Bracket{br(0, "push")}},
		{Op: "all_reduce", Reduction: "minmax", Elem: 2, Members: 4, Brackets: []comm.Bracket{br(0, "push")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2, Brackets: []comm.Bracket{br(1<<20, "ll"), br(0, "push")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 8, Brackets: []comm.Bracket{br(1<<19, "ll"), guess}},
	}}}
	at := func(name string, bytes int64, us float64) Peer {
		return Peer{Op: "all_reduce", Name: name, Ranks: 4, Bytes: bytes, Issued: "graph", Micros: us}
	}
	ours := []Peer{at("nccl", 1<<20, 18), at("torch two-shot", 1<<20, 13), at("nccl", 4<<20, 18), at("torch two-shot", 4<<20, 19)}
	theirs := []Peer{at("pynccl", 1<<20, 18), at("pynccl-symm", 1<<20, 12), at("ca_1stage", 1<<20, 13), at("ca_2stage", 1<<20, 11), at("symm_mem_two_shot", 1<<20, 9), at("torch two-shot", 1<<20, 99)}
	for _, c := range []struct {
		peers      []Peer
		want, lack []string
	}{
		{ours, []string{
			"NOT vLLM's",
			"\nCUSTOM_ALL_REDUCE_MAX_SIZES = {\n    \"9.0\": {\n        2: 64 * MiB,  # 64 MiB\n        4: 1536 * KiB,  # 1.5 MiB\n        8: 512 * KiB,  # 512 KiB\n    },\n}\n",
			"\nSYMM_MEM_ALL_REDUCE_MAX_SIZES = {\n    \"9.0\": {\n        4: 2 * MiB,  # 2 MiB\n    },\n}\n",
		}, nil},
		{theirs, []string{
			"\nCUSTOM_ALL_REDUCE_MAX_SIZES = {\n    \"9.0\": {\n        4: 1048592,  # 1.0 MiB\n    },\n}\n",
			"as vLLM uses it.\nSYMM_MEM_ALL_REDUCE_MAX_SIZES = {\n    \"9.0\": {\n        4: 1048592,",
		}, []string{"NOT vLLM's"}},
		{nil, []string{"NOT vLLM's"}, []string{"SYMM_MEM"}},
	} {
		var b bytes.Buffer
		if err := u.WriteVLLM(&b, c.peers); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
		for _, lack := range c.lack {
			if strings.Contains(b.String(), lack) {
				t.Errorf("%q in\n%s", lack, b.String())
			}
		}
	}
	before := comm.Shipped().Hash()
	shipped := TunedFrom(comm.Found{Table: comm.Shipped(), From: "shipped"})
	if comm.Shipped().Hash() != before || !shipped.Table.Entries[0].Shipped {
		t.Error("who says of a table that it is shipped changes it")
	}
	if err := shipped.WriteVLLM(&bytes.Buffer{}, nil); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "run hocket tune") {
		t.Errorf("a table that was measured elsewhere: %v", err)
	}
	u.Table.Identity = "cpu"
	if err := u.WriteVLLM(&bytes.Buffer{}, nil); !errors.Is(err, ErrUsage) {
		t.Errorf("a table of CPUs: %v", err)
	}
}

// TestLimitOf wants the border between the last size won and the next one lost,
// whatever was lost below, and one that < lets the last size won through.
func TestLimitOf(t *testing.T) {
	nccl := map[int64]float64{1 << 10: 5, 1 << 20: 5, 1 << 22: 5, 1 << 24: 5}
	for _, c := range []struct {
		times map[int64]float64
		want  int64
	}{
		{map[int64]float64{1 << 10: 6, 1 << 20: 4, 1 << 22: 6, 1 << 24: 7}, 1 << 21},
		{map[int64]float64{1 << 10: 4, 1 << 20: 4, 1 << 22: 4, 1 << 24: 4}, 1<<24 + 16},
		{map[int64]float64{1 << 10: 5, 1 << 20: 6}, 0},
		{map[int64]float64{1 << 12: 1}, 0}, // where NCCL has no figure
	} {
		if got := limitOf(c.times, nccl); got != c.want {
			t.Errorf("%v: %d, want %d", c.times, got, c.want)
		}
	}
}

// TestReadVLLM reads a file of vLLM's benchmark as figures of peers.
func TestReadVLLM(t *testing.T) {
	got, err := ReadPeers(strings.NewReader(`{"world_size": 4, "dtype": "torch.bfloat16", "hidden_size": 8192, "num_warmup": 5,
  "results": {"64": {"timings": {"pynccl": 0.0181, "ca_1stage": 0.0125}, "speedup_info": "ca_1stage (1.45x)"}, "32": {"timings": {"pynccl": 0.0144}}}}`))
	at := func(name string, rows int64, us float64) Peer {
		return Peer{Op: "all_reduce", Name: name, Ranks: 4, Bytes: rows * rowBytes, DType: "bf16", Issued: "graph", Micros: us}
	}
	want := []Peer{at("pynccl", 32, 14.4), at("ca_1stage", 64, 12.5), at("pynccl", 64, 18.1)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{
		`{"world_size": 4, "dtype": "torch.float8", "hidden_size": 8192, "results": {}}`,
		`{"dtype": "torch.bfloat16", "hidden_size": 8192, "results": {}}`,
		`{"world_size": 4, "dtype": "torch.bfloat16", "hidden_size": 8192, "results": {"x": {"timings": {"pynccl": 1}}}}`,
	} {
		if _, err := ReadPeers(strings.NewReader(bad)); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "vLLM") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestLayerPeers wants figures of peers under the layers of their shape.
func TestLayerPeers(t *testing.T) {
	o := tiny("ag-gemm")
	o.Peers = []Peer{{Op: "ag-gemm", Name: "torch fused", Ranks: 2, Shape: "24x20x12", Micros: 1.25}, {Op: "gemm-rs", Name: "other", Ranks: 2, Shape: "24x20x12", Micros: 2}}
	rep, err := Run(context.Background(), "ag-gemm", o)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "\npeers, µs: torch fused 1.2\n") || strings.Contains(b.String(), "other") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if _, err := Run(context.Background(), "p2p", Options{Peers: o.Peers}); !errors.Is(err, ErrUsage) {
		t.Errorf("p2p takes peers: %v", err)
	}
}

// What others take to issue an op stands beside what is measured here.
func TestHostPeers(t *testing.T) {
	peers, err := ReadPeers(strings.NewReader(`{"op": "kernel", "name": "torch", "ranks": 1, "issued": "eager", "us": 5.25, "host_us": 5.1}
{"op": "kernel", "name": "torch", "ranks": 64, "issued": "eager", "us": 7}
{"op": "ag-gemm", "name": "torch fused", "ranks": 1, "shape": "1x1x1", "us": 9}
`))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(context.Background(), "host", Options{Ranks: 2, Rounds: 1, Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := rep.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, " by ") {
			rows = append(rows, strings.Join(strings.Fields(line), " "))
		}
	}
	if want := []string{"kernel by torch eager 1 5100 5250"}; !slices.Equal(rows, want) {
		t.Errorf("%q, not %q in\n%s", rows, want, b.String())
	}
}
