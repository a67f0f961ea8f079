package cuda

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/ir"
)

// TestHostDeclines checks all_reduces that are refused by the algorithms that use host memory.
func TestHostDeclines(t *testing.T) {
	f := fakedriver.New(t, 3)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		team  []int
		shape []int64
		over  bool
		Want  string
	}{
		"fine":     {[]int{0, 1}, []int64{4096}, false, ""},
		"small":    {[]int{0, 1}, []int64{64}, false, "too few to divide"},
		"in place": {[]int{0, 1}, []int64{4096}, true, "lies over the operand"},
		"three":    {[]int{0, 1, 2}, []int64{4 << 20}, true, ""},
		"less":     {[]int{0, 1, 2}, []int64{64 << 10}, false, "too few to divide"},
	} {
		r := newTeamRig(t, w, what, x.team)
		r.place(teamCase{op: ir.OpAllReduce, red: ir.Sum, dt: ir.BF16, shape: x.shape, inPlace: x.over})
		err := r.team.Supports(device.Tuning{Algo: "push-host"}, r.cases[0].collective())
		if (err == nil) != (x.Want == "") || err != nil && !strings.Contains(err.Error(), x.Want) {
			t.Errorf("%s: got %v, want %q", what, err, x.Want)
		}
		err = r.team.Supports(device.Tuning{Algo: "lamport-host"}, r.cases[0].collective())
		if (err == nil) != (x.Want == "") || err != nil && !strings.Contains(err.Error(), x.Want) {
			t.Errorf("%s, by lamport-host: got %v, want %q", what, err, x.Want)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSweepHost measures which part of an all_reduce should be transferred through host memory, and with how many
// thread blocks. The test uses the first number of ranks in reduceSweepWorlds. Like TestSweepAllReduce, it runs only if
// reduceSweep is set.
func TestSweepHost(t *testing.T) {
	worlds, each := sweepRanks(t, 60)
	ranks := worlds[0]
	s := newReduceSweep(t, ranks, false, time.Now())
	shares, grids := []int64{40, 55, 70, 80, 90, 100}, [][2]int64{{2, 4}, {4, 8}, {8, 12}, {8, 16}}
	if ranks > 2 {
		shares, grids = []int64{60, 90, 120, 150, 180, 210}, [][2]int64{{6, 12}, {8, 16}, {12, 24}, {16, 16}}
	}
	until := time.Now().Add(each)
	parts := coll.MeasuredParts()
	s.w.m.opts.hostParts = &parts
	one := func(mib int64, what string, tune device.Tuning) {
		if time.Now().After(until) {
			return
		}
		us, err := s.time(tune, mib<<20)
		fmt.Printf("all_reduce of %d, %2d MiB %-9s %s %dx%d/%d: %.2f %v\n", ranks, mib, tune.Algo, what, tune.Blocks, tune.Threads, tune.Unroll, us, err)
	}
	for _, mib := range []int64{64, 32, 16} {
		for _, b := range []int{112, 132} {
			for _, u := range []int{1, 2, 4} {
				one(mib, "", device.Tuning{Algo: "push", Blocks: b, Threads: 1024, Unroll: u})
			}
		}
		for _, permille := range shares {
			for _, blocks := range grids {
				for _, u := range []int{1, 2, 4} {
					parts.Operands = coll.HostPart{Permille: permille, Writers: blocks[0], Readers: blocks[1]}
					parts.Results = func(int64) coll.HostPart { return parts.Operands }
					one(mib, fmt.Sprintf("%d ‰ by %d and %d", permille, blocks[0], blocks[1]), device.Tuning{Algo: "push-host", Blocks: 132, Threads: 1024, Unroll: u})
				}
			}
		}
	}
}
