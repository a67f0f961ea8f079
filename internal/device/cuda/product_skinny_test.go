package cuda

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// slowKernels is a fake's Library whose kernels take a time on the clock of its cuBLASLt. Those for few rows give
// what cuBLASLt's algorithms give there, which compute nothing, unless they are wrong.
type slowKernels struct {
	*fakeGPU
	ms    float32
	wrong bool
}

func (s *slowKernels) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	steps, err := s.fakeGPU.Steps(t, p)
	if err == nil {
		run := s.named[steps[0].Symbol]
		s.named[steps[0].Symbol] = func(a uintptr) {
			s.lt.now += s.ms
			switch {
			case p.Skinny == nil:
				run(a)
			case s.wrong:
				cabi.Store(uintptr(p.Out.Addr), uint64(1))
			default:
				cabi.Store(uintptr(p.Out.Addr), uint64(0))
			}
		}
	}
	return steps, err
}

// TestSkinnyPick: hocket's kernel for few rows is chosen where it is faster than cuBLASLt's algorithms.
func TestSkinnyPick(t *testing.T) {
	x, w, wide := []int64{2, 1024}, []int64{2048, 1024}, []int64{65, 1024}
	for _, c := range []struct {
		name   string
		ms     float32 // that hocket's kernel takes
		kernel device.Kernel
		shapes [][]int64
		own    bool
	}{
		{"faster", 0.5, device.Kernel{}, [][]int64{x, w}, true},
		{"faster, and wrong", 0.5, device.Kernel{}, [][]int64{x, w}, false},
		{"faster, with a relu", 0.5, device.Kernel{Relu: true}, [][]int64{x, w}, true},
		{"slower", 2.5, device.Kernel{}, [][]int64{x, w}, false},
		{"many rows", 0.5, device.Kernel{}, [][]int64{wide, w}, false},
		{"a small weight", 0.5, device.Kernel{}, [][]int64{x, {64, 1024}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := kernels.CacheIn(t.TempDir(), nil)
			for round, asked := range []int{1, 0} { // the second process has it from the disk
				f := newFake(t, 1)
				f.lt = &fakeLT{t: t, costs: []float32{2, 1}}
				w, err := newMachine(f.system(),
					Options{Kernels: &slowKernels{f, c.ms, strings.HasSuffix(c.name, "wrong")}, Cache: cache,
						Skinny: true}).Open(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				l := linearOf(t, w, c.kernel, ir.BF16, c.shapes...)
				if _, own := l.(*launch).steps[0].(*kernelStep); own != c.own {
					t.Errorf("process %d: hocket's kernel is taken: %v", round, own)
				}
				if c.own && f.lt.asked != asked {
					t.Errorf("process %d asked %d times for algorithms", round, f.lt.asked)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if f.lt.live != 0 {
					t.Errorf("%d descriptions are left", f.lt.live)
				}
			}
		})
	}
}

// TestSkinnyFixed: where products are fixed hocket's kernel takes any number of rows, whatever it takes, and nothing
// is asked of cuBLASLt; types that it does not have are cuBLASLt's first guess.
func TestSkinnyFixed(t *testing.T) {
	for _, c := range []struct {
		skinny bool
		dt     ir.DType
		rows   int64
		relu   bool
		own    bool
	}{{true, ir.BF16, 1, false, true}, {true, ir.BF16, 40, true, true}, {true, ir.F16, 17, false, true},
		{true, ir.F32, 1, false, false}, {false, ir.BF16, 1, false, false}} {
		f := newFake(t, 1)
		f.lt = &fakeLT{t: t, costs: []float32{2, 1}}
		w, err := newMachine(f.system(),
			Options{Kernels: &slowKernels{f, 9, false}, Skinny: c.skinny}).Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		l := linearOf(t, w, device.Kernel{Fixed: true, Relu: c.relu}, c.dt, []int64{c.rows, 64}, []int64{32, 64})
		if _, own := l.(*launch).steps[0].(*kernelStep); own != c.own || (f.lt.asked == 0) != c.own {
			t.Errorf("%+v: hocket's kernel is taken: %v; cuBLASLt is asked %d times", c, own, f.lt.asked)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}
