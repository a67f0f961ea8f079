package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// besideRig holds several linears of one operand x on a fake GPU, prepared as one launch if possible.
type besideRig struct {
	f *fakedriver.GPU
	w device.World
	s device.Stream
	l device.Launch
}

func newBesideRig(t *testing.T, rows int64, ns []int64, gated bool) (r besideRig, taken bool) {
	t.Helper()
	return newBesideRigOn(t, &fakedriver.LT{T: t, Costs: []float32{1}, Need: 1 << 20}, rows, ns, gated)
}

func newBesideRigOn(t *testing.T, lt *fakedriver.LT, rows int64, ns []int64, gated bool) (r besideRig, taken bool) {
	t.Helper()
	r.f = fakedriver.New(t, 1)
	r.f.LT = lt
	must := mustOf(t)
	var err error
	r.w, err = newMachine(system(r.f), Options{Kernels: r.f}).Open(t.Context(), 1)
	must(err)
	d := r.w.Device(0).(*dev)
	d.site.gpu.SMs = 4
	view := func(shape ...int64) device.View {
		v := device.View{DType: ir.BF16, Shape: shape, Strides: strided.RowMajor(shape)}
		mem, err := d.Alloc(max(v.Elements()*2, 1), device.Private)
		must(err)
		v.Mem = mem
		return v
	}
	const depth = 64
	k := device.Kernel{Op: device.Linears{Gated: gated}, Ins: []device.View{view(rows, depth)}}
	for _, n := range ns {
		k.Ins, k.Outs = append(k.Ins, view(n, depth)), append(k.Outs, view(rows, n))
	}
	if gated {
		k.Outs = append(k.Outs, view(rows, ns[0]))
	}
	if r.l, err = d.Prepare(k); errors.Is(err, device.ErrUnsupported) {
		return r, false
	}
	must(err)
	r.s, err = d.NewStream(device.StreamOptions{})
	must(err)
	must(r.s.(*stream).PrepareLaunches([]device.Launch{r.l}))
	return r, true
}

// TestBeside checks when linears of one operand x become one launch of concurrent products: if some are too small to
// fill the GPU. In a graph each product has its own stream and workspace. Otherwise the products run one after another
// with one workspace.
func TestBeside(t *testing.T) {
	for _, c := range []struct {
		name  string
		rows  int64
		ns    []int64
		gated bool
		taken bool
	}{
		{name: "q, k and v", rows: 128, ns: []int64{256, 128, 128}, taken: true},
		{name: "gate and up", rows: 65, ns: []int64{128, 128}, gated: true, taken: true},
		{name: "few rows", rows: 64, ns: []int64{128, 128}},
		{name: "one is small", rows: 128, ns: []int64{1024, 256}, taken: true},
		{name: "each fills the GPU", rows: 128, ns: []int64{512, 512}},
		{name: "no rows", rows: 0, ns: []int64{512, 512}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must := mustOf(t)
			r, taken := newBesideRig(t, c.rows, c.ns, c.gated)
			defer func() { must(r.w.Close()) }()
			if taken != c.taken {
				t.Fatalf("the linears are one launch: %v", taken)
			}
			if !taken {
				return
			}
			workspaces := func() int {
				all := map[uintptr]bool{}
				if len(r.f.LT.Runs) != len(c.ns) {
					t.Errorf("%d of %d products were computed", len(r.f.LT.Runs), len(c.ns))
				}
				for _, run := range r.f.LT.Runs {
					all[run.Work] = true
				}
				return len(all)
			}
			r.f.LT.Runs = nil
			must(r.s.Launch(r.l))
			must(r.w.Sync(t.Context()))
			if n := workspaces(); n != 1 {
				t.Errorf("products in sequence use %d workspaces", n)
			}
			for range 2 {
				r.f.LT.Runs = nil
				g, err := r.w.Capture(func() error { return r.s.Launch(r.l) })
				must(err)
				if n := workspaces(); n != len(c.ns) {
					t.Errorf("%d products in a graph use %d workspaces", len(c.ns), n)
				}
				must(g.Launch(t.Context()))
				must(r.w.Sync(t.Context()))
			}
		})
	}
}

// TestShares checks that linears of one operand x get shares of the multiprocessors if this was faster, and then run
// concurrently also outside graphs.
func TestShares(t *testing.T) {
	for name, c := range map[string]struct {
		share      float32 // time of a product with a share of the multiprocessors; a product with all of them takes 1
		workspaces int     // of the products outside graphs
	}{"faster": {0.5, 3}, "as fast": {1, 1}, "slower": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			must := mustOf(t)
			lt := &fakedriver.LT{T: t, Costs: []float32{1}, Need: 1 << 20, Share: c.share}
			r, taken := newBesideRigOn(t, lt, 128, []int64{256, 128, 128}, false)
			defer func() { must(r.w.Close()) }()
			if !taken {
				t.Fatal("the linears are not one launch")
			}
			if !slices.Equal(lt.SMs, []int32{2, 1, 1}) {
				t.Errorf("shares of %v multiprocessors, want 2, 1 and 1 of 4", lt.SMs)
			}
			lt.Runs = nil
			must(r.s.Launch(r.l))
			must(r.w.Sync(t.Context()))
			works := map[uintptr]bool{}
			for _, run := range lt.Runs {
				works[run.Work] = true
			}
			if len(lt.Runs) != 3 || len(works) != c.workspaces {
				t.Errorf("%d products with %d workspaces, want 3 with %d", len(lt.Runs), len(works), c.workspaces)
			}
		})
	}
}

