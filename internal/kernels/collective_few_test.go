package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/ir"
)

// TestFewStages adds up more than all stages hold, with and without elements left
// that make no pack.
func TestFewStages(t *testing.T) {
	for _, members := range []int{2, 5} {
		for _, epoch := range []uint32{FirstEpoch, math.MaxUint32 - 1} {
			b := newTeamBench(t, members, epoch)
			half := int64(members) * 2 * BlocksMost * 4
			flags := b.halves(half, 0)
			rng := rand.New(rand.NewPCG(1, 2))
			var checks []func(int)
			for _, inPlace := range []bool{false, true} {
				c := reduceCase{kind: AllReduceFew, dt: ir.BF16, red: ir.Sum, unroll: 1, blocks: 1, threads: 128, inPlace: inPlace,
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
		f.call(fmt.Sprint("call ", c), moveShape{kind: ReduceFew, run: 16 * (32*70 + 3), unit: 16, blocks: 1, threads: 64, unroll: 1, dt: ir.BF16, red: ir.Sum}, []uint64{3, 3})
	}
	f.finish(2)
}
