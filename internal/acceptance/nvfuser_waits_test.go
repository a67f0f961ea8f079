package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
)

// printedWait matches a Wait or Synchronize of a dump.
var printedWait = regexp.MustCompile(`(Wait|Synchronize)[ (]+[^\n]*\)?`)

// TestDumpsNeedTheirWaits removes each single Wait or Synchronize from the dumps. The checker must refute the dump
// without it, unless the wait is redundant. Without a redundant wait the results must be right under many schedules.
func TestDumpsNeedTheirWaits(t *testing.T) {
	schedules := longtest.Of(100, 1000)
	if testing.Short() {
		schedules = 20
	}
	seen, redundant := map[string]bool{}, 0
	for _, c := range append(slices.Clone(dumpCases), repaired()) {
		if seen[c.file] || c.races {
			continue
		}
		seen[c.file] = true
		src := resized(corpus(t, c.file), c.extents)
		if c.edit != nil {
			src, c.edit = c.edit(src), nil
		}
		for _, at := range printedWait.FindAllStringIndex(src, -1) {
			line := 1 + strings.Count(src[:at[0]], "\n")
			name := fmt.Sprintf("%s, line %d: %s", c.file, line, src[at[0]:at[1]])
			p, _, err := hocket.Import(c.file, src[:at[0]]+src[at[1]:], c.defines)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			v, err := hocket.Check(p, hocket.Binding{Dims: c.dims})
			if err != nil {
				t.Fatal(err)
			}
			if v.Kind == hocket.Refuted {
				if len(v.Diagnostics) == 0 || len(v.Diagnostics[0].Notes) == 0 {
					t.Errorf("%s: refuted without a counterexample: %s", name, v.Diagnostics)
				}
				continue
			}
			redundant++
			t.Logf("%s: %v without it", name, v.Kind)
			without := c
			without.parsed = p
			model, batch, want := without.load(t, 2)
			err = model.Explore(context.Background(), batch,
				hocket.ExploreOptions{Schedules: schedules, Seed: 1 + int64(longtest.Seed(t)%1e9)},
				func(seed int64, reports []*hocket.Report) error {
					for i, r := range reports {
						if why := wrong(r, want[i]); why != "" {
							return fmt.Errorf("schedule %d, run %d: %s", seed, i, why)
						}
					}
					return nil
				})
			if err != nil {
				t.Errorf("%s: %v without it, and %v", name, v.Kind, err)
			}
		}
	}
	if redundant > 3 {
		t.Errorf("%d waits are not needed", redundant)
	}
}

