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
	for members, epochs := range map[int][]uint32{2: {FirstEpoch, math.MaxUint32 - 1}, 3: {FirstEpoch}, TeamMost: {FirstEpoch}} {
		for _, epoch := range epochs {
			testBulk(t, members, epoch)
		}
	}
}

func testBulk(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := rand.New(rand.NewPCG(uint64(members), 2))
	cases := []reduceCase{{blocks: 1}, {blocks: 1, pushed: 100}, {blocks: 1, pushed: 30, hosted: 20}, {blocks: 2, pushed: 20, hosted: 30}}
	var half, flagHalf int64
	for i := range cases {
		c := &cases[i]
		c.kind, c.dt, c.red, c.unroll, c.inPlace = AllReduceBulk, ir.BF16, ir.Sum, 1, rng.IntN(2) == 0
		c.count = int64(members) * 8 * (BulkTile(1)*int64(10+rng.IntN(3)) + int64(rng.IntN(3)))
		if i%2 == 0 {
			c.dt, c.count = ir.F32, c.count/2-int64(rng.IntN(40))
		}
		r, h := c.size(int64(members))
		half, flagHalf = max(half, h), max(flagHalf, int64(members)*r.Slots*4)
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
