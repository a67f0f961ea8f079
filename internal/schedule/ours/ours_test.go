package ours

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/ir"
)

// TestPlans checks every collective by every schedule. Either its plan is proved, also for two launches, without a
// warning, and computes correct results on data, or there is an error that explains why there is no plan.
func TestPlans(t *testing.T) {
	written := map[ir.Op]int{}
	for op := range names {
		for _, algorithm := range append([]string{""}, comm.Schedules()...) {
			for _, ranks := range []int{2, 3, 4, 8}[:longtest.Of(3, 4)] {
				f, err := Plan(op, ranks, algorithm)
				if err != nil {
					t.Logf("%s of %d by %q: %v", op, ranks, algorithm, err)
					continue
				}
				written[op]++
				text, err := f.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if f, err = mscclpp.Parse(text); err != nil {
					t.Fatal(err)
				}
				loads(t, f)
				p, err := f.Plan()
				if err != nil {
					t.Fatalf("%s of %d by %q: %v", op, ranks, algorithm, err)
				}
				for launches := 1; launches <= 2; launches++ {
					if r := schedule.Check(p, schedule.Options{Launches: launches}); r.Verdict != schedule.OK || len(r.Warnings)+len(r.Notes) > 0 {
						t.Errorf("%s of %d by %q, %d launches: %s %v %v %v", op, ranks, algorithm, launches, r.Verdict, r.Findings,
							r.Warnings, r.Notes)
					}
				}
				in := schedule.Inputs(p, 4, 1)
				for seed := range uint64(5) {
					got, err := schedule.Run(t.Context(), p, in, 4, seed)
					if err != nil {
						t.Fatal(err)
					}
					if d := schedule.Differ(p, got.Memory, in); d != nil {
						t.Errorf("%s of %d by %q: %s", op, ranks, algorithm, d)
					}
				}
			}
		}
	}
	for op := range names {
		if written[op] < 3 {
			t.Errorf("%s: %d plans", op, written[op])
		}
	}
}

// loads checks the requirements of MSCCL++'s loader and executor (execution_plan.cc at 1f5f065d): ids in order, chunks
// of the same size on both sides, only existing channels and buffers, at most 64 operations, at most 16 channels, and
// known buffer types.
func loads(t *testing.T, f *mscclpp.File) {
	t.Helper()
	for r := range f.GPUs {
		g := &f.GPUs[r]
		if *g.ID != r || *g.InputChunks < 1 || *g.OutputChunks < 1 || f.Name == "" || f.Collective == "" || f.Protocol != "Simple" {
			t.Errorf("rank %d: %+v", r, g)
		}
		channels, remote := g.Channels[0].ConnectedTo, g.RemoteBuffers
		for i := range g.Threadblocks {
			tb := &g.Threadblocks[i]
			if *tb.ID != i || len(tb.Ops) > 64 || len(tb.Channels[0].IDs) > 16 {
				t.Errorf("rank %d, block %d: %d operations, %d channels", r, *tb.ID, len(tb.Ops), len(tb.Channels[0].IDs))
			}
			for _, o := range tb.Ops {
				if !slices.Contains([]string{"nop", "put", "get", "copy", "signal", "wait", "rlxsignal", "rlxwait", "re", "rre"}, o.Name) {
					t.Errorf("operation %q", o.Name)
				}
				for _, c := range o.ChannelIDs {
					if c < 0 || c >= len(channels) {
						t.Errorf("channel %d of %d", c, len(channels))
					}
				}
				for _, c := range slices.Concat(o.Src, o.Dst) {
					if c.Buffer != nil && *c.Buffer >= len(remote) || c.Buffer == nil && c.Type != "i" && c.Type != "o" && c.Type != "s" ||
						*c.Size < 1 {
						t.Errorf("operand %+v", c)
					}
				}
			}
		}
	}
}
