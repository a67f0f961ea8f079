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

// TestCheckSees wants each kind of misplaced or stale element to be counted.
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

// TestReadVLLM reads a file of vLLM's benchmark as figures of peers.
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
