package kernels

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// types returns all element types or, in short tests, one type for each accumulator and a 2-byte type.
func types() []ir.DType {
	if testing.Short() {
		return []ir.DType{ir.F32, ir.BF16, ir.I32}
	}
	return ir.ArithmeticTypes()
}

var someShapes = [][]int64{{}, {1}, {7}, {64}, {3, 16}, {5, 1, 3}, {0, 4}, {2, 3, 4, 8}, {4099}}

// someNumbers holds enough numbers for the numeric attributes of every elementwise operation.
var someNumbers = []ir.Number{ir.Whole(-3), ir.Whole(5)}

// elementwiseOps yields the operations of package pointwise.
func elementwiseOps() iter.Seq2[ir.Op, *ir.OpInfo] {
	return func(yield func(ir.Op, *ir.OpInfo) bool) {
		for _, op := range ir.Ops() {
			if _, is := pointwise.Of(op); is && !yield(op, op.Info()) {
				return
			}
		}
	}
}

func TestElementwise(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		for op, info := range elementwiseOps() {
			if info.Floats && dt.IsInt() {
				continue
			}
			for i, shape := range someShapes {
				for j, l := range layouts {
					if testing.Short() && (i+j)%4 != 0 {
						continue
					}
					var ins []values
					for k := range info.MinArgs {
						v := noise(dt, shape...)
						if k == 1 {
							slices.Reverse(v.vals)
							for i, x := range v.vals {
								if x == 0 {
									v.vals[i] = 1
								}
							}
						}
						if k == 2 && len(v.vals) > 0 { // differs from the first operand
							v.vals = append(v.vals[1:], v.vals[0])
						}
						ins = append(ins, v)
					}
					slack := 0.0
					if row, _ := pointwise.Of(op); row.Function {
						slack = 1
					}
					r.compare(device.Kernel{Op: device.OpOf(op, ir.Attrs{Numbers: someNumbers})}, l, slack, dt, shape, ins...)
				}
			}
		}
	}
	r.run()
}

var specials = []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, 255, 257, 258.5, 1e-3, -1e-8, 65504, 65519, 65520, 1e5, -1e20, 2147483647,
	-2147483649, 3e9, 1 << 40, 1<<40 + 1<<32 + 1, 16777217, 1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-30, 1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 0x1p-24, 0x1p-25, 0x1p-25 + 0x1p-40,
	0x1p-133, 0x1p-134, 3e38, 3.4e38, 1e39, 30, -30, -90, -100, math.Inf(1), math.Inf(-1), math.NaN(), 9e18, -9.3e18, 1e19}

func TestCast(t *testing.T) {
	r := newTrial(t)
	for _, from := range ir.ArithmeticTypes() {
		in := list(from, specials...)
		for _, to := range ir.ArithmeticTypes() {
			for _, l := range layouts[:2] {
				r.compare(device.Kernel{Op: device.Cast{}}, l, 0, to, in.shape, in)
			}
		}
		for _, op := range []ir.Op{ir.OpGelu, ir.OpSilu, ir.OpExp, ir.OpRsqrt, ir.OpRelu, ir.OpNeg} {
			if !from.IsInt() {
				finite := list(from, slices.DeleteFunc(slices.Clone(specials), func(v float64) bool { return op == ir.OpGelu && math.Abs(v) > 1e19 })...)
				r.compare(device.Kernel{Op: device.OpOf(op, ir.Attrs{})}, layouts[0], 0x1p-60, from, finite.shape, finite)
			}
		}
	}
	r.run()
}

// TestHalves converts every bit pattern of f16 and bf16 to f32 and back.
func TestHalves(t *testing.T) {
	b := newBench(t)
	for _, dt := range []ir.DType{ir.F16, ir.BF16} {
		const n = 1 << 16
		in := b.room(dt, layouts[0], n)
		for i := range n {
			at := int64(in.Addr) - memoryAt + 2*int64(i)
			b.mem[at], b.mem[at+1] = byte(i), byte(i>>8)
		}
		wide, back := b.room(ir.F32, layouts[0], n), b.room(dt, layouts[0], n)
		b.add("widen "+dt.String(), Computation{Op: device.Cast{}, Ins: []Operand{in}, Out: wide}, func() {
			same(t, "widened "+dt.String(), b.vals(wide), b.vals(in), 0)
		})
		b.add("narrow "+dt.String(), Computation{Op: device.Cast{}, Ins: []Operand{wide}, Out: back}, func() {
			same(t, "narrowed "+dt.String(), b.vals(back), b.vals(in), 0)
		})
	}
	b.run()
}

