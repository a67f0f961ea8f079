package bench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestCollectivesAreRight checks that every algorithm of every collective has the right results, with operands in the
// cache and not in the cache, and with sizes that the number of ranks does not divide.
func TestCollectivesAreRight(t *testing.T) {
	for _, b := range benches() {
		if !b.comm {
			continue
		}
		for _, dt := range []ir.DType{ir.BF16, ir.F32, ir.I32} {
			o := Options{Ranks: 3, Rounds: 1, Algorithms: []string{"all"}, DType: dt, Sizes: []int64{12, 4000, 300_004},
				Cold: dt == ir.F32}
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
						t.Errorf("%s %s of %d bytes by %s: %d wrong of %d, %v µs", b.name, dt, row.Bytes, w.Algorithm,
							w.Wrong, w.Checked, w.Best())
					}
				}
			}
		}
	}
}

// someReport returns a report with fixed times.
func someReport() *Report {
	f := func(v float64) *contest.Figure { return &contest.Figure{Median: v, Spread: 0.1} }
	way := func(name, by string, us float64) contest.Way {
		return contest.Way{Algorithm: name, Tuning: device.Tuning{Algo: name, Blocks: 24, Threads: 512}, By: by, Library: name == "nccl",
			Graph: f(us), Eager: f(us + 3), Checked: 10}
	}
	return &Report{Bench: "allreduce", Machine: "cuda", Ranks: 4, Method: []string{"by hand"}, Wire: f(396),
		Table: &TableUse{From: "shipped", Hash: "0123456789ab"},
		Collectives: []Collective{
			{Op: "all_reduce", DType: "bf16", Bytes: 32 * rowBytes, Bound: 2,
				Ways: []contest.Way{way("pull-push", "table", 8.2), way("nccl", "asked", 14.4),
					{Algorithm: "magic", Refused: "no wand"}},
				Peers: map[string]float64{"torch two-shot": 9.84}},
			{Op: "all_reduce", DType: "bf16", Bytes: 64 * rowBytes, Bound: 4,
				Ways: []contest.Way{way("pull-push", "table", 20), way("nccl", "asked", 18.1)}},
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
	// vLLM's own times of NCCL keep their name. Times of eager calls are omitted, and without times of NCCL there is no
	// speedup.
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
	if err := (&Report{}).WriteVLLM(&b); !errors.Is(err, contest.ErrUsage) {
		t.Errorf("a report without collectives: %v", err)
	}
}

func TestCollectiveText(t *testing.T) {
	var b bytes.Buffer
	if err := someReport().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- table: shipped, hash 0123456789ab; * marks the algorithm that it chooses\n",
		"  512 KiB  pull-push 24×512 *   8.20 ±0.10  11.20 ±0.10  0.00  63.9       2.0     4.10       1.76      0               9.84\n",
		"nccl 24×512  14.40 ±0.10  17.40 ±0.10  0.00  36.4       2.0     7.20                 0                   \n",
		"chosen algorithm compared with the fastest other one: geometric mean 1.04×, faster at 1 of 2 sizes\n",
		"512 KiB by magic: no wand\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

// TestLayerPeers checks that the times of other programs are shown below the layers of the same shape.
func TestLayerPeers(t *testing.T) {
	o := tiny("ag-gemm")
	o.Peers = []contest.Peer{{Op: "ag-gemm", Name: "torch fused", Ranks: 2, Shape: "24x20x12", Micros: 1.25},
		{Op: "gemm-rs", Name: "other", Ranks: 2, Shape: "24x20x12", Micros: 2}}
	rep, err := Run(context.Background(), "ag-gemm", o)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "\npeers, µs: torch fused 1.2\n") ||
		strings.Contains(b.String(), "other") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestLackPeers checks that a report has a note if the measurements of other programs have other numbers of ranks,
// sizes or ops.
func TestLackPeers(t *testing.T) {
	of := func(op string, ranks int, bytes int64) contest.Peer {
		return contest.Peer{Op: op, Name: "pynccl", Ranks: ranks, Bytes: bytes, Micros: 1}
	}
	for _, c := range []struct {
		peers []contest.Peer
		want  []string
	}{
		{nil, nil},
		{[]contest.Peer{of("all_reduce", 2, 1<<20), of("all_reduce", 4, 1<<20)}, nil},
		{[]contest.Peer{of("all_reduce", 2, 1<<20), of("all_reduce", 8, 1<<20), of("all_gather", 4, 1<<20)},
			[]string{"peers: there are no measurements of all_reduce on 4 ranks, but on 2, 8"}},
		{[]contest.Peer{of("all_reduce", 4, 1<<10)}, []string{"peers: there are no measurements of all_reduce " +
			"with these sizes on 4 ranks"}},
		{[]contest.Peer{of("all_gather", 4, 1<<20)}, []string{"peers: there are no measurements of all_reduce"}},
	} {
		j := &job{Options: Options{Ranks: 4, Peers: c.peers}, report: &Report{}}
		j.lackPeers("all_reduce", []int64{1 << 20})
		if !slices.Equal(j.report.Method, c.want) {
			t.Errorf("%v: %q, want %q", c.peers, j.report.Method, c.want)
		}
	}
}
