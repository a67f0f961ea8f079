package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestBulk adds up more tiles than all stages hold, none, some and all of them pushed,
// some by way of host memory, with and without elements left that make no tile.
func TestBulk(t *testing.T) {
	for _, members := range []int{2, 3, 5, TeamMost} {
		for _, epoch := range []uint32{FirstEpoch, math.MaxUint32 - 1} {
			b := newTeamBench(t, members, epoch)
			rng := rand.New(rand.NewPCG(uint64(members), 2))
			var cases []reduceCase
			var half, flagHalf int64
			for _, part := range [][2]int64{{0, 0}, {30, 0}, {100, 0}, {0, 20}, {25, 20}} {
				for _, blocks := range []int{1, 3} {
					c := reduceCase{kind: AllReduceBulk, dt: ir.BF16, red: ir.Sum, unroll: 1, blocks: blocks, inPlace: rng.IntN(2) == 0, pushed: part[0], hosted: part[1],
						count: int64(members) * 8 * (BulkTile(1)*int64(10+rng.IntN(12)) + int64(rng.IntN(3)))}
					if rng.IntN(2) == 0 {
						c.dt, c.count = ir.F32, c.count/2-int64(rng.IntN(40))
					}
					cases = append(cases, c)
					r, h := c.size(int64(members))
					half, flagHalf = max(half, h), max(flagHalf, int64(members)*r.Slots*4)
				}
			}
			var data []nvlib.Ptr
			for range members {
				data = append(data, b.alloc(half))
			}
			flagHalf = roundTo(flagHalf, 16)
			flags := b.halves(flagHalf, staleBefore(epoch))
			var checks []func(int)
			for _, c := range cases {
				checks = append(checks, b.addReduce(c, rng, data, flags, half, flagHalf))
			}
			b.runChecks(2, checks)
		}
	}
}

// TestBulkFits wants shared memory to have room for what is launched.
func TestBulkFits(t *testing.T) {
	for members := 2; members <= TeamMost; members++ {
		for _, unroll := range []int{1, 2, 4} {
			if BulkStages(members, unroll) < 2 {
				continue
			}
			m := AllReduce{Kind: AllReduceBulk, DType: ir.BF16, Red: ir.Sum, Unroll: unroll, In: make([]nvlib.Ptr, members)}.Meeting(0)
			if m.Shared > 227<<10 {
				t.Errorf("%d members, unroll %d: %d bytes of shared memory", members, unroll, m.Shared)
			}
		}
	}
}
