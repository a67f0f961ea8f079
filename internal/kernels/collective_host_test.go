package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestAllReduceHost checks all_reduces in which two members send a part of the data through host memory, repeatedly
// through the same memory.
func TestAllReduceHost(t *testing.T) {
	t.Parallel()
	for _, epoch := range []uint32{FirstEpoch, math.MaxUint32 - 3} {
		b := newTeamBench(t, 2, epoch)
		rng := rand.New(rand.NewPCG(4, uint64(epoch)))
		const bytes, slots = 3000 * 8, 200 + BlocksMost
		shared := AllReduce{FlagHalf: roundTo(2*slots*4, 16)}
		shared.Flags = b.halves(shared.FlagHalf, staleBefore(epoch))
		var host []nvlib.Ptr
		for range 2 {
			shared.Data, host = append(shared.Data, b.alloc(2*bytes)), append(host, b.alloc(bytes+16))
		}
		var checks []func(int)
		for range 8 {
			r := shared
			r.DType, r.Red = []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], ir.Sum+ir.Red(rng.IntN(4))
			r.Unroll, r.Threads, r.Count = 1<<rng.IntN(3), 32*(1+rng.IntN(2)), 600+rng.Int64N(2400)
			by := AllReduceHost{ByHost: ByHost{Host: host, Writers: 1 + rng.Int64N(2), Readers: 1 + rng.Int64N(2)}}
			r.Blocks = int(by.Writers+by.Readers) + 1 + rng.IntN(3)
			packs := ceil(r.Count*r.DType.Size(), 16)
			by.Split = packs * (20 + rng.Int64N(60)) / 100 / 16 * 16
			r.Share = ceil(ceil(by.Split, 2), 8) * 8
			r.Slots = ceil(r.Share, int64(r.Threads*r.Unroll)) + HostChunks(packs-by.Split, r.Threads) + BlocksMost
			by.Group = rng.Int64N(4)
			r.By = by
			checks = append(checks, b.addExact(r, rng, false))
		}
		b.runChecks(3, checks)
	}
}

// TestAllReduceResults checks all_reduces in which members send some results to each other through host memory,
// repeatedly through the same memory.
func TestAllReduceResults(t *testing.T) {
	ofTeams(t, []int{3, 4, TeamMost}, testAllReduceResults)
}

func testAllReduceResults(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := drawn(t, uint64(members), uint64(epoch))
	const bytes, slots = 3000 * 8, 200 + BlocksMost
	shared := AllReduce{FlagHalf: roundTo(int64(members)*slots*4, 16)}
	shared.Flags = b.halves(shared.FlagHalf, staleBefore(epoch))
	var host []nvlib.Ptr
	for range members {
		shared.Data, host = append(shared.Data, b.alloc(2*bytes)), append(host, b.alloc(bytes))
	}
	var checks []func(int)
	for range 6 {
		r := shared
		r.DType, r.Red = []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], ir.Sum+ir.Red(rng.IntN(4))
		r.Unroll, r.Threads, r.Count = 1<<rng.IntN(3), 32*(1+rng.IntN(2)), 600+rng.Int64N(2400)
		by := AllReduceResults{ByHost: ByHost{Host: host, Writers: 1 + rng.Int64N(2), Readers: 1 + rng.Int64N(2)}}
		r.Blocks = int(by.Writers+by.Readers) + 1 + rng.IntN(3)
		r.Share = ceil(ceil(ceil(r.Count*r.DType.Size(), 16), int64(members)), 8) * 8
		chunk := int64(r.Threads * r.Unroll)
		chunks := ceil(r.Share, chunk)
		behind := rng.Int64N(chunks + 1)
		by.Split, r.Slots = behind*chunk, chunks+behind+BlocksMost
		by.Group = rng.Int64N(4)
		r.By = by
		checks = append(checks, b.addExact(r, rng, rng.IntN(2) == 0))
	}
	b.runChecks(3, checks)
}

// addExact launches r on all members, and returns a function that checks the results. If inPlace is set, the results
// overwrite the operands or, for a reduce_scatter, the members' own blocks.
func (b *teamBench) addExact(r AllReduce, rng *rand.Rand, inPlace bool) func(seed int) {
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), 0 }}
	each, apart := r.Count, int64(0) // number of elements of a result, and of elements between the results of two members
	switch r.By.(type) {
	case AllReduceScatter, AllReduceAddends:
		each = r.Share * 16 / r.DType.Size()
		r.Count, apart = each*int64(len(b.streams)), each
	}
	ins := make([][]float64, len(b.streams))
	var outs []Operand
	r.In, r.Out = []nvlib.Ptr{}, []nvlib.Ptr{}
	for m := range ins {
		for range r.Count {
			ins[m] = append(ins[m], tensor.Round(r.DType, float64(rng.IntN(33)-16)))
		}
		in := b.put(r.DType, lay, ins[m], r.Count)
		out := Operand{Addr: in.Addr + nvlib.Ptr(int64(m)*apart*r.DType.Size()), DType: r.DType, Shape: []int64{each}, Strides: []int64{1}}
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
					x[k] = ins[k][int64(m)*apart+int64(i)]
				}
				if want := folded(r.DType, r.Red, x); math.Float64bits(got) != math.Float64bits(want) {
					b.t.Fatalf("seed %d, %s of %s %s, in place %v, %dx%d/%d, %+v, member %d of %d, element %d of %d: got %v, want %v",
						seed, r.By, r.DType, r.Red, inPlace, r.Blocks, r.Threads, r.Unroll, r.By.own(), m, len(ins), i, each, got, want)
				}
			}
		}
	}
}

// runChecks runs the launches in the given number of random orders: no member may report a fault, and every check must
// pass.
func (b *teamBench) runChecks(times int, checks []func(seed int)) {
	b.runTeam(times, func(seed int) {
		for m, at := range b.record {
			if f, told := ReadFault(b.mem[int64(at)-memoryAt:]); told {
				b.t.Fatalf("seed %d: member %d: %+v", seed, m, f)
			}
		}
		for _, check := range checks {
			check(seed)
		}
	})
}

// staleBefore returns the value of flags that are out of date before an epoch: the number of an early launch, which
// will be used again.
func staleBefore(epoch uint32) uint32 {
	if epoch == FirstEpoch {
		return 0
	}
	return 3
}

// ofTeams calls a test for teams of the given numbers of members, with launch numbers that begin with the first epoch
// or shortly before epochs wrap around; long tests do both.
func ofTeams(t *testing.T, members []int, test func(t *testing.T, members int, epoch uint32)) {
	epochs := []uint32{FirstEpoch, math.MaxUint32 - 3}
	for i, n := range members {
		for k, epoch := range epochs {
			if !longtest.On() && (i+k)%len(epochs) != 0 {
				continue
			}
			t.Run(fmt.Sprintf("members=%d,epoch=%#x", n, epoch), func(t *testing.T) {
				t.Parallel()
				test(t, n, epoch)
			})
		}
	}
}

// drawn returns a random source for a test; it depends only on two numbers, and in long tests on their seed.
func drawn(t *testing.T, a, b uint64) *rand.Rand {
	return rand.New(rand.NewPCG(a^longtest.Seed(t)<<8, b))
}
