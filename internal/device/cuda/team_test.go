package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

func TestTeams(t *testing.T) {
	real(t, Options{})
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint("ranks-per-gpu", ranks), func(t *testing.T) {
			open := func(timeout time.Duration) func(t *testing.T) device.Machine {
				return func(t *testing.T) device.Machine {
					return real(t, Options{RanksPerGPU: ranks, TeamTimeout: timeout})
				}
			}
			devicetest.RunTeams(t, open(10*time.Second), open(200*time.Millisecond))
		})
	}
}

// TestTeamChain runs very many consecutive all_reduces in graphs, each on the result of the previous one: x becomes x
// plus the sum of all members' x. The data are integers, so that an error in any round changes the final result. For
// algorithms that send flags with the data, this tests that data have arrived when their flag has.
func TestTeamChain(t *testing.T) {
	for _, per := range []int{1, 2} {
		m := real(t, Options{RanksPerGPU: per, TeamTimeout: 5 * time.Second})
		devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
		w, err := m.Open(t.Context(), 2*per)
		if err != nil {
			t.Fatal(err)
		}
		chains := []chain{
			{tune: device.Tuning{Algo: "ll128", Blocks: 16, Unroll: 1}, count: 4096, rounds: 1000000},
			{tune: device.Tuning{Algo: "ll", Blocks: 16}, count: 4096, rounds: 100000},
			{tune: device.Tuning{Algo: "ll128", Unroll: 1}, count: 65536, rounds: 20000},
			{tune: device.Tuning{Algo: "ll128", Unroll: 2}, count: 300001, rounds: 20000},
			{tune: device.Tuning{Algo: "ll128", Unroll: 4}, count: 1 << 20, rounds: 5000},
			{tune: device.Tuning{Algo: "ll128x2", Unroll: 2}, count: 300001, rounds: 10000},
			{tune: device.Tuning{Algo: "ll2"}, count: 100001, rounds: 10000},
			{tune: device.Tuning{Algo: "push", Unroll: 2}, count: 300001, rounds: 10000},
			{tune: device.Tuning{Algo: "pull", Unroll: 2}, count: 300001, rounds: 10000},
		}
		for _, name := range []string{"ll", "ll2", "ll128", "ll128x2", "push", "pull"} {
			chains = append(chains, chain{tune: device.Tuning{Algo: name}, count: 70001, rounds: 2000, last: math.MaxUint32 - 57})
		}
		host := device.Tuning{Algo: "push-host", Threads: 256, Unroll: 1}
		chains = append(chains, chain{tune: host, count: 300001, rounds: 10000}, chain{tune: host, count: 70001, rounds: 2000, last: math.MaxUint32 - 57})
		if per == 1 {
			host := device.Tuning{Algo: "push-host", Unroll: 2}
			chains = append(chains, chain{tune: host, count: 300001, rounds: 10000}, chain{tune: host, count: 4 << 20, rounds: 2000}, chain{tune: host, count: 70001, rounds: 2000, last: math.MaxUint32 - 57})
		}
		for _, c := range chains {
			if per > 1 && c.last == 0 {
				c.rounds /= 20
			}
			t.Run(fmt.Sprintf("%d members/%s %d/%d from %d", 2*per, c.tune.Algo, c.tune.Unroll, c.count, c.last), func(t *testing.T) {
				testChain(t, w.(*world), c)
			})
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// chain describes a number of rounds of an all_reduce, each on the result of the previous round. The field last, unless
// 0, is the launch number to set before the first launch.
type chain struct {
	tune   device.Tuning
	count  int64
	rounds int
	last   uint32
}

func testChain(t *testing.T, w *world, ch chain) {
	count, rounds := ch.count, ch.rounds
	must := mustOf(t)
	ranks, rng := w.Ranks(), rand.New(rand.NewPCG(uint64(count), 7))
	var members []device.Member
	var adds []device.Launch
	begin, sum := make([][]int32, ranks), make([]int32, count)
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for r := range ranks {
		d := w.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "chain"})
		must(err)
		view := func() device.View {
			m, err := d.Alloc(4*count, device.Shared)
			must(err)
			t.Cleanup(func() { _ = m.Free() })
			return device.View{Mem: m, DType: ir.I32, Shape: []int64{count}, Strides: []int64{1}}
		}
		x, y := view(), view()
		raw := make([]byte, 4*count)
		begin[r] = make([]int32, count)
		for i := range begin[r] {
			v := rng.Uint32()
			begin[r][i] = int32(v)
			sum[i] += int32(v)
			binary.LittleEndian.PutUint32(raw[4*i:], v)
		}
		must(s.Upload(x, raw))
		add, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{x, y}, Outs: []device.View{x}})
		must(err)
		adds, members = append(adds, add), append(members, device.Member{Rank: r, Stream: s})
		c.Parts = append(c.Parts, device.Part{In: x, Out: y, Reads: true, Writes: true})
	}
	must(w.Sync(t.Context()))
	opened, err := w.OpenTeam(members)
	must(err)
	launches, err := opened.Prepare(ch.tune, c)
	must(err)
	if ch.last != 0 {
		for _, m := range opened.(*team).members {
			must(m.set(m.control+kernels.ControlEpochs, ch.last, kernels.BlocksMost))
		}
	}
	const many = 100
	g, err := w.Capture(func() error {
		for range many {
			for r, m := range members {
				must(m.Stream.Launch(launches[r]))
				must(m.Stream.Launch(adds[r]))
			}
		}
		return nil
	})
	must(err)
	began := time.Now()
	for range rounds / many {
		must(g.Launch(t.Context()))
	}
	must(w.Sync(t.Context()))
	t.Logf("%v per round", time.Since(began)/time.Duration(rounds/many*many))
	// Each round multiplies the sum by members+1, and adds the previous sum to x.
	factor, grown := int32(1), int32(0)
	for range rounds / many * many {
		grown += factor
		factor *= int32(ranks + 1)
	}
	for r, m := range members {
		raw := make([]byte, 4*count)
		must(m.Stream.Download(raw, c.Parts[r].In))
		must(w.Sync(t.Context()))
		for i := range sum {
			if got, want := int32(binary.LittleEndian.Uint32(raw[4*i:])), begin[r][i]+sum[i]*grown; got != want {
				t.Fatalf("member %d, element %d: got %d, want %d", r, i, got, want)
			}
		}
	}
	must(g.Close())
	for r := range ranks {
		launches[r].Release()
		adds[r].Release()
	}
	must(opened.Close())
}
