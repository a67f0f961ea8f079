package tune

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// foundFor looks for a table of a machine with two ranks.
func foundFor(t *testing.T, machine string) comm.Found {
	t.Helper()
	f, err := TableOf(context.Background(), machine, 2)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTune wants a table that says something of every op, that worlds find
// afterwards, and that is passed over with a reason once it is broken or foreign.
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
		said[last] != "10 of 10: broadcast of 4 KiB, bf16, on 2 ranks, by those in front, in turns" {
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
		t.Error("a table for 2 ranks serves 3")
	}
	data, err := os.ReadFile(u.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"cut short", string(data[:len(data)/2]), "not a table of collectives"},
		{"another version", strings.Replace(string(data), `"version": 1`, `"version": 99`, 1), "version 99"},
		{"foreign", strings.Replace(string(data), `"identity": "`, `"identity": "abacus `, 1), "made on abacus"},
		{"an end that is not", strings.Replace(string(data), `"up_to"`, `"upto"`, 1), "unknown field"},
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

// TestRanked wants the fewest blocks among those alike, and each algorithm once.
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
		t.Errorf("copy engines take no blocks: %+v", got)
	}
	if ranked(nil, taken) != nil {
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
		t.Errorf("%d launches were tried, %d are in the result", len(tried), len(all))
	}
	bad := errors.New("no more")
	if _, err := descend(all, launched, func([]device.Tuning) ([]timed, error) { return nil, bad }); err != bad {
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
	if err := shipped.WriteVLLM(&bytes.Buffer{}, nil); !errors.Is(err, contest.ErrUsage) ||
		!strings.Contains(err.Error(), "run hocket tune") {
		t.Errorf("a table that was measured elsewhere: %v", err)
	}
	u.Table.Identity = "cpu"
	if err := u.WriteVLLM(&bytes.Buffer{}, nil); !errors.Is(err, contest.ErrUsage) {
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

// TestSizesOfManyRanks: a quick tuning of many ranks that share the host leaves out what would
// Take it minutes.
func TestSizesOfManyRanks(t *testing.T) {
	for ranks, want := range map[int]int{2: 3, 16: 3, 40: 2, 100: 1, 256: 1} {
		u := newTuner(Options{Ranks: ranks}, cpu.New(cpu.Options{}))
		if got := u.sizes(kind{op: ir.OpAllReduce, dt: ir.BF16, members: ranks}); len(got) != want {
			t.Errorf("%d ranks: sizes %v, want %d", ranks, got, want)
		}
	}
}
