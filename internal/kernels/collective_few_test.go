package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/nvlib"
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
	testFewShare(t)
	rng := rand.New(rand.NewPCG(6, 5))
	f := newMoveFloor(t, rng, 2, FirstEpoch)
	for c := range 2 {
		f.call(fmt.Sprint("call ", c), moveShape{kind: ReduceFew, run: 16 * (32*70 + 3), unit: 16, blocks: 1, threads: 64, unroll: 1, dt: ir.BF16, red: ir.Sum}, []uint64{3, 3})
	}
	f.finish(2)
}

// testFewShare has each member add up what is there for it alone, and leave the
// rest as it is; the last one's share ends within a pack.
func testFewShare(t *testing.T) {
	const members, share, last = 3, 160, 37
	b := newTeamBench(t, members, FirstEpoch)
	half := int64(members) * 2 * BlocksMost * 4
	flags := b.halves(half, 0)
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), 0 }}
	const count = 2*share + last
	var ins [][]float64
	var in, out []Operand
	for m := range members {
		vals := make([]float64, count)
		for i := range vals {
			vals[i] = float64(m*100 + i%50)
		}
		ins, in, out = append(ins, vals), append(in, b.put(ir.F16, lay, vals, count)), append(out, b.room(ir.F16, lay, count))
	}
	for m := range members {
		r := AllReduce{Kind: ReduceShare, DType: ir.F16, Red: ir.Max, Unroll: 1, Blocks: 2, Threads: 32, Count: share, Share: share / 8, Slots: 2 * BlocksMost, Flags: flags, FlagHalf: half}
		if m == members-1 {
			r.Count = last
		}
		for q := range members {
			at := nvlib.Ptr(2 * share * m)
			r.In, r.Out = append(r.In, in[q].Addr+at), append(r.Out, out[q].Addr+at)
		}
		b.launch(m, r.Meeting(m))
	}
	untouched := b.vals(out[0])[0]
	b.runTeam(3, func(seed int) {
		for m := range members {
			for i, got := range b.vals(out[m]) {
				want := untouched
				if i/share == m {
					want = ins[members-1][i]
				}
				if math.Float64bits(got) != math.Float64bits(want) {
					t.Fatalf("seed %d, member %d, element %d: got %v, want %v", seed, m, i, got, want)
				}
			}
		}
	})
}
