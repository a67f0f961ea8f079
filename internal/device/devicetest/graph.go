package devicetest

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// capturer returns the test's world if the machine can record graphs, and skips the test otherwise.
func (r *rig) capturer() device.World {
	r.Helper()
	if !r.m.Caps().Graphs {
		r.Skip("this machine cannot record graphs")
	}
	return r.w
}

// testGraph records a round of work: ranks add to their values and pass them on in a ring, by events, counters and
// copies. It replays the graph between rounds that are issued without a graph. The results must be the same as if all
// rounds ran one after another.
func testGraph(r *rig) {
	ranks := r.some(4)
	r.open(ranks)
	c := r.capturer()
	type site struct {
		work, comm       device.Stream
		val, slot        device.View
		add, one         device.Launch
		full, free       device.Counters
		worked, received device.Event
	}
	sites := make([]site, ranks)
	for rank := range sites {
		s := &sites[rank]
		*s = site{work: r.mainOf(rank), comm: r.stream(rank, "comm"), val: r.zeros(rank), slot: r.zeros(rank),
			full: r.counters(rank, 1), free: r.counters(rank, 1), worked: r.event(rank), received: r.event(rank)}
		var err error
		ones := r.put(rank, given(ir.F32, []int64{width}, constant(width, 1)...))
		s.one, err = r.w.Device(rank).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{s.val, ones}, Outs: []device.View{s.val}})
		r.must(err)
		s.add, err = r.w.Device(rank).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{s.val, s.slot}, Outs: []device.View{s.val}})
		r.must(err)
	}
	r.sync()
	// val becomes val plus links plus the current value of the previous rank.
	round := func(n int64) error {
		for rank := range sites {
			me, next, before := &sites[rank], &sites[(rank+1)%ranks], &sites[(rank+ranks-1)%ranks]
			for range links {
				r.must(me.work.Launch(me.one))
			}
			r.must(me.work.Record(me.worked))
			r.must(me.comm.Wait(me.worked))
			r.must(me.comm.WaitCounter(me.free, 0, n))
			r.must(me.comm.Copy(next.slot, me.val))
			r.must(me.comm.Signal(next.full, 0, 1))
			r.must(me.comm.Record(me.received))
			r.must(me.work.Wait(me.received))
			r.must(me.work.WaitCounter(me.full, 0, n+1))
			r.must(me.work.Launch(me.add))
			r.must(me.work.Signal(before.free, 0, 1))
		}
		return nil
	}
	r.must(round(0))
	r.sync()
	g, err := c.Capture(func() error { return round(1) })
	r.must(err)
	r.must(round(1))
	for range 5 {
		r.must(g.Launch(r.Context()))
	}
	r.must(round(7))
	r.must(g.Launch(r.Context()))
	want := 0.0
	for range 9 {
		want = 2 * (want + links)
	}
	for rank := range sites {
		r.equal("after all rounds", r.contents(rank, sites[rank].val), constant(width, want))
	}
	r.must(g.Close())
	r.refused("launch of a closed graph", g.Launch(r.Context()))
	r.sync()
}

// testGraphObserved launches a graph with marks on two streams of each rank, in each form of the graph. An observer
// must receive the marks of each launch or, after several launches without a sync, of the last launch.
func testGraphObserved(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	c := r.capturer()
	if !r.m.Caps().Traces {
		r.Skip("this world tells no times")
	}
	o := &tape{}
	r.w.Observe(o)
	type site struct {
		streams [2]device.Stream
		vals    [2]device.View
		before  device.Event
	}
	sites := make([]site, ranks)
	for rank := range sites {
		sites[rank] = site{[2]device.Stream{r.mainOf(rank), r.stream(rank, "side")}, [2]device.View{r.zeros(rank), r.zeros(rank)}, r.event(rank)}
	}
	r.sync()
	g, err := c.Capture(func() error {
		for rank := range sites {
			at := &sites[rank]
			for i, s := range at.streams { // i = 0 is the work that comes first, and i = 1 the work that waits for it
				if i == 1 {
					r.must(s.Wait(at.before))
				}
				r.must(s.Begin(7))
				r.chain(s, rank, at.vals[i])
				r.must(s.Begin(8))
				r.chain(s, rank, at.vals[i])
				r.must(s.End(8))
				r.must(s.End(7))
				r.must(s.Begin(9))
				r.must(s.End(9))
				if i == 0 {
					r.must(s.Record(at.before))
				}
			}
		}
		return nil
	})
	r.must(err)
	forms := max(1, len(g.Forms()))
	last := make([]int64, ranks)
	for launch := range 3 * forms {
		if forms > 1 {
			g.Choose(launch % forms)
		}
		o.marks = map[string][]note{}
		for range 1 + launch/(2*forms) {
			r.must(g.Launch(r.Context()))
		}
		r.sync()
		for rank := range ranks {
			main, side := o.marks[string(rune('0'+rank))+"/main"], o.marks[string(rune('0'+rank))+"/side"]
			r.checkNotes(main)
			r.checkNotes(side)
			if main[0].ns <= last[rank] || side[0].ns < main[len(main)-1].ns {
				r.Errorf("launch %d, form %d: main %v, and after it side %v, after %d",
					launch, launch%forms, main, side, last[rank])
			}
			last[rank] = side[len(side)-1].ns
		}
	}
	r.w.Observe(nil)
	r.must(g.Close())
}

// testBadGraphs checks that work that cannot be recorded is refused.
func testBadGraphs(r *rig) {
	for name, issue := range map[string]func(s device.Stream, v device.View, c device.Counters) error{
		"an upload": func(s device.Stream, v device.View, _ device.Counters) error {
			return s.Upload(v, make([]byte, 4*width))
		},
		"a wait that nothing ends": func(s device.Stream, _ device.View, c device.Counters) error { return s.WaitCounter(c, 0, 1) },
	} {
		r.open(1)
		c, s := r.capturer(), r.mainOf(0)
		v, ctr := r.zeros(0), r.counters(0, 1)
		r.sync()
		_, err := c.Capture(func() error { return issue(s, v, ctr) })
		r.refused("graph with "+name, err)
		_ = r.w.Close()
	}
	r.again()
}
