package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// jointKernels is a kernel library of a fake driver. Its kernels for few rows take a millisecond, and launches of
// several linears take the given time. Launches of several linears compute correct results, and so do single linears if
// the fake cuBLASLt has no algorithms. If it has, single linears return the same numbers as its algorithms.
type jointKernels struct {
	*fakedriver.GPU
	ms    float32
	two   float32 // time of two linears in one launch; 0 if it is ms
	wrong bool
	made  int
	ran   map[bool]int // number of launches of several linears (true) and of one (false)
}

func (j *jointKernels) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	steps, err := j.GPU.Steps(t, p)
	q, ok := p.(kernels.Skinny)
	if err != nil || !ok {
		return steps, err
	}
	ms, joint := float32(1), len(q.More) > 0 || q.Up != nil
	if joint {
		j.made++
		ms = j.ms
		if len(q.More) == 1 && j.two > 0 {
			ms = j.two
		}
	}
	j.Mu.Lock()
	defer j.Mu.Unlock()
	run := j.Named[steps[0].Symbol]
	j.Named[steps[0].Symbol] = func(a uintptr) {
		if j.ran != nil {
			j.ran[joint]++
		}
		switch j.LT.Now += ms; {
		case !joint && len(j.LT.Costs) > 0:
			cabi.Store(uintptr(q.Out.Addr), uint64(0))
		case !joint || !j.wrong:
			run(a)
		}
	}
	return steps, nil
}

// TestJointPick checks that linears of one operand x become one launch if that is faster than single launches and has
// the same bits, and that later processes use the saved choice.
func TestJointPick(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	for _, c := range []struct {
		name  string
		ms    float32 // time of the launch that computes all linears
		rows  int64
		ns    []int64
		how   device.Linears
		taken bool
		wrong bool
	}{
		{name: "faster", ms: 1.5, rows: 1, ns: []int64{2048, 2048}, taken: true},
		{name: "three", ms: 2.5, rows: 1, ns: []int64{2048, 2048, 2048}, taken: true},
		{name: "slower", ms: 2.5, rows: 1, ns: []int64{2048, 2048}},
		{name: "wrong", ms: 1.5, rows: 1, ns: []int64{2048, 2048}, wrong: true},
		{name: "fixed", ms: 1.5, rows: 1, ns: []int64{2048, 2048}, how: device.Linears{Fixed: true}},
		{name: "many rows", ms: 1.5, rows: 65, ns: []int64{2048, 2048}},
		{name: "gated", ms: 1.5, rows: 1, ns: []int64{2048, 2048}, how: device.Linears{Gated: true}, taken: true},
		{name: "gated, slower", ms: 2.5, rows: 1, ns: []int64{2048, 2048}, how: device.Linears{Gated: true}},
		{name: "gated, wrong", ms: 1.5, rows: 1, ns: []int64{2048, 2048}, how: device.Linears{Gated: true},
			wrong: true},
		{name: "little together", ms: 1.5, rows: 1, ns: []int64{256, 256}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cache := kernels.CacheIn(t.TempDir(), nil)
			var asked []int
			for process := range 2 {
				f := fakedriver.New(t, 1)
				f.LT = &fakedriver.LT{T: t} // cuBLASLt has no algorithm, so single linears use hocket's kernel
				lib := &jointKernels{GPU: f, ms: c.ms, wrong: c.wrong}
				w, err := newMachine(system(f), Options{Kernels: lib, Cache: cache, Skinny: true}).Open(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				if taken := jointLinears(t, w, c.how, c.rows, c.ns); taken != c.taken {
					t.Errorf("process %d: the linears are one launch: %v", process, taken)
				}
				asked = append(asked, lib.made)
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if !c.taken {
					break
				}
			}
			if c.taken && (asked[0] < 3 || asked[1] != 1) { // timing makes one launch for each copy of the weights
				t.Errorf("launches of all linears, by process: %v", asked)
			}
		})
	}
}

// distinctViews returns a function that allocates tensors on the first GPU of w. Each tensor has different multiples of
// 1/8 as elements.
func distinctViews(t *testing.T, w device.World) func(dt ir.DType, shape ...int64) device.View {
	seed := uint64(0)
	return func(dt ir.DType, shape ...int64) device.View {
		t.Helper()
		v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
		mem, err := w.Device(0).Alloc(v.Elements()*dt.Size(), device.Shared)
		mustOf(t)(err)
		v.Mem = mem
		seed++
		vals := make([]float64, v.Elements())
		for i := range vals {
			vals[i] = float64((uint64(i)*seed*7+seed)%13)/8 - 0.75
		}
		write(t, v, vals)
		return v
	}
}

// jointLinears prepares linears of random numbers in one launch. If one launch is possible, jointLinears runs it and
// compares the results with those of single linears.
func jointLinears(t *testing.T, w device.World, how device.Linears, rows int64, ns []int64) (taken bool) {
	t.Helper()
	const depth = 1024
	d, must, of := w.Device(0).(*dev), mustOf(t), distinctViews(t, w)
	view := func(shape ...int64) device.View { return of(ir.BF16, shape...) }
	k := device.Kernel{Op: how, Ins: []device.View{view(rows, depth)}}
	var alone []device.View
	for _, n := range ns {
		k.Ins = append(k.Ins, view(n, depth))
		k.Outs = append(k.Outs, view(rows, n))
		alone = append(alone, view(rows, n))
	}
	results := k.Outs
	if how.Gated {
		k.Outs = append(k.Outs, view(rows, ns[0]))
		results = k.Outs[2:]
	}
	l, err := d.Prepare(k)
	if errors.Is(err, device.ErrUnsupported) {
		return false
	}
	must(err)
	s, err := d.NewStream(device.StreamOptions{})
	must(err)
	run := func(l device.Launch) {
		must(s.Launch(l))
		must(w.Sync(t.Context()))
	}
	run(l)
	for i := range ns {
		one, err := d.Prepare(device.Kernel{Op: device.Linear{}, Ins: []device.View{k.Ins[0], k.Ins[1+i]},
			Outs: alone[i : i+1]})
		must(err)
		run(one)
	}
	if how.Gated {
		for _, then := range []device.Kernel{{Op: device.Elementwise{Op: ir.OpSilu}, Ins: alone[:1], Outs: alone[:1]},
			{Op: device.Elementwise{Op: ir.OpMul}, Ins: alone, Outs: alone[:1]}} {
			one, err := d.Prepare(then)
			must(err)
			run(one)
		}
	}
	for i, out := range results {
		if got, want := fmt.Sprint(values(t, out)), fmt.Sprint(values(t, alone[i])); got != want {
			t.Errorf("result %d: %.80s, want %.80s", i, got, want)
		}
	}
	return true
}

// write stores the elements of a view in the fake's memory, and values loads them.
func write(t *testing.T, v device.View, vals []float64) {
	t.Helper()
	a := fakedriver.NewArray(v.Shape)
	copy(a.X, vals)
	a.Write(kernels.Operand{Addr: v.Mem.(*memory).addr, DType: v.DType, Shape: v.Shape, Strides: v.Strides})
}

func values(t *testing.T, v device.View) []float64 {
	t.Helper()
	return slices.Clone(fakedriver.Read(kernels.Operand{Addr: v.Mem.(*memory).addr, DType: v.DType, Shape: v.Shape,
		Strides: v.Strides}).X)
}
