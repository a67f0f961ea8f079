package kernels

import (
	"testing"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestReduceScatter checks members that push blocks to the members that reduce them, repeatedly through the same
// staging memory. Some blocks are transferred through host memory.
func TestReduceScatter(t *testing.T) {
	ofTeams(t, []int{2, 3, 4, TeamMost}, testReduceScatter)
}

func testReduceScatter(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := drawn(t, uint64(members), uint64(epoch))
	const packs, slots = 600, 100 + BlocksMost
	shared := AllReduce{FlagHalf: roundTo(int64(members)*slots*4, 16)}
	shared.Flags = b.halves(shared.FlagHalf, staleBefore(epoch))
	var host []nvlib.Ptr
	for range members {
		shared.Data = append(shared.Data, b.alloc(int64(members)*packs*16))
		host = append(host, b.alloc(int64(members)*packs*16))
	}
	var checks []func(int)
	for i := range 8 {
		r := shared
		r.DType, r.Red = []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], ir.Sum+ir.Red(rng.IntN(4))
		r.Unroll, r.Threads, r.Share = 1<<rng.IntN(3), 32*(2+rng.IntN(2)), 1+rng.Int64N(packs)
		chunk := int64(r.Threads * r.Unroll)
		chunks := ceil(r.Share, chunk)
		r.Slots, r.Blocks = chunks+BlocksMost, int(min(1+rng.Int64N(3), chunks))
		if i%2 == 1 {
			by := AllReduceAddends{ByHost: ByHost{Host: host, Split: rng.Int64N(r.Share/chunk+1) * chunk}}
			by.Writers, by.Readers = 1+rng.Int64N(2), 1+rng.Int64N(2)
			r.Blocks += int(by.Writers + by.Readers)
			by.Group = rng.Int64N(4)
			r.By = by
		} else {
			r.By = AllReduceScatter{Group: rng.Int64N(4)}
		}
		checks = append(checks, b.addExact(r, rng, rng.IntN(2) == 0))
	}
	b.runChecks(3, checks)
}
