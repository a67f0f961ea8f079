package kernels

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

var skinnyForms = []skinnyForm{{4, 5}, {2, 4}, {2, 2}, {3, 5}, {2, 3}, {8, 2}, {4, 3}}

// as returns a planning function by which linears use the kernel for few rows, in the given form.
func (b *bench) as(how Skinny, form skinnyForm) {
	b.plan = func(p Problem, j *job) ([]launch, error) {
		c := p.(Computation)
		if _, ok := c.Op.(device.Linear); !ok {
			return c.plan(j)
		}
		s, err := newSkinny(how, j)
		if err != nil {
			return nil, err
		}
		j.sms = int(form.steps % 2) // with one multiprocessor, a block computes the columns of many
		return s.launches(j, form)
	}
}

// TestSkinny compares linears of few rows with the CPU machine, in each form, with and without a bias.
func TestSkinny(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, c := range []struct {
		lead []int64
		n, k int64
	}{{nil, 40, 200}, {[]int64{1}, 1, 8}, {[]int64{3}, 50, 1032}, {[]int64{2, 4}, 16, 64}, {[]int64{9}, 33, 520},
		{[]int64{4, 4}, 25, 4200}, {[]int64{13}, 24, 512},
		{[]int64{17}, 70, 520}, {[]int64{2, 16}, 64, 1096}} {
		for f, form := range skinnyForms {
			r.as(Skinny{Constant: f%2 == 0}, form)
			dt := []ir.DType{ir.F16, ir.BF16}[(i+f)%2]
			x, w, bias := noise(dt, append(slices.Clone(c.lead), c.k)...), noise(dt, c.n, c.k), noise(dt, c.n)
			slices.Reverse(w.vals)
			shape := append(slices.Clone(c.lead), c.n)
			l := layouts[f%2*2]
			slack := float64(c.k) / 32
			r.compare(device.Kernel{Op: device.Linear{}}, l, slack, dt, shape, x, w)
			if l.name == "dense" {
				r.compare(device.Kernel{Op: device.Linear{}}, l, slack, dt, shape, x, w, bias)
			}
		}
	}
	r.run()
}