func TestCopies(t *testing.T) {
	b := newBench(t)
	for _, dt := range []ir.DType{ir.BF16, ir.F32, ir.I64} {
		for _, shape := range [][]int64{{}, {5}, {100, 70}, {3, 40, 33}, {2, 17, 3, 65}, {0, 3}} {
			for _, from := range layouts {
				for _, to := range layouts {
					v := noise(dt, shape...)
					in, out := b.put(dt, from, v.vals, shape...), b.room(dt, to, shape...)
					what := from.name + " to " + to.name
					b.add(what, Computation{Op: device.Copy{Op: ir.OpCopy}, Ins: []Operand{in}, Out: out}, func() { same(t, what, b.vals(out), v.vals, 0) })
				}
			}
		}
	}
	for _, from := range layouts {
		for _, to := range layouts {
			v := noise(ir.F32, 6, 4, 5)
			in, out := b.put(ir.F32, from, v.vals, 6, 4, 5), b.room(ir.F32, to, 10, 12)
			b.add("reshape", Computation{Op: device.Copy{Op: ir.OpReshape}, Ins: []Operand{in}, Out: out}, func() { same(t, "reshape", b.vals(out), v.vals, 0) })
		}
	}
	wide := b.put(ir.F32, layouts[0], []float64{1, 2, 3, 4, 5, 6, 7, 8}, 8)
	wide.Shape, wide.Strides = []int64{3, 8, 4}, []int64{0, 1, 0}
	out := b.room(ir.F32, layouts[0], 3, 8, 4)
	b.add("broadcast", Computation{Op: device.Copy{Op: ir.OpExpand}, Ins: []Operand{wide}, Out: out}, func() {
		var want []float64
		for i := range 96 {
			want = append(want, float64(i/4%8+1))
		}
		same(t, "broadcast", b.vals(out), want, 0)
	})
	b.run()
}

// TestRepeated multiplies, element by element, a matrix with a row that is repeated for all rows. It checks that the
// kernel accesses the matrix by wide accesses, although the repeated row does not permit them.
func TestRepeated(t *testing.T) {
	b := newBench(t)
	x, row, col := noise(ir.BF16, 6, 32), noise(ir.BF16, 32), noise(ir.BF16, 6)
	in := b.put(ir.BF16, layouts[0], x.vals, 6, 32)
	for i, o := range []Operand{b.put(ir.BF16, layouts[0], row.vals, 32), b.put(ir.BF16, layouts[0], col.vals, 6)} {
		o.Shape, o.Strides = []int64{6, 32}, []int64{0, 1}
		if i == 1 {
			o.Strides = []int64{1, 0}
		}
		out := b.room(ir.BF16, layouts[0], 6, 32)
		p := Computation{Op: device.Elementwise{Op: ir.OpMul}, Ins: []Operand{in, o}, Out: out}
		l, err := plan(p, Target{})
		if err != nil || len(l) != 1 || l[0].args[3+constants] != 6*32/8 {
			t.Errorf("accesses are not of 16 bytes: %v, %v", l, err)
		}
		b.add("repeated", p, func() {
			var want []float64
			for k, v := range x.vals {
				f := []float64{row.vals[k%32], col.vals[k/32]}[i]
				want = append(want, float64(float32(v)*float32(f)))
			}
			same(t, "repeated", b.vals(out), want, 0x1p-8)
		})
	}
	b.run()
}

func TestAxes(t *testing.T) {
	t.Parallel()
	cases := []struct {
		shape []int64
		axes  []int
	}{
		{[]int64{7}, []int{0}}, {[]int64{5000}, []int{0}}, {[]int64{6, 5}, []int{0}}, {[]int64{6, 5}, []int{1}}, {[]int64{6, 5}, []int{1, 0}},
		{[]int64{3, 4, 5}, []int{1}}, {[]int64{3, 4, 5}, []int{0, 2}}, {[]int64{1, 1}, []int{1}}, {[]int64{2, 3}, nil}, {[]int64{0, 3}, []int{0}},
		{[]int64{3, 0}, []int{0}}, {[]int64{1300, 4}, []int{0}}, {[]int64{9, 2, 70, 3}, []int{3, 1}}, {[]int64{3, 72}, []int{1}}, {[]int64{2, 4096}, []int{1}},
		{[]int64{700, 300}, []int{0}}, {[]int64{2, 2051}, []int{1}}, {[]int64{1 << 19}, []int{0}}, {[]int64{3, 66}, []int{1}},
	}
	r := newTrial(t)
	for _, dt := range types() {
		for _, c := range cases {
			if len(c.shape) == 1 && c.shape[0] > 1<<18 && dt != ir.BF16 && dt != ir.I32 {
				continue
			}
			in := noise(dt, c.shape...)
			var shape []int64
			terms := 1.0
			for d, n := range c.shape {
				if !slices.Contains(c.axes, d) {
					shape = append(shape, n)
				} else {
					terms *= float64(n)
				}
			}
			for i := range in.vals {
				if dt == ir.F16 {
					in.vals[i] = tensor.Round(dt, in.vals[i]/256) // small values, so that long sums remain finite
				}
			}
			for _, op := range []ir.Op{ir.OpSum, ir.OpMax, ir.OpMin, ir.OpMean} {
				if op == ir.OpMean && dt.IsInt() {
					continue
				}
				slack := 0.0
				if op == ir.OpSum || op == ir.OpMean {
					slack = 1 + terms*unit(dt.Accum())/max(unit(dt), 0x1p-60)
				}
				for _, l := range layouts {
					if terms > 1<<18 && l.name != "dense" {
						continue
					}
					r.compare(device.Kernel{Op: device.OpOf(op, ir.Attrs{Axes: c.axes})}, l, slack, dt, shape, in)
				}
			}
		}
	}
	r.run()
}

