package devicetest

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

func testWorlds(r *rig) {
	ctx := r.Context()
	for _, ranks := range []int{-1, 0, r.m.Caps().MaxRanks + 1} {
		if w, err := r.m.Open(ctx, ranks); err == nil {
			_ = w.Close()
			r.Errorf("a world of %d ranks was opened", ranks)
		}
	}
	r.open(r.some(3))
	if r.w.Ranks() != r.some(3) {
		r.Errorf("Ranks() = %d", r.w.Ranks())
	}
	for rank := range r.w.Ranks() {
		if got := r.w.Device(rank).Rank(); got != rank {
			r.Errorf("device %d reports rank %d", rank, got)
		}
	}
	if s := r.stream(0, "a name"); s.Name() != "a name" {
		r.Errorf("the stream's name is %q", s.Name())
	}
}

func testMemory(r *rig) {
	r.open(1)
	for _, kind := range []device.MemKind{device.Private, device.Shared, device.Pinned} {
		for _, n := range []int64{0, 1, 255, 256, 4097} {
			m := r.alloc(0, n, kind)
			if m.Bytes() != n {
				r.Errorf("%d bytes were requested, but %d were allocated", n, m.Bytes())
			}
			r.must(m.Free())
		}
	}
	r.holds()
	_, err := r.w.Device(0).Alloc(-1, device.Private)
	r.refused("alloc of -1 bytes", err)
	_, err = r.w.Device(0).Alloc(math.MaxInt64, device.Private)
	r.refused("alloc of 2^63-1 bytes", err)

	m := r.alloc(0, 64, device.Private)
	r.must(m.Free())
	v := device.View{Mem: m, DType: ir.F32, Shape: []int64{4}, Strides: []int64{1}}
	r.refused("upload to freed memory", r.mainOf(0).Upload(v, make([]byte, 16)))
	r.refused("a second free", m.Free())
}

// holds checks that Held, if the machine reports it, grows when the world allocates memory.
func (r *rig) holds() {
	w := r.w
	if w.Held() == (device.Held{}) {
		return // the machine does not report Held
	}
	const n = 100 << 20 // more bytes than the world has already reserved
	before := w.Held()
	m := r.alloc(0, n, device.Private)
	if got := w.Held().Device - before.Device; got < n || got > n+n/10 {
		r.Errorf("%d bytes were allocated, but Held grew by %d", n, got)
	}
	r.must(m.Free())
	if after := w.Held(); after != before {
		r.Errorf("after the memory was freed, Held is %+v, but it was %+v before", after, before)
	}
}

