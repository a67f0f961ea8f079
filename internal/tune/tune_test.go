package tune

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// foundFor looks for the table of a machine for two ranks.
func foundFor(t *testing.T, machine string) comm.Found {
	t.Helper()
	f, err := TableOf(context.Background(), machine, 2)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTune checks that the table has an entry for every op, that worlds find it afterwards, and
// that it is ignored, with a reason, once it is damaged or belongs to another machine.
func TestTune(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	ctx := context.Background()
	if f, err := TableOf(ctx, "cpu", 2); err != nil || f.Table != nil ||
		!strings.Contains(f.Ignored, "has not been tuned") {
		t.Fatalf("before: %+v, %v", f, err)
	}
	var said []string
	file, err := TableFile(foundFor(t, "cpu"), 2)
	if err != nil {
		t.Fatal(err)
	}
	u, err := Tune(ctx, Options{Ranks: 2, Made: "a test", Sizes: []int64{65536, 4096}, File: file,
		Progress: func(s string) { said = append(said, s) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Table.Entries) != len(contest.TunedOps) || !u.Fresh || len(u.Notes) > 0 {
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
	if last < 10*len(comm.Schedules()) || said[0] != "1 of 10: all_reduce of 64 KiB, bf16, on 2 ranks, by staged" ||
		said[1] != "1 of 10: all_reduce of 64 KiB, bf16, on 2 ranks, by two-shot" ||
		said[last] != "10 of 10: broadcast of 4 KiB, bf16, on 2 ranks, by the fastest algorithms, alternately" {
		t.Errorf("said %q", said)
	}
	f, err := TableOf(ctx, "cpu", 2)
	if err != nil || f.From != u.File || f.Table.Hash() != u.Hash || f.Ignored != "" {
		t.Fatalf("after: %+v, %v", f, err)
	}
	rep, err := bench.Run(ctx, "allreduce", bench.Options{Ranks: 2, Rounds: 1, Sizes: []int64{1024}})
	if err != nil || rep.Table.Hash != u.Hash || rep.Collectives[0].Ways[0].By != "table" {
		t.Errorf("a bench uses %+v, %v", rep.Table, err)
	}
	if f, _ := TableOf(ctx, "cpu", 3); f.Table != nil {
		t.Error("a table for 2 ranks is used for 3")
	}
	data, err := os.ReadFile(u.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"cut short", string(data[:len(data)/2]), "not a table of collectives"},
		{"another version", strings.Replace(string(data), `"version": 1`, `"version": 99`, 1), "version 99"},
		{"foreign", strings.Replace(string(data), `"identity": "`, `"identity": "abacus `, 1), "measured on abacus"},
		{"an end that is not", strings.Replace(string(data), `"up_to"`, `"upto"`, 1), "unknown key"},
	} {
		if err := os.WriteFile(u.File, []byte(tc.text), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := TableOf(ctx, "cpu", 2)
		if err != nil || f.Table != nil || !strings.Contains(f.Ignored, tc.want) ||
			!strings.Contains(f.Ignored, filepath.Base(u.File)) {
			t.Errorf("%s: %+v, %v", tc.name, f, err)
		}
	}
}

// TestRanked checks that the tuning with the fewest blocks is preferred among equally fast tunings, and that each
// algorithm is listed once.
func TestRanked(t *testing.T) {
	at := func(name string, blocks int, us float64) timed {
		return timed{comm.Timed{Tuning: device.Tuning{Algo: name, Blocks: blocks}, Micros: us}, true}
	}
	taken := func(u device.Tuning) int {
		if u.Algo == "engines" {
			return 0
		}
		return cmp.Or(u.Blocks, math.MaxInt)
	}
	got := ranked([]timed{at("a", 64, 10), at("b", 0, 30), at("a", 16, 10.1), at("a", 8, 10.5), at("c", 0, 20),
		at("b", 0, 12), at("b", 8, 12.1)}, taken)
	want := []string{"a 16", "b 8", "c 0"}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	if got[0].Blocks != 16 || got[1].Algo != "b" || got[1].Blocks != 8 || got[2].Algo != "c" {
		t.Errorf("%+v, want %v", got, want)
	}
	if got := ranked([]timed{at("a", 4, 10), at("engines", 0, 10.1), at("b", 0, 10)}, taken); got[0].Algo != "engines" {
		t.Errorf("copy engines use no blocks: %+v", got)
	}
	if ranked(nil, taken) != nil {
		t.Error("nothing has a rank")
	}
}

// TestDescend checks that the best launch parameters of each algorithm are found without trying all combinations, that
// refused tunings are skipped, and that other algorithms are left unchanged.
func TestDescend(t *testing.T) {
	cost := func(u device.Tuning) float64 {
		away := func(v, best int) float64 { return math.Abs(math.Log2(float64(max(v, 1)) / float64(best))) }
		return 2 + away(u.Blocks, 32) + away(u.Unroll, 2) + away(u.Threads, 256)
	}
	tried := map[device.Tuning]bool{}
	launched := func(name string) bool { return name == "push" }
	all, err := descend([]timed{
		{comm.Timed{Tuning: device.Tuning{Algo: "push"}, Micros: cost(device.Tuning{})}, true},
		{comm.Timed{Tuning: device.Tuning{Algo: "nccl"}, Micros: 5}, false},
		{comm.Timed{Tuning: device.Tuning{Algo: "push", Blocks: 132}, Micros: 30}, true},
		{comm.Timed{Tuning: device.Tuning{Algo: "staged"}, Micros: 9}, true},
	}, launched, func(list []device.Tuning) (got []timed, err error) {
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
	if best := within(all, 1)[0]; best.Tuning != (device.Tuning{Algo: "push", Blocks: 32, Threads: 256, Unroll: 2}) ||
		best.Micros != 2 {
		t.Errorf("found %+v", best)
	}
	if len(tried) > 21 || len(all) != 4+len(tried)-1 {
		t.Errorf("%d launches were tried, the result has %d", len(tried), len(all))
	}
	bad := errors.New("no more")
	if _, err := descend(all, launched, func([]device.Tuning) ([]timed, error) { return nil, bad }); err != bad {
		t.Error(err)
	}
}

// TestEntryOf checks that size brackets end halfway between measured sizes, that each has a tuning that adds in the
// order of the members, and that the fixed tuning supports all sizes.
func TestEntryOf(t *testing.T) {
	way := func(name string, us float64, ordered bool) timed {
		return timed{comm.Timed{Tuning: device.Tuning{Algo: name, Blocks: 8}, Micros: us}, ordered}
	}
	e := entryOf(kind{ir.OpAllReduce, ir.Sum, ir.BF16, 4}, []measured{
		{call: contest.Call{Op: ir.OpAllReduce, Bytes: 1 << 10},
			best: []timed{way("ll", 2, true), way("push", 5, true)}},
		{call: contest.Call{Op: ir.OpAllReduce, Bytes: 1 << 14},
			best: []timed{way("nccl", 3, false), way("x", 4, false), way("y", 5, false), way("z", 6, false),
				way("push", 7, true)}},
		{call: contest.Call{Op: ir.OpAllReduce, Bytes: 1 << 20},
			best: []timed{way("push", 30, true), way("ll", 60, true)}},
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
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 4,
			Brackets: []comm.Bracket{br(1<<20, "ll"), br(3<<19, "push"), br(0, "nccl")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: 4, Brackets: []comm.Bracket{br(0, "push")}},
		{Op: "all_reduce", Reduction: "minmax", Elem: 2, Members: 4, Brackets: []comm.Bracket{br(0, "push")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2,
			Brackets: []comm.Bracket{br(1<<20, "ll"), br(0, "push")}},
		{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 8, Brackets: []comm.Bracket{br(1<<19, "ll"), guess}},
	}}}
	at := func(name string, bytes int64, us float64) contest.Peer {
		return contest.Peer{Op: "all_reduce", Name: name, Ranks: 4, Bytes: bytes, Issued: "graph", Micros: us}
	}
	ours := []contest.Peer{at("nccl", 1<<20, 18), at("torch two-shot", 1<<20, 13), at("nccl", 4<<20, 18),
		at("torch two-shot", 4<<20, 19)}
	theirs := []contest.Peer{at("pynccl", 1<<20, 18), at("pynccl-symm", 1<<20, 12), at("ca_1stage", 1<<20, 13),
		at("ca_2stage", 1<<20, 11), at("symm_mem_two_shot", 1<<20, 9), at("torch two-shot", 1<<20, 99)}
	for _, c := range []struct {
		peers      []contest.Peer
		want, lack []string
	}{
		{ours, []string{
			"NOT vLLM's",
			"\nCUSTOM_ALL_REDUCE_MAX_SIZES = {\n    \"9.0\": {\n        2: 64 * MiB,  # 64 MiB\n        4: 1536 * KiB,  # 1.5 MiB\n" +
				"        # no figures for 6 ranks: keep vLLM's\n        8: 512 * KiB,  # 512 KiB\n    },\n}\n",
			"Columns named torch are without multicast",
			"\n        4: 2 * MiB,  # 2 MiB; torch two-shot: between 1 MiB and 4 MiB\n",
		}, nil},
		{theirs, []string{
			// On four ranks at 1 MiB, vLLM's custom kernel with two stages takes 11 µs, and symmetric memory 9 µs.
			"\n        4: 1 * MiB,  # 1 MiB; ca_2stage: slower at the smallest measured size\n",
			"\n        4: 1048592,  # 1.0 MiB; symm_mem_two_shot: faster up to the largest measured size, 1 MiB\n",
		}, []string{"NOT vLLM's", "without multicast"}},
		{nil, []string{"NOT vLLM's"}, []string{"SYMM_MEM"}},
	} {
		var b bytes.Buffer
		if err := WriteVLLM(&b, []Figures{{u, c.peers}}); err != nil {
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
		t.Error("a caller that marks a table as shipped modifies it")
	}
	if err := WriteVLLM(&bytes.Buffer{}, []Figures{{Tuned: shipped}}); !errors.Is(err, contest.ErrUsage) ||
		!strings.Contains(err.Error(), "run hocket tune") {
		t.Errorf("a table measured on another machine: %v", err)
	}
	u.Table.Identity = "cpu"
	if err := WriteVLLM(&bytes.Buffer{}, []Figures{{Tuned: u}}); !errors.Is(err, contest.ErrUsage) {
		t.Errorf("a table for CPUs: %v", err)
	}
}

// TestHandOver checks that the limits minimize the product of the times, under vLLM's order of
// kernels.
func TestHandOver(t *testing.T) {
	for _, c := range []struct {
		first, second, nccl []float64
		a, b                int
	}{
		{nil, []float64{6, 4, 6, 7}, []float64{5, 5, 5, 5}, 0, 2},                   // 24·25 against 25·25
		{nil, []float64{8, 4, 6, 7}, []float64{5, 5, 5, 5}, 0, 0},                   // 32 is more than 25
		{[]float64{4, 4}, nil, []float64{5, 5}, 2, 2},                               // the fastest at all sizes
		{[]float64{1, 3, 9}, []float64{2, 2, 2}, []float64{3, 3, 3}, 1, 3},          // the first ends where the second is faster
		{[]float64{2, 2, 9, 9}, []float64{3, 3, 3, 9}, []float64{4, 4, 4, 4}, 2, 3}, // each is used at some sizes
		{[]float64{2, 2}, []float64{2, 2}, []float64{2, 2}, 2, 2},                   // equal products: the larger limits
	} {
		if a, b := handOver(c.first, c.second, c.nccl); a != c.a || b != c.b {
			t.Errorf("%v %v %v: %d and %d, want %d and %d", c.first, c.second, c.nccl, a, b, c.a, c.b)
		}
	}
}

// TestCustomColumn checks the choice of vLLM's custom kernel between one stage and two stages.
func TestCustomColumn(t *testing.T) {
	for _, c := range []struct {
		ranks int
		bytes int64
		want  string
	}{
		{2, 64 << 20, "ca_1stage"}, {4, 512<<10 - 16, "ca_1stage"}, {4, 512 << 10, "ca_2stage"},
		{6, 256<<10 - 16, "ca_1stage"}, {6, 256 << 10, "ca_2stage"}, {8, 256<<10 - 16, "ca_1stage"},
		{8, 300 << 10, "ca_2stage"},
	} {
		if got := customColumn(c.ranks, c.bytes); got != c.want {
			t.Errorf("%d ranks, %d bytes: %s, want %s", c.ranks, c.bytes, got, c.want)
		}
	}
}

// TestExportVLLMTables exports rows of the tables in vLLM's pull request 24111. The expected limits
// are computed by hand: the geometric mean of the sizes between which the order of the times
// changes, rounded down to whole KiB.
func TestExportVLLMTables(t *testing.T) {
	const text = `H100
TP=2
Tensor Shape  Tensor Size  ca_1stage  ca_2stage  pynccl  symm_mem_multimem  symm_mem_two_shot
(64, 8192)    1.00 MB      0.009      0.014      0.017   0.016              0.016
(1024, 8192)  16.00 MB     0.070      0.080      0.087   0.112              0.084
(2048, 8192)  32.00 MB     0.128      0.167      0.150   0.233              0.161
TP=4
Tensor Shape  Tensor Size  ca_1stage  ca_2stage  pynccl  symm_mem_multimem  symm_mem_two_shot
(32, 8192)    0.50 MB      0.010      0.013      0.016   0.013              0.016
(64, 8192)    1.00 MB      0.015      0.016      0.022   0.016              0.018
(96, 8192)    1.50 MB      0.020      0.020      0.025   0.018              0.022
(1024, 8192)  16.00 MB     0.157      0.101      0.114   0.100              0.119
(4096, 8192)  64.00 MB     0.608      0.360      0.341   0.372              0.445
## b200
TP=2
Tensor Shape  Tensor Size  ca_1stage  ca_2stage  pynccl  symm_mem_multimem  symm_mem_two_shot
(128, 8192)   2.00 MB      0.019      0.025      0.019   0.029              0.022
(192, 8192)   3.00 MB      0.026      0.031      0.025   0.038              0.025
(256, 8192)   4.00 MB      0.032      0.038      0.037   0.047              0.029
(1024, 8192)  16.00 MB     0.113      0.119      0.054   0.150              0.072
TP=6
Tensor Shape  Tensor Size  ca_1stage  ca_2stage  pynccl  symm_mem_multimem  symm_mem_two_shot
(32, 8192)    0.50 MB      0.012      0.022      0.025   0.016              0.023
(64, 8192)    1.00 MB      0.017      0.022      0.026   0.018              0.023
`
	peers, err := contest.ReadPeers(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var list []Figures
	for _, m := range []struct{ name, arch string }{{"H100", "sm_90"}, {"B200", "sm_100"}} {
		of := slices.DeleteFunc(slices.Clone(peers), func(p contest.Peer) bool { return p.Machine != m.name })
		list = append(list, Figures{&Tuned{Table: &comm.Table{Identity: m.name + " " + m.arch}}, of})
	}
	var b bytes.Buffer
	if err := WriteVLLM(&b, list); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "unless it is given.\n")
	const want = `CUSTOM_ALL_REDUCE_MAX_SIZES = {
    "9.0": {
        2: 33554448,  # 32.0 MiB; ca_1stage: faster up to the largest measured size, 32 MiB
        4: 1254 * KiB,  # 1.2 MiB; ca_2stage: between 1 MiB and 1.5 MiB
        # no figures for 6 ranks: keep vLLM's
        # no figures for 8 ranks: keep vLLM's
    },
    "10.0": {
        2: 2508 * KiB,  # 2.4 MiB; ca_1stage: between 2 MiB and 3 MiB
        # no figures for 4 ranks: keep vLLM's
        6: 512 * KiB,  # 512 KiB; ca_2stage: slower at the smallest measured size
        # no figures for 8 ranks: keep vLLM's
    },
}

# Below these sizes, and from the limits above, vLLM runs torch's symmetric memory: up to where NCCL is the faster.
SYMM_MEM_ALL_REDUCE_MAX_SIZES = {
    "9.0": {
        2: 23170 * KiB,  # 22.6 MiB; symm_mem_two_shot: between 16 MiB and 32 MiB
        4: 32 * MiB,  # 32 MiB; symm_mem_multimem: between 16 MiB and 64 MiB
        # no figures for 6 ranks: keep vLLM's
        # no figures for 8 ranks: keep vLLM's
    },
    "10.0": {
        2: 8 * MiB,  # 8 MiB; symm_mem_two_shot: between 4 MiB and 16 MiB
        # no figures for 4 ranks: keep vLLM's
        6: 1048592,  # 1.0 MiB; symm_mem_multimem: faster up to the largest measured size, 1 MiB
        # no figures for 8 ranks: keep vLLM's
    },
}
`
	if diff := godiff.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, b.String())
	}
	list[1].Tuned.Table.Identity = "H200 sm_90"
	if err := WriteVLLM(&b, list); !errors.Is(err, contest.ErrUsage) || !strings.Contains(err.Error(), `the key "9.0"`) {
		t.Errorf("two machines with the same compute capability: %v", err)
	}
}

// TestSizesOfManyRanks checks that a quick tuning of many ranks on the CPU omits sizes that would take minutes.
func TestSizesOfManyRanks(t *testing.T) {
	for ranks, want := range map[int]int{2: 3, 16: 3, 40: 2, 100: 1, 256: 1} {
		u := newTuner(Options{Ranks: ranks}, cpu.New(cpu.Options{}))
		if got := u.sizes(kind{op: ir.OpAllReduce, dt: ir.BF16, members: ranks}); len(got) != want {
			t.Errorf("%d ranks: sizes %v, want %d", ranks, got, want)
		}
	}
}