func TestJoin(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		for _, n := range []int{1, 2, 3, 5, 8, 64, 70} {
			if n > 8 && dt != ir.BF16 && dt != ir.I32 {
				continue
			}
			for k, shape := range [][]int64{{64}, {3, 5}, {2, 3, 16}} {
				var ins []values
				for i := range n {
					v := noise(dt, append([]int64{int64(i + 1)}, shape...)...)
					v.shape, v.vals = shape, v.vals[:len(v.vals)/(i+1)]
					ins = append(ins, v)
				}
				for _, red := range []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg} {
					r.compare(device.Kernel{Op: device.ReduceOperands{Red: red}}, layouts[(k+n)%len(layouts)], 0, dt, shape, ins...)
				}
			}
		}
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, red := range []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg} {
		r.compare(device.Kernel{Op: device.ReduceOperands{Red: red}}, layouts[0], 0, ir.F32, []int64{5}, list(ir.F32, nan, -1, inf, -inf, -0), list(ir.F32, 1, nan, 1, inf, 0))
		r.compare(device.Kernel{Op: device.ReduceOperands{Red: red}}, layouts[0], 0, ir.I32, []int64{2}, list(ir.I32, 1<<31-1, -1<<31), list(ir.I32, 1<<31-1, -3))
	}
	r.run()
}

// TestJoinManyStrides reduces operands with more strides than fit into the kernel's arguments.
func TestJoinManyStrides(t *testing.T) {
	r := newTrial(t)
	shape := []int64{2, 3, 2, 2, 3, 2, 2, 2}
	odd := layout{"all odd", func(shape []int64) ([]int64, int64) {
		strides, step := make([]int64, len(shape)), int64(1)
		for i := len(shape) - 1; i >= 0; i-- {
			step++
			strides[i] = step
			step *= shape[i]
		}
		return strides, 0
	}}
	var ins []values
	for range 60 {
		ins = append(ins, noise(ir.F32, shape...))
	}
	r.compare(device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}}, odd, 0, ir.F32, shape, ins...)
	if n := len(r.launches); n < 62 {
		t.Errorf("%d launches: operands were not copied to dense memory", n)
	}
	r.run()
}

func TestSlots(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		for _, to := range []ir.DType{dt, dt.Accum()} {
			for _, slots := range []int64{0, 1, 3, 66} {
				for _, l := range layouts {
					x, acc := noise(dt, 4, slots, 8), noise(to, 4, 8)
					k := device.Kernel{Op: device.ReduceSlots{Axis: 1}}
					r.compare(k, l, 0, to, acc.shape, x)
					r.compare(k, l, 0, to, acc.shape, x, acc)
				}
			}
		}
	}
	r.run()
}

func TestProducts(t *testing.T) {
	r := newTrial(t)
	for _, dt := range types() {
		for i, c := range []struct {
			lead []int64
			k, n int64
		}{{nil, 4, 3}, {[]int64{3}, 5, 2}, {[]int64{2, 3}, 17, 9}, {[]int64{65}, 33, 70}, {[]int64{3}, 0, 2}, {[]int64{0}, 4, 3}} {
			x, w, bias := noise(dt, append(slices.Clone(c.lead), c.k)...), noise(dt, c.n, c.k), noise(dt, c.n)
			shape := append(slices.Clone(c.lead), c.n)
			l := layouts[i%len(layouts)]
			slack := float64(c.k + 2)
			r.compare(device.Kernel{Op: device.Linear{}}, l, slack, dt, shape, x, w)
			r.compare(device.Kernel{Op: device.Linear{}}, l, slack, dt, shape, x, w, bias)
		}
		for i := range 4 {
			ta, tb := i&1 != 0, i&2 != 0
			a, b := []int64{2, 3, 9, 6}, []int64{2, 3, 6, 5}
			if ta {
				a[2], a[3] = a[3], a[2]
			}
			if tb {
				b[2], b[3] = b[3], b[2]
			}
			for _, l := range layouts {
				r.compare(device.Kernel{Op: device.Matmul{TA: ta, TB: tb}}, l, 8, dt, []int64{2, 3, 9, 5}, noise(dt, a...), noise(dt, b...))
			}
		}
	}
	r.run()
}

