package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestFewByHost sends some results to the other members through host memory, repeatedly, with and without elements that
// remain after whole tiles.
func TestFewByHost(t *testing.T) {
	ofTeams(t, []int{2, 3, 4}, func(t *testing.T, members int, epoch uint32) {
		b := newTeamBench(t, members, epoch)
		rng := drawn(t, uint64(members), uint64(epoch))
		shared := AllReduce{FlagHalf: roundTo(int64(members)*4*(2*BlocksMost+20), 16)}
		shared.Flags = b.halves(shared.FlagHalf, staleBefore(epoch))
		var host []nvlib.Ptr
		for range members {
			host = append(host, b.alloc(20*SMLimitedTile(64)*16))
		}
		var checks []func(int)
		for range 5 {
			r := shared
			r.DType, r.Red = []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], ir.Sum+ir.Red(rng.IntN(4))
			r.Unroll, r.Threads = 1<<rng.IntN(3), 32*(1+rng.IntN(2))
			by := AllReduceSMLimited{ByHost: ByHost{Host: host}}
			by.Shared = (2 + rng.IntN(7)) * smLimitedStage(members, r.Threads, r.Unroll) // number of stages that fit into a GPU's memory
			blocks, bales := 1+rng.Int64N(3), 1+rng.Int64N(5)                            // number of blocks that reduce, and of tiles of each
			by.Readers, by.Split = 1+rng.Int64N(2), 1+rng.Int64N(bales)
			by.Writers, r.Blocks = max(1, bales/by.Split), int(blocks+by.Readers)
			base, more, each := blocks*bales*SMLimitedTile(r.Threads), rng.Int64N(100), 16/r.DType.Size()
			r.Share = base + more
			r.Count = (int64(members-1)*r.Share+base)*each + rng.Int64N(more*each+1)
			r.By, r.Slots = by, by.Slots(r.Blocks)
			checks = append(checks, b.addExact(r, rng, rng.IntN(2) == 0))
		}
		b.runChecks(2, checks)
	})
}

// TestFewStages reduces more data than all stages hold, with and without elements that remain after whole packs.
func TestFewStages(t *testing.T) {
	t.Parallel()
	for _, members := range []int{2, 5} {
		for _, epoch := range []uint32{FirstEpoch, math.MaxUint32 - 1} {
			if !longtest.On() && (members == 2) != (epoch == FirstEpoch) {
				continue
			}
			b := newTeamBench(t, members, epoch)
			half := int64(members) * 2 * BlocksMost * 4
			flags := b.halves(half, 0)
			rng := rand.New(rand.NewPCG(1, 2))
			var checks []func(int)
			for _, inPlace := range []bool{false, true} {
				c := reduceCase{kind: AllReduceSMLimited{}, dt: ir.BF16, red: ir.Sum, unroll: 1, blocks: 1, threads: 128, inPlace: inPlace,
					count: int64(members)*8*32*70 + 37}
				checks = append(checks, b.addReduce(c, rng, nil, flags, 0, half))
			}
			b.runTeam(2, func(seed int) {
				for _, check := range checks {
					check(seed)
				}
			})
		}
	}
	rng := rand.New(rand.NewPCG(6, 5))
	f := newMoveFloor(t, rng, 2, FirstEpoch)
	for c := range 2 {
		f.call(fmt.Sprint("call ", c), moveShape{kind: ReduceSMLimited, run: 16 * (32*70 + 3), unit: 16, blocks: 1, threads: 64, unroll: 1, dt: ir.BF16, red: ir.Sum}, []uint64{3, 3})
	}
	f.finish(2)
}
