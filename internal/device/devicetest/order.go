package devicetest

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// links is the number of kernels in a chain. A chain takes so long that a stream that wrongly does not wait for the
// chain would overtake it.
const links = 60

// chain adds the constant links to v, by that many kernels on stream s, each of which adds 1.
func (r *rig) chain(s device.Stream, rank int, v device.View) {
	r.Helper()
	one := r.empty(rank, v.DType, v.Shape...)
	r.launch(s, rank, device.Kernel{Op: device.Elementwise{Op: ir.OpFill, Numbers: []ir.Number{ir.Whole(1)}}, Outs: []device.View{one}})
	l, err := r.w.Device(rank).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{v, one}, Outs: []device.View{v}})
	r.must(err)
	for range links {
		r.must(s.Launch(l))
	}
}

func constant(n int64, v float64) []float64 {
	vals := make([]float64, n)
	for i := range vals {
		vals[i] = v
	}
	return vals
}

const width = 3000

func (r *rig) zeros(rank int) device.View {
	r.Helper()
	return r.put(rank, given(ir.F32, []int64{width}, constant(width, 0)...))
}

// testEvents passes a buffer through three streams, each of which waits for the previous one.
func testEvents(r *rig) {
	r.open(1)
	v := r.zeros(0)
	streams := []device.Stream{r.mainOf(0), r.stream(0, "a"), r.stream(0, "b")}
	e := r.event(0)
	const turns = 7
	for turn := range turns {
		s := streams[turn%3]
		if turn > 0 {
			r.must(s.Wait(e))
		}
		r.chain(s, 0, v)
		r.must(s.Record(e))
	}
	r.must(streams[0].Wait(e))
	r.equal("after all turns", r.contents(0, v), constant(width, links*turns))
}

// testEventsAcrossRanks passes a value from rank to rank by copies, which are ordered by events.
func testEventsAcrossRanks(r *rig) {
	ranks := r.some(4)
	r.open(ranks)
	views := make([]device.View, ranks)
	for rank := range views {
		views[rank] = r.zeros(rank)
	}
	r.sync()
	for rank, v := range views {
		s := r.mainOf(rank)
		r.chain(s, rank, v)
		e := r.event(rank)
		if rank+1 < ranks {
			r.must(s.Copy(views[rank+1], v))
			r.must(s.Record(e))
			r.must(r.mainOf(rank + 1).Wait(e))
		}
	}
	r.equal("the last rank's", r.contents(ranks-1, views[ranks-1]), constant(width, float64(links*ranks)))
}

// testEventAgain records an event a second time, after work that depends on streams that wait for the first record.
// The test can end only if these waits refer to the first record.
func testEventAgain(r *rig) {
	r.open(1)
	a, b := r.stream(0, "a"), r.stream(0, "b")
	e, c := r.event(0), r.counters(0, 1)
	v := r.zeros(0)
	r.must(r.mainOf(0).Record(e))
	r.must(a.Wait(e))
	r.chain(a, 0, v)
	r.must(a.Record(e))
	r.must(b.Wait(e))
	r.must(a.WaitCounter(c, 0, 1))
	r.must(a.Record(e))
	got := r.get(b, v)
	r.must(b.Signal(c, 0, 1))
	r.sync()
	r.equal("after the first record", got.vals(), constant(width, links))
}

// testEventElsewhere records an event on a busy stream, and makes other streams wait for the event. It then records the
// event on an idle stream. The other streams must still wait for the busy stream.
func testEventElsewhere(r *rig) {
	r.open(1)
	a, b, idle := r.stream(0, "a"), r.stream(0, "b"), r.stream(0, "idle")
	e := r.event(0)
	v := r.zeros(0)
	r.must(r.mainOf(0).Record(e))
	r.must(a.Wait(e))
	r.chain(a, 0, v)
	r.must(a.Record(e))
	r.must(b.Wait(e))
	r.must(idle.Record(e))
	got := r.get(b, v)
	r.sync()
	r.equal("after the record on the busy stream", got.vals(), constant(width, links))
}

func testBadEvents(r *rig) {
	r.open(r.some(2))
	s := r.mainOf(0)
	e := r.event(0)
	r.refused("wait for an event never recorded", s.Wait(e))
	r.refused("wait for no event", s.Wait(nil))
	r.refused("record of no event", s.Record(nil))
	if r.w.Ranks() > 1 {
		r.refused("record of a peer's event", s.Record(r.event(1)))
	}
	r.must(s.Record(e))
	r.must(s.Wait(e))
	e.Release()
	r.refused("wait for an event released", s.Wait(e))
	r.sync()
}