func TestRows(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		if dt.IsInt() {
			continue
		}
		for _, shape := range [][]int64{{5}, {3, 300}, {2, 3, 17}, {4, 0}, {3, 16}, {2, 4096}} {
			x := noise(dt, shape...)
			d := last(shape)
			for _, l := range layouts {
				for axis := range shape {
					if shape[axis] > 0 && (axis == len(shape)-1 || last(shape) < 100) {
						r.compare(device.Kernel{Op: device.Softmax{Axis: axis}}, l, 2, dt, shape, x)
					}
				}
				r.compare(device.Kernel{Op: device.RMSNorm{Eps: 1e-6}}, l, 4, dt, shape, x, noise(dt, d))
				r.compare(device.Kernel{Op: device.LayerNorm{Eps: 1e-5}}, l, 8, dt, shape, x, noise(dt, d), noise(dt, d))
			}
		}
	}
	r.run()
}

// TestNormGrad compares rms_norm_dx and rms_norm_dw with the CPU machine, with rows that fit registers and that do not,
// and with numbers of rows that several thread blocks add.
func TestNormGrad(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		if dt.IsInt() {
			continue
		}
		for _, shape := range [][]int64{{5}, {3, 300}, {2, 3, 17}, {4, 0}, {0, 4}, {600, 16}, {3, 4096}, {2, 2, 2, 8}} {
			x, dy, d := noise(dt, shape...), noise(dt, shape...), last(shape)
			slices.Reverse(dy.vals)
			for _, l := range layouts {
				r.compare(device.Kernel{Op: device.NormGrad{Op: ir.OpRMSNormDX, Eps: 1e-6}}, l, 32, dt, shape, x, noise(dt, d), dy)
				r.compare(device.Kernel{Op: device.NormGrad{Op: ir.OpRMSNormDW, Eps: 1e-6}}, l, 32, dt.Accum(), []int64{d}, x, dy)
			}
		}
	}
	held := map[string]bool{}
	for _, l := range r.launches {
		if name := l.code.symbol; strings.HasPrefix(name, "hocket_norm") {
			held[name[:len("hocket_normDX")]+fmt.Sprint(!strings.HasSuffix(name, "w0"))] = true
		}
	}
	if len(held) != 4 {
		t.Errorf("kernels %v; want both, with rows in registers and without", held)
	}
	r.run()
}

func TestAttention(t *testing.T) {
	r := newTrial(t)
	for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.F64} {
		for i, c := range []struct {
			lead           []int64
			tq, tk, hq, hv int64
			dh             int64
		}{{nil, 3, 5, 2, 1, 8}, {[]int64{2}, 4, 4, 4, 2, 5}, {[]int64{2, 1}, 1, 300, 1, 1, 16}, {nil, 2, 3, 1, 1, 300}} {
			q := noise(dt, append(slices.Clone(c.lead), c.tq, c.hq, c.dh)...)
			kv := append(slices.Clone(c.lead), c.tk, c.hv, c.dh)
			k, v := noise(dt, kv...), noise(dt, kv...)
			slices.Reverse(v.vals)
			for _, causal := range []bool{false, true} {
				kernel := device.Kernel{Op: device.Attention{Scale: 1 / math.Sqrt(float64(c.dh)), Causal: causal}}
				r.compare(kernel, layouts[i], 16, dt, q.shape, q, k, v)
			}
		}
	}
	r.run()
}

// TestFlash tests attention on tensor cores, with numbers of queries, keys and heads that fill tiles and that do not.
func TestFlash(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for j, dt := range []ir.DType{ir.F16, ir.BF16} {
		for i, c := range []struct {
			lead           []int64
			tq, tk, hq, hv int64
			dh             int64
			scale          float64
		}{
			{nil, 5, 130, 4, 2, 64, 0.125}, {[]int64{2}, 150, 150, 2, 2, 16, -0.25}, {nil, 70, 70, 3, 1, 128, 0.1},
			{[]int64{2, 3}, 1, 65, 8, 1, 32, 1}, {nil, 129, 191, 1, 1, 80, 0}, {nil, 64, 64, 2, 1, 112, 2},
			{nil, 1, 300, 8, 1, 48, 0.3}, {nil, 5, 70, 8, 2, 128, -0.1},
			{[]int64{8}, 17, 70, 16, 8, 64, 0.2}, {nil, 1, 1100, 8, 1, 64, 0.3}, {nil, 5, 1300, 8, 2, 128, -0.1}, {nil, 40, 1100, 1, 1, 64, 0},
		} {
			q := noise(dt, append(slices.Clone(c.lead), c.tq, c.hq, c.dh)...)
			kv := append(slices.Clone(c.lead), c.tk, c.hv, c.dh)
			k, v := noise(dt, kv...), noise(dt, kv...)
			slices.Reverse(v.vals)
			for _, causal := range []bool{false, true} {
				if !longtest.On() && causal != ((i+j)%2 == 0) {
					continue
				}
				kernel := device.Kernel{Op: device.Attention{Scale: c.scale, Causal: causal}}
				r.compare(kernel, layouts[i%2*2], 0.5, dt, q.shape, q, k, v)
			}
		}
	}
	for _, l := range r.launches {
		if !strings.HasPrefix(l.code.symbol, "hocket_flash") {
			t.Errorf("%s does not use tensor cores", l.code.symbol)
		}
	}
	r.run()
}

