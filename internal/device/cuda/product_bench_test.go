package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// layerProducts lists the sizes m, n, k of the products that one rank computes in layers split over four and over two
// ranks.
var layerProducts = [][3]int64{
	{8192, 7168, 8192}, {8192, 2048, 28672}, {8192, 8192, 7168}, {2048, 7168, 8192}, {2048, 2048, 28672}, {2048, 8192, 7168}, {512, 8192, 7168}, {8192, 2560, 8192},
	{8192, 14336, 8192}, {8192, 8192, 14336}, {4096, 8192, 14336}, {2048, 14336, 8192}, {2048, 8192, 14336}, {1024, 8192, 14336}, {8192, 4096, 28672},
}

// timer times launches on one GPU with events.
type timer struct {
	*testing.B
	d *dev
	w *world
}

func newTimer(b *testing.B) *timer { return newTimerOf(b, 1) }

// newTimerOf returns a timer for the first of the given number of GPUs.
func newTimerOf(b *testing.B, gpus int) *timer {
	b.Helper()
	m, err := New(Options{Skinny: true})
	if err != nil {
		b.Skip(err)
	}
	if have := m.Caps().MaxRanks; have < gpus {
		b.Skipf("needs %d GPUs, there are %d", gpus, have)
	}
	w, err := m.Open(b.Context(), gpus)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	return &timer{b, w.Device(0).(*dev), w.(*world)}
}

func (t *timer) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// view allocates a dense tensor of normally distributed numbers.
func (t *timer) view(dt ir.DType, shape ...int64) device.View {
	t.Helper()
	return t.filled(gemm.NoiseOf(dt), dt, shape...)
}

// drawn is like view, but the seed selects the numbers. If queries and keys of an attention had the same seed, they
// would be equal, and nearly all weight would be on one key.
func (t *timer) drawn(seed uint64, dt ir.DType, shape ...int64) device.View {
	t.Helper()
	return t.filled(gemm.PatternOf(dt, rand.New(rand.NewPCG(3, seed)).NormFloat64), dt, shape...)
}

func (t *timer) filled(pattern []byte, dt ir.DType, shape ...int64) device.View {
	t.Helper()
	v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
	mem, err := t.d.alloc(v.Elements()*dt.Size(), device.Private)
	t.must(err)
	t.must(t.d.bound(func() error { return t.d.site.fill(mem.addr, mem.bytes, pattern, 0) }))
	v.Mem = mem
	return v
}

func (t *timer) prepare(k device.Kernel) device.Launch {
	t.Helper()
	l, err := t.d.Prepare(k)
	t.must(err)
	return l
}

func (t *timer) stream(priority int) *stream {
	t.Helper()
	s, err := t.d.NewStream(device.StreamOptions{Priority: priority})
	t.must(err)
	return s.(*stream)
}

// kernels returns the time of each kernel in microseconds, measured alternately in batches of ten launches.
func (t *timer) kernels(all ...device.Kernel) []float64 {
	t.Helper()
	const calls = 10
	s := t.stream(0)
	var times []func()
	for _, k := range all {
		l := t.prepare(k)
		defer l.Release()
		times = append(times, func() {
			for range calls {
				t.must(s.Launch(l))
			}
		})
	}
	us := t.compare(s, 5, times...)
	for i := range us {
		us[i] /= calls
	}
	return us
}

// compare measures the work that each of the functions issues to the stream s, alternately, and returns the median
// times in microseconds.
func (t *timer) compare(s *stream, rounds int, issue ...func()) []float64 {
	t.Helper()
	took := make([][]float64, len(issue))
	for round := range rounds + 1 {
		for i, f := range issue {
			var events [2]nvlib.Event
			t.must(t.d.bound(func() (err error) {
				for j := range events {
					if events[j], err = t.d.site.clock.Event(true); err != nil {
						return err
					}
				}
				return t.w.drv.Record(events[0], s.h)
			}))
			f()
			t.must(t.d.bound(func() error { return t.w.drv.Record(events[1], s.h) }))
			t.must(t.w.Sync(t.Context()))
			var ms float32
			t.must(t.d.bound(func() (err error) { ms, err = t.w.drv.Elapsed(events[0], events[1]); return err }))
			t.d.site.clock.FreeTimed(events[:]...)
			if round > 0 {
				took[i] = append(took[i], float64(ms)*1e3)
			}
		}
	}
	medians := make([]float64, len(issue))
	for i, l := range took {
		slices.Sort(l)
		medians[i] = l[len(l)/2]
	}
	return medians
}