// TestWaitsJoin checks programs that use the tensors of a communication before its Wait, on any path through the
// program. The programs must be refuted, at the line that posts the communication.
func TestWaitsJoin(t *testing.T) {
	m := " (DeviceMesh{0 1})"
	t0, t1, t2 := "T0_g_float[iS0{4}]"+m, "T1_g_float[iS1{4}]"+m, "T2_g_float[iS2{4}]"+m
	t3 := "T3_g_float[iS3{4}]" + m
	sum := "  Communication 3 (type=Allreduce, team=(0 1), input=" + t0 + ", output=" + t1 + ")\n"
	again := strings.NewReplacer("Communication 3", "Communication 4", t1, t2).Replace(sum)
	ucc := strings.Replace(sum, "output="+t1, "output="+t1+", backend=UCC", 1)
	share := "  " + t1 + " = ALLOCATE(buffer=" + t1 +
		", mem_type=global, size=4, zero_init=false, resets_to_zero=false)\n" +
		"  ShareMemHandles(P2PCommunication 5 (type=send, buffer=" + t0 + ", peer=( 1 - rank ), backend=CUDA), " +
		"P2PCommunication 6 (type=recv, buffer=" + t1 + ", peer=( 1 - rank ), backend=CUDA),\n"
	swap := func(backend string) string {
		return "  P2PCommunication 5 (type=send, buffer=" + t0 + ", peer=( 1 - rank ), backend=" + backend +
			")\n  P2PCommunication 6 (type=recv, buffer=" + t1 + ", peer=( 1 - rank ), backend=" + backend + ")\n"
	}
	put := func() string {
		lines := strings.SplitAfter(swap("CUDA"), "\n")
		return lines[1] + lines[0]
	}()
	other := strings.NewReplacer("nication 5", "nication 7", "nication 6", "nication 8", t1, t3).Replace
	wait, use := "  Wait(Communication 3)\n", "  "+t2+" = "+t1+" + double(1)\n"
	waits := func(ids ...int) (text string) {
		for _, id := range ids {
			text += fmt.Sprintf("  Wait(Communication %d)\n", id)
		}
		return text
	}
	coalesced := "  StartCoalescing\n" + swap("NCCL") + "  EndCoalescing 9\n"
	for _, c := range []struct {
		body string
		want hocket.VerdictKind
		line int32 // of the first finding
	}{
		{sum + wait + use, hocket.Proved, 0},
		{ucc + wait + use, hocket.Proved, 0},
		{sum + use, hocket.Refuted, 2},
		{ucc + use, hocket.Refuted, 2},
		{sum + use + wait, hocket.Refuted, 2},
		{"  " + t1 + " = Set( " + t0 + " )\n" + sum + "  " + t1 + " = Set( " + t0 + " )\n" + wait + use, hocket.Refuted,
			3},
		{sum + "  IF Manual ( rank == 0 ):\n  " + wait + use, hocket.Refuted, 2},
		{sum + "  IF Manual ( rank == 0 ):\n  " + wait + "  ELSE:\n  " + wait + use, hocket.Proved, 0},
		{"  IF Manual ( rank == 0 ):\n  " + sum + "  ELSE:\n  " + sum + "  IF Manual ( rank == 0 ):\n  " + wait + use,
			hocket.Refuted, 5},
		// One communicator's stream is in order, so the Wait of a later communication covers
		// earlier ones.
		{sum + again + waits(4) + use, hocket.Proved, 0},
		{sum + again + waits(3) + use, hocket.Refuted, 3},
		{share + swap("CUDA") + waits(5, 6) + use, hocket.Proved, 0},
		// With get the receiver copies; with put the sender copies.
		{share + swap("CUDA") + waits(5) + use, hocket.Proved, 0},
		{share + swap("CUDA") + waits(6) + use, hocket.Refuted, 4},
		{share + put + waits(6) + use, hocket.Proved, 0},
		{share + put + waits(5) + use, hocket.Refuted, 4},
		// A send only publishes that its buffer is ready. A send does not wait for an earlier send, and its Wait covers
		// only its own copy. The buffer of the first send may therefore still be read when the caller overwrites it.
		{share + other(share) + swap("CUDA") + other(swap("CUDA")) + waits(5, 6, 7, 8) + use, hocket.Proved, 0},
		{share + other(share) + swap("CUDA") + other(swap("CUDA")) + waits(6, 7, 8) + use, hocket.Refuted, 6},
		{coalesced + waits(9) + use, hocket.Proved, 0},
		{coalesced + use, hocket.Refuted, 3},
		// Two ranks that both send first on the stream of their pair deadlock.
		{swap("NCCL") + waits(5, 6) + use, hocket.Refuted, 4},
	} {
		src := "%HostIrContainer { (" + t0 + ") -> (" + t2 + ") :\n" + c.body + "}\n"
		p, err := hocket.Parse("d.txt", src)
		if err != nil {
			t.Errorf("%v\n%s", err, src)
			continue
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if err != nil {
			t.Fatal(err)
		}
		at := int32(0)
		if v.Kind == hocket.Refuted {
			at = v.Diagnostics[0].Pos.Line
		}
		if v.Kind != c.want || at != c.line {
			t.Errorf("%v at line %d, want %v at %d:\n%s\n%s", v.Kind, at, c.want, c.line, src, v.Diagnostics)
		}
	}
}

// TestPastedDumps checks that two dumps run in the form in which web pages show them. One dump lost its indentation,
// and the other lacks the definitions of three indices.
func TestPastedDumps(t *testing.T) {
	for _, c := range []struct {
		dumpCase
		said string
	}{
		{dumpCase{file: "nvfuser-5751-stream-parallelize-loops.txt", dims: map[string]int64{"i0": 18},
			want: rowParallel}, "the dump has lost its indentation"},
		{dumpCase{file: "nvfuser-5325-ipc-handle-exchange.txt",
			extents: with(map[int]int{17: 3, 18: 5, 19: 3, 20: 7, 21: 5}), want: linearAll},
			"only these fit and are used: --define 'i84=(rank+streamIdx)%8' --define 'i90=(8+(rank-streamIdx))%8' " +
				"--define 'i107=(rank+streamIdx)%8'"},
	} {
		t.Run(c.file, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(root, "..", "shared", "sources", c.file))
			if errors.Is(err, os.ErrNotExist) {
				t.Skipf("the source documents are not here: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			const end = "} // %HostIrContainer\n"
			from := strings.Index(string(page), "%HostIrContainer {")
			from = strings.LastIndex(string(page[:from]), "\n") + 1
			paste, _, found := strings.Cut(string(page[from:]), end)
			if !found {
				t.Fatal("the document has no program")
			}
			p, err := hocket.Parse("paste.txt", paste+end)
			if err != nil {
				t.Fatal(err)
			}
			if said := p.Warnings().String(); !strings.Contains(said, c.said) {
				t.Errorf("the notes do not mention %q:\n%s", c.said, said)
			}
			v, err := hocket.Check(p, hocket.Binding{Dims: c.dims})
			if err != nil || v.Kind != hocket.Proved {
				t.Errorf("%v, %v\n%s", v.Kind, err, v.Diagnostics)
			}
			printed := dumpCase{parsed: p, dims: c.dims, want: func(map[string]tens) tens { return tens{} }}
			model, batch, _ := printed.load(t, 1)
			if _, err := model.RunBatch(context.Background(), batch); err != nil {
				t.Error(err)
			}
			// The results of this dump are compared with smaller extents.
			if c.parsed, err = hocket.Parse("paste.txt", resized(paste+end, c.extents)); err != nil {
				t.Fatal(err)
			}
			c.run(t, 2, 5)
		})
	}
}