// TestFlashSplit tests attention whose keys are split over thread blocks. The kernel loads keys as many steps ahead as
// the shared memory of each GPU permits.
func TestFlashSplit(t *testing.T) {
	t.Parallel()
	for _, gpu := range []struct {
		arch    string
		kib     int
		crowded bool
	}{{"sm_90a", 227, false}, {"sm_90a", 227, true}, {"sm_100a", 227, false}, {"sm_89", 99, false}} {
		r, kib := newTrial(t), gpu.kib
		r.arch, r.block, r.crowded = gpu.arch, kib<<10, gpu.crowded
		for i, c := range []struct{ tq, tk, hq, hv, dh int64 }{{1, 1100, 8, 1, 64}, {1, 130, 6, 2, 128}, {5, 1300, 8, 2, 128}, {3, 257, 4, 4, 64},
			{40, 515, 1, 1, 128}, {1, 2400, 2, 1, 64}} {
			dt := []ir.DType{ir.F16, ir.BF16}[i%2]
			q, k, v := noise(dt, 2, c.tq, c.hq, c.dh), noise(dt, 2, c.tk, c.hv, c.dh), noise(dt, 2, c.tk, c.hv, c.dh)
			slices.Reverse(v.vals)
			for _, causal := range []bool{false, true} {
				if !longtest.On() && causal != ((i+kib)%2 == 0) {
					continue
				}
				r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: causal}}, layouts[i%2*2], 0.5, dt, q.shape, q, k, v)
			}
		}
		clusters := map[int]bool{}
		for _, l := range r.launches {
			if clusters[max(1, l.code.cluster)] = true; int(l.blocks)%max(1, l.code.cluster) != 0 {
				t.Errorf("%s: %d thread blocks, which are no clusters of %d", l.code.symbol, l.blocks, l.code.cluster)
			}

			if s := l.code.symbol; !strings.HasPrefix(s, "hocket_flashSplit") && !strings.HasPrefix(s, "hocket_flashJoin") {
				t.Errorf("%s does not split keys", s)
			}
			if int(l.shared) > (kib-1)<<10 {
				t.Errorf("%d KiB: %s takes %d bytes", kib, l.code.symbol, l.shared)
			}
		}
		// 1100, 257, 515 and 1300 keys have 5, 2, 3 and 6 splits; 130 keys have one, and 2400 keys have too many.
		want := map[int]bool{1: true}
		if gpu.arch == "sm_90a" && !gpu.crowded {
			want = map[int]bool{1: true, 2: true, 3: true, 5: true, 6: true}
		}
		if !maps.Equal(clusters, want) {
			t.Errorf("%s: clusters of %v thread blocks, want %v", gpu.arch, clusters, want)
		}
		r.run()
	}
}

// TestFlashTakes checks which attentions are computed by tensor cores.
func TestFlashTakes(t *testing.T) {
	dense := func(dt ir.DType, dh int64) Operand {
		s := []int64{4, 2, dh}
		return Operand{Addr: 256, DType: dt, Shape: s, Strides: rowMajor(s)}
	}
	odd, column, off := dense(ir.BF16, 64), dense(ir.BF16, 64), dense(ir.BF16, 64)
	odd.Strides = []int64{132, 64, 1}
	column.Strides = []int64{128, 1, 2}
	off.Addr += 8
	for what, c := range map[string]struct {
		x    Operand
		arch string
		want bool
	}{
		"bf16": {dense(ir.BF16, 64), "sm_90a", true}, "f16 of 16": {dense(ir.F16, 16), "sm_80", true}, "any": {dense(ir.BF16, 128), "", true},
		"sm_100a": {dense(ir.BF16, 128), "sm_100a", true}, "sm_120f": {dense(ir.BF16, 128), "sm_120f", true},
		"sm_75": {dense(ir.F16, 64), "sm_75", false}, "f32": {dense(ir.F32, 64), "sm_90a", false}, "40": {dense(ir.BF16, 40), "sm_90a", false},
		"256": {dense(ir.BF16, 256), "sm_90a", false}, "no keys": {dense(ir.BF16, 64), "sm_90a", false}, "rows": {odd, "sm_90a", false}, "column": {column, "sm_90a", false}, "off": {off, "sm_90a", false},
	} {
		keys := c.x
		if what == "no keys" {
			keys.Shape = []int64{0, 2, 64}
		}
		l, err := plan(Computation{Op: device.Attention{Scale: 1}, Ins: []Operand{c.x, keys, keys}, Out: c.x}, Target{Arch: c.arch})
		if err != nil || len(l) != 1 || strings.HasPrefix(l[0].code.symbol, "hocket_flash") != c.want {
			t.Errorf("%s: %v, %v", what, l, err)
		}
	}
}

