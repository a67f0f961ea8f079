package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestScaledProduct checks linears of 8-bit types. cuBLASLt receives the operands, the modes of their scales, and
// scales in the required layout: in place, or in a copy. If cuBLASLt has no mode for a combination of scales, hocket's
// kernel computes the linear.
func TestScaledProduct(t *testing.T) {
	const one, outer, vec, squares = nvlib.LtScaleOne, nvlib.LtScaleOuter, nvlib.LtScaleVec128, nvlib.LtScaleSquares
	type shapes = [][]int64
	const noAlgorithm = "no algorithm"
	of := func(x, sx, sw []int64) shapes { return shapes{x, {256, 512}, sx, sw} }
	for _, c := range []struct {
		name    string
		in      shapes
		version uintptr
		modes   []nvlib.LtScale // modes of the scales of A, which is w, and of B, which is x
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

// TestDequantizing checks linears of an input of 16 bits by weights of 8 bits: hocket's kernel computes one of them, or
// several together, in one launch, and several in one launch have the results of separate ones.
func TestDequantizing(t *testing.T) {
	const rows, depth = 5, 256
	for name, c := range map[string]struct {
		how device.Linears
		ns  []int64
	}{
		"two":   {device.Linears{Scaled: true}, []int64{128, 256}},
		"three": {device.Linears{Scaled: true, Constant: true}, []int64{64, 128, 40}},
		"gated": {device.Linears{Scaled: true, Gated: true}, []int64{128, 128}},
	} {
		t.Run(name, func(t *testing.T) {
			w := openFake(t, fakedriver.New(t, 1), Options{Skinny: true})
			d, must, view := w.Device(0).(*dev), mustOf(t), distinctViews(t, w)
			x, one := view(ir.BF16, rows, depth), view(ir.F32)
			weights, scales := []device.View{}, []device.View{one}
			k := device.Kernel{Op: c.how}
			var alone []device.View
			for _, n := range c.ns {
				weights = append(weights, view(ir.F8E4M3, n, depth))
				scales = append(scales, view(ir.F32, (n+127)/128, depth/128))
				k.Outs, alone = append(k.Outs, view(ir.BF16, rows, n)), append(alone, view(ir.BF16, rows, n))
			}
			k.Ins = slices.Concat([]device.View{x}, weights, scales)
			results := k.Outs
			if c.how.Gated {
				k.Outs = append(k.Outs, view(ir.BF16, rows, c.ns[0]))
				results = k.Outs[2:]
			}
			s, err := d.NewStream(device.StreamOptions{})
			must(err)
			run := func(k device.Kernel) {
				l, err := d.Prepare(k)
				must(err)
				if n := len(l.(*launch).steps); n != 1 {
					t.Errorf("%s is %d launches", device.Name(k.Op), n)
				}
				must(s.Launch(l))
				must(w.Sync(t.Context()))
			}
			run(k)
			for i := range c.ns {
				run(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, weights[i], one, scales[1+i]}, Outs: alone[i : i+1]})
			}
			if c.how.Gated {
				run(device.Kernel{Op: device.Elementwise{Op: ir.OpSilu}, Ins: alone[:1], Outs: alone[:1]})
				run(device.Kernel{Op: device.Elementwise{Op: ir.OpMul}, Ins: alone, Outs: alone[:1]})
			}
			for i, out := range results {
				if got, want := fmt.Sprint(values(t, out)), fmt.Sprint(values(t, alone[i])); got != want {
					t.Errorf("result %d: %.80s, want %.80s", i, got, want)
				}
			}
		})
	}
}

// TestScaleColumns runs a program that quantizes twice. Only linears read the first scales, so cuBLASLt gets them
// without a copy. The second scales are also a result, so their order must not change. Without cuBLASLt, the results
// must be those of the CPU machine.
func TestScaleColumns(t *testing.T) {
	const text = `dim T = 16
dim H = 256
mesh tp[1]
func f(%x: bf16[2, T, H], %w: f8e4m3[H, H], %sw: f32[2, 2]) -> (bf16[2, T, H], bf16[2, T, H], f32[2, T, 2]) {
  %s = scales %x, block=(1, 128)
  %q = quantize %x, %s
  %a = linear %q, %w, %s, %sw
  %b = linear %q, %w, %s, %sw
  %t = scales %a, block=(1, 128)
  %r = quantize %a, %t
  %c = linear %r, %w, %t, %sw
  return %b, %c, %t
}
`
	prog, ds := ir.Parse("columns.hkt", text)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	unit, err := compile.Build(info, compile.Options{Strategy: "sequential"})
	must := mustOf(t)
	must(err)
	p, err := unit.Plan(ir.Binding{Func: "f"})
	must(err)
	in := map[string]*tensor.Tensor{}
	for i, io := range p.Inputs {
		x, err := tensor.New(io.DType, io.Shape)
		must(err)
		for e := range x.Len() {
			v := float64((e*int64(i+3))%15) - 7
			switch io.Name {
			case "x":
				v *= 64 // scales are 1, so that all sums are exact
			case "sw":
				v = math.Ldexp(1, int(e%3))
			}
			x.SetFloat64(e, v)
		}
		in[io.Name] = x
	}
	f := fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t} // cuBLASLt has no algorithm
	m := newMachine(system(f), Options{Kernels: f})
	var want *exec.Result
	for _, m := range []device.Machine{cpu.New(cpu.Options{}), m} {
		loaded, err := exec.Load(t.Context(), m, p, exec.Options{})
		must(err)
		rs, err := loaded.RunBatch(t.Context(), exec.Inputs([]map[string]*tensor.Tensor{in}), nil)
		must(err)
		must(loaded.Close())
		if want == nil {
			want = rs[0]
		}
		delete(rs[0].Outputs, "c") // its sums are rounded
		sameBits(t, "fake", rs[0], want)
	}
	f = fakedriver.New(t, 1)
	f.LT = &fakedriver.LT{T: t, Costs: []float32{1}}
	loaded, err := exec.Load(t.Context(), newMachine(system(f), Options{Kernels: f}), p, exec.Options{})
	must(err)
	// In each pair of addresses, the second is that of the scales of x. Both linears of %q read the scales %s in place,
	// and the linear of %r reads a copy of %t.
	if s := f.LT.Scales; len(s) < 6 || s[1] != s[3] || s[5] == s[1] {
		t.Errorf("scales of w and x are at %#x", s)
	}
	must(loaded.Close())
}