// TestDumpsInLogs checks that every published dump has the same result if it is alone, within the log of a job, or in a
// file with all other dumps.
func TestDumpsInLogs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusDir(), "*.txt"))
	if err != nil || len(files) == 0 {
		t.Skip("the dumps are not here; HOCKET_CORPUS names their folder")
	}
	tagged := func(tag, text string) string {
		var b strings.Builder
		for l := range strings.Lines(text) {
			b.WriteString(tag + l)
		}
		return b.String()
	}
	lineComment := regexp.MustCompile(`(?m) *//.*$`)
	// said returns the text of the program that a dump is converted to, or the error without positions.
	said := func(name, src string, defines map[string]string) string {
		p, _, err := hocket.Import(name, src, defines)
		var ds hocket.Diagnostics
		if errors.As(err, &ds) {
			return ds[0].Message
		}
		return lineComment.ReplaceAllString(p.String(), "")
	}
	all, want := "", []string{}
	for _, file := range files {
		name := filepath.Base(file)
		dump := strings.TrimRight(corpus(t, name), "\n") + "\n"
		clean := said("log", dump, nil)
		for _, log := range []string{
			"$ pytest -vs\ntests/python/test_overlap.py::test_it " + dump + "PASSED\n===== 1 passed in 2.10s =====\n",
			"starts\n" + tagged("[1,0]<stdout>:", dump) + tagged("[1,1]<stdout>:", dump) + "ends\n",
			"# The host program\n\n```\n" + dump + "```\nand again:\n```\n" + dump + "```\n",
		} {
			if got := said("log", log, nil); got != clean {
				t.Errorf("%s: got\n%s\nwant\n%s", name, got, clean)
			}
		}
		all += "Test " + name + "\n" + dump + "done\n\n"
		want = append(want, clean)
	}
	for i := range want {
		if got := said("log", all, map[string]string{"dump": strconv.Itoa(i + 1)}); got != want[i] {
			t.Errorf("dump %d of all, %s: got\n%s\nwant\n%s", i+1, files[i], got, want[i])
		}
	}
}