// hopper changes the planning of a bench: attention uses Hopper's tensor cores with thread blocks that each process all
// keys, although there are only few blocks.
func hopper(b *bench) {
	b.arch = "sm_90a"
	b.plan = func(p Problem, j *job) ([]launch, error) {
		f, err := newAttending(j, p.(Computation).Op.(device.Attention), p.(Computation).Stored)
		if err != nil {
			return nil, err
		}
		return f.whole()
	}
}

// TestFlashHopper is like TestFlash, with Hopper's tensor cores.
func TestFlashHopper(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	hopper(r.bench)
	for i, c := range []struct {
		tq, tk, hq, hv, dh int64
		scale              float64
	}{
		{5, 130, 4, 2, 64, 0.125}, {150, 150, 2, 2, 128, -0.25}, {1, 300, 1, 1, 128, 1}, {129, 391, 2, 1, 64, 0}, {64, 64, 2, 1, 64, 2}, {33, 515, 4, 1, 128, 0.1},
		{256, 256, 1, 1, 64, 0.2}, {3, 384, 1, 1, 64, 0.2},
	} {
		dt := []ir.DType{ir.F16, ir.BF16}[i%2]
		q, k, v := noise(dt, c.tq, c.hq, c.dh), noise(dt, c.tk, c.hv, c.dh), noise(dt, c.tk, c.hv, c.dh)
		slices.Reverse(v.vals)
		for _, causal := range []bool{false, true} {
			r.compare(device.Kernel{Op: device.Attention{Scale: c.scale, Causal: causal}}, layouts[i%2*2], 0.5, dt, q.shape, q, k, v)
		}
	}
	for _, l := range r.launches {
		if !strings.HasPrefix(l.code.symbol, "hocket_flashHopper") || l.shared < 48<<10 {
			t.Errorf("%s with %d bytes does not use Hopper's tensor cores", l.code.symbol, l.shared)
		}
	}
	r.run()
}

// hopperParts changes the planning of a bench: attention uses Hopper's tensor cores with keys that are split over
// thread blocks, although there are only few blocks.
func hopperParts(b *bench) {
	b.arch = "sm_90a"
	b.plan = func(p Problem, j *job) ([]launch, error) {
		f, err := newAttending(j, p.(Computation).Op.(device.Attention), p.(Computation).Stored)
		if err != nil {
			return nil, err
		}
		if f.wider = 1; !f.wide() {
			return f.whole()
		}
		return f.split(j)
	}
}

// TestFlashHopperParts tests attention on Hopper's tensor cores whose keys are split over thread blocks.
func TestFlashHopperParts(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	hopperParts(r.bench)
	for i, c := range []struct {
		tq, tk, hq, hv, dh int64
		scale              float64
	}{{130, 600, 2, 1, 64, 0.125}, {260, 513, 1, 1, 128, -0.25}, {64, 1100, 4, 1, 128, 1}, {300, 700, 2, 2, 64, 0}} {
		dt := []ir.DType{ir.F16, ir.BF16}[i%2]
		q, k, v := noise(dt, c.tq, c.hq, c.dh), noise(dt, c.tk, c.hv, c.dh), noise(dt, c.tk, c.hv, c.dh)
		slices.Reverse(v.vals)
		for _, causal := range []bool{false, true} {
			if longtest.On() || causal == (i%2 == 0) {
				kernel := device.Kernel{Op: device.Attention{Scale: c.scale, Causal: causal}}
				r.compare(kernel, layouts[i%2*2], 0.5, dt, q.shape, q, k, v)
			}
		}
	}
	q, kv := noise(ir.BF16, 2, 130, 2, 64), noise(ir.BF16, 2, 520, 2, 64)
	r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: true}}, layouts[2], 0.5, ir.BF16, q.shape, q, kv, kv)
	for _, l := range r.launches {
		if !strings.HasPrefix(l.code.symbol, "hocket_flashHopper") || !strings.HasSuffix(l.code.symbol, "Part") {
			t.Errorf("%s does not split keys on Hopper's tensor cores", l.code.symbol)
		}
	}
	r.launches = append(r.launches, r.launches...) // runs twice, as a run must leave the counters ready for the next
	r.run()
}