// TestBatch checks when the two linears of a gate become one batched GEMM of cuBLASLt: if that was faster, or if the
// processes agreed on it, and only if it has the same bits. The results are exchanged if the weights are at addresses
// in the other order.
func TestBatch(t *testing.T) {
	const n, depth = 1024, 512
	for _, c := range []struct {
		name    string
		rows    int64
		batch   float32 // time of the batched GEMM in milliseconds; a single product takes 1
		down    bool    // the second weight precedes the first in memory
		plain   bool    // the linears have no gate
		unequal bool
		want    int // number of products that a launch computes separately
	}{
		{name: "faster", rows: 128, batch: 1.5, want: 1},
		{name: "faster, fills the GPU", rows: 1024, batch: 1.5, want: 1},
		{name: "weights in the other order", rows: 128, batch: 1.5, down: true, want: 1},
		{name: "slower", rows: 128, batch: 2.5, want: 2},
		{name: "as fast", rows: 128, batch: 2, want: 2},
		{name: "other bits", rows: 128, batch: 1.5, unequal: true, want: 2},
		{name: "without a gate", rows: 128, batch: 1.5, plain: true, want: 2},
		{name: "too many rows", rows: 1025, batch: 1.5, want: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			must := mustOf(t)
			f := fakedriver.New(t, 1)
			f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Need: 1 << 20, Batch: c.batch, Unequal: c.unequal}
			w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
			must(err)
			defer func() { must(w.Close()) }()
			d := w.Device(0).(*dev)
			d.site.gpu.SMs = 64
			room := func(shape ...int64) device.View {
				v := device.View{DType: ir.BF16, Shape: shape, Strides: strided.RowMajor(shape)}
				mem, err := d.Alloc(v.Elements()*2, device.Private)
				must(err)
				v.Mem = mem
				return v
			}
			x, gate, up := room(c.rows, depth), room(n, depth), room(n, depth)
			y, z, out := room(c.rows, n), room(c.rows, n), room(c.rows, n)
			if gate.Mem.Address() > up.Mem.Address() != c.down {
				gate, up = up, gate
			}
			if y.Mem.Address() > z.Mem.Address() {
				y, z = z, y
			}
			k := device.Kernel{Op: device.Linears{Gated: !c.plain}, Ins: []device.View{x, gate, up}, Outs: []device.View{y, z, out}}
			if c.plain {
				k.Outs = k.Outs[:2]
			}
			f.LT.Result = func(b uintptr) uint64 {
				switch b {
				case gate.Mem.Address():
					return 0x3f803f803f803f80 // four times 1 as bf16
				case up.Mem.Address():
					return 0x4000400040004000 // 2
				}
				return 0
			}
			before := f.LT.Live
			l, err := d.Prepare(k)
			if errors.Is(err, device.ErrUnsupported) && c.want == 0 {
				if f.LT.Live != before {
					t.Errorf("%d descriptors stay allocated", f.LT.Live-before)
				}
				return
			}
			must(err)
			s, err := d.NewStream(device.StreamOptions{})
			must(err)
			must(s.(*stream).PrepareLaunches([]device.Launch{l}))
			f.LT.Runs = nil
			must(s.Launch(l))
			must(w.Sync(t.Context()))
			if len(f.LT.Runs) != c.want {
				t.Fatalf("%d products are computed, want %d", len(f.LT.Runs), c.want)
			}
			if c.want == 1 {
				distance := func(a, b device.View) int64 {
					n := int64(b.Mem.Address()-a.Mem.Address()) / 2
					return max(n, -n)
				}
				want := [3]int64{distance(gate, up), 0, distance(y, z)}
				if got := f.LT.Runs[0]; got.Shifts != want || got.Out != y.Mem.Address() {
					t.Errorf("the batch writes to %#x with steps %d, want %#x and %d", got.Out, got.Shifts, y.Mem.Address(), want)
				}
			}
			// silu(1)·2; silu(2)·1 is 1.76.
			if bits := cabi.Load[uint16](out.Mem.Address()); !c.plain && bits>>2 != 0x3fbb>>2 {
				t.Errorf("the result is %#x as bf16, want 1.46", bits)
			}
			l.Release()
			if f.LT.Live != before {
				t.Errorf("%d descriptors stay allocated", f.LT.Live-before)
			}
		})
	}
}