// TestDisabledRing reads the program of the test that nvFuser's pull request 5325 disabled, in the form in which it
// would be printed. With the get protocol, a rank copies the next slice on one stream and sends it on the next stream,
// which does not wait for the copy: with get, the Wait of a recv does nothing. If send and receive are posted in the
// opposite order, as for put, the same program is proved and has the right result.
func TestDisabledRing(t *testing.T) {
	read := func(name string) *hocket.Program {
		src, err := os.ReadFile(filepath.Join(root, "examples", name))
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := hocket.Import(name, string(src), map[string]string{"allocation_cache": "1"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	v, err := hocket.Check(read("host_ir_ring_get.txt"), hocket.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Kind != hocket.Refuted || v.Diagnostics[0].Pos.Line != 35 ||
		!strings.Contains(v.Diagnostics[0].Message,
			"recv (rank 0 %worker[0], iteration 0.0) and send (rank 0 %cuda_p2p40[1], iteration 0.1)") {
		t.Errorf("%v\n%s", v.Kind, v.Diagnostics)
	}
	put := read("host_ir_ring_put.txt")
	if v, err = hocket.Check(put, hocket.Binding{}); err != nil || v.Kind != hocket.Proved {
		t.Fatalf("%v, %v\n%s", v.Kind, err, v.Diagnostics)
	}
	dumpCase{file: "host_ir_ring_put.txt", parsed: put, want: func(in map[string]tens) tens {
		x, w := in["T0"], in["T1"]
		out := newTens(4, 2, 6, 14)
		each(out, func(ix []int64) float64 {
			sum := 0.0
			for k := range int64(10) {
				sum += x.at(ix[0], ix[1], ix[2], k) * w.at(k, ix[3])
			}
			return sum
		})
		return out
	}}.run(t, 2, 5)
}

// TestDumpsOfHistory reads the dumps of NVIDIA/Fuser's commit messages, threads and tests, in one file with the
// surrounding text. All dumps must be found. 30 of the dumps can be read, and are proved, or refuted for faults of
// their programs. The other dumps are refused with a position and a suggestion.
func TestDumpsOfHistory(t *testing.T) {
	log := corpus(t, "history.log")
	_, _, err := hocket.Import("history.log", log, nil)
	var ds hocket.Diagnostics
	if !errors.As(err, &ds) {
		t.Fatal(err)
	}
	found, read := len(ds[0].Notes), 0
	if found < 45 {
		t.Errorf("%d dumps are found", found)
	}
	for n := 1; n <= found; n++ {
		p, _, err := hocket.Import("history.log", log, map[string]string{"dump": strconv.Itoa(n)})
		if errors.As(err, &ds) {
			if d := ds[0]; !d.Pos.Valid() || d.Help == "" {
				t.Errorf("dump %d is refused without a position or a suggestion: %s", n, ds)
			}
			continue
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if errors.As(err, &ds) { // its extents are symbols
			dims := map[string]int64{}
			for _, name := range regexp.MustCompile(`\bi\d+\b`).FindAllString(ds[0].Message, -1) {
				dims[name] = 8
			}
			v, err = hocket.Check(p, hocket.Binding{Dims: dims})
		}
		if err != nil || v.Kind != hocket.Proved && v.Kind != hocket.Refuted {
			t.Errorf("dump %d: %v, %v", n, v, err)
			continue
		}
		read++
	}
	if read < 30 {
		t.Errorf("%d of %d dumps are read", read, found)
	}
}
