package kernels

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// oracle computes kernels' operations on the CPU machine. The results of GPU kernels must match its results.
type oracle struct {
	t *testing.T
	w device.World
	s device.Stream
}

func newOracle(t *testing.T) *oracle {
	w, err := cpu.New(cpu.Options{}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	s, err := w.Device(0).NewStream(device.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &oracle{t, w, s}
}

// values is a dense tensor.
type values struct {
	dt    ir.DType
	shape []int64
	vals  []float64
}

func (o *oracle) view(dt ir.DType, shape []int64) device.View {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	m, err := o.w.Device(0).Alloc(n*dt.Size(), device.Private)
	if err != nil {
		o.t.Fatal(err)
	}
	return device.View{Mem: m, DType: dt, Shape: shape, Strides: rowMajor(shape)}
}

// result returns the result of k with the operands ins, as the CPU machine computes it.
func (o *oracle) result(k device.Kernel, out ir.DType, shape []int64, ins ...values) []float64 {
	o.t.Helper()
	for _, in := range ins {
		v := o.view(in.dt, in.shape)
		raw := make([]byte, int64(len(in.vals))*in.dt.Size())
		tensor.FromFloat64(raw, in.vals, in.dt)
		o.must(o.s.Upload(v, raw))
		k.Ins = append(k.Ins, v)
	}
	v := o.view(out, shape)
	k.Outs = []device.View{v}
	l, err := o.w.Device(0).Prepare(k)
	o.must(err)
	o.must(o.s.Launch(l))
	raw := make([]byte, v.Elements()*out.Size())
	o.must(o.s.Download(raw, v))
	o.must(o.w.Sync(o.t.Context()))
	l.Release()
	for _, in := range append(k.Ins, v) {
		o.must(in.Mem.Free())
	}
	got := make([]float64, v.Elements())
	tensor.ToFloat64(got, raw, out)
	return got
}

func (o *oracle) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// trial is a bench that compares results with those of an oracle.
type trial struct {
	*bench
	o *oracle
}

func newTrial(t *testing.T) *trial { return &trial{newBench(t), newOracle(t)} }

// compare runs k on operands with the layout l and compares the result with that of the CPU machine. A difference of
// slack units in the last place of the result's type, at its largest term, is permitted.
func (r *trial) compare(k device.Kernel, l layout, slack float64, out ir.DType, shape []int64, ins ...values) {
	r.t.Helper()
	want := r.o.result(k, out, shape, ins...)
	var ops []Operand
	size := 0.0
	for i, in := range ins {
		if ops = append(ops, r.put(in.dt, l, in.vals, in.shape...)); i > 0 && in.dt.IsInt() {
			continue // these are positions and lengths, which say nothing about the size of terms
		}
		for _, v := range in.vals {
			if !math.IsInf(v, 0) && v == v {
				size = max(size, math.Abs(v))
			}
		}
	}
	p := Computation{Op: k.Op, Ins: ops, Out: r.room(out, l, shape...)}
	what := fmt.Sprintf("%s of %s%v, %s, to %s%v", p, kinds(ins), shapes(ins), l.name, out, shape)
	r.add(what, p, func() { same(r.t, what, r.vals(p.Out), want, slack*unit(out)*max(1, size)) })
}

func kinds(ins []values) string {
	if len(ins) == 0 {
		return "nothing"
	}
	return ins[0].dt.String()
}

func shapes(ins []values) [][]int64 {
	var s [][]int64
	for _, in := range ins {
		s = append(s, in.shape)
	}
	return s
}

// unit returns the distance from 1 to the next larger number of type dt.
func unit(dt ir.DType) float64 {
	switch dt {
	case ir.F32:
		return 0x1p-23
	case ir.F16:
		return 0x1p-10
	case ir.BF16:
		return 0x1p-7
	case ir.F64:
		return 0x1p-52
	}
	return 0
}

func same(t *testing.T, what string, got, want []float64, slack float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	for i, w := range want {
		g := got[i]
		if g == w || g != g && w != w {
			continue
		}
		if off := math.Abs(g - w); !(off <= slack*max(1, math.Abs(w))) {
			t.Errorf("%s: element %d is %v, want %v (slack %g)", what, i, g, w, slack)
			return
		}
	}
}

// noise returns random values of type dt.
func noise(dt ir.DType, shape ...int64) values {
	h := fnv.New64a()
	fmt.Fprint(h, dt, shape)
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	v := values{dt, shape, make([]float64, n)}
	for i := range v.vals {
		v.vals[i] = float64(rng.IntN(41) - 20)
		if !dt.IsInt() {
			v.vals[i] = tensor.Round(dt, rng.NormFloat64())
		}
	}
	return v
}

func list(dt ir.DType, vals ...float64) values {
	v := values{dt, []int64{int64(len(vals))}, nil}
	for _, x := range vals {
		v.vals = append(v.vals, tensor.Round(dt, x))
	}
	return v
}