// TestSkinnyBits checks, in every form, that a row has the same bits as if it were computed alone, and that epilogues
// have the bits of separate operations.
func TestSkinnyBits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const n, k = 48, 1400
	equal := func(what string, got, want Operand) {
		t.Helper()
		g, w := b.vals(got), b.vals(want)
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Errorf("%s: element %d is %v, want %v", what, i, g[i], w[i])
				return
			}
		}
	}
	dense := layouts[0]
	for _, dt := range []ir.DType{ir.F16, ir.BF16} {
		put := func(shape ...int64) Operand {
			v := noise(dt, shape...)
			for i := range v.vals {
				v.vals[i] /= 8
			}
			return b.put(dt, dense, v.vals, shape...)
		}
		x, w, bias := put(32, k), put(n, k), put(n)
		rows := func(o Operand, m int64) Operand {
			o.Shape = []int64{m, o.Shape[1]}
			return o
		}
		all := b.room(dt, dense, 32, n)
		linear := func(what string, out Operand, how Skinny, form skinnyForm, f func(), ins ...Operand) {
			t.Helper()
			b.as(how, form)
			b.add(what, Computation{Op: device.Linear{}, Ins: ins, Out: out}, f)
		}
		linear("all rows", all, Skinny{}, skinnyForm{2, 3}, func() {}, x, w, bias)
		for _, m := range []int64{1, 2, 7, 8, 9, 16, 17, 32} {
			for _, form := range skinnyForms {
				out, what := b.room(dt, dense, m, n), fmt.Sprintf("%d rows of %s, %v", m, dt, form)
				linear(what, out, Skinny{}, form, func() { equal(what, out, all) }, rows(x, m), w, bias)
			}
		}
		for i, form := range skinnyForms[2:] { // any number of rows
			m := []int64{33, 80, 3, 96, 40}[i]
			wide, sliced := b.put(dt, dense, slices.Repeat(b.vals(x), 3)[:m*k], m, k), b.room(dt, dense, m, n)
			linear("sliced", sliced, Skinny{Sliced: true, Epilogue: ReluEpilogue}, form, func() {
				got, want := b.vals(sliced), b.vals(all)
				for e, v := range got {
					if w := max(want[int64(e)%(32*n)], 0); v != w {
						t.Errorf("%d rows of %s, %v: element %d is %v, want %v", m, dt, form, e, v, w)
						return
					}
				}
			}, wide, w, bias)
		}
		w2, w3 := put(25, k), put(8, k)
		repeats := func(what string, got, want Operand) { // compares the rows with those in want, which has 32 rows
			t.Helper()
			g, w := b.vals(got), b.vals(want)
			for e, v := range g {
				if w := w[e%len(w)]; v != w {
					t.Errorf("%s: element %d is %v, want %v", what, e, v, w)
					return
				}
			}
		}
		half, other := w, w
		half.Shape, other.Shape = []int64{n / 2, k}, []int64{n / 2, k}
		other.Addr += nvlib.Ptr(n / 2 * k * dt.Size())
		few, fewer, act := b.room(dt, dense, 32, n), b.room(dt, dense, 32, 25), b.room(dt, dense, 32, n/2)
		linear("32 rows", few, Skinny{}, skinnyForm{2, 3}, func() {}, x, w)
		linear("32 rows", fewer, Skinny{}, skinnyForm{2, 3}, func() {}, x, w2)
		linear("32 rows, gated", act, Skinny{Epilogue: SiluMulEpilogue, Up: &other}, skinnyForm{2, 3}, func() {}, x,
			half)
		for i, form := range skinnyForms[1:6] { // several linears with more rows
			m := []int64{33, 18, 64, 90, 65}[i]
			wide := b.put(dt, dense, slices.Repeat(b.vals(x), 4)[:m*k], m, k)
			one, two, gated := b.room(dt, dense, m, n), b.room(dt, dense, m, 25), b.room(dt, dense, m, n/2)
			linear("two of many rows", one, Skinny{Sliced: true, More: []SkinnyPart{{Weight: w2, Out: two}}}, form, func() {
				repeats("first of two of many rows", one, few)
				repeats("second of two of many rows", two, fewer)
			}, wide, w)
			if form.tiles%2 == 0 {
				linear("gated of many rows", gated, Skinny{Sliced: true, Epilogue: SiluMulEpilogue, Up: &other}, form,
					func() { repeats("gated of many rows", gated, act) }, wide, half)
			}
		}
		for i, form := range skinnyForms { // several linears of one operand x in one launch
			m := int64(1 + 4*i)
			var alone, joint []Operand
			for _, weight := range []Operand{w, w2, w3} {
				one := b.room(dt, dense, m, weight.Shape[0])
				linear("alone", one, Skinny{}, form, func() {}, rows(x, m), weight)
				alone, joint = append(alone, one), append(joint, b.room(dt, dense, m, weight.Shape[0]))
			}
			two := b.room(dt, dense, m, 25)
			linear("three at once", joint[0],
				Skinny{Constant: i%2 == 0, More: []SkinnyPart{{Weight: w2, Out: joint[1]}, {Weight: w3, Out: joint[2]}}}, form, func() {
					for p := range joint {
						equal(fmt.Sprintf("%d rows of %s, %v: result %d of three", m, dt, form, p), joint[p], alone[p])
					}
				}, rows(x, m), w)
			linear("two at once", b.room(dt, dense, m, 8), Skinny{More: []SkinnyPart{{Weight: w2, Out: two}}}, form,
				func() { equal("second of two", two, alone[1]) },
				rows(x, m), w3)
		}
		for i, form := range skinnyForms {
			m := int64(3 + 4*i)
			one, relu, want := b.room(dt, dense, m, n), b.room(dt, dense, m, n), b.room(dt, dense, m, n)
			linear("product", one, Skinny{}, form, func() {}, rows(x, m), w, bias)
			linear("relu", relu, Skinny{Epilogue: ReluEpilogue}, form, func() { equal("relu", relu, want) }, rows(x, m),
				w, bias)
			b.add("relu alone", Computation{Op: device.Elementwise{Op: ir.OpRelu}, Ins: []Operand{one}, Out: want}, func() {})
			if form.tiles%2 != 0 {
				continue
			}
			gated, act, wantGated := b.room(dt, dense, m, n/2), b.room(dt, dense, m, n/2), b.room(dt, dense, m, n/2)
			both := b.room(dt, dense, m, n)
			linear("both", both, Skinny{}, form, func() {}, rows(x, m), w)
			part := func(from int64) Operand {
				o := both
				o.Shape, o.Addr = []int64{m, n / 2}, o.Addr+nvlib.Ptr(from*dt.Size())
				return o
			}
			linear("gated", gated, Skinny{Epilogue: SiluMulEpilogue, Up: &other}, form,
				func() { equal("silu times", gated, wantGated) }, rows(x, m), half)
			b.add("silu alone", Computation{Op: device.Elementwise{Op: ir.OpSilu}, Ins: []Operand{part(0)}, Out: act}, func() {})
			b.add("times alone", Computation{Op: device.Elementwise{Op: ir.OpMul}, Ins: []Operand{act, part(n / 2)}, Out: wantGated}, func() {})
		}
	}
	b.run()
}