// TestHopperIsHopper checks that the kernels for Hopper's tensor cores are used only on Hopper, and only for heads that
// consist of whole panels of 64 elements.
func TestHopperIsHopper(t *testing.T) {
	for _, c := range []struct {
		arch string
		dh   int64
		want string
	}{{"sm_90a", 64, "flashHopper"}, {"sm_90a", 128, "flashHopper"}, {"sm_90a", 96, "flash"}, {"sm_80", 128, "flash"}, {"sm_100a", 128, "flash"}, {"sm_120a", 64, "flash"}, {"sm_75", 64, "attention"}} {
		shape := []int64{2048, 8, c.dh}
		x := Operand{Addr: 256, DType: ir.BF16, Shape: shape, Strides: rowMajor(shape)}
		l, err := plan(Computation{Op: device.Attention{Scale: 1}, Ins: []Operand{x, x, x}, Out: x}, Target{Arch: c.arch})
		if err != nil || len(l) != 1 || !strings.HasPrefix(l[0].code.symbol, "hocket_"+c.want+"_") || (l[0].shared > 0) != (c.want == "flashHopper") {
			t.Errorf("%s, %d: %v, %v", c.arch, c.dh, l, err)
		}
	}
}

// TestHopperShares checks for which attentions keys are split over thread blocks, and by which kernel.
func TestHopperShares(t *testing.T) {
	for _, c := range []struct {
		tq, tk, hq, hv int64
		fixed, given   bool
		want           string
	}{
		{512, 1536, 16, 4, false, false, "flashHopper…Part"}, {256, 1280, 16, 4, false, false, "flashHopper…Part"},
		{128, 1152, 16, 4, false, false, "flashSplit…"}, {1024, 2048, 16, 4, false, false, "flashHopper…Whole"},
		{512, 511, 16, 4, false, false, "flashHopper…Whole"}, {1, 1536, 64, 32, false, false, "flashSplit…"},
		{512, 1536, 16, 4, true, false, "flashSplit…"}, {512, 1536, 16, 4, false, true, "flashHopper…Whole"},
	} {
		x := func(dt ir.DType, shape ...int64) Operand { return Operand{256, dt, shape, rowMajor(shape)} }
		q, k := x(ir.BF16, c.tq, c.hq, 128), x(ir.BF16, c.tk, c.hv, 128)
		p := Computation{Op: device.Attention{Scale: 1, Fixed: c.fixed}, Ins: []Operand{q, k, k}, Out: q}
		if c.given {
			p.Ins = append(p.Ins, x(ir.I32))
		}
		l, err := drafted(p, Target{Arch: "sm_90a"})
		begins, ends, _ := strings.Cut(c.want, "…")
		if err != nil || !strings.HasPrefix(l[0].code.symbol, "hocket_"+begins) ||
			!strings.HasSuffix(l[0].code.symbol, ends) {
			t.Errorf("%v: %v, %v", c, l, err)
		}
	}
}

// TestFlashFinds checks that, if one score of a query is far larger than all others, its result equals that key's
// value, bit by bit.
func TestFlashFinds(t *testing.T) {
	t.Parallel()
	const tq, tk, heads = 75, 203, 2
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 12 {
		if !longtest.On() && i%4 != 0 && i%4 != 3 {
			continue
		}
		dt, causal, dh := []ir.DType{ir.F16, ir.BF16}[i%2], i/2%2 == 0, []int{80, 64, 128}[i/4]
		b := newBench(t)
		if dh == 128 {
			hopper(b)
		}
		{
			q, k, v, want := make([]float64, tq*heads*dh), make([]float64, tk*dh), make([]float64, tk*dh), make([]float64, tq*heads*dh)
			for i := range v {
				k[i], v[i] = float64(1-2*rng.IntN(2)), tensor.Round(dt, rng.NormFloat64())
			}
			for row := range tq * heads {
				at := rng.IntN(tk)
				if causal {
					at = rng.IntN(row/heads + 1 + tk - tq)
				}
				for d := range dh {
					q[row*dh+d], want[row*dh+d] = 32*k[at*dh+d], v[at*dh+d]
				}
			}
			dh := int64(dh)
			ops := []Operand{b.put(dt, layouts[0], q, tq, heads, dh), b.put(dt, layouts[2], k, tk, 1, dh), b.put(dt, layouts[0], v, tk, 1, dh)}
			out := b.room(dt, layouts[2], tq, heads, dh)
			b.add("attention", Computation{Op: device.Attention{Scale: 1, Causal: causal}, Ins: ops, Out: out}, func() {
				same(t, fmt.Sprintf("%s, causal %t", dt, causal), b.vals(out), want, 0)
			})
		}
		b.run()
	}
}

