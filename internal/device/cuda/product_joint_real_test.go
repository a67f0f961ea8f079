package cuda

import (
	"errors"
	"math"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// noises returns two functions: one allocates tensors of normally distributed numbers on a device, the other reads
// tensors.
func noises(t *testing.T, d *dev) (
	room func(dt ir.DType, shape ...int64) device.View, fetch func(device.View) []float64,
) {
	must := mustOf(t)
	room = func(dt ir.DType, shape ...int64) device.View {
		v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
		mem, err := d.alloc(v.Elements()*dt.Size(), device.Private)
		must(err)
		must(d.bound(func() error { return d.site.fill(mem.addr, mem.bytes, gemm.NoiseOf(dt), 0) }))
		v.Mem = mem
		return v
	}
	fetch = func(v device.View) (vals []float64) {
		must(d.bound(func() (err error) {
			vals, err = d.site.fetch(v.Mem.(*memory).addr, v.DType, v.Elements())
			return err
		}))
		return vals
	}
	return room, fetch
}

// TestJointReal checks linears of one operand x that are computed in one launch: they agree with single linears within
// the error bound, and have the same bits as rows of a computation of 32 rows.
func TestJointReal(t *testing.T) {
	m := real(t, Options{Skinny: true})
	world, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d, must := world.Device(0).(*dev), mustOf(t)
	s, err := d.NewStream(device.StreamOptions{})
	must(err)
	room, fetch := noises(t, d)
	run := func(k device.Kernel) bool {
		l, err := d.Prepare(k)
		if _, joint := k.Op.(device.Linears); joint && errors.Is(err, device.ErrUnsupported) {
			return false
		}
		must(err)
		must(s.Launch(l))
		must(world.Sync(t.Context()))
		return true
	}
	for _, c := range []struct {
		what  string
		depth int64
		ns    []int64
		gated bool
	}{{"q, k and v", 4096, []int64{2048, 512, 512}, false}, {"gate and up", 4096, []int64{7168, 7168}, true}} {
		for _, dt := range []ir.DType{ir.BF16, ir.F16} {
			x := room(dt, 32, c.depth)
			weights := []device.View{}
			for _, n := range c.ns {
				weights = append(weights, room(dt, n, c.depth))
			}
			var most [][]float64 // results for 32 rows
			for _, rows := range []int64{32, 16, 8, 5, 1} {
				x.Shape = []int64{rows, c.depth}
				k := device.Kernel{Op: device.Linears{Gated: c.gated, Constant: true},
					Ins: append([]device.View{x}, weights...)}
				var alone []device.View
				for i, n := range c.ns {
					alone = append(alone, room(dt, rows, n))
					k.Outs = append(k.Outs, room(dt, rows, n))
					run(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, weights[i]}, Outs: alone[i : i+1]})
				}
				results := k.Outs
				if c.gated {
					k.Outs = append(k.Outs, room(dt, rows, c.ns[0]))
					results = k.Outs[2:]
					run(device.Kernel{Op: device.Elementwise{Op: ir.OpSilu}, Ins: alone[:1], Outs: alone[:1]})
					run(device.Kernel{Op: device.Elementwise{Op: ir.OpMul}, Ins: alone, Outs: alone[:1]})
				}
				taken := run(k)
				t.Logf("%s, %d rows of %s: one launch: %v", c.what, rows, dt, taken)
				if !taken {
					continue
				}
				for i, out := range results {
					got, want := fetch(out), fetch(alone[i])
					for e, v := range got {
						if dt == ir.F16 { // a value may overflow in one result and not in the other
							v, want[e] = min(max(v, -65504), 65504), min(max(want[e], -65504), 65504)
						}
						if !(math.Abs(v-want[e]) <= math.Abs(want[e])/32+0.05*math.Sqrt(float64(c.depth)/64)) {
							t.Fatalf("%s, %d rows of %s: element %d of result %d is %v, in a single linear %v", c.what, rows, dt, e,
								i, v, want[e])
						}
					}
					if rows == 32 {
						most = append(most, got)
					} else if i < len(most) {
						for e, v := range got {
							if v != most[i][e] {
								t.Fatalf("%s, %d rows of %s: element %d of result %d is %v, computed with 32 rows %v", c.what,
									rows, dt, e, i, v, most[i][e])
							}
						}
					}
				}
			}
		}
	}
}