// TestBesideFails makes each call fail once while concurrent products are recorded. The error names the call, and
// nothing stays allocated.
func TestBesideFails(t *testing.T) {
	for n := 1; ; n++ {
		r, _ := newBesideRig(t, 128, []int64{256, 128, 128}, false)
		failed := ""
		r.f.Failure = 801
		r.f.At(n, func(call string) bool { failed = call; return true })
		_, err := r.w.Capture(func() error { return r.s.Launch(r.l) })
		r.f.At(0, nil)
		named := err == nil || strings.Contains(err.Error(), strings.TrimSuffix(failed, "_v2"))
		if !named || !releases(failed) && (err != nil) != (failed != "") {
			t.Errorf("call %d, %s, fails: %v", n, failed, err)
		}
		_ = r.w.Close() // returns the same error again
		switch {
		case releases(failed):
			r.f.Dead = 1 // objects that the failed call should free are not freed
		case r.f.Left() != "":
			t.Errorf("call %d, %s, fails: %s stay allocated", n, failed, r.f.Left())
		}
		if failed == "" {
			if n < 20 {
				t.Errorf("recording makes %d calls, fewer than expected", n-1)
			}
			return
		}
	}
}

// TestBatchFails makes calls fail while the two linears of a gate are prepared and timed as a batched GEMM. The error
// names the call, and nothing stays allocated.
func TestBatchFails(t *testing.T) {
	if testing.Short() {
		t.Skip("each preparation fills 160 MB")
	}
	for n := 1; ; n += 29 {
		f := fakedriver.New(t, 1)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Need: 1 << 20, Batch: 1.5, GPU: f}
		w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
		mustOf(t)(err)
		d := w.Device(0).(*dev)
		d.site.gpu.SMs = 64
		k := device.Kernel{Op: device.Linears{Gated: true}}
		for i, shape := range [][]int64{{128, 512}, {1024, 512}, {1024, 512}, {128, 1024}, {128, 1024}, {128, 1024}} {
			v := device.View{DType: ir.BF16, Shape: shape, Strides: strided.RowMajor(shape)}
			v.Mem, err = d.Alloc(v.Elements()*2, device.Private)
			mustOf(t)(err)
			if i < 3 {
				k.Ins = append(k.Ins, v)
			} else {
				k.Outs = append(k.Outs, v)
			}
		}
		failed := ""
		f.Failure = 801
		f.At(n, func(call string) bool { failed = call; return true })
		_, err = d.Prepare(k)
		f.At(0, nil)
		named := err != nil && strings.Contains(err.Error(), strings.TrimSuffix(failed, "_v2"))
		status := failed != "" && failed != "cublasLtGetVersion" // which returns no status
		if status && !releases(failed) && !named {
			t.Errorf("call %d, %s, fails: %v", n, failed, err)
		}
		_ = w.Close() // returns the same error again
		switch {
		case releases(failed):
			f.Dead = 1 // objects that the failed call should free are not freed
		case f.Left() != "":
			t.Errorf("call %d, %s, fails: %s stay allocated", n, failed, f.Left())
		case f.LT.Live != 0:
			t.Errorf("call %d, %s, fails: %d objects of cuBLASLt stay allocated", n, failed, f.LT.Live)
		}
		if failed == "" {
			if n < 100 {
				t.Errorf("preparing makes %d calls, fewer than expected", n-1)
			}
			return
		}
	}
}

// TestBesideReal checks that concurrent products in a graph have the same bits as single products.
func TestBesideReal(t *testing.T) {
	w, err := real(t, Options{Skinny: true}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d, must := w.Device(0).(*dev), mustOf(t)
	s, err := d.NewStream(device.StreamOptions{})
	must(err)
	room, fetch := noises(t, d)
	const depth = 4096
	weights := []device.View{room(ir.BF16, 2048, depth), room(ir.BF16, 512, depth), room(ir.BF16, 512, depth)}
	for _, rows := range []int64{96, 128, 512} {
		x := room(ir.BF16, rows, depth)
		k := device.Kernel{Op: device.Linears{Constant: true},
			Ins: append([]device.View{x}, weights...)}
		var want [][]float64
		for _, weight := range weights {
			out := room(ir.BF16, rows, weight.Shape[0])
			k.Outs = append(k.Outs, room(ir.BF16, rows, weight.Shape[0]))
			one, err := d.Prepare(device.Kernel{Op: device.Linear{Constant: true}, Ins: []device.View{x, weight}, Outs: []device.View{out}})
			must(err)
			must(s.Launch(one))
			must(w.Sync(t.Context()))
			want = append(want, fetch(out))
		}
		all, err := d.Prepare(k)
		if err != nil {
			t.Fatalf("%d rows: %v", rows, err)
		}
		must(s.(*stream).PrepareLaunches([]device.Launch{all}))
		g, err := w.Capture(func() error { return s.Launch(all) })
		must(err)
		for range 100 {
			must(g.Launch(t.Context()))
		}
		must(w.Sync(t.Context()))
		for i, out := range k.Outs {
			if got := fetch(out); fmt.Sprint(got) != fmt.Sprint(want[i]) {
				t.Errorf("%d rows: result %d differs from that of the single product", rows, i)
			}
		}
	}
}