// BenchmarkPicks times the algorithms that are selected for products and compares them with cuBLASLt's first
// suggestion. It also reports the times of all candidates and of the selection. Choices saved on disk are ignored.
func BenchmarkPicks(b *testing.B) { newTimer(b).picks(false) }

// BenchmarkBiasedPicks is BenchmarkPicks for products with a bias.
func BenchmarkBiasedPicks(b *testing.B) { newTimer(b).picks(true) }

func (t *timer) picks(biased bool) {
	t.w.m.cache = nil
	var trial string
	var first, best gemm.Pick
	t.w.m.sys.Picks.Watch = func(_ string, cands []gemm.Candidate, i int) {
		var all []string
		for _, c := range cands {
			all = append(all, c.String())
		}
		all[i] = "[" + all[i] + "]"
		first, best, trial = cands[0].Pick, cands[i].Pick, strings.Join(all, " ")
	}
	defer func() { t.w.m.sys.Picks.Watch = nil }()
	s := t.stream(0)
	for _, shape := range layerProducts {
		m, n, k := shape[0], shape[1], shape[2]
		x, w, y := t.view(ir.BF16, m, k), t.view(ir.BF16, n, k), t.view(ir.BF16, m, n)
		ins := []device.View{x, w}
		if biased {
			ins = append(ins, t.view(ir.BF16, n))
		}
		began := time.Now()
		trial = "kept"
		l := t.prepare(device.Kernel{Op: device.Linear{}, Ins: ins, Outs: []device.View{y}})
		prepared := time.Since(began)
		st := l.(*launch).steps[0].(gemmLaunch).Launch
		if trial != "kept" {
			other := *st
			other.Need = first.Need
			t.must(t.d.bound(func() error {
				other.Product = st.NewProduct(first.Algo, st.Problem.B, st.Problem.A, st.Problem.Out)
				return nil
			}))
			run := func(g *gemm.Launch) func() {
				return func() {
					t.must(t.d.bound(func() error {
						for range 6 {
							if err := (gemmLaunch{g}).run(s); err != nil {
								return err
							}
						}
						s.worked()
						return nil
					}))
				}
			}
			us := t.compare(s, 9, run(&other), run(st))
			flops := 2 * float64(m) * float64(n) * float64(k)
			fmt.Printf("pick %dx%dx%d: first %.1f µs (%.0f TFLOP/s), pick %.1f µs (%.0f TFLOP/s), %+.1f%%; trial %s; workspace %d; prepared in %v\n",
				m, n, k, us[0]/6, flops/us[0]*6/1e6, us[1]/6, flops/us[1]*6/1e6, 100*(us[1]/us[0]-1), trial, best.Need, prepared.Round(time.Millisecond))
			other.Product.Free()
		}
		l.Release()
		for _, v := range append(ins, y) {
			t.must(v.Mem.Free())
		}
	}
	t.ReportMetric(0, "ns/op")
}

