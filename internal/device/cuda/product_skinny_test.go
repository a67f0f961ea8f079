package cuda

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// slowKernels is a kernel library of a fake driver. Its kernels take a given time on the clock of the fake's cuBLASLt.
// Kernels for few rows return the same numbers as cuBLASLt's fake algorithms, unless wrong is set.
type slowKernels struct {
	*fakedriver.GPU
	ms    float32
	wrong bool
}

func (s *slowKernels) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	steps, err := s.GPU.Steps(t, p)
	if err == nil {
		run := s.Named[steps[0].Symbol]
		q, skinny := p.(kernels.Skinny)
		s.Named[steps[0].Symbol] = func(a uintptr) {
			s.LT.Now += s.ms
			switch {
			case !skinny:
				run(a)
			case s.wrong:
				cabi.Store(uintptr(q.Out.Addr), uint64(1))
			default:
				cabi.Store(uintptr(q.Out.Addr), uint64(0))
			}
		}
	}
	return steps, err
}

// TestSkinnyPick checks that hocket's kernel for few rows is selected if it is faster than cuBLASLt's algorithms.
func TestSkinnyPick(t *testing.T) {
	x, w, wide := []int64{2, 1024}, []int64{2048, 1024}, []int64{65, 1024}
	for _, c := range []struct {
		name   string
		ms     float32 // time of hocket's kernel
		how    device.Linear
		shapes [][]int64
		own    bool
	}{
		{"faster", 0.5, device.Linear{}, [][]int64{x, w}, true},
		{"faster, and wrong", 0.5, device.Linear{}, [][]int64{x, w}, false},
		{"faster, with a relu", 0.5, device.Linear{Product: device.Product{Relu: true}}, [][]int64{x, w}, true},
		{"slower", 2.5, device.Linear{}, [][]int64{x, w}, false},
		{"many rows", 0.5, device.Linear{}, [][]int64{wide, w}, false},
		{"a small weight", 0.5, device.Linear{}, [][]int64{x, {64, 1024}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := kernels.CacheIn(t.TempDir(), nil)
			for round, asked := range []int{1, 0} { // the second process uses the saved choice
				f := fakedriver.New(t, 1)
				f.LT = &fakedriver.LT{T: t, Costs: []float32{2, 1}}
				w, err := newMachine(system(f),
					Options{Kernels: &slowKernels{f, c.ms, strings.HasSuffix(c.name, "wrong")}, Cache: cache,
						Skinny: true}).Open(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				l := linearOf(t, w, c.how, ir.BF16, c.shapes...)
				if _, own := l.(*launch).steps[0].(*kernelStep); own != c.own {
					t.Errorf("process %d: hocket's kernel is used: %v", round, own)
				}
				if c.own && f.LT.Asked != asked {
					t.Errorf("process %d made %d requests for algorithms", round, f.LT.Asked)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if f.LT.Live != 0 {
					t.Errorf("%d descriptors are not freed", f.LT.Live)
				}
			}
		})
	}
}

// pickyKernels is a kernel library in which hocket's kernel for few rows refuses rows of x that do not begin at
// multiples of 16 bytes. It records the products for which it makes kernels.
type pickyKernels struct {
	*fakedriver.GPU
	seen []kernels.Problem
}

func (p *pickyKernels) Steps(t kernels.Target, q kernels.Problem) ([]kernels.Step, error) {
	switch q := q.(type) {
	case kernels.Skinny:
		if q.Ins[0].Strides[0]%8 != 0 {
			return nil, device.ErrUnsupported
		}
		p.seen = append(p.seen, q)
	case kernels.Computation:
		switch q.Op.(type) {
		case device.Linear, device.Matmul:
			p.seen = append(p.seen, q)
		}
	}
	return p.GPU.Steps(t, q)
}

// TestFixedRows checks that the choice of the kernel of a fixed product does not depend on the number of rows, and that
// cuBLASLt is not called.
func TestFixedRows(t *testing.T) {
	view := func(dt ir.DType, shape ...int64) device.View {
		return device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
	}
	with := func(v device.View, strides ...int64) device.View { v.Strides = strides; return v }
	w, out := view(ir.BF16, 32, 64), func(shape ...int64) device.View { return view(ir.BF16, append(shape, 32)...) }
	fixed := device.Product{Fixed: true}
	plain := device.Linear{Product: fixed}
	biases := map[string]device.View{"a bias": view(ir.BF16, 32), "a bias with gaps": with(view(ir.BF16, 32), 3)}
	for name, c := range map[string]struct {
		op        device.Op
		out, x, w device.View
		own       int // number of launches of hocket's kernel for few rows; 0 if the plain kernel is used
		steps     int
	}{
		"a row":      {plain, out(1), view(ir.BF16, 1, 64), w, 1, 1},
		"many rows":  {device.Linear{Product: device.Product{Fixed: true, Relu: true}}, out(40), view(ir.BF16, 40, 64), w, 1, 1},
		"f16":        {plain, view(ir.F16, 17, 32), view(ir.F16, 17, 64), view(ir.F16, 32, 64), 1, 1},
		"f32":        {plain, view(ir.F32, 1, 32), view(ir.F32, 1, 64), view(ir.F32, 32, 64), 0, 1},
		"sequences":  {plain, out(3, 5), with(view(ir.BF16, 3, 5, 64), 640, 64, 1), w, 3, 3},
		"chunks":     {plain, with(out(2, 5), 320, 32, 1), view(ir.BF16, 2, 5, 64), w, 2, 2},
		"many items": {plain, out(20, 5), with(view(ir.BF16, 20, 5, 64), 640, 64, 1), w, 1, 2},
		"odd rows":   {plain, out(5), with(view(ir.BF16, 5, 64), 65, 1), w, 1, 2},
		"gaps":       {plain, out(5), with(view(ir.BF16, 5, 64), 128, 2), w, 1, 2},
		"a weight with gaps": {plain, out(5), with(view(ir.BF16, 5, 64), 128, 1),
			with(w, 1, 32), 0, 1},
		"matmul":          {device.Matmul{Product: fixed}, out(5), view(ir.BF16, 5, 64), view(ir.BF16, 64, 32), 0, 1},
		"transposed":      {device.Matmul{Product: fixed, TB: true}, out(5), view(ir.BF16, 5, 64), w, 1, 1},
		"both transposed": {device.Matmul{Product: fixed, TA: true, TB: true}, out(5), view(ir.BF16, 64, 5), w, 1, 2},
		"matmuls": {device.Matmul{Product: fixed, TB: true}, out(2, 5), view(ir.BF16, 2, 5, 64),
			view(ir.BF16, 2, 32, 64), 0, 1},
		"a bias":            {plain, out(5), view(ir.BF16, 5, 64), w, 1, 1},
		"a bias with gaps":  {plain, out(5), view(ir.BF16, 5, 64), w, 0, 1},
		"no multiprocessor": {device.Linear{Product: device.Product{Fixed: true, SMs: 1}}, out(5), view(ir.BF16, 5, 64), w, 1, 1},
	} {
		f := fakedriver.New(t, 1)
		f.LT = &fakedriver.LT{T: t, Costs: []float32{2, 1}}
		lib := &pickyKernels{GPU: f}
		world, err := newMachine(system(f), Options{Kernels: lib}).Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		ins := []device.View{c.x, c.w}
		if bias, ok := biases[name]; ok {
			ins = append(ins, bias)
		}
		outs := []device.View{c.out}
		for _, list := range [][]device.View{ins, outs} {
			for i := range list {
				if list[i].Mem, err = world.Device(0).Alloc(1<<16, device.Shared); err != nil {
					t.Fatal(err)
				}
			}
		}
		l, err := world.Device(0).Prepare(device.Kernel{Op: c.op, Ins: ins, Outs: outs})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		own := 0
		for _, p := range lib.seen {
			if _, ok := p.(kernels.Skinny); ok {
				own++
			}
		}
		n := len(l.(*launch).steps)
		if f.LT.Asked != 0 || n != c.steps || own < c.own || own > 0 && c.own == 0 {
			t.Errorf("%s: %d of %d kernels are for few rows, in %d steps; %d requests to cuBLASLt", name, own,
				len(lib.seen), n, f.LT.Asked)
		}
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	}
}
