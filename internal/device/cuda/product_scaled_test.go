package cuda

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestScaledProduct checks linears of 8-bit types. cuBLASLt receives the operands, the modes of their scales, and
// scales in the required layout: in place, or in a copy. Combinations of scales without a mode are computed by hocket's
// kernel.
func TestScaledProduct(t *testing.T) {
	const one, outer, vec, squares = nvlib.LtScaleOne, nvlib.LtScaleOuter, nvlib.LtScaleVec128, nvlib.LtScaleSquares
	type shapes = [][]int64
	const noAlgorithm = "no algorithm"
	of := func(x, sx, sw []int64) shapes { return shapes{x, {256, 512}, sx, sw} }
	for _, c := range []struct {
		name    string
		in      shapes
		version uintptr
		modes   []nvlib.LtScale // of A, which is w, and of B, which is x
		same    [2]bool         // whether the scales of w and of x are used in place
		copies  int
	}{
		{"one each", of([]int64{64, 512}, nil, nil), 0, []nvlib.LtScale{one, one}, [2]bool{true, true}, 0},
		{"rows", of([]int64{64, 512}, []int64{64}, []int64{256}), 0, []nvlib.LtScale{outer, outer}, [2]bool{true, true}, 0},
		{"rows and one", of([]int64{64, 512}, []int64{64}, nil), 0, []nvlib.LtScale{outer, outer}, [2]bool{false, true}, 1},
		{"blocks", of([]int64{64, 512}, []int64{64, 4}, []int64{2, 4}), 0, []nvlib.LtScale{squares, vec}, [2]bool{true, false}, 1},
		{"blocks of several axes", of([]int64{2, 32, 512}, []int64{2, 32, 4}, []int64{2, 4}), 0,
			[]nvlib.LtScale{squares, vec}, [2]bool{true, false}, 1},
		{"rows by squares", of([]int64{64, 512}, []int64{64}, []int64{2, 4}), 0, []nvlib.LtScale{squares, vec}, [2]bool{true, false}, 1},
		{"blocks by one", of([]int64{64, 512}, []int64{64, 4}, nil), 0, []nvlib.LtScale{squares, vec}, [2]bool{false, false}, 2},
		{"squares padded", shapes{{64, 384}, {256, 384}, {64, 3}, {2, 3}}, 0, []nvlib.LtScale{squares, vec}, [2]bool{false, false}, 2},
		{"blocks by rows", of([]int64{64, 512}, []int64{64, 4}, []int64{256}), 0, nil, [2]bool{}, 0},
		{"an old library", of([]int64{64, 512}, []int64{64}, []int64{256}), 120801, nil, [2]bool{}, 0},
		{noAlgorithm, of([]int64{64, 512}, []int64{64, 4}, nil), 0, nil, [2]bool{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakedriver.New(t, 1)
			f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, Version: c.version}
			if c.name == noAlgorithm {
				f.LT.Costs = nil
			}
			w := openFake(t, f, Options{})
			view := func(dt ir.DType, shape ...int64) device.View {
				v := device.View{DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
				mem, err := w.Device(0).Alloc(v.Elements()*dt.Size(), device.Shared)
				if err != nil {
					t.Fatal(err)
				}
				v.Mem = mem
				return v
			}
			fast := c.name == "rows"
			k := device.Kernel{Op: device.Linear{FastAccum: fast}}
			for i, shape := range c.in {
				k.Ins = append(k.Ins, view([]ir.DType{ir.F8E4M3, ir.F8E4M3, ir.F32, ir.F32}[i], shape...))
			}
			out := append(slices.Clone(c.in[0][:len(c.in[0])-1]), 256)
			k.Outs = []device.View{view(ir.BF16, out...)}
			l, err := w.Device(0).Prepare(k)
			if err != nil {
				t.Fatal(err)
			}
			steps := l.(*launch).steps
			g, product := steps[len(steps)-1].(gemmLaunch)
			if !product {
				if c.modes != nil || len(steps) != 1 {
					t.Errorf("cuBLASLt should compute the product, but there are %d steps without one", len(steps))
				}
				return
			}
			if c.modes == nil {
				t.Fatal("cuBLASLt computes a combination of scales without a mode")
			}
			p := g.Launch.Problem
			if p.M != 64 || p.Modes != [2]nvlib.LtScale{c.modes[1], c.modes[0]} || len(steps) != 1+c.copies {
				t.Errorf("a product of %d rows with scale modes %v of x and w after %d copies", p.M, p.Modes, len(steps)-1)
			}
			if got := slices.Contains(f.LT.Fast, 1); got != fast {
				t.Errorf("cuBLASLt's fast accumulation is %v, want %v", got, fast)
			}
			own := func(i int) nvlib.Ptr {
				v, err := l.(*launch).Resolve(k.Ins[i], false)
				if err != nil {
					t.Fatal(err)
				}
				return v.Addr
			}
			if got := [2]bool{p.Scales[1] == own(3), p.Scales[0] == own(2)}; got != c.same {
				t.Errorf("scales of w and x are in place: %v, want %v", got, c.same)
			}
			n := len(f.LT.Modes)
			if got := f.LT.Modes[n-2:]; got[0] != int32(c.modes[0]) || got[1] != int32(c.modes[1]) ||
				f.LT.Scales[n-2] != uintptr(p.Scales[1]) || f.LT.Scales[n-1] != uintptr(p.Scales[0]) {
				t.Errorf("cuBLASLt received modes %v with scales at %#x, want addresses %#x", got, f.LT.Scales[n-2:], p.Scales)
			}
			if got := f.LT.Types[len(f.LT.Types)-3:]; !slices.Equal(got, []int32{28, 28, 14}) {
				t.Errorf("cuBLASLt received matrices of types %v", got)
			}
		})
	}
}
