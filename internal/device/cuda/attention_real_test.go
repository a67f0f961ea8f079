package cuda

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// attended holds the sizes and the dense operands of an attention.
type attended struct {
	attention
	q, k, v []float64
}

// row computes one row of the result, that of head h and query i in batch b, and for each element the sum of the
// magnitudes of its terms.
func (x *attended) row(b, i, h int64) (out, size []float64) {
	sees := x.tk
	if x.causal {
		sees = i + 1 + x.tk - x.tq
	}
	q := x.q[((b*x.tq+i)*x.hq+h)*x.dh:][:x.dh]
	key := func(j int64) int64 { return ((b*x.tk+j)*x.hkv + h/(x.hq/x.hkv)) * x.dh }
	p, most, sum := make([]float64, sees), math.Inf(-1), 0.0
	for j := range p {
		for d, k := range x.k[key(int64(j)):][:x.dh] {
			p[j] += q[d] * k
		}
		p[j] *= ir.AttentionScale(x.dh)
		most = max(most, p[j])
	}
	for j := range p {
		p[j] = math.Exp(p[j] - most)
		sum += p[j]
	}
	out, size = make([]float64, x.dh), make([]float64, x.dh)
	for j := range p {
		for d, v := range x.v[key(int64(j)):][:x.dh] {
			out[d] += p[j] / sum * v
			size[d] += p[j] / sum * math.Abs(v)
		}
	}
	return out, size
}

// TestAttentionReal compares attention with rows computed in f64. The sizes are those that model servers use, and sizes
// that are not multiples of a tile. Some elements of the input are NaN. Only a few queries attend to them.
func TestAttentionReal(t *testing.T) {
	m := real(t, Options{})
	world, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d := world.Device(0).(*dev)
	rng := rand.New(rand.NewPCG(7, 11))
	odd := []attention{
		{2, 130, 270, 16, 16, 64, true}, {8, 17, 300, 16, 8, 128, true}, {8, 17, 300, 16, 8, 64, false}, {3, 200, 333, 24, 8, 128, true}, {1, 700, 700, 64, 64, 128, false},
		{1, 300, 300, 40, 40, 96, true}, {1, 1, 5000, 6, 2, 64, true}, {2, 3, 2050, 8, 1, 128, true}, {1, 4100, 4100, 4, 2, 64, true},
		{2, 300, 700, 4, 4, 64, true}, {1, 260, 2001, 1, 1, 128, false}, {1, 90, 513, 8, 2, 128, true},
		{2, 256, 600, 8, 4, 128, true},
	}
	for i, c := range append(odd, attentions...) {
		dt, u := ir.BF16, 0x1p-8 // and its unit roundoff
		if i%2 == 1 {
			dt, u = ir.F16, 0x1p-11
		}
		if c.b*max(c.tk*c.hkv, c.tq*c.hq)*c.dh > 1<<24 {
			continue // writing the inputs takes long, and larger inputs would run the same kernels
		}
		noise := func(n int64) []float64 {
			vals := make([]float64, n)
			for i := range vals {
				vals[i] = tensor.Round(dt, rng.NormFloat64())
			}
			return vals
		}
		x := &attended{c, noise(c.b * c.tq * c.hq * c.dh), noise(c.b * c.tk * c.hkv * c.dh), noise(c.b * c.tk * c.hkv * c.dh)}
		x.v[len(x.v)-1] = math.NaN()
		view := func(n, heads int64) device.View {
			shape := []int64{c.b, n, heads, c.dh}
			v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
			mem, err := d.alloc(v.Elements()*dt.Size(), device.Private)
			if err != nil {
				t.Fatal(err)
			}
			v.Mem = mem
			return v
		}
		q, k, v, out := view(c.tq, c.hq), view(c.tk, c.hkv), view(c.tk, c.hkv), view(c.tq, c.hq)
		at := func(v device.View) *memory { return v.Mem.(*memory) }
		err := d.bound(func() error {
			return errors.Join(d.site.put(at(q).addr, dt, x.q), d.site.put(at(k).addr, dt, x.k), d.site.put(at(v).addr, dt, x.v), d.site.fill(at(out).addr, at(out).bytes, []byte{0xff, 0xff}, 0))
		})
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.Prepare(device.Kernel{Op: device.Attention{Scale: ir.AttentionScale(c.dh), Causal: c.causal}, Ins: []device.View{q, k, v}, Outs: []device.View{out}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewStream(device.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Launch(l), world.Sync(t.Context())); err != nil {
			t.Fatal(err)
		}
		var got []float64
		if err := d.bound(func() (err error) { got, err = d.site.fetch(at(out).addr, dt, out.Elements()); return err }); err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for n := range 400 {
			b, i, h := rng.Int64N(c.b), rng.Int64N(c.tq), rng.Int64N(c.hq)
			if n < 8 { // the last queries attend to all keys, including the NaN
				b, i, h = c.b-1, c.tq-1-int64(n)%min(2, c.tq), c.hq-1-int64(n)/2%c.hq
			}
			want, size := x.row(b, i, h)
			for e, w := range want {
				g := got[((b*c.tq+i)*c.hq+h)*c.dh+int64(e)]
				if math.IsNaN(w) != math.IsNaN(g) {
					t.Fatalf("%v of %s: element %d of head %d of query %d in batch %d is %v, want %v", c, dt, e, h, i, b, g, w)
				}
				if !math.IsNaN(w) {
					worst = max(worst, math.Abs(g-w)/size[e])
				}
			}
		}
		t.Logf("%v of %s: off by up to %.2g of the sum of magnitudes", c, dt, worst)
		if !(worst < 2*u+1e-4) { // the error of rounding the weights and the result
			t.Errorf("%v of %s: off by %g", c, dt, worst)
		}
		l.Release()
		for _, x := range []device.View{q, k, v, out} {
			if err := x.Mem.Free(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