// BenchmarkProductData times a product alternately on normally distributed numbers, on low-rank matrices, and on zeros.
// Multiplying data that need more power takes more time.
func BenchmarkProductData(b *testing.B) {
	t := newTimer(b)
	s := t.stream(0)
	const m, n, k = 8192, 8192, 14336
	y := t.view(ir.BF16, m, n)
	var what []string
	var runs []func()
	add := func(name string, k device.Kernel) {
		l := t.prepare(k)
		what = append(what, name)
		runs = append(runs, func() {
			for range 6 {
				t.must(s.Launch(l))
			}
		})
	}
	for _, rank := range []int64{-1, 0, 16, 128} {
		x, w := t.view(ir.BF16, m, k), t.view(ir.BF16, n, k)
		name := "normal numbers"
		for _, v := range []device.View{x, w} {
			switch {
			case rank < 0:
				name = "zeros"
				t.must(s.Launch(t.prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpFill}, Outs: []device.View{v}})))
			case rank > 0:
				name = fmt.Sprintf("products of rank %d", rank)
				left, right := t.view(ir.BF16, v.Shape[0], rank), t.view(ir.BF16, k, rank)
				t.must(s.Launch(t.prepare(device.Kernel{Op: device.Linear{}, Ins: []device.View{left, right}, Outs: []device.View{v}})))
			}
		}
		add(name, device.Kernel{Op: device.Linear{}, Ins: []device.View{x, w}, Outs: []device.View{y}})
	}
	for i, us := range t.compare(s, 9, runs...) {
		fmt.Printf("data: product %dx%dx%d of %s: %.1f µs\n", m, n, k, what[i], us/6)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWeightLayout times products alternately with a weight of shape [N, K], as linear takes it, and of shape [K,
// N].
func BenchmarkWeightLayout(b *testing.B) {
	t := newTimer(b)
	s := t.stream(0)
	for _, shape := range [][3]int64{{8192, 4096, 28672}, {8192, 8192, 14336}, {8192, 7168, 8192}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, w, y := t.view(ir.BF16, m, k), t.view(ir.BF16, n, k), t.view(ir.BF16, m, n)
		linear := t.prepare(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, w}, Outs: []device.View{y}})
		w.Shape, w.Strides = []int64{k, n}, []int64{n, 1}
		matmul := t.prepare(device.Kernel{Op: device.Matmul{}, Ins: []device.View{x, w}, Outs: []device.View{y}})
		chain := func(l device.Launch) func() {
			return func() {
				for range 6 {
					t.must(s.Launch(l))
				}
			}
		}
		us := t.compare(s, 7, chain(linear), chain(matmul))
		fmt.Printf("layout: product %dx%dx%d: weight [N, K] %.1f µs, [K, N] %.1f µs\n", m, n, k, us[0]/6, us[1]/6)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkProductToPeer times products that write to a peer's memory, and compares them with products that write to
// local memory, with and without a copy engine that transfers the previous result to the peer.
func BenchmarkProductToPeer(b *testing.B) {
	t := newTimerOf(b, 2)
	s, side := t.stream(0), t.stream(0)
	for _, shape := range [][3]int64{{4096, 8192, 14336}, {2048, 8192, 7168}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, w, home := t.view(ir.BF16, m, k), t.view(ir.BF16, n, k), t.view(ir.BF16, m, n)
		there, err := t.w.Device(1).Alloc(m*n*2, device.Shared)
		t.must(err)
		at := func(v device.View) nvlib.Ptr { return v.Mem.(*memory).addr }
		g := gemm.Problem{DType: ir.BF16, Out: at(home), A: at(x), B: at(w), Batch: 1, M: m, N: n, K: k, Om: n, On: 1, Am: k, Ak: 1, Bk: 1, Bn: k}
		local, err := prepareGemm(t.d, g)
		t.must(err)
		g.Out = there.(*memory).addr
		remote, err := prepareGemm(t.d, g)
		t.must(err)
		far := home
		far.Mem = there
		run := func(st *gemm.Launch, put bool) func() {
			return func() {
				for range 6 {
					t.must(t.d.bound(func() error { s.worked(); return (gemmLaunch{st}).run(s) }))
					if put {
						e := &event{dev: t.d}
						t.must(s.Record(e))
						t.must(side.Wait(e))
						t.must(side.Copy(far, home))
					}
				}
				if put {
					e := &event{dev: t.d}
					t.must(side.Record(e))
					t.must(s.Wait(e))
				}
			}
		}
		us := t.compare(s, 7, run(local, false), run(local, true), run(remote, false))
		fmt.Printf("peer: product %dx%dx%d: at home %.1f µs, with a put of the one before %.1f, into the peer's memory %.1f\n", m, n, k, us[0]/6, us[1]/6, us[2]/6)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkProductBeside times products that are limited to some of the multiprocessors, alone and together with a sum
// of several operands on a stream of high priority.
func BenchmarkProductBeside(b *testing.B) {
	t := newTimer(b)
	s, side, high := t.stream(0), t.stream(0), t.stream(1)
	const m, n, k = 2048, 8192, 7168
	x, w, y := t.view(ir.BF16, m, k), t.view(ir.BF16, n, k), t.view(ir.BF16, m, n)
	slots, sum := t.view(ir.BF16, 4, m, n), t.view(ir.BF16, m, n)
	fold := t.prepare(device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}, Ins: []device.View{slots}, Outs: []device.View{sum}})
	for _, sms := range []int{0, 128, 124, 116, 100} {
		l := t.prepare(device.Kernel{Op: device.Linear{Product: device.Product{SMs: sms}}, Ins: []device.View{x, w}, Outs: []device.View{y}})
		chain := func(side *stream) func() {
			beside := side != nil
			return func() {
				if beside {
					e := &event{dev: t.d}
					t.must(s.Record(e))
					t.must(side.Wait(e))
				}
				for range 6 {
					t.must(s.Launch(l))
					if beside {
						t.must(side.Launch(fold))
					}
				}
				if beside {
					e := &event{dev: t.d}
					t.must(side.Record(e))
					t.must(s.Wait(e))
				}
			}
		}
		after := func() {
			for range 6 {
				t.must(s.Launch(l))
				t.must(s.Launch(fold))
			}
		}
		us := t.compare(s, 9, chain(nil), chain(side), chain(high), after)
		fmt.Printf("concurrent: product %dx%dx%d for %d SMs: alone %.1f µs, with a concurrent sum %.1f, of high priority %.1f, with the sum after it %.1f\n",
			m, n, k, sms, us[0]/6, us[1]/6, us[2]/6, us[3]/6)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkMemoryBound times kernels that are limited by memory bandwidth.
func BenchmarkMemoryBound(b *testing.B) {
	t := newTimer(b)
	s := t.stream(0)
	const rows, cols = 2048, 8192
	big := t.view(ir.BF16, 4, 4*rows, cols)
	part := func(slots int64, rows int64) device.View {
		v := big
		v.Shape, v.Strides = []int64{slots, rows, cols}, []int64{rows * cols, cols, 1}
		return v
	}
	flat := func(i, rows int64) device.View {
		v := big
		v.Off, v.Shape, v.Strides = 2*i*rows*cols, []int64{rows, cols}, []int64{cols, 1}
		return v
	}
	out, row := t.view(ir.BF16, 4*rows, cols), t.view(ir.BF16, cols)
	into := func(rows int64) []device.View {
		v := out
		v.Shape = []int64{rows, cols}
		return []device.View{v}
	}
	type work struct {
		what  string
		bytes int64
		k     device.Kernel
	}
	var all []work
	for _, r := range []int64{512, rows, 2 * rows} {
		one := 2 * r * cols
		for _, slots := range []int64{2, 4} {
			var ins []device.View
			for i := range slots {
				ins = append(ins, flat(i, r))
			}
			all = append(all,
				work{fmt.Sprintf("sum of %d slots of %d rows", slots, r), (slots + 1) * one, device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}, Ins: []device.View{part(slots, r)}, Outs: into(r)}},
				work{fmt.Sprintf("reduce_slots of %d of %d rows", slots, r), (slots + 1) * one, device.Kernel{Op: device.ReduceSlots{Axis: 0}, Ins: []device.View{part(slots, r)}, Outs: into(r)}},
				work{fmt.Sprintf("reduction of %d of %d rows", slots, r), (slots + 1) * one, device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}, Ins: ins, Outs: into(r)}})
		}
		all = append(all,
			work{fmt.Sprintf("rms_norm of %d rows", r), 2 * one, device.Kernel{Op: device.RMSNorm{Eps: 1e-5}, Ins: []device.View{flat(0, r), row}, Outs: into(r)}},
			work{fmt.Sprintf("softmax of %d rows", r), 2 * one, device.Kernel{Op: device.Softmax{Axis: 1}, Ins: []device.View{flat(0, r)}, Outs: into(r)}},
			work{fmt.Sprintf("gelu of %d rows", r), 2 * one, device.Kernel{Op: device.Elementwise{Op: ir.OpGelu}, Ins: []device.View{flat(0, r)}, Outs: into(r)}},
			work{fmt.Sprintf("relu of %d rows", r), 2 * one, device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}, Ins: []device.View{flat(0, r)}, Outs: into(r)}},
			work{fmt.Sprintf("add of %d rows", r), 3 * one, device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{flat(0, r), flat(1, r)}, Outs: into(r)}},
			work{fmt.Sprintf("copy of %d rows", r), 2 * one, device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{flat(0, r)}, Outs: into(r)}})
	}
	for _, w := range all {
		l, err := t.d.Prepare(w.k)
		if err != nil {
			fmt.Println("memory:", w.what, err)
			continue
		}
		us := t.compare(s, 9, func() {
			for range 8 {
				t.must(s.Launch(l))
			}
		})
		fmt.Printf("memory: %s: %.1f µs, %.0f GB/s\n", w.what, us[0]/8, float64(w.bytes)/us[0]*8/1e3)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkChains times fused chains of operations, and their operations one by one.
func BenchmarkChains(b *testing.B) {
	t := newTimer(b)
	s := t.stream(0)
	for _, shape := range [][]int64{{8192, 7168}, {2048, 7168}, {256, 7168}} {
		x, y, z := t.view(ir.BF16, shape...), t.view(ir.BF16, shape...), t.view(ir.BF16, shape...)
		tmp, tmp2, out := t.view(ir.BF16, shape...), t.view(ir.BF16, shape...), t.view(ir.BF16, shape...)
		link := func(op ir.Op, args ...int) device.Link { return device.Link{Op: op, Args: args, DType: ir.BF16} }
		for _, c := range []struct {
			links []device.Link
			apart []device.Kernel
		}{
			{[]device.Link{link(ir.OpSilu, 0), link(ir.OpMul, ^0, 1)}, []device.Kernel{
				{Op: device.Elementwise{Op: ir.OpSilu}, Ins: []device.View{x}, Outs: []device.View{tmp}},
				{Op: device.Elementwise{Op: ir.OpMul}, Ins: []device.View{tmp, y}, Outs: []device.View{out}}}},
			{[]device.Link{link(ir.OpGelu, 0), link(ir.OpMul, ^0, 1), link(ir.OpAdd, ^1, 2)}, []device.Kernel{
				{Op: device.Elementwise{Op: ir.OpGelu}, Ins: []device.View{x}, Outs: []device.View{tmp}},
				{Op: device.Elementwise{Op: ir.OpMul}, Ins: []device.View{tmp, y}, Outs: []device.View{tmp2}},
				{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{tmp2, z}, Outs: []device.View{out}}}},
		} {
			ins := []device.View{x, y, z}[:len(c.links)]
			one := t.prepare(device.Kernel{Op: device.Chain{Links: c.links}, Ins: ins, Outs: []device.View{out}})
			var each []device.Launch
			for _, k := range c.apart {
				each = append(each, t.prepare(k))
			}
			us := t.compare(s, 9, func() {
				for range 8 {
					for _, l := range each {
						t.must(s.Launch(l))
					}
				}
			}, func() {
				for range 8 {
					t.must(s.Launch(one))
				}
			})
			bytes := float64(len(ins)+1) * 2 * float64(shape[0]*shape[1])
			fmt.Printf("chain: %s of bf16%v: %.1f µs one by one, %.1f µs as one (%.0f GB/s)\n", device.Name(device.Chain{Links: c.links}), shape, us[0]/8, us[1]/8, bytes/us[1]*8/1e3)
		}
	}
	b.ReportMetric(0, "ns/op")
}
