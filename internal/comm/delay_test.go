package comm

import (
	"context"
	"math"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/ir"
)

// delayMark is the mark around what delays rank 1.
const delayMark = 100

// TestDelayIsBlamed: rank 1 copies memory before the second of three all_reduces, for as long
// as its own device's clock says; accounting blames it, and finds that rank 0 waited as long.
// With -cuda on two GPUs that is held to 2 µs; on the CPU machine, whose streams
// share whatever processors there are, only the blame is.
//
// The delay begins where rank 1 leaves the first all_reduce, the wait where rank 0 does, so
// the two differ by how far apart these ends are. An end is recorded late where the host
// enqueues it after the device got there. So a run begins with copies, on both ranks, that take
// longer than enqueueing all of it: then ends are apart by what the devices make of them.
func TestDelayIsBlamed(t *testing.T) {
	w := open(t, cpu.Concurrent, 0, 2)
	one := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 2, shape: []int64{1 << 16}}
	r := newRig(t, w, "s", []int{0, 1}, []spec{one, one, one})
	bytes := int64(1 << 20)
	if *onCUDA {
		bytes = 512 << 20 // a third of a millisecond, or more
	}
	var from, to []device.View // of each rank
	for rank := range 2 {
		for _, views := range []*[]device.View{&from, &to} {
			mem, err := w.Device(rank).Alloc(bytes, device.Private)
			r.must(err)
			defer mem.Free()
			*views = append(*views, packed(mem, 0, ir.F32, []int64{bytes / 4}))
		}
		r.must(w.Device(rank).PrepareCopy(to[rank], from[rank]))
	}
	rec := trace.NewRecorder()
	w.Observe(rec)
	for run := range int64(3) { // the first ones warm up
		for m, s := range r.streams {
			for range 10 {
				r.must(s.Copy(to[m], from[m]))
			}
		}
		for i := range 3 {
			for m, s := range r.streams {
				if m == 1 && i == 1 {
					r.must(s.Begin(delayMark))
					for range 3 {
						r.must(s.Copy(to[1], from[1]))
					}
					r.must(s.End(delayMark))
				}
				r.must(s.Begin(int64(i)))
				r.must(r.ch.Issue(i, m, run))
				r.must(s.End(int64(i)))
			}
		}
		r.must(w.Sync(context.Background()))
		if run < 2 {
			rec.Drain(func(int64) trace.Event { return trace.Event{} })
		}
	}
	w.Observe(nil)
	tr := &trace.Trace{Ranks: 2, Events: rec.Drain(func(id int64) trace.Event {
		if id == delayMark {
			return trace.Event{ID: id, Name: "delay", Class: trace.Compute, Group: trace.NoGroup}
		}
		return trace.Event{ID: id, Name: "all_reduce", Class: trace.Comm, Group: int(id), Bytes: 1 << 18}
	})}
	if *onCUDA {
		tr.Clocks = []int{0, 1}
	}
	tr.Sort()
	var delay float64
	for _, e := range tr.Events {
		if e.Name == "delay" {
			delay = float64(e.Duration()) / 1e3
		}
	}
	rep := account.Of(tr, 0)
	if len(rep.Collectives) != 3 || rep.Untold != "" {
		for _, e := range tr.Events {
			t.Logf("rank %d: %s from %d to %d ns", e.Rank, e.Name, e.Start, e.End)
		}
		t.Fatalf("%d collectives, %q", len(rep.Collectives), rep.Untold)
	}
	c := rep.Collectives[1]
	if c.Late == nil || c.Late.Rank != 1 {
		t.Fatalf("rank 1 was held back by %v µs: %+v", delay, c)
	}
	t.Logf("delay of %.1f µs by rank 1's clock: rank 0 waited %.1f µs, residual %.1f µs, because: %s",
		delay, *c.ByRank[0].WaitUS, *rep.Alignment.ResidualUS, c.Late.After)
	if *onCUDA && math.Abs(*c.ByRank[0].WaitUS-delay) > 2 {
		t.Errorf("rank 0 waited %v µs; rank 1 was held back by %v", *c.ByRank[0].WaitUS, delay)
	}
}
