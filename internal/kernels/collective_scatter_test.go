package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestReduceScatter has members push blocks to those that add them up, again and
// again through the same staging memory.
func TestReduceScatter(t *testing.T) {
	for _, members := range []int{2, 3, 4, TeamMost} {
		for _, epoch := range []uint32{FirstEpoch, math.MaxUint32 - 3} {
			t.Run(fmt.Sprintf("members=%d,epoch=%#x", members, epoch), func(t *testing.T) {
				t.Parallel()
				testReduceScatter(t, members, epoch)
			})
		}
	}
}

func testReduceScatter(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := rand.New(rand.NewPCG(uint64(members), uint64(epoch)))
	const packs, slots = 600, 100 + BlocksMost
	stale := uint32(0)
	if epoch != FirstEpoch {
		stale = 3
	}
	shared := AllReduce{Kind: AllReduceScatter, FlagHalf: roundTo(int64(members)*slots*4, 16)}
	shared.Flags = b.halves(shared.FlagHalf, stale)
	for range members {
		shared.Data = append(shared.Data, b.alloc(int64(members)*packs*16))
	}
	var checks []func(int)
	for range 6 {
		r := shared
		r.DType, r.Red = []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], ir.Sum+ir.Red(rng.IntN(4))
		r.Unroll, r.Threads, r.Share = 1<<rng.IntN(3), 32*(2+rng.IntN(2)), 1+rng.Int64N(packs)
		chunks := ceil(r.Share, int64(r.Threads*r.Unroll))
		r.Slots, r.Blocks = chunks+BlocksMost, int(min(1+rng.Int64N(3), chunks))
		checks = append(checks, b.addScatter(r, rng, rng.IntN(2) == 0))
	}
	b.runTeam(3, func(seed int) {
		for _, check := range checks {
			check(seed)
		}
	})
}

// addScatter launches r on all members, and returns what checks the results: in
// place, they lie over the members' own blocks.
func (b *teamBench) addScatter(r AllReduce, rng *rand.Rand, inPlace bool) func(seed int) {
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), 0 }}
	each := r.Share * 16 / r.DType.Size()
	r.Count = each * int64(len(b.streams))
	ins := make([][]float64, len(b.streams))
	var outs []Operand
	for m := range ins {
		for range r.Count {
			ins[m] = append(ins[m], tensor.Round(r.DType, float64(rng.IntN(33)-16)))
		}
		in := b.put(r.DType, lay, ins[m], r.Count)
		out := Operand{Addr: in.Addr + nvlib.Ptr(int64(m)*r.Share*16), DType: r.DType, Shape: []int64{each}, Strides: []int64{1}}
		if !inPlace {
			out = b.room(r.DType, lay, each)
		}
		outs = append(outs, out)
		r.In, r.Out = append(r.In, in.Addr), append(r.Out, out.Addr)
	}
	for m := range ins {
		b.launch(m, r.Meeting(m))
	}
	return func(seed int) {
		x := make([]float64, len(ins))
		for m, o := range outs {
			for i, got := range b.vals(o) {
				for k := range ins {
					x[k] = ins[k][int64(m)*each+int64(i)]
				}
				if want := folded(r.DType, r.Red, x); math.Float64bits(got) != math.Float64bits(want) {
					b.t.Fatalf("seed %d, %s %s, in place %v, %dx%d/%d, member %d of %d, element %d of %d: got %v, want %v",
						seed, r.DType, r.Red, inPlace, r.Blocks, r.Threads, r.Unroll, m, len(ins), i, each, got, want)
				}
			}
		}
	}
}