// TestSkinnyTakes checks which linears the kernel for few rows supports.
func TestSkinnyTakes(t *testing.T) {
	problem := func(dt ir.DType, m, n, k int64) Skinny {
		o := func(shape ...int64) Operand {
			return Operand{Addr: 1 << 20, DType: dt, Shape: shape, Strides: rowMajor(shape)}
		}
		return Skinny{Ins: []Operand{o(m, k), o(n, k)}, Out: o(m, n)}
	}
	with := func(p Skinny, f func(*Skinny)) Skinny {
		f(&p)
		return p
	}
	good := problem(ir.BF16, 8, 64, 4096)
	for what, c := range map[string]struct {
		p     Skinny
		arch  string
		block int
		want  string // name of the kernel; "" if the linear is not supported
	}{
		"bf16":     {p: good, arch: "sm_90a", want: "hocket_skinnyStore_bf16_r8t4s5"},
		"f16":      {p: problem(ir.F16, 16, 64, 64), arch: "sm_80", want: "hocket_skinnyStore_f16_r16t2s3"},
		"one wave": {p: problem(ir.BF16, 9, 3072, 4096), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r16t3s5"},
		"little k": {p: problem(ir.BF16, 1, 4096, 2048), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r8t2s4"},
		"99 KiB":   {p: good, arch: "sm_89", block: 99 << 10, want: "hocket_skinnyStore_bf16_r8t2s4"},
		"48 KiB":   {p: good, arch: "sm_90a", block: 48 << 10},
		"sm_75":    {p: good, arch: "sm_75"},
		"f32":      {p: problem(ir.F32, 8, 64, 64), arch: "sm_90a"},
		"two waves, 99 KiB": {p: problem(ir.BF16, 8, 4240, 2048), arch: "sm_89", block: 99 << 10,
			want: "hocket_skinnyStore_bf16_r8t2s4"}, // without memory for the sums
		"two waves": {p: problem(ir.BF16, 8, 4240, 2048), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r8t2s4l"},
		"17 rows":   {p: problem(ir.BF16, 17, 64, 64), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r32t2s4"},
		"32 rows":   {p: problem(ir.BF16, 32, 4096, 64), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r32t4s3"},
		"wide":      {p: problem(ir.BF16, 32, 9000, 64), arch: "sm_90a", want: "hocket_skinnyStore_bf16_r32t8s2"},
		"32 rows, 99 KiB": {p: problem(ir.BF16, 32, 9000, 64), arch: "sm_89", block: 99 << 10,
			want: "hocket_skinnyStore_bf16_r32t2s2"},
		"33 rows": {p: problem(ir.BF16, 33, 64, 64), arch: "sm_90a"},
		"k of 20": {p: problem(ir.BF16, 8, 64, 20), arch: "sm_90a"},
		"no k":    {p: problem(ir.BF16, 8, 64, 0), arch: "sm_90a"},
		"off": {p: with(good, func(p *Skinny) { p.Ins = slices.Clone(p.Ins); p.Ins[1].Addr += 8 }),
			arch: "sm_90a"},
		"transposed": {p: with(good, func(p *Skinny) {
			p.Ins = slices.Clone(p.Ins)
			p.Ins[1].Strides = []int64{1,
				64}
		}), arch: "sm_90a"},
	} {
		l, err := plan(c.p, Target{Arch: c.arch, Block: c.block, SMs: 132})
		switch {
		case c.want == "" && !errors.Is(err, device.ErrUnsupported):
			t.Errorf("%s: %v, %v", what, l, err)
		case c.want != "" && (err != nil || len(l) != 1 || l[0].code.symbol != c.want):
			t.Errorf("%s: %v, %v", what, l, err)
		}
	}
}

// TestSkinnyParts checks which linears of one operand x the kernel computes in one launch.
func TestSkinnyParts(t *testing.T) {
	o := func(shape ...int64) Operand {
		return Operand{Addr: 1 << 20, DType: ir.BF16, Shape: shape, Strides: rowMajor(shape)}
	}
	far := o(64, 512)
	far.Addr += 8
	f16 := o(64, 512)
	f16.DType = ir.F16
	part := SkinnyPart{Weight: o(32, 512), Out: o(8, 32)}
	bias := []Operand{o(8, 512), o(64, 512), o(64)}
	for what, c := range map[string]struct {
		how    Skinny
		ins    []Operand
		blocks uint32 // 0 for an error
		takes  bool   // whether the error must not wrap ErrUnsupported
	}{
		"one":        {Skinny{}, nil, 4, true},
		"two":        {Skinny{More: []SkinnyPart{part}}, nil, 6, true},
		"three":      {Skinny{More: []SkinnyPart{part, {Weight: o(16, 512), Out: o(8, 16)}}}, nil, 7, true},
		"four":       {Skinny{More: []SkinnyPart{part, part, part}}, nil, 0, true},
		"other k":    {Skinny{More: []SkinnyPart{{Weight: o(32, 256), Out: o(8, 32)}}}, nil, 0, true},
		"other rows": {Skinny{More: []SkinnyPart{{Weight: o(32, 512), Out: o(7, 32)}}}, nil, 0, true},
		"other type": {Skinny{More: []SkinnyPart{{Weight: f16, Out: o(8, 64)}}}, nil, 0, true},
		"off":        {Skinny{More: []SkinnyPart{{Weight: far, Out: o(8, 64)}}}, nil, 0, false},
		"a bias":     {Skinny{More: []SkinnyPart{part}}, bias, 0, true},
		"a relu":     {Skinny{More: []SkinnyPart{part}, Epilogue: ReluEpilogue}, nil, 0, true},
		"gated": {Skinny{Up: &Operand{1 << 22, ir.BF16, []int64{64, 512}, []int64{512, 1}},
			Epilogue: SiluMulEpilogue}, nil, 8, true},
		"gated, off": {Skinny{Up: &far, Epilogue: SiluMulEpilogue}, nil, 0, false},
		"gated by a bias": {Skinny{Up: &Operand{1 << 22, ir.BF16, []int64{64, 512}, []int64{512, 1}},
			Epilogue: SiluMulEpilogue}, bias, 0, true},
		"sliced": {Skinny{Sliced: true}, []Operand{o(100, 512), o(64, 512)}, 4 * 4, true},
		"sliced, of two": {Skinny{Sliced: true, More: []SkinnyPart{{Weight: o(32, 512), Out: o(100, 32)}}},
			[]Operand{o(100, 512), o(64, 512)}, 6 * 4, true},
		"up for no reason": {Skinny{Up: &far}, nil, 0, true},
	} {
		p := c.how
		p.Ins, p.Out = []Operand{o(8, 512), o(64, 512)}, o(8, 64)
		if c.ins != nil {
			p.Ins = c.ins
			p.Out = o(c.ins[0].Shape[0], 64)
		}
		l, err := plan(p, Target{Arch: "sm_90a", SMs: 132})
		if c.blocks == 0 {
			if err == nil || errors.Is(err, device.ErrUnsupported) == c.takes {
				t.Errorf("%s: %v", what, err)
			}
		} else if err != nil || len(l) != 1 || l[0].blocks != c.blocks {
			t.Errorf("%s: %v, %v; want %d blocks", what, l, err, c.blocks)
		}
	}
}

// TestSkinnyScaled compares linears of few rows with 8-bit weights with the CPU machine, in several forms and for all
// kinds of scales, and checks that every number of type f8e4m3 is converted exactly.
func TestSkinnyScaled(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, c := range [][3]int64{{1, 1, 16}, {3, 50, 1040}, {8, 136, 4224}, {13, 24, 512}, {17, 260, 1152}, {40, 70, 272}} {
		m, n, k := c[0], c[1], c[2]
		for f, form := range []skinnyForm{{2, 2}, {4, 3}, {4, 2}} {
			r.as(Skinny{Constant: f%2 == 0, Sliced: m > skinnyRows}, form)
			dt := []ir.DType{ir.BF16, ir.F16}[(i+f)%2]
			sx := [][]int64{{}, {m}, {m, ceil(k, 128)}}[(i+f)%3]
			sw := [][]int64{{}, {n}, {ceil(n, 128), ceil(k, 128)}}[(i+2*f)%3]
			r.compare(device.Kernel{Op: device.Linear{}}, layouts[0], float64(k)/64, dt, []int64{m, n}, noise(dt, m, k),
				noise(ir.F8E4M3, n, k), positive(noise(ir.F32, sx...)), positive(noise(ir.F32, sw...)))
		}
	}
	for i, form := range []skinnyForm{{2, 2}, {4, 3}} { // several linears in one launch
		m, dt := []int64{5, 40}[i], ir.BF16
		put := func(v values) Operand { return r.put(v.dt, layouts[0], v.vals, v.shape...) }
		x, one, some := put(noise(dt, m, 512)), put(values{ir.F32, nil, []float64{1}}), positive(noise(ir.F32, 1, 4))
		rows := positive(noise(ir.F32, 33))
		w, up, other := put(noise(ir.F8E4M3, 40, 512)), put(noise(ir.F8E4M3, 40, 512)), put(noise(ir.F8E4M3, 33, 512))
		slices.Reverse(some.vals)
		sw, sup, so := put(some), put(positive(noise(ir.F32, 1, 4))), put(rows)
		room := func(n int64) Operand { return r.room(dt, layouts[0], m, n) }
		linear := func(how Skinny, out Operand, check func(), ins ...Operand) {
			how.Sliced = m > skinnyRows
			r.as(how, form)
			r.add("linear of 8-bit weights", Computation{Op: device.Linear{}, Ins: ins, Out: out}, check)
		}
		a, b, c, joint, more, gated := room(40), room(40), room(33), room(40), room(33), room(40)
		linear(Skinny{}, a, func() {}, x, w, one, sw)
		linear(Skinny{}, b, func() {}, x, up, one, sup)
		linear(Skinny{}, c, func() {}, x, other, one, so)
		linear(Skinny{More: []SkinnyPart{{Weight: other, Out: more, Scales: &so}}}, joint, func() {
			same(t, "first of two", r.vals(joint), r.vals(a), 0)
			same(t, "second of two", r.vals(more), r.vals(c), 0)
		}, x, w, one, sw)
		act, want := room(40), room(40)
		linear(Skinny{Epilogue: SiluMulEpilogue, Up: &up, UpScales: &sup}, gated,
			func() { same(t, "gated", r.vals(gated), r.vals(want), 0) }, x, w, one, sw)
		r.add("silu alone", Computation{Op: device.Elementwise{Op: ir.OpSilu}, Ins: []Operand{a}, Out: act}, func() {})
		r.add("times alone", Computation{Op: device.Elementwise{Op: ir.OpMul}, Ins: []Operand{act, b}, Out: want}, func() {})
	}
	// For up to three rows of bf16, the kernel converts x to f16. Powers of two in x and in the scale of w cancel, and
	// so do a large number of x and a zero of w. Then all bits are equal.
	{
		r.as(Skinny{}, skinnyForm{4, 2})
		small, w := noise(ir.BF16, 3, 512), noise(ir.F8E4M3, 40, 512)
		for i := range w.vals {
			if i%512%128 == 5 {
				w.vals[i] = 0
			}
		}
		one, want := r.put(ir.F32, layouts[0], []float64{1}), []float64(nil)
		for i, p := range []int{0, 12, 100, -90, -60} {
			x := values{small.dt, small.shape, slices.Clone(small.vals)}
			for j := range x.vals {
				if i == 1 && j%128 == 5 {
					x.vals[j] = math.Ldexp(1, p)
				} else if i > 1 {
					x.vals[j] = math.Ldexp(x.vals[j], p)
				}
			}
			scale := 1.0
			if i > 1 {
				scale = math.Ldexp(1, -p)
			}
			out := r.room(ir.BF16, layouts[0], 3, 40)
			ins := []Operand{r.put(x.dt, layouts[0], x.vals, x.shape...), r.put(w.dt, layouts[0], w.vals, w.shape...), one,
				r.put(ir.F32, layouts[0], []float64{scale})}
			r.add("x of all magnitudes", Computation{Op: device.Linear{}, Ins: ins, Out: out}, func() {
				if i == 0 {
					want = r.vals(out)
					return
				}
				same(t, fmt.Sprintf("x times 2^%d", p), r.vals(out), want, 0)
			})
		}
		r.compare(device.Kernel{Op: device.Linear{}}, layouts[0], 8, ir.BF16, []int64{3, 40}, small, w,
			values{ir.F32, nil, []float64{1}}, values{ir.F32, nil, []float64{1}})
		odd := values{small.dt, small.shape, slices.Clone(small.vals)}
		odd.vals[7], odd.vals[512+300], odd.vals[1024] = math.Inf(1), math.NaN(), math.Inf(-1)
		r.compare(device.Kernel{Op: device.Linear{}}, layouts[0], 8, ir.BF16, []int64{3, 40}, odd, w,
			values{ir.F32, nil, []float64{1}}, values{ir.F32, nil, []float64{1}})
	}
	// Each row of x is one unit vector, so that results are the numbers of a column of w.
	raw, x, one := make([]byte, 256), values{ir.BF16, []int64{16, 16}, make([]float64, 256)}, values{ir.F32, nil, []float64{1}}
	for i := range raw {
		raw[i] = byte(i)
	}
	for i := range 16 {
		x.vals[i*17] = 1
	}
	all := values{ir.F8E4M3, []int64{16, 16}, make([]float64, 256)}
	tensor.ToFloat64(all.vals, raw, ir.F8E4M3)
	for _, dt := range []ir.DType{ir.BF16, ir.F16} {
		r.as(Skinny{}, skinnyForm{2, 2})
		x.dt = dt
		finite := values{ir.F8E4M3, []int64{16, 16}, slices.Clone(all.vals)}
		for i, v := range finite.vals {
			if v != v {
				finite.vals[i] = -0.5
			}
		}
		for _, w := range []values{finite, all} { // a NaN in x makes its whole row of the result NaN
			r.compare(device.Kernel{Op: device.Linear{}}, layouts[0], 0, dt, []int64{16, 16}, x, w, one, one)
		}
	}
	r.run()
}
