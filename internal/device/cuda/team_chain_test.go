package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestTeamChainFloats is TestTeamChain for algorithms that do not take integers. It cycles through three tensors. Each
// round replaces x by 2/members times the sum of all members' x, minus x. Thus the sum does not change, each member's x
// has its initial value after every other round, and an error does not disappear. All values are small integers, which
// are exact. A half of the receive memory still holds data of the launch before the previous one; these belong to
// another tensor.
func TestTeamChainFloats(t *testing.T) {
	for _, per := range []int{1, 2} {
		m := real(t, Options{RanksPerGPU: per, TeamTimeout: 5 * time.Second})
		devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
		w, err := m.Open(t.Context(), 2*per)
		if err != nil {
			t.Fatal(err)
		}
		var chains []chain
		for _, name := range lamportNames {
			chains = append(chains,
				chain{tune: device.Tuning{Algo: name, Blocks: 16, Unroll: 1}, count: 4096, rounds: 100_000 / per},
				chain{tune: device.Tuning{Algo: name, Unroll: 2}, count: 300_001, rounds: 10_000 / per / per},
				chain{tune: device.Tuning{Algo: name, Unroll: 2, Threads: 1024}, count: 3 << 20, rounds: 5000 / per / per},
				chain{tune: device.Tuning{Algo: name}, count: 70_001, rounds: 2000, last: math.MaxUint32 - 57})
		}
		if per == 1 {
			host := device.Tuning{Algo: "lamport-host"}
			chains = append(chains, chain{tune: host, count: 300_001, rounds: 10_000}, chain{tune: host, count: 4 << 20, rounds: 2000}, chain{tune: host, count: 70_001, rounds: 2000, last: math.MaxUint32 - 57})
		}
		for _, c := range chains {
			t.Run(fmt.Sprintf("%d members/%s %d/%d from %d", 2*per, c.tune.Algo, c.tune.Unroll, c.count, c.last), func(t *testing.T) {
				testChainFloats(t, w.(*world), c)
			})
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func testChainFloats(t *testing.T, w *world, ch chain) {
	const turns, many = 3, 99
	must := mustOf(t)
	ranks, rng, size := w.Ranks(), rand.New(rand.NewPCG(uint64(ch.count), 8)), ir.BF16.Size()
	var members []device.Member
	steps := make([][turns][]device.Launch, ranks) // the launches after an all_reduce
	begin, sum := make([][turns][]float64, ranks), [turns][]float64{}
	var cs [turns]*device.Collective
	for k := range cs {
		cs[k], sum[k] = &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, make([]float64, ch.count)
	}
	for r := range ranks {
		d := w.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "chain"})
		must(err)
		members = append(members, device.Member{Rank: r, Stream: s})
		room := func() device.View {
			m, err := d.Alloc(size*ch.count, device.Shared)
			must(err)
			t.Cleanup(func() { _ = m.Free() })
			return device.View{Mem: m, DType: ir.BF16, Shape: []int64{ch.count}, Strides: []int64{1}}
		}
		prepare := func(k device.Kernel) device.Launch {
			l, err := d.Prepare(k)
			must(err)
			t.Cleanup(l.Release)
			return l
		}
		y := room()
		double := prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpScale, Numbers: ir.Reals(2 / float64(ranks))}, Ins: []device.View{y}, Outs: []device.View{y}})
		for k := range turns {
			x, raw := room(), make([]byte, size*ch.count)
			begin[r][k] = make([]float64, ch.count)
			for i := range begin[r][k] {
				begin[r][k][i] = float64(rng.IntN(17) - 8)
				sum[k][i] += begin[r][k][i]
			}
			tensor.FromFloat64(raw, begin[r][k], ir.BF16)
			must(s.Upload(x, raw))
			less := prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpSub}, Ins: []device.View{y, x}, Outs: []device.View{x}})
			steps[r][k] = []device.Launch{double, less}
			cs[k].Parts = append(cs[k].Parts, device.Part{In: x, Out: y, Reads: true, Writes: true})
		}
	}
	must(w.Sync(t.Context()))
	opened, err := w.OpenTeam(members)
	must(err)
	var launches [turns][]device.Launch
	for k := range turns {
		launches[k], err = opened.Prepare(ch.tune, cs[k])
		must(err)
	}
	if ch.last != 0 {
		for _, m := range opened.(*team).members {
			must(m.set(m.control+kernels.ControlEpochs, ch.last, kernels.BlocksMost))
		}
	}
	g, err := w.Capture(func() error {
		for i := range many {
			for r, m := range members {
				for _, l := range append([]device.Launch{launches[i%turns][r]}, steps[r][i%turns]...) {
					must(m.Stream.Launch(l))
				}
			}
		}
		return nil
	})
	must(err)
	began, replays := time.Now(), max(1, ch.rounds/many)
	for range replays {
		must(g.Launch(t.Context()))
	}
	must(w.Sync(t.Context()))
	t.Logf("%v per round", time.Since(began)/time.Duration(replays*many))
	for r, m := range members {
		for k := range turns {
			raw, got := make([]byte, size*ch.count), make([]float64, ch.count)
			must(m.Stream.Download(raw, cs[k].Parts[r].In))
			must(w.Sync(t.Context()))
			tensor.ToFloat64(got, raw, ir.BF16)
			for i, want := range begin[r][k] {
				if replays*many/turns%2 == 1 {
					want = sum[k][i]*2/float64(ranks) - want
				}
				if got[i] != want {
					t.Fatalf("member %d, tensor %d, element %d: got %v, want %v", r, k, i, got[i], want)
				}
			}
		}
	}
	must(g.Close())
	for k := range turns {
		for _, l := range launches[k] {
			l.Release()
		}
	}
	must(opened.Close())
}