// TestFlashHidden checks that values that no query sees have no effect, and that a value that is not finite does not
// affect queries that do not see it.
func TestFlashHidden(t *testing.T) {
	t.Parallel()
	t.Run("any", func(t *testing.T) {
		flashHidden(newTrial(t), struct{ tq, tk, dh int64 }{66, 130, 32}, struct{ tq, tk, dh int64 }{5, 1030, 64}, struct{ tq, tk, dh int64 }{66, 130, 128})
	})
	t.Run("hopper", func(t *testing.T) {
		r := newTrial(t)
		hopper(r.bench)
		flashHidden(r, struct{ tq, tk, dh int64 }{66, 270, 64}, struct{ tq, tk, dh int64 }{66, 130, 128})
	})
	t.Run("parts of hopper", func(t *testing.T) {
		r := newTrial(t)
		hopperParts(r.bench)
		flashHidden(r, struct{ tq, tk, dh int64 }{130, 520, 64})
	})
}

func flashHidden(r *trial, cases ...struct{ tq, tk, dh int64 }) {
	const heads = 2
	for _, c := range cases {
		for _, at := range []int64{c.tk - 1, c.tk - c.tq, c.tk - c.tq + 3, 3} {
			for i, odd := range []float64{math.Inf(1), math.NaN()} {
				dt := []ir.DType{ir.F16, ir.BF16}[i]
				q, k, v := noise(dt, c.tq, heads, c.dh), noise(dt, c.tk, 1, c.dh), noise(dt, c.tk, 1, c.dh)
				v.vals[at*c.dh+5] = odd
				r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: true}}, layouts[0], 0.5, dt, q.shape, q, k, v)
				v.vals[at*c.dh+5], k.vals[at*c.dh+7] = 1, odd
				r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: true}}, layouts[0], 0.5, dt, q.shape, q, k, v)
			}
		}
	}
	// One value is seen by all queries, and one whole tile of keys has weight zero for all queries.
	q, k, v := noise(ir.BF16, 3, heads, 64), noise(ir.BF16, 200, 1, 64), noise(ir.BF16, 200, 1, 64)
	v.vals[9] = math.Inf(1)
	r.compare(device.Kernel{Op: device.Attention{Scale: 0.2}}, layouts[0], 0.5, ir.BF16, q.shape, q, k, v)
	v.vals[9] = 0
	for i := range q.vals {
		q.vals[i] = 1
	}
	for i := range k.vals { // scores far below 0, but not below all other scores
		k.vals[i] = -50 - float64(i%3)
		if i < 130*64 {
			k.vals[i] = math.Inf(-1)
		}
	}
	for _, causal := range []bool{false, true} {
		r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: causal}}, layouts[0], 0.5, ir.BF16, q.shape, q, k, v)
	}
	r.run()
}

func TestEmbeddingAndConcat(t *testing.T) {
	r := newTrial(t)
	for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.I64} {
		for _, l := range layouts {
			table := noise(dt, 5, 300)
			for _, id := range []ir.DType{ir.I32, ir.I64} {
				ids := values{id, []int64{2, 3}, []float64{4, 0, 9, 2, 11, 6}}
				r.compare(device.Kernel{Op: device.Embedding{First: 2, Rows: 12}}, l, 0, dt, []int64{2, 3, 300}, ids, table)
			}
			r.compare(device.Kernel{Op: device.Concat{Axis: 1}}, l, 0, dt, []int64{4, 6, 3}, noise(dt, 4, 1, 3), noise(dt, 4, 0, 3), noise(dt, 4, 5, 3))
		}
	}
	r.run()
}

func TestEmbeddingFault(t *testing.T) {
	b := newBench(t)
	ids := b.put(ir.I32, layouts[0], []float64{1, 7, -1}, 3)
	table := b.put(ir.F32, layouts[0], []float64{1, 2, 3, 4}, 2, 2)
	out := b.room(ir.F32, layouts[0], 3, 2)
	word, bell := b.alloc(FaultBytes), b.alloc(8)
	clear(b.mem[word-memoryAt:])
	binary.LittleEndian.PutUint64(b.mem[word-memoryAt+FaultBell:], uint64(bell))
	b.add("embedding", Computation{Op: device.Embedding{Rows: 2}, Ins: []Operand{ids, table}, Out: out, Fault: word, Tag: 77}, func() {
		same(t, "rows", b.vals(out), []float64{3, 4, 0, 0, 0, 0}, 0)
		f, ok := ReadFault(b.mem[word-memoryAt:])
		if want := (Fault{FaultRange, 77, [3]int64{7, 2, 1}}); !ok || f != want {
			t.Errorf("fault %v, %v; want %v", f, ok, want)
		}
		if rung := binary.LittleEndian.Uint64(b.mem[bell-memoryAt:]); rung != 1 {
			t.Errorf("the bell is %d", rung)
		}
	})
	b.run()
}