// testBorrow makes one world read and write memory that another world has allocated.
func testBorrow(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	lender := &rig{T: r.T, m: r.m}
	lender.open(ranks)
	mine := r.w.Device(0)
	if !r.m.Caps().Borrows {
		r.Skipf("a device of the %s machine cannot borrow memory", r.m.Name())
	}
	h := host{ir.F32, []int64{3, 5}, make([]float64, 15)}
	twice := slices.Clone(h.vals)
	for i := range h.vals {
		h.vals[i], twice[i] = float64(i-4), float64(2*i-8)
	}
	for _, kind := range []device.MemKind{device.Private, device.Shared} {
		theirs := lender.room(0, kind, layouts[0], ir.F32, h.shape)
		r.must(lender.mainOf(0).Upload(theirs, h.bytes()))
		lender.sync()
		m, err := mine.Borrow(theirs.Mem)
		r.must(err)
		if m.Bytes() != theirs.Mem.Bytes() {
			r.Errorf("the handle to borrowed memory has %d bytes of %d", m.Bytes(), theirs.Mem.Bytes())
		}
		v := theirs
		v.Mem = m
		r.equal("as the lender left it", r.contents(0, v), h.vals)
		sum := r.empty(0, ir.F32, h.shape...)
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{v, v}, Outs: []device.View{sum}})
		r.equal("a sum", r.contents(0, sum), twice)
		r.must(r.mainOf(0).Copy(v, sum))
		r.sync()
		r.equal("as the borrower left it", lender.contents(0, theirs), twice)
		r.must(m.Free())
		r.refused("a second free", m.Free())
		r.refused("upload to borrowed memory after its handle was freed", r.mainOf(0).Upload(v, h.bytes()))
		r.equal("given back", lender.contents(0, theirs), twice)

		again, err := mine.Borrow(theirs.Mem)
		r.must(err)
		if ranks > 1 {
			v.Mem = again
			r.refused("a peer's copy of borrowed memory", r.mainOf(1).Copy(r.empty(1, ir.F32, h.shape...), v))
			_, err := r.w.Device(1).Borrow(theirs.Mem)
			r.unsupported("borrowing another rank's memory", err)
		}
		other := &rig{T: r.T, m: r.m}
		other.open(ranks)
		_, err = other.w.Device(0).Borrow(theirs.Mem)
		r.must(err)
		r.must(other.w.Close())
		r.equal("when a borrower was closed", lender.contents(0, theirs), twice)
		r.must(theirs.Mem.Free())
		_, err = mine.Borrow(theirs.Mem)
		r.refused("borrowing memory that was freed", err)
	}
	_, err := mine.Borrow(lender.alloc(0, 64, device.Pinned))
	r.unsupported("borrowing pinned memory", err)
	_, err = mine.Borrow(nil)
	r.unsupported("borrowing nothing", err)
	gone := lender.alloc(0, 64, device.Private)
	r.must(lender.w.Close())
	_, err = mine.Borrow(gone)
	r.refused("borrowing memory of a world that is closed", err)
}

func testHostCopies(r *rig) {
	r.open(1)
	for _, dt := range r.allTypes() {
		for _, shape := range someShapes {
			for _, l := range layouts {
				rng := seeded(dt, shape, l.name)
				h := random(rng, dt, shape...)
				r.equal(l.name, r.contents(0, r.put(0, h, l)), h.vals)
			}
		}
	}
	v := r.empty(0, ir.F32, 3)
	s := r.mainOf(0)
	r.refused("upload of too many bytes", s.Upload(v, make([]byte, 16)))
	r.refused("upload of too few bytes", s.Upload(v, make([]byte, 8)))
	r.refused("download of too few bytes", s.Download(make([]byte, 8), v))
}

var someShapes = [][]int64{{}, {0}, {1}, {7}, {3, 0, 2}, {1, 1}, {5, 3}, {2, 3, 4}, {33, 65}, {3, 1, 5, 2}}

func testCopies(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	for _, dt := range r.allTypes() {
		for _, shape := range someShapes {
			for i, from := range layouts {
				for j, to := range layouts {
					r.copyBetween(0, 0, dt, shape, from, to)
					if ranks > 1 && (i+j)%2 == 0 {
						r.copyBetween(0, 1, dt, shape, from, to)
					}
				}
			}
		}
	}
}

// copyBetween copies from a rank to its peer and back; each copy is issued once by either rank.
func (r *rig) copyBetween(mine, peer int, dt ir.DType, shape []int64, from, to layout) {
	r.Helper()
	h := random(seeded(dt, shape, from.name, to.name, peer), dt, shape...)
	src := r.put(mine, h, from)
	there := r.room(peer, device.Shared, to, dt, shape)
	back := r.room(mine, device.Shared, from, dt, shape)
	s := r.mainOf(mine)
	r.must(s.Copy(there, src))
	r.must(s.Copy(back, there))
	got := r.get(s, back)
	r.sync()
	r.equal("there and back", got.vals(), h.vals)
	r.equal("there", r.contents(peer, there), h.vals)
}

