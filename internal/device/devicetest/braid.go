package devicetest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// testBraid runs random programs of adds and copies on many streams of several ranks, with exactly the waits that their
// data require, by events or by counters, and compares the results with those of the same program in text order. A wait
// without effect, or a signal before its data, results in a wrong number (and in a race under the race detector).
func testBraid(r *rig) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	r.open(r.some(8))
	for round := range rounds {
		b := newBraid(r, uint64(round))
		for range 300 {
			b.knot()
		}
		b.compare()
	}
}

// mostWaits is the largest number of waits for counters in a braid.
const mostWaits = 2000

// braid is the state of a random program of testBraid during its execution.
type braid struct {
	r       *rig
	rng     *rand.Rand
	streams [][]device.Stream // by rank
	signals []device.Stream   // by rank
	raised  []device.Counters // by rank: counters, each of which is raised once
	next    int
	bufs    []*braided
}

// braided is a buffer with its expected contents and the operations that last used it.
type braided struct {
	rank    int
	view    device.View
	want    []float64
	written strand
	reads   []strand
}

// strand is a position in a stream that other streams may have to wait for.
type strand struct {
	stream device.Stream
	rank   int
	event  device.Event
}

func newBraid(r *rig, seed uint64) *braid {
	b := &braid{r: r, rng: rand.New(rand.NewPCG(seed, 9))}
	for rank := range r.w.Ranks() {
		var streams []device.Stream
		for i := range 4 {
			streams = append(streams, r.stream(rank, fmt.Sprint("s", i)))
		}
		b.streams = append(b.streams, streams)
		b.signals = append(b.signals, r.stream(rank, "signals"))
		b.raised = append(b.raised, r.counters(rank, mostWaits))
		for range 3 {
			h := signs(b.rng, ir.F32, int64(1+b.rng.IntN(700)))
			b.bufs = append(b.bufs, &braided{rank: rank, view: r.put(rank, h), want: h.vals})
		}
	}
	r.sync()
	return b
}

// knot issues one random command: an add on one rank, or a copy between any two ranks.
func (b *braid) knot() {
	dst, src := b.bufs[b.rng.IntN(len(b.bufs))], b.bufs[b.rng.IntN(len(b.bufs))]
	n := min(len(dst.want), len(src.want))
	rank := dst.rank
	if b.rng.IntN(2) == 0 && src != dst {
		rank = src.rank
	}
	s := b.streams[rank][b.rng.IntN(4)]
	for _, before := range append(append([]strand{src.written, dst.written}, dst.reads...), src.reads...) {
		b.order(s, rank, before)
	}
	part := func(v device.View) device.View {
		v.Shape = []int64{int64(n)}
		return v
	}
	if dst.rank == src.rank {
		b.r.launch(s, rank, device.Kernel{Op: device.Elementwise{Op: ir.OpSub}, Ins: []device.View{part(src.view), part(dst.view)}, Outs: []device.View{part(dst.view)}})
		for i := range n {
			dst.want[i] = float64(float32(src.want[i]) - float32(dst.want[i]))
		}
	} else {
		b.r.must(s.Copy(part(dst.view), part(src.view)))
		copy(dst.want[:n], src.want[:n])
	}
	e := b.r.event(rank)
	b.r.must(s.Record(e))
	here := strand{s, rank, e}
	dst.written, dst.reads = here, nil
	if src != dst {
		src.reads = append(src.reads, here)
	}
}

// order makes stream s wait for the strand, that is a position in another stream.
func (b *braid) order(s device.Stream, rank int, before strand) {
	switch {
	case before.stream == nil || before.stream == s:
	case b.next == mostWaits || b.rng.IntN(2) == 0:
		b.r.must(s.Wait(before.event))
	default:
		// A stream on the strand's rank waits for the event and raises a counter.
		b.r.must(b.signals[before.rank].Wait(before.event))
		b.r.must(b.signals[before.rank].Signal(b.raised[rank], b.next, 1))
		b.r.must(s.WaitCounter(b.raised[rank], b.next, 1))
		b.next++
	}
}

func (b *braid) compare() {
	b.r.sync()
	for i, buf := range b.bufs {
		b.r.equal(fmt.Sprint("buffer ", i), b.r.contents(buf.rank, buf.view), buf.want)
		b.r.must(buf.view.Mem.Free())
	}
}
