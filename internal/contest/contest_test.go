package contest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// TestCheckSees checks that each kind of misplaced or stale element is counted.
func TestCheckSees(t *testing.T) {
	ctx := context.Background()
	c := Call{Op: ir.OpAllGather, Bytes: 64}
	a, err := OpenArena(ctx, cpu.New(cpu.Options{}), 2, []Call{c}, ir.F32, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(nil)
	e, err := a.Enter(c, a.Dispatch, device.Tuning{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Leave()
	for name, tc := range map[string]struct {
		run  func() error
		want int64
	}{
		"right": {func() error { return a.Run(e, 1) }, 0},
		"none":  {func() error { return nil }, 32},
		"one": {func() error {
			if err := a.Run(e, 1); err != nil {
				return err
			}
			return a.Members[1].Stream.Upload(Vector(a.Out[1], 8, ir.F32, 1), []byte{1, 2, 3, 4})
		}, 1},
	} {
		wrong, looked, err := a.Check(ctx, e, tc.run)
		if err != nil || wrong != tc.want || looked != 32 {
			t.Errorf("%s: %d wrong of %d, %v; want %d of 32", name, wrong, looked, err, tc.want)
		}
	}
}

// TestReadVLLMTable reads the tables that vLLM's benchmark prints, in the form in which web pages
// quote them: several tables, under the names of machines.
func TestReadVLLMTable(t *testing.T) {
	const text = `Benchmark results for TP=2
H100

TP=2

All times are in milliseconds (ms) per allreduce operation

==========
Device Communicator Benchmark Results
World Size: 2, Data Type: torch.float16, Hidden Size: 8192
==========
Tensor Shape        Tensor Size    ca_1stage           pynccl              symm_mem_multimem   Best (Speedup vs PyNccl)
-----------
(32, 8192)          0.50 MB        0.007               0.011               N/A                 ca_1stage (1.63x)
(3062, 8192)        47.84 MB       0.188               0.203               0.346               ca_1stage (1.08x)
==========

In the TP=4 case nothing was measured.

TP=8 to be updated

B200
TP=6
Tensor Shape  Tensor Size  pynccl  Best (Speedup vs PyNccl)
(64, 8192)    1.00 MB      0.026   pynccl (1.00x)
`
	got, err := ReadPeers(strings.NewReader(text))
	at := func(machine, name string, ranks int, rows int64, us float64) Peer {
		return Peer{Op: "all_reduce", Name: name, Ranks: ranks, Bytes: rows * 8192 * 2, DType: "f16", Issued: "graph",
			Micros: us, Machine: machine}
	}
	want := []Peer{at("H100", "ca_1stage", 2, 32, 7), at("H100", "pynccl", 2, 32, 11),
		at("H100", "ca_1stage", 2, 3062, 188),
		at("H100", "pynccl", 2, 3062, 203), at("H100", "symm_mem_multimem", 2, 3062, 346),
		at("B200", "pynccl", 6, 64, 26)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if names := PeerMachines(got); len(names) != 2 || names[0] != "H100" || names[1] != "B200" {
		t.Errorf("machines %v", names)
	}
	for bad, want := range map[string]string{
		strings.Replace(text, "B200\nTP=6", "TP=2", 1) + "(32, 8192)  0.50 MB  0.012  pynccl\n": "line 25: a second table has pynccl of the shape (32, 8192) on 2 ranks of H100, as line 14 has",
		strings.Replace(text, "0.026 ", "fast ", 1):                                             `line 25: "fast" is not a time of pynccl`,
		strings.Replace(text, "TP=6\n", "\n",
			1): "line 25: the number of ranks of this table is unknown",
		strings.Replace(text, "torch.float16", "torch.float8", 1): `with type "torch.float8"`,
		strings.Replace(text, "(64, 8192)", "(64, 99999999999999999999)",
			1): "line 25: the shape",
		strings.Replace(text, "Tensor Size    ca_1stage", "ca_1stage", 1): "line 12: the table lacks the column Tensor Size",
		strings.Replace(text, "ca_1stage           pynccl   ", "pynccl   ", 1): "line 14 has 6 cells, but the " +
			"table has 5 columns",
	} {
		if _, err := ReadPeers(strings.NewReader(bad)); !errors.Is(err, ErrUsage) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestMachineIn reads headings as they occur on web pages.
func TestMachineIn(t *testing.T) {
	for line, want := range map[string]string{
		"H100": "H100", "b200": "B200", "## B200": "B200", "**L40S**:": "L40S", "MI300X": "MI300X", "NVIDIA H100 80GB HBM3": "H100",
		"AMD Instinct MI300X": "MI300X", "8x H200": "H200", "8×GB200": "GB200", "RTX 4090": "RTX4090", "H100, TP=4": "H100",
		"RTX PRO 6000": "RTXPRO6000", "DGX H100:": "H100", "A10G": "A10G",
		"TP=8 to be updated": "", "World Size: 2, Data Type: torch.float16, Hidden Size: 8192": "", "bf16": "", "fp8": "", "TP4": "",
		"Rank0": "", "Benchmark results:": "", "We ran it on H100 and B200.": "", "32": "", "CUDA12": "",
	} {
		if got := machineIn(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestReadVLLM reads measurements from a file of vLLM's benchmark.
func TestReadVLLM(t *testing.T) {
	got, err := ReadPeers(strings.NewReader(`{"world_size": 4, "dtype": "torch.bfloat16", "hidden_size": 8192, "num_warmup": 5,
  "results": {"64": {"timings": {"pynccl": 0.0181, "ca_1stage": 0.0125}, "speedup_info": "ca_1stage (1.45x)"}, "32": {"timings": {"pynccl": 0.0144}}}}`))
	at := func(name string, rows int64, us float64) Peer {
		return Peer{Op: "all_reduce", Name: name, Ranks: 4, Bytes: rows * 8192 * 2, DType: "bf16", Issued: "graph",
			Micros: us}
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
		if _, err := ReadPeers(strings.NewReader(bad)); !errors.Is(err, ErrUsage) ||
			!strings.Contains(err.Error(), "vLLM") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