// testCounters passes data around a ring: each rank writes to the next rank, raises the next rank's counter, and waits
// for its own counter before it reads. A second counter of the sender signals that the slot is free again.
func testCounters(r *rig) {
	ranks := r.some(4)
	r.open(ranks)
	const rounds = 6
	type site struct {
		work, comm device.Stream
		val, slot  device.View
		full, free device.Counters
	}
	sites := make([]site, ranks)
	for rank := range sites {
		sites[rank] = site{r.mainOf(rank), r.stream(rank, "comm"), r.zeros(rank), r.empty(rank, ir.F32, width), r.counters(rank, 3), r.counters(rank, 1)}
		e := r.event(rank)
		r.must(sites[rank].work.Record(e))
		r.must(sites[rank].comm.Wait(e))
	}
	for round := range int64(rounds) {
		for rank := range sites {
			me, next, before := &sites[rank], &sites[(rank+1)%ranks], &sites[(rank+ranks-1)%ranks]
			// val becomes val plus links plus the value of the previous rank.
			r.chain(me.work, rank, me.val)
			r.must(me.work.Signal(me.full, 0, 1))
			r.must(me.comm.WaitCounter(me.full, 0, round+1))
			r.must(me.comm.WaitCounter(me.free, 0, round))
			r.must(me.comm.Copy(next.slot, me.val))
			r.must(me.comm.Signal(next.full, 2, 5))
			r.must(me.comm.Signal(me.full, 1, 1))
			r.must(me.work.WaitCounter(me.full, 1, round+1))
			r.must(me.work.WaitCounter(me.full, 2, 5*(round+1)))
			r.launch(me.work, rank, device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{me.val, me.slot}, Outs: []device.View{me.val}})
			r.must(me.work.Signal(before.free, 0, 1))
		}
	}
	want := 0.0
	for range rounds {
		want = 2 * (want + links)
	}
	for rank, s := range sites {
		r.equal(fmt.Sprint("rank ", rank), r.contents(rank, s.val), constant(width, want))
	}
}

// testCounterThresholds makes several streams wait for different values of one counter: a stream that waits for k must
// find the first k slots filled by the peer.
func testCounterThresholds(r *rig) {
	r.open(r.some(2))
	here, peer := 0, r.w.Ranks()-1
	c := r.counters(peer, 2)
	if c.Len() != 2 {
		r.Errorf("Len() = %d", c.Len())
	}
	const slots = 4
	var there, mine [slots + 1]device.View
	for k := 1; k <= slots; k++ {
		there[k], mine[k] = r.zeros(peer), r.zeros(here)
	}
	r.sync()
	reads := map[int][]read{}
	for _, least := range []int{3, 1, 4, 0, 2, 3} {
		s := r.stream(peer, fmt.Sprint("least", least))
		r.must(s.WaitCounter(c, 1, int64(least)))
		for k := 1; k <= least; k++ {
			reads[k] = append(reads[k], r.get(s, there[k]))
		}
	}
	s := r.mainOf(here)
	for k := 1; k <= slots; k++ {
		r.chain(s, here, mine[k])
		r.must(s.Copy(there[k], mine[k]))
		r.must(s.Signal(c, 1, 1))
	}
	r.sync()
	for k, list := range reads {
		for _, rd := range list {
			r.equal(fmt.Sprint("slot ", k), rd.vals(), constant(width, links))
		}
	}
}

func testBadCounters(r *rig) {
	r.open(r.some(2))
	s := r.mainOf(0)
	c := r.counters(0, 2)
	_, err := r.w.Device(0).NewCounters(-1)
	r.refused("-1 counters", err)
	r.refused("signal of no counters", s.Signal(nil, 0, 1))
	r.refused("wait for no counters", s.WaitCounter(nil, 0, 1))
	for _, elem := range []int{-1, 2} {
		r.refused("signal out of range", s.Signal(c, elem, 1))
		r.refused("wait out of range", s.WaitCounter(c, elem, 0))
	}
	for _, by := range []int64{0, -1} {
		r.refused("signal that does not raise", s.Signal(c, 0, by))
	}
	if r.w.Ranks() > 1 {
		r.refused("wait for a peer's counter", s.WaitCounter(r.counters(1, 1), 0, 0))
	}
	c.Release()
	r.refused("signal of counters released", s.Signal(c, 0, 1))
	r.sync()
}