func testOverlappingCopies(r *rig) {
	r.open(1)
	s := r.mainOf(0)
	for _, shift := range []int64{-3, -1, 0, 1, 4} {
		h := random(seeded(shift), ir.F32, 20)
		v := r.put(0, h)
		part := func(lo int64) device.View {
			return device.View{Mem: v.Mem, Off: 4 * lo, DType: ir.F32, Shape: []int64{10}, Strides: []int64{1}}
		}
		r.must(s.Copy(part(5+shift), part(5)))
		want := append([]float64(nil), h.vals...)
		copy(want[5+shift:15+shift], h.vals[5:15])
		r.equal("shifted", r.contents(0, v), want)
	}
	// In place: the transpose of a square, if the machine supports it.
	h := random(seeded("square"), ir.F32, 5, 5)
	v := r.put(0, h)
	turned := v
	turned.Strides = []int64{1, 5}
	if err := s.Copy(v, turned); err != nil {
		return
	}
	want := make([]float64, 25)
	for i := range 25 {
		want[i] = h.vals[i%5*5+i/5]
	}
	r.equal("turned", r.contents(0, v), want)
}

func testBadViews(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	s := r.mainOf(0)
	m := r.alloc(0, 64, device.Shared)
	good := device.View{Mem: m, DType: ir.F32, Shape: []int64{4, 4}, Strides: []int64{4, 1}}
	with := func(change func(v *device.View)) device.View {
		v := good
		change(&v)
		return v
	}
	bad := map[string]device.View{
		"no memory":       with(func(v *device.View) { v.Mem = nil }),
		"past the end":    with(func(v *device.View) { v.Off = 4 }),
		"before":          with(func(v *device.View) { v.Off = -4 }),
		"far away":        with(func(v *device.View) { v.Off = math.MaxInt64 - 3 }),
		"wide stride":     with(func(v *device.View) { v.Strides = []int64{5, 1} }),
		"overflow":        with(func(v *device.View) { v.Strides = []int64{math.MaxInt64 / 2, 1} }),
		"back":            with(func(v *device.View) { v.Strides = []int64{4, -1} }),
		"negative extent": with(func(v *device.View) { v.Shape = []int64{4, -1} }),
		"huge":            with(func(v *device.View) { v.Shape = []int64{1 << 40, 1 << 40} }),
		"few strides":     with(func(v *device.View) { v.Strides = []int64{1} }),
		"no type":         with(func(v *device.View) { v.DType = ir.InvalidDType }),
		"odd offset":      with(func(v *device.View) { v.Off, v.Shape = 2, []int64{1, 1} }),
	}
	for name, v := range bad {
		n := 64
		r.refused("upload: "+name, s.Upload(v, make([]byte, n)))
		r.refused("download: "+name, s.Download(make([]byte, n), v))
		r.refused("copy from: "+name, s.Copy(good, v))
		r.refused("copy to: "+name, s.Copy(v, good))
		_, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}, Ins: []device.View{v}, Outs: []device.View{good}})
		r.refused("relu of: "+name, err)
	}
	r.refused("copy of another shape", s.Copy(good, with(func(v *device.View) { v.Shape, v.Strides = []int64{16}, []int64{1} })))
	r.refused("copy of another type", s.Copy(good, with(func(v *device.View) { v.DType = ir.I32 })))
	r.refused("copy to one element many times", s.Copy(with(func(v *device.View) { v.Strides = []int64{0, 1} }), good))
	if ranks > 1 {
		secret := r.alloc(1, 64, device.Private)
		r.refused("copy of a peer's private memory", s.Copy(good, with(func(v *device.View) { v.Mem = secret })))
		shared := r.alloc(1, 64, device.Shared)
		_, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}, Ins: []device.View{with(func(v *device.View) { v.Mem = shared })}, Outs: []device.View{good}})
		r.refused("relu of a peer's memory", err)
	}
	other, err := r.m.Open(r.Context(), 1)
	r.must(err)
	defer other.Close()
	foreign, err := other.Device(0).Alloc(64, device.Shared)
	r.must(err)
	r.refused("copy of another world's memory", s.Copy(good, with(func(v *device.View) { v.Mem = foreign })))
	r.sync()
}
