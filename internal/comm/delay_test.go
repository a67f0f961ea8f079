package comm

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/ir"
)

// delayMark plus the index of an all_reduce is the number of the mark around the copies that delay rank 1 before that
// all_reduce.
const delayMark = 1000

// TestDelayIsBlamed delays rank 1 by memory copies before some of many all_reduces. Each delayed all_reduce follows an
// all_reduce that both ranks leave together. The test checks that accounting blames rank 1 for each delay, and that the
// wait it reports for rank 0 is as long as the copies took by rank 1's clock. On two GPUs no error may exceed the
// residual of clock synchronisation, and if the all_reduce is one kernel on each rank, the median error may be at most
// 2 µs. The CPU machine's streams share the available processors, so on that machine only the blamed rank is checked.
//
// The delay begins when rank 1 leaves the previous all_reduce, and the wait begins when rank 0 leaves it. The error
// therefore includes the time between these two events. For kernels, this time is at most the time in which one line of
// data crosses the link. For schedules of copies, this time is several microseconds, the latency of an event of another
// GPU.
func TestDelayIsBlamed(t *testing.T) {
	if *onCUDA {
		t.Run("kernel", func(t *testing.T) { mustBlame(t, delayIsBlamed(t, "lamport", 2)) })
		t.Run("schedule", func(t *testing.T) { mustBlame(t, delayIsBlamed(t, "staged", math.Inf(1))) })
		return
	}
	const tries = 20 // another process may sometimes delay rank 0
	var wrong []string
	for range tries {
		wrong = append(wrong, delayIsBlamed(t, "", math.Inf(1))...)
	}
	if len(wrong) > tries/2 {
		t.Fatalf("%d delays of %d: %s", len(wrong), tries, wrong[0])
	}
}

func mustBlame(t *testing.T, wrong []string) {
	t.Helper()
	for _, w := range wrong {
		t.Error(w)
	}
}

// delayIsBlamed makes all_reduces by the given algorithm wait for rank 1. most is the largest permitted median error,
// in microseconds. A run begins with copies that take longer than enqueueing the whole run, since an event that is
// enqueued after the device has reached its position is recorded late. delayIsBlamed returns the waits for which
// another rank or cause is blamed.
func delayIsBlamed(t *testing.T, algo string, most float64) (wrong []string) {
	t.Helper()
	w := open(t, cpu.Concurrent, 0, 2)
	one := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 2, shape: []int64{1 << 16}, algo: algo}
	bytes, copies := int64(1<<20), []int{3}
	if *onCUDA {
		bytes, copies = 512<<20, []int{3, 1, 2, 3, 1, 2, 3, 1, 2} // a copy takes a third of a millisecond, or more
	}
	all := make([]spec, 2*len(copies)+1)
	for i := range all {
		all[i] = one
	}
	r := newRig(t, w, "s", []int{0, 1}, all)
	var from, to []device.View // by rank
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
	for run := range int64(3) { // the first two runs warm up
		for m, s := range r.streams {
			for range 10 {
				r.must(s.Copy(to[m], from[m]))
			}
		}
		for i := range all {
			for m, s := range r.streams {
				if m == 1 && i%2 == 1 {
					r.must(s.Begin(delayMark + int64(i)))
					for range copies[i/2] {
						r.must(s.Copy(to[1], from[1]))
					}
					r.must(s.End(delayMark + int64(i)))
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
		if id >= delayMark {
			return trace.Event{ID: id, Name: "delay", Class: trace.Compute, Group: trace.NoGroup}
		}
		return trace.Event{ID: id, Name: "all_reduce", Class: trace.Comm, Group: int(id), Bytes: 1 << 18}
	})}
	if *onCUDA {
		tr.Clocks = []int{0, 1}
	}
	tr.Sort()
	delays := map[int]float64{} // duration of the delay before each collective, in microseconds of rank 1's clock
	for _, e := range tr.Events {
		if e.Name == "delay" {
			delays[int(e.ID-delayMark)] = float64(e.Duration()) / 1e3
		}
	}
	rep := account.Of(tr, 0)
	if len(rep.Collectives) != len(all) || len(delays) != len(copies) || rep.Untold != "" {
		for _, e := range tr.Events {
			t.Logf("rank %d: %s from %d to %d ns", e.Rank, e.Name, e.Start, e.End)
		}
		t.Fatalf("%d collectives, %d delays, %q", len(rep.Collectives), len(delays), rep.Untold)
	}
	residual := *rep.Alignment.ResidualUS
	for _, c := range rep.Alignment.Clocks {
		t.Logf("residual %.2f µs; by the host rank %d's clock was off by %.2f µs, drifting by %.1f ppm", residual,
			c.Rank, -c.OffsetUS, c.DriftPPM)
	}
	var errs []float64
	for i, delay := range delays {
		c := rep.Collectives[i]
		if c.Late == nil || c.Late.Rank != 1 || !strings.Contains(c.Late.After, "delay") {
			wrong = append(wrong, fmt.Sprintf("rank 1 was held back by %v µs before all_reduce %d: %+v", delay, i, c))
			continue
		}
		wait := *c.ByRank[0].WaitUS
		errs = append(errs, math.Abs(wait-delay))
		t.Logf("all_reduce %d: delay of %.2f µs by rank 1's clock; rank 0 waited %.2f µs, off by %+.2f µs, because: %s",
			i, delay, wait, wait-delay, c.Late.After)
		if *onCUDA && math.Abs(wait-delay) > residual+0.01 { // times are rounded to nanoseconds
			t.Errorf("all_reduce %d: off by more than the residual of %v µs", i, residual)
		}
	}
	slices.Sort(errs)
	if n := len(errs); *onCUDA && n > 0 {
		t.Logf("wait off by %.2f µs in the median of %d delays, %.2f µs at most", errs[n/2], n, errs[n-1])
		if errs[n/2] > most {
			t.Errorf("wait is off by more than %v µs in the median: %v", most, errs)
		}
	}
	return wrong
}
