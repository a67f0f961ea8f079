package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestSkinnyReal compares products of few rows, computed by the selected algorithm, with sums that the test computes.
// Each row must equal the same row computed alone.
func TestSkinnyReal(t *testing.T) {
	m := real(t, Options{Skinny: true})
	world, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d := world.Device(0).(*dev)
	s, err := d.NewStream(device.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const n, k = 3072, 4096
	for _, dt := range []ir.DType{ir.BF16, ir.F16} {
		room := func(shape ...int64) device.View {
			v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
			mem, err := d.alloc(v.Elements()*dt.Size(), device.Private)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.bound(func() error {
				return d.site.fill(mem.addr, mem.bytes, gemm.NoiseOf(dt),
					0)
			}); err != nil {
				t.Fatal(err)
			}
			v.Mem = mem
			return v
		}
		x, w, bias := room(32, k), room(n, k), room(n)
		fetch := func(v device.View) (vals []float64) {
			t.Helper()
			if err := d.bound(func() (err error) {
				vals, err = d.site.fetch(v.Mem.(*memory).addr, dt, v.Elements())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return vals
		}
		xs, ws, biases := fetch(x), fetch(w), fetch(bias)
		result := func(rows int64, relu bool, ins ...device.View) (vals []float64, own bool) {
			t.Helper()
			y := room(rows, n)
			ins = slices.Clone(ins)
			ins[0].Shape = []int64{rows, k}
			op := device.Linear{Product: device.Product{Relu: relu}}
			l, err := d.Prepare(device.Kernel{Op: op, Ins: ins, Outs: []device.View{y}})
			if err == nil {
				err = s.Launch(l)
			}
			if err == nil {
				err = world.Sync(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			_, own = l.(*launch).steps[0].(*kernelStep)
			return fetch(y), own
		}
		for _, ins := range [][]device.View{{x, w}, {x, w, bias}} {
			for _, relu := range []bool{false, true} {
				all, allOwn := result(32, relu, ins...)
				for _, rows := range []int64{1, 5, 8, 9, 16, 17, 32} {
					got, own := result(rows, relu, ins...)
					t.Logf("%s, %d rows, %d operands, relu %v: hocket's kernel is used: %v", dt, rows, len(ins), relu,
						own)
					for i, v := range got {
						if own && allOwn && v != all[i] {
							t.Fatalf("%s, %d rows: element %d is %v, computed with 32 rows %v", dt, rows, i, v, all[i])
						}
						if i%97 != 0 {
							continue
						}
						row, column := i/n, i%n
						want, magnitude := 0.0, 0.0
						for e := range k {
							p := xs[row*k+e] * ws[column*k+e]
							want, magnitude = want+p, magnitude+math.Abs(p)
						}
						if len(ins) > 2 {
							want += biases[column]
						}
						if relu {
							want = max(want, 0)
						}
						if !(math.Abs(v-want) <= math.Abs(want)/128+magnitude*k/(1<<24)) {
							t.Fatalf("%s, %d rows: element %d is %v, want %v", dt, rows, i, v, want)
						}
					}
				}
			}
		}
	}
}

// BenchmarkSkinny times products of few rows, alternately with the selected algorithm and with cuBLASLt's first
// suggestion. Successive products use different weights.
func BenchmarkSkinny(b *testing.B) {
	t := newTimer(b)
	t.w.m.cache = nil
	s := t.stream(0)
	for _, shape := range [][2]int64{{3072, 4096}, {4096, 2048}, {14336, 4096}, {4096, 7168}} {
		n, k := shape[0], shape[1]
		weights := make([]device.View, max(4, (240<<20)/(n*k*2)+1))
		for i := range weights {
			weights[i] = t.drawn(uint64(i), ir.BF16, n, k)
		}
		for _, m := range []int64{1, 8, 16} {
			x, y := t.view(ir.BF16, m, k), t.view(ir.BF16, m, n)
			var runs []func()
			own := false
			for _, fixed := range []bool{false, true} {
				var list []device.Launch
				for _, w := range weights {
					list = append(list, t.prepare(device.Kernel{Op: device.Linear{Product: device.Product{Fixed: fixed}, Constant: true},
						Ins: []device.View{x, w}, Outs: []device.View{y}}))
				}
				if !fixed {
					_, own = list[0].(*launch).steps[0].(*kernelStep)
				}
				runs = append(runs, func() {
					for range 4 {
						for _, l := range list {
							t.must(s.Launch(l))
						}
					}
				})
			}
			us, each := t.compare(s, 9, runs...), float64(4*len(weights))
			gb := float64(n*k*2) / 1e3
			fmt.Printf("skinny %dx%dx%d: picked (hocket's: %v) %.2f µs, %.0f GB/s; cuBLASLt's first %.2f µs, %.0f GB/s\n", m, n, k, own, us[0]/each, gb*each/us[0], us[1]/each, gb*each/us[1])
		}
		for _, w := range weights {
			t.must(w.Mem.Free())
		}
	}
	b.ReportMetric(0, "ns/op")
}

// skinnyLayers is a program of consecutive products of few rows.
const skinnyLayers = `dim T
mesh tp[1]
func f(%x: bf16[T, 2048], %a: bf16[4096, 2048], %b: bf16[2048, 4096]) -> bf16[T, 2048] {
  %h = linear %x, %a
  %i = relu %h
  %j = linear %i, %b
  %k = linear %j, %a
  %l = linear %k, %b
  %m = linear %l, %a
  %y = linear %m, %b
  return %y
}
`

// TestSkinnyBoundReal checks products whose weights are bound, which a kernel may read before the previous kernel has
// ended. The results have the same bits as with weights that each run uploads, with and without a graph.
func TestSkinnyBoundReal(t *testing.T) {
	m := modeltest.Open(t, real(t, Options{Skinny: true}))
	draw := func(seed uint64, scale float64, shape ...int64) *hocket.Tensor {
		t.Helper()
		r := rand.New(rand.NewPCG(1, seed))
		vals := make([]float64, shape[0]*shape[1])
		for i := range vals {
			vals[i] = scale * r.NormFloat64()
		}
		x, err := hocket.FromFloats(ir.BF16, vals, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	weights := map[string]*hocket.Tensor{"a": draw(1, 0.02, 4096, 2048), "b": draw(2, 0.02, 2048, 4096)}
	var batch, given []hocket.Args
	for i := range 12 {
		x := draw(uint64(10+i), 1, int64(5), 2048)
		batch = append(batch, hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		given = append(given, hocket.Args{In: map[string]*hocket.Tensor{"x": x, "a": weights["a"], "b": weights["b"]}})
	}
	run := func(opts hocket.LoadOptions, bound bool) (all [][]float64) {
		t.Helper()
		model, in := modeltest.Load(t, m, skinnyLayers, opts), given
		if bound {
			in = batch
			for name, w := range weights {
				if err := model.Bind(name, w); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 3 {
			reports, err := model.RunBatch(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			all = nil
			for _, r := range reports {
				all = append(all, r.Out["y"].Floats())
			}
		}
		return all
	}
	want, fixed := run(hocket.LoadOptions{}, false), run(hocket.LoadOptions{FixedAlgorithms: true}, true)
	for what, got := range map[string][][]float64{"eager": run(hocket.LoadOptions{}, true),
		"by graph": run(hocket.LoadOptions{Graph: true}, true)} {
		for i := range got {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%s: run %d differs", what, i)
			}
			var diff, size float64
			for k, v := range got[i] {
				d := v - fixed[i][k]
				diff, size = diff+d*d, size+v*v
			}
			if !(math.Sqrt(diff/size) < 0.02) {
				t.Errorf("%s: run %d differs from cuBLASLt by %v", what, i, math.Sqrt(diff/size))
			}
		}
	}
}
