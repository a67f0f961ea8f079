package devicetest

import (
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// mover returns the rank's device if the machine can copy by kernels, and skips the test otherwise.
func (r *rig) mover(rank int) device.Device {
	r.Helper()
	if !r.m.Caps().Moves {
		r.Skip("this machine has no kernels that copy to peers")
	}
	return r.w.Device(rank)
}

// move prepares a copy by a kernel; it skips the test if no kernel can access both views.
func (r *rig) move(rank int, dst, src device.View, blocks int) device.Launch {
	r.Helper()
	l, err := r.mover(rank).PrepareMove(dst, src, blocks)
	if errors.Is(err, device.ErrUnsupported) {
		r.Skip(err)
	}
	r.must(err)
	return l
}

// testMoves checks copies by kernels to a peer and back, from and to addresses of any alignment: no other byte may
// change.
func testMoves(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	s := r.mainOf(0)
	for _, dt := range r.allTypes() {
		for _, n := range []int64{0, 1, 7, 4099, 70001} {
			for i, off := range [][2]int64{{0, 0}, {1, 0}, {2, 5}, {4, 8}} {
				blocks := []int{0, 1, 3, 200}[(i+int(n))%4]
				part := func(v device.View, lo int64) device.View {
					v.Off, v.Shape = v.Off+lo*dt.Size(), []int64{n}
					return v
				}
				h, around := random(seeded(dt, n, i), dt, n+16), random(seeded("around", dt, n, i), dt, n+16)
				src, there, back := r.put(0, h), r.put(ranks-1, around), r.put(0, around)
				out := r.move(0, part(there, off[1]), part(src, off[0]), blocks)
				home := r.move(0, part(back, off[0]), part(there, off[1]), blocks)
				r.sync()
				r.must(s.Launch(out))
				r.must(s.Launch(home))
				want := append([]float64(nil), around.vals...)
				copy(want[off[0]:off[0]+n], h.vals[off[0]:])
				r.equal("there and back", r.contents(0, back), want)
				want = append([]float64(nil), around.vals...)
				copy(want[off[1]:off[1]+n], h.vals[off[0]:off[0]+n])
				r.equal("there", r.contents(ranks-1, there), want)
			}
		}
	}
	v := r.zeros(0)
	r.must(s.Launch(r.move(0, v, v, 2))) // to the same address
	short := v
	short.Shape = []int64{width - 1}
	_, err := r.mover(0).PrepareMove(v, short, 2)
	r.refused("copy of another shape", err)
	if ranks > 1 {
		secret := v
		secret.Mem = r.alloc(1, v.Mem.Bytes(), device.Private)
		_, err := r.mover(0).PrepareMove(v, secret, 2)
		r.refused("copy of a peer's private memory", err)
	}
	r.sync()
}

// testMovesOrdered passes numbers around a ring of ranks, with kernels that store to the next rank and with counters:
// when a rank receives a signal, the data that precede the signal must have arrived, in graphs too.
func testMovesOrdered(r *rig) {
	ranks := r.some(4)
	r.open(ranks)
	const n, rounds = 5000, 6
	type site struct {
		val, slot        device.View
		send, add, fetch device.Launch
		full, free       device.Counters
	}
	sites := make([]site, ranks)
	var want []float64
	for rank := range sites {
		h := given(ir.F32, []int64{n}, constant(n, float64(rank+1))...)
		sites[rank] = site{val: r.put(rank, h), slot: r.put(rank, h), full: r.counters(rank, 1), free: r.counters(rank, 1)}
		want = append(want, float64(rank+1))
	}
	for rank := range sites {
		me, next := &sites[rank], &sites[(rank+1)%ranks]
		me.send = r.move(rank, next.slot, me.val, rank)
		me.fetch = r.move(rank, me.val, next.slot, 2)
		var err error
		me.add, err = r.w.Device(rank).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{me.val, me.slot}, Outs: []device.View{me.val}})
		r.must(err)
	}
	r.sync()
	round := func(k int64) error {
		for rank := range sites {
			me, next := &sites[rank], &sites[(rank+1)%ranks]
			s := r.mainOf(rank)
			r.must(s.WaitCounter(me.free, 0, k))
			r.must(s.Launch(me.send))
			r.must(s.Signal(next.full, 0, 1))
		}
		for rank := range sites {
			me, before := &sites[rank], &sites[(rank+ranks-1)%ranks]
			s := r.mainOf(rank)
			r.must(s.WaitCounter(me.full, 0, k+1))
			r.must(s.Launch(me.add))
			r.must(s.Signal(before.free, 0, 1))
		}
		return nil
	}
	launch := func(k int64) error { return round(k) }
	if r.m.Caps().Graphs {
		r.must(round(0))
		r.sync()
		g, err := r.w.Capture(func() error { return round(1) })
		r.must(err)
		defer func() { r.must(g.Close()) }()
		launch = func(k int64) error {
			if k == 0 {
				return nil // as above
			}
			return g.Launch(r.Context())
		}
	}
	for k := range int64(rounds) {
		r.must(launch(k))
	}
	r.sync()
	for range rounds {
		before := append([]float64(nil), want...)
		for rank := range want {
			want[rank] += before[(rank+ranks-1)%ranks]
		}
	}
	for rank := range sites {
		r.equal("after all rounds", r.contents(rank, sites[rank].val), constant(n, want[rank]))
	}
	for rank := range sites { // reads the last value of the next rank
		r.must(r.mainOf(rank).Launch(sites[rank].fetch))
	}
	r.sync()
	for rank := range sites {
		r.equal("got", r.contents(rank, sites[rank].val), r.contents((rank+1)%ranks, sites[(rank+1)%ranks].slot))
	}
}
