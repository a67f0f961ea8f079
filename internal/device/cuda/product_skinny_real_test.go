package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestSkinnyReal holds products of few rows, as they are picked, to cuBLASLt's, and each row to the one that is
// computed alone.
func TestSkinnyReal(t *testing.T) {
	m := real(t, Options{})
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
			v := device.View{DType: dt, Shape: shape, Strides: rowMajor(shape)}
			mem, err := d.alloc(v.Elements()*dt.Size(), device.Private)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.bound(func() error { return d.site.fill(mem.addr, mem.bytes, noiseOf(dt), 0) }); err != nil {
				t.Fatal(err)
			}
			v.Mem = mem
			return v
		}
		x, w, bias := room(16, k), room(n, k), room(n)
		result := func(rows int64, kernel device.Kernel, ins ...device.View) (vals []float64, own bool) {
			t.Helper()
			y := room(rows, n)
			ins = slices.Clone(ins)
			ins[0].Shape = []int64{rows, k}
			kernel.Op, kernel.Ins, kernel.Outs = ir.OpLinear, ins, []device.View{y}
			l, err := d.Prepare(kernel)
			if err == nil {
				err = s.Launch(l)
			}
			if err == nil {
				err = world.Sync(t.Context())
			}
			if err == nil {
				err = d.bound(func() (err error) { vals, err = d.site.fetch(y.Mem.(*memory).addr, dt, rows*n); return err })
			}
			if err != nil {
				t.Fatal(err)
			}
			_, own = l.(*launch).steps[0].(*kernelStep)
			return vals, own
		}
		for _, ins := range [][]device.View{{x, w}, {x, w, bias}} {
			for _, relu := range []bool{false, true} {
				all, allOwn := result(16, device.Kernel{Relu: relu}, ins...)
				for _, rows := range []int64{1, 5, 8, 9, 16} {
					got, own := result(rows, device.Kernel{Relu: relu}, ins...)
					want, _ := result(rows, device.Kernel{Relu: relu, Fixed: true}, ins...)
					t.Logf("%s, %d rows, %d operands, relu %v: hocket's kernel is taken: %v", dt, rows, len(ins), relu, own)
					for i, v := range got {
						if !(math.Abs(v-want[i]) <= math.Abs(want[i])/64+0.02) {
							t.Fatalf("%s, %d rows: element %d is %v, by cuBLASLt %v", dt, rows, i, v, want[i])
						}
						if own && allOwn && v != all[i] {
							t.Fatalf("%s, %d rows: element %d is %v, and of 16 rows %v", dt, rows, i, v, all[i])
						}
					}
				}
			}
		}
	}
}

// BenchmarkSkinny times products of few rows over rotating weights, as they are picked and by cuBLASLt's first guess, in turns.
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
					list = append(list, t.prepare(device.Kernel{Op: ir.OpLinear, Constant: true, Fixed: fixed, Ins: []device.View{x, w}, Outs: []device.View{y}}))
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
