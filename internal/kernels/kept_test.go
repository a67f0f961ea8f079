package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestIndexCopy writes rows to distinct positions; the other rows must not change.
func TestIndexCopy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for i, c := range []struct {
		rows  []int64
		room  int64
		axis  int
		alone bool // the list of positions is the same for all rows
	}{
		{[]int64{3}, 5, 0, true}, {[]int64{2, 3, 4, 16}, 7, 1, false}, {[]int64{2, 3, 4, 16}, 7, 1, true},
		{[]int64{5, 40}, 5, 0, false}, {[]int64{2, 200, 3}, 210, 1, true}, {[]int64{2, 200, 3}, 210, 1, false},
		{[]int64{2, 2, 3}, 9, 2, false}, {[]int64{600, 3}, 700, 0, false}, {[]int64{0, 3}, 2, 0, false},
		{[]int64{2, 3, 5}, 4, 1, false},
	} {
		for j, l := range layouts {
			dt, pt := ir.ArithmeticTypes()[(i+j)%len(ir.ArithmeticTypes())], []ir.DType{ir.I32, ir.I64}[(i+j)%2]
			shape := slices.Clone(c.rows)
			shape[c.axis] = c.room
			rows, cache, count := noise(dt, c.rows...), noise(dt, shape...), c.rows[c.axis]
			inner, groups := int64(1), int64(1)
			for _, n := range c.rows[c.axis+1:] {
				inner *= n
			}
			for _, n := range c.rows[:c.axis] {
				groups *= n
			}
			lists := groups
			atShape := c.rows[:c.axis+1]
			if c.alone {
				lists, atShape = 1, c.rows[c.axis:c.axis+1]
			}
			var at []float64
			for range lists {
				order := rng.Perm(int(c.room))
				for k := range count {
					p := float64(order[k])
					if rng.IntN(4) == 0 {
						p = -1
					}
					at = append(at, p)
				}
			}
			want := slices.Clone(cache.vals)
			for g := range groups {
				for k := range count {
					if p := int64(at[(g*count+k)%int64(len(at))]); p >= 0 {
						copy(want[(g*c.room+p)*inner:][:inner], rows.vals[(g*count+k)*inner:])
					}
				}
			}
			out := b.put(dt, l, cache.vals, shape...)
			what := fmt.Sprintf("rows %v of %s, %s, along %d", c.rows, dt, l.name, c.axis)
			b.add(what, Computation{Op: device.IndexCopy{Axis: c.axis}, Out: out,
				Ins: []Operand{b.put(dt, l, rows.vals, c.rows...), b.put(pt, l, at, atShape...)}},
				func() { same(t, what, b.vals(out), want, 0) })
		}
	}
	b.run()
}

// TestIndexCopyFault checks that an invalid position is reported, and that nothing is written.
func TestIndexCopyFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	far := make([]float64, 2*600) // two lists of positions; the second contains the same number twice, far apart
	for i := range far {
		far[i] = float64(i % 600)
	}
	far[600+577] = 3
	for _, c := range []struct {
		shape []int64
		at    []float64
		want  Fault
	}{
		{[]int64{2}, []float64{0, 700}, Fault{FaultPosition, 7, [3]int64{700, 700, 1}}},
		{[]int64{2}, []float64{-2, 0}, Fault{FaultPosition, 7, [3]int64{-2, 700, 0}}},
		{[]int64{3}, []float64{-1, 5, 5}, Fault{FaultTwice, 7, [3]int64{5, 700, 2}}},
		{[]int64{2, 600}, far, Fault{FaultTwice, 7, [3]int64{3, 700, 1177}}},
		{[]int64{2, 3}, []float64{-1, 5, 5, 5, 2, 1}, Fault{FaultTwice, 7, [3]int64{5, 700, 2}}},
		{[]int64{2, 3}, []float64{5, 1, 6, 5, 2, 2}, Fault{FaultTwice, 7, [3]int64{2, 700, 5}}},
		{[]int64{3}, []float64{-1, -1, 2}, Fault{}},
	} {
		shape := append(slices.Clone(c.shape), 4)
		rows := noise(ir.F32, slices.Clone(shape)...)
		shape[len(shape)-2] = 700
		cache := noise(ir.F32, shape...)
		out := b.put(ir.F32, layouts[0], cache.vals, shape...)
		word := b.alloc(FaultBytes)
		clear(b.mem[word-memoryAt:])
		b.add("index_copy", Computation{Op: device.IndexCopy{Axis: len(c.shape) - 1}, Out: out, Fault: word, Tag: 7,
			Ins: []Operand{b.put(ir.F32, layouts[0], rows.vals, rows.shape...),
				b.put(ir.I32, layouts[0], c.at, c.shape...)}}, func() {
			f, ok := ReadFault(b.mem[word-memoryAt:])
			if ok != (c.want != Fault{}) || f != c.want {
				t.Errorf("fault %v, %v; want %v", f, ok, c.want)
			}
			if ok {
				same(t, c.want.String(), b.vals(out), cache.vals, 0)
			} else {
				same(t, "the third row", b.vals(out)[8:12], rows.vals[8:12], 0)
			}
		})
	}
	b.run()
	for kind, says := range map[FaultKind]string{FaultPosition: "element 9 of the positions) is outside 0 to 7",
		FaultTwice:  "element 9 of the positions) is given twice",
		FaultLength: "element 9 of the lengths) is outside 0 to 8"} {
		if s := (Fault{Kind: kind, Words: [3]int64{7, 8, 9}}).String(); !strings.Contains(s, says) {
			t.Errorf("%s lacks %q", s, says)
		}
	}
}

// TestRope rotates pairs and compares with the CPU machine, with and without scaling.
func TestRope(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for _, dt := range types() {
		if dt.IsInt() {
			continue
		}
		for i, c := range []struct{ shape, at []int64 }{
			{[]int64{2, 3, 4, 8}, []int64{2, 3}}, {[]int64{2, 3, 4, 64}, []int64{3}}, {[]int64{5, 1, 6}, []int64{5}},
			{[]int64{1, 1, 2, 600}, []int64{1, 1}}, {[]int64{0, 1, 2}, []int64{0}},
		} {
			at := values{ir.I32, c.at, nil}
			for k := range c.at[0] * last(c.at) {
				if len(c.at) == 1 && k >= c.at[0] {
					break
				}
				at.vals = append(at.vals, float64(k*k*37-1))
			}
			for j, l := range layouts {
				at.dt = []ir.DType{ir.I32, ir.I64}[(i+j)%2]
				rope := ir.Rope{Theta: 1e4, Factor: []float64{0, 8}[j%2], Low: 1, High: 4, Original: 64}
				r.compare(device.Kernel{Op: device.Rope{Rope: rope}}, l, 1, dt, c.shape, noise(dt, c.shape...), at)
				freqs := noise(ir.F32, max(1, last(c.shape)/[]int64{2, 4}[j%2]))
				r.compare(device.Kernel{Op: device.Rope{Rope: ir.Rope{Scale: 1.25}}}, l, 2, dt, c.shape,
					noise(dt, c.shape...), at, freqs)
			}
		}
	}
	r.run()
}

// ropesCase is a launch of several ropes and index_copies.
type ropesCase struct {
	shape    []int64 // of the tokens' dimensions, heads of each part, elements of a head
	heads    []int64
	parts    []device.RopePart
	at, rows []int64 // shapes of the positions; nil if no part needs them
	freqs    int64   // number of frequencies; 0 for none
}

var (
	rotates = device.RopePart{Rotates: true}
	keeps   = device.RopePart{Keeps: true}
	both    = device.RopePart{Rotates: true, Keeps: true}
)

// ropesRoom is the number of rows of the tensors in which parts of a ropesCase are stored.
const ropesRoom = 300

var ropesCases = []ropesCase{
	{[]int64{2, 3, 8}, []int64{4, 2, 2}, []device.RopePart{rotates, both, keeps}, []int64{2, 3}, []int64{2, 3}, 0},
	{[]int64{3, 64}, []int64{4, 1}, []device.RopePart{rotates, rotates}, []int64{3}, nil, 0},
	{[]int64{2, 3, 64}, []int64{4, 1}, []device.RopePart{rotates, both}, []int64{2, 3}, []int64{3}, 16},
	{[]int64{2, 128, 16}, []int64{2, 2, 1, 1}, []device.RopePart{both, keeps, rotates, both}, []int64{128},
		[]int64{2, 128}, 0},
	{[]int64{1, 1, 5}, []int64{1, 3}, []device.RopePart{keeps, keeps}, nil, []int64{1, 1}, 0},
	{[]int64{1, 2, 5}, []int64{1}, []device.RopePart{both}, []int64{2}, []int64{1, 2}, 2},
}

// on plans the launch of a case and, with results in other memory, the launches of its parts. check compares the
// results.
func (c *ropesCase) on(b *bench, dt, pt ir.DType, l layout, rows []float64, fault nvlib.Ptr) (check func(what string)) {
	n := len(c.shape) - 1
	var at, to, freqs []Operand
	if c.at != nil {
		vals := make([]float64, Operand{Shape: c.at}.elements())
		for i := range vals {
			vals[i] = float64(i*i*7%1000 - 1)
		}
		at = []Operand{b.put(pt, l, vals, c.at...)}
	}
	if c.freqs > 0 {
		freqs = []Operand{b.put(ir.F32, l, noise(ir.F32, c.freqs).vals, c.freqs)}
	}
	if c.rows != nil {
		to = []Operand{b.put(pt, l, rows, c.rows...)}
	}
	op := device.Ropes{Rope: device.Rope{Rope: ir.Rope{Theta: 1e4, Scale: 1.25}}, Parts: c.parts}
	p := Computation{Op: op, Fault: fault, Tag: 7}
	var single []Computation
	var results [][2]Operand
	for i, part := range c.parts {
		shape := append(slices.Clone(c.shape[:n]), c.heads[i], c.shape[n])
		in := b.put(dt, l, noise(dt, shape...).vals, shape...)
		out := slices.Clone(shape)
		var r [2]Operand
		for k := range r {
			if part.Keeps {
				out[n-1] = ropesRoom
				r[k] = b.put(dt, l, noise(dt, out...).vals, out...)
			} else {
				r[k] = b.room(dt, l, out...)
			}
		}
		p.Ins, p.Stored, results = append(p.Ins, in), append(p.Stored, r[0]), append(results, r)
		if part.Rotates {
			to := r[1]
			if part.Keeps {
				to = b.room(dt, layouts[0], shape...)
			}
			single = append(single, Computation{Op: op.Rope, Ins: slices.Concat([]Operand{in}, at, freqs), Out: to})
			in = to
		}
		if part.Keeps {
			single = append(single, Computation{Op: device.IndexCopy{Axis: n - 1}, Ins: append([]Operand{in}, to...),
				Out: r[1], Fault: fault, Tag: 7})
		}
	}
	p.Ins = slices.Concat(p.Ins, at, freqs, to)
	p.Out, p.Stored = p.Stored[len(p.Stored)-1], p.Stored[:len(p.Stored)-1]
	b.add("ropes", p, func() {})
	for _, one := range single {
		b.add("alone", one, func() {})
	}
	return func(what string) {
		for i, r := range results {
			same(b.t, fmt.Sprintf("%s: part %d of %v", what, i, *c), b.vals(r[0]), b.vals(r[1]), 0)
		}
	}
}

// TestRopes checks that one launch for several ropes and index_copies has the results of separate launches.
func TestRopes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, dt := range types() {
		if dt.IsInt() {
			continue
		}
		for i := range ropesCases {
			c := &ropesCases[i]
			for j, l := range layouts {
				var rows []float64
				for len(rows) < int(Operand{Shape: c.rows}.elements()) {
					for _, p := range rng.Perm(ropesRoom)[:last(c.rows)] {
						if rng.IntN(4) == 0 {
							p = -1
						}
						rows = append(rows, float64(p))
					}
				}
				check := c.on(b, dt, []ir.DType{ir.I32, ir.I64}[(i+j)%2], l, rows, 0)
				b.checks = append(b.checks, func() { check(fmt.Sprintf("%s, %s", dt, l.name)) })
			}
		}
	}
	b.run()
}

// TestRopesFault checks that a launch of ropes reports an invalid position, and then writes nothing at positions.
func TestRopesFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, c := range []struct {
		rows []float64
		want Fault
	}{
		{[]float64{0, 1, 2, 0, 300, 2}, Fault{FaultPosition, 7, [3]int64{300, 300, 4}}},
		{[]float64{0, -2, 2, 0, 1, 2}, Fault{FaultPosition, 7, [3]int64{-2, 300, 1}}},
		{[]float64{-1, -1, 2, 4, 1, 4}, Fault{FaultTwice, 7, [3]int64{4, 300, 5}}},
	} {
		word := b.alloc(FaultBytes)
		clear(b.mem[word-memoryAt:])
		// The separate launches also write nothing.
		check := ropesCases[0].on(b, ir.F32, ir.I32, layouts[0], c.rows, word)
		b.checks = append(b.checks, func() {
			if f, ok := ReadFault(b.mem[word-memoryAt:]); !ok || f != c.want {
				t.Errorf("fault %v, %v; want %v", f, ok, c.want)
			}
			check(c.want.String())
		})
	}
	b.run()
}

// TestRopesRefuses checks which parts one launch does not compute.
func TestRopesRefuses(t *testing.T) {
	x := func(dt ir.DType, shape ...int64) Operand {
		return Operand{Addr: 256, DType: dt, Shape: shape, Strides: rowMajor(shape)}
	}
	q, at := x(ir.F32, 3, 4, 8), x(ir.I32, 3)
	ropes := func(parts ...device.RopePart) device.Ropes {
		return device.Ropes{Rope: device.Rope{Rope: ir.Rope{Theta: 1e4}}, Parts: parts}
	}
	for want, p := range map[string]Computation{
		"1 results and 2 operands are given for 2 parts": {Op: ropes(rotates, rotates), Ins: []Operand{q, at}, Out: q},
		"one launch for tensors of shapes [3 4 8] and [3 4 6]": {Op: ropes(rotates, rotates),
			Ins: []Operand{q, x(ir.F32, 3, 4, 6), at}, Stored: []Operand{q}, Out: x(ir.F32, 3, 4, 6)},
		"bf16[3 4 8] into bf16[3 4 8]": {Op: ropes(rotates, rotates), Ins: []Operand{x(ir.BF16, 3, 4, 8), q, at},
			Stored: []Operand{x(ir.BF16, 3, 4, 8)}, Out: q},
		"one launch for tensors with 9 and 10 rows": {Op: ropes(keeps, keeps), Ins: []Operand{q, q, at},
			Stored: []Operand{x(ir.F32, 9, 4, 8)}, Out: x(ir.F32, 10, 4, 8)},
		"2 operands are given for 2 parts": {Op: ropes(rotates, rotates), Ins: []Operand{q, q}, Stored: []Operand{q},
			Out: q},
		"257 positions": {Op: ropes(rotates, both), Ins: []Operand{x(ir.F32, 257, 4, 8), x(ir.F32, 257, 4, 8),
			x(ir.I32, 257), x(ir.I32, 257)}, Stored: []Operand{x(ir.F32, 257, 4, 8)}, Out: x(ir.F32, 300, 4, 8)},
		"operand 3 is i32[4]": {Op: ropes(rotates, both), Ins: []Operand{q, q, at, x(ir.I32, 4)}, Stored: []Operand{q},
			Out: x(ir.F32, 9, 4, 8)},
		"a tensor of shape [0 4 8]": {Op: ropes(keeps, keeps), Ins: []Operand{x(ir.F32, 0, 4, 8), x(ir.F32, 0, 4, 8),
			x(ir.I32, 0)}, Stored: []Operand{q}, Out: q},
	} {
		if _, err := plan(p, Target{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestArgmax tests rows shorter and longer than a part, with equal elements, infinities and NaNs.
func TestArgmax(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, c := range []struct {
			shape []int64
			axis  int
		}{{[]int64{1}, 0}, {[]int64{3, 100}, 1}, {[]int64{2, 9000}, 1}, {[]int64{5, 3, 4}, 0}, {[]int64{5, 3, 4}, 1},
			{[]int64{2, 8200}, 1}, {[]int64{0, 4}, 1}} {
			in := noise(dt, c.shape...)
			if !dt.IsInt() && len(in.vals) > 90 {
				in.vals[7], in.vals[in.shape[1]+8] = math.NaN(), math.Inf(1)
				if j == 2 {
					in.vals[0] = math.NaN()
				}
			}
			shape := slices.Delete(slices.Clone(c.shape), c.axis, c.axis+1)
			r.compare(device.Kernel{Op: device.Argmax{Axis: c.axis}}, layouts[(i+j)%len(layouts)], 0, ir.I32,
				shape, in)
			r.compare(device.Kernel{Op: device.Argmax{Axis: c.axis}}, layouts[0], 0, ir.I32, shape, in)
		}
		low := values{dt, []int64{4}, []float64{math.Inf(-1), math.Inf(-1), math.NaN(), math.Inf(-1)}}
		if !dt.IsInt() {
			r.compare(device.Kernel{Op: device.Argmax{Axis: 0}}, layouts[0], 0, ir.I32, nil, low)
		}
	}
	r.run()
}

// lengthCase is an attention with lengths, and the name of the kernel that must compute it.
type lengthCase struct {
	lead           []int64
	tq, tk, hq, hv int64
	dh             int64
	kernel         string
}

// lengthy compares attention with lengths with the CPU machine. Keys after the last one that a sequence uses are NaN.
func lengthy(r *trial, dt ir.DType, c lengthCase, mode string, l layout) {
	batches := int64(1)
	for _, n := range c.lead {
		batches *= n
	}
	q := noise(dt, append(slices.Clone(c.lead), c.tq, c.hq, c.dh)...)
	kv := append(slices.Clone(c.lead), c.tk, c.hv, c.dh)
	k, v := noise(dt, kv...), noise(dt, kv...)
	slices.Reverse(v.vals)
	at := values{ir.I32, c.lead, nil}
	for b := range batches {
		if mode != "query" {
			at.vals = append(at.vals, float64([]int64{c.tk, 0, c.tk / 2, 1, c.tk - 1}[b%5]))
			continue
		}
		for i := range c.tq {
			n := min(c.tk, c.tk/3+i*7)
			if (b+i)%5 == 3 || b%3 == 2 {
				n = 0
			}
			at.vals = append(at.vals, float64(n))
		}
	}
	per := int64(1)
	if mode == "query" {
		at.dt, at.shape, per = ir.I64, append(slices.Clone(c.lead), c.tq), c.tq
	}
	row := c.hv * c.dh
	for b := range batches {
		most := int64(slices.Max(at.vals[b*per : (b+1)*per]))
		for i := (b*c.tk + most) * row; i < (b+1)*c.tk*row; i++ {
			k.vals[i], v.vals[i] = math.NaN(), math.NaN()
		}
	}
	before := len(r.launches)
	r.compare(device.Kernel{Op: device.Attention{Scale: 0.2, Causal: mode == "causal"}}, l,
		max(0.5, 8*unit(ir.F32)/max(unit(dt), 0x1p-52)), dt, q.shape, q, k, v, at)
	for _, w := range r.launches[before:] {
		if s := w.code.symbol; !strings.HasPrefix(s, "hocket_"+c.kernel) && !strings.HasPrefix(s, "hocket_flashJoin") {
			r.t.Errorf("%v is computed by %s", c, s)
		}
	}
}

// TestLengths tests attention to the first keys only, with each kernel.
func TestLengths(t *testing.T) {
	t.Parallel()
	for name, cases := range map[string][]lengthCase{
		"plain": {{[]int64{5}, 3, 9, 4, 2, 8, "attention_"}, {[]int64{2, 3}, 1, 300, 2, 1, 5, "attention_"},
			{nil, 4, 9, 1, 1, 3, "attention_"}, {[]int64{3}, 1, 0, 1, 1, 64, "attention_"}},
		"flash": {{[]int64{5}, 40, 150, 4, 1, 64, "flash_"}, {[]int64{3}, 3, 70, 2, 2, 32, "flash_"},
			{[]int64{5}, 130, 200, 1, 1, 80, "flash_"}},
		"split": {{[]int64{5}, 1, 1100, 8, 2, 64, "flashSplit"}, {[]int64{3}, 5, 1300, 8, 2, 128, "flashSplit"},
			{[]int64{5}, 3, 200, 2, 1, 64, "flashSplit"}},
		"hopper": {{[]int64{5}, 40, 150, 4, 1, 64, "flashHopper"}, {[]int64{3}, 70, 400, 2, 1, 128, "flashHopper"},
			{[]int64{5}, 33, 300, 1, 1, 128, "flashHopper"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "flash" {
				t.Skip("the cases of hopper cover the same lengths")
			}
			r := newTrial(t)
			if name == "hopper" {
				hopper(r.bench)
			}
			for i, c := range cases {
				for j, mode := range []string{"sequence", "causal", "query"} {
					if !longtest.On() && name != "plain" && (i+j)%2 == 1 {
						continue
					}
					dt := []ir.DType{ir.F16, ir.BF16}[(i+j)%2]
					if name == "plain" {
						dt = []ir.DType{ir.F32, ir.F64, ir.BF16}[(i+j)%3]
					}
					lengthy(r, dt, c, mode, layouts[i%2*2])
				}
			}
			r.run()
		})
	}
}

// TestWindows tests attention to the last keys only, and attention with softcaps and masks.
func TestWindows(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range []ir.DType{ir.F32, ir.BF16, ir.F64, ir.F16} {
		for j, c := range []struct{ tq, tk, window int64 }{{4, 9, 3}, {70, 300, 260}, {5, 5, 1}, {3, 8, 20}} {
			q, k, v := noise(dt, 2, c.tq, 4, 64), noise(dt, 2, c.tk, 2, 64), noise(dt, 2, c.tk, 2, 64)
			slices.Reverse(v.vals)
			op := device.Attention{Scale: 0.5, Causal: true, Window: c.window, Softcap: []float64{0, 2}[(i+j)%2]}
			slack := max(0.5, 16*unit(ir.F32)/max(unit(dt), 0x1p-52))
			r.compare(device.Kernel{Op: op}, layouts[(i+j)%len(layouts)], slack, dt, q.shape, q, k, v)
			mask := noise(dt, 2, c.tq, c.tk)
			for x := range mask.vals {
				if x%3 == 1 && int64(x)%c.tk != 0 && c.window > c.tq { // each query sees the first key
					mask.vals[x] = math.Inf(-1)
				}
			}
			r.compare(device.Kernel{Op: op}, layouts[(i+j)%len(layouts)], slack, dt, q.shape, q, k, v, mask)
			all := values{dt, mask.shape[1:], mask.vals[:c.tq*c.tk]}
			r.compare(device.Kernel{Op: device.Attention{Scale: 0.5}}, layouts[(i+j)%len(layouts)], slack, dt, q.shape,
				q, k, v, all)
			lengths := values{ir.I32, []int64{2}, []float64{float64(c.tk) - 1, float64(min(c.tk, c.tq))}}
			r.compare(device.Kernel{Op: op}, layouts[j%len(layouts)], slack, dt, q.shape, q, k, v, lengths)
			op.Causal, lengths.shape, lengths.vals = false, []int64{2, c.tq}, nil
			for x := range 2 * c.tq {
				lengths.vals = append(lengths.vals, float64(x*5%(c.tk+1)))
			}
			r.compare(device.Kernel{Op: op}, layouts[i%len(layouts)], slack, dt, q.shape, q, k, v, lengths)
		}
	}
	r.run()
}

// TestLengthsBatch checks that the bits of a sequence do not depend on the other sequences of the batch.
func TestLengthsBatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tq, tk, hq, hv, dh int64 }{{1, 1500, 8, 2, 64}, {12, 1100, 4, 1, 128}} {
		b := newBench(t)
		const batches = 6
		q, k, v := noise(ir.BF16, batches, c.tq, c.hq, c.dh), noise(ir.BF16, batches, c.tk, c.hv, c.dh),
			noise(ir.BF16, batches, c.tk, c.hv, c.dh)
		lengths := []float64{700, 0, 1, 1100, 513, 64}
		add := func(first, n int64) Operand {
			put := func(x values) Operand {
				row := int64(len(x.vals)) / batches
				return b.put(ir.BF16, layouts[0], x.vals[first*row:][:n*row], append([]int64{n}, x.shape[1:]...)...)
			}
			out := b.room(ir.BF16, layouts[0], n, c.tq, c.hq, c.dh)
			b.add("attention", Computation{Op: device.Attention{Scale: 0.1, Causal: true}, Out: out,
				Ins: []Operand{put(q), put(k), put(v), b.put(ir.I32, layouts[0], lengths[first:first+n], n)}},
				func() {})
			return out
		}
		all := add(0, batches)
		var alone []Operand
		for i := range int64(batches) {
			alone = append(alone, add(i, 1))
		}
		b.run()
		row := len(q.vals) / batches
		for i, o := range alone {
			same(t, fmt.Sprintf("sequence %d", i), b.vals(o), b.vals(all)[i*row:][:row], 0)
		}
	}
}

// TestFixedAttention checks that, with fixed bits, a query's result depends only on the keys that it sees. The result
// must not depend on other queries and sequences, on the number of keys for which memory is allocated, or on the number
// of launches.
func TestFixedAttention(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		batches, tq, hq, hv, dh, tk int64
		lengths                     bool
	}{{2, 23, 4, 2, 64, 1300, true}, {1, 40, 4, 1, 128, 700, true}, {2, 9, 4, 2, 128, 1100, false},
		{1, 9, 4, 2, 64, 650, true}, {1, 9, 4, 2, 64, 1100, true}} { // memory for one more split than the keys need
		b := newBench(t)
		q, k, v := noise(ir.BF16, c.batches, c.tq, c.hq, c.dh), noise(ir.BF16, c.batches, c.tk, c.hv, c.dh),
			noise(ir.BF16, c.batches, c.tk, c.hv, c.dh)
		slices.Reverse(v.vals)
		row, key := c.hq*c.dh, c.hv*c.dh
		// add plans an attention of n queries of a sequence, from query i on, with memory for room keys. These queries
		// see the same keys as they would among all queries.
		add := func(batch, i, n, room int64) Operand {
			put := func(vals []float64, n, heads int64) Operand {
				return b.put(ir.BF16, layouts[0], vals[:n*heads*c.dh], 1, n, heads, c.dh)
			}
			ins := []Operand{put(q.vals[(batch*c.tq+i)*row:], n, c.hq), put(k.vals[batch*c.tk*key:], room, c.hv),
				put(v.vals[batch*c.tk*key:], room, c.hv)}
			if c.lengths {
				ins = append(ins, b.put(ir.I32, layouts[0], []float64{float64(room - (c.tq - i - n))}, 1))
			}
			out := b.room(ir.BF16, layouts[0], 1, n, c.hq, c.dh)
			b.add("attention", Computation{Op: device.Attention{Scale: 0.1, Causal: true, Fixed: true}, Out: out,
				Ins: ins}, func() {})
			return out
		}
		ins := []Operand{b.put(ir.BF16, layouts[0], q.vals, q.shape...), b.put(ir.BF16, layouts[0], k.vals, k.shape...),
			b.put(ir.BF16, layouts[0], v.vals, v.shape...)}
		sees := c.tk
		if c.lengths {
			sees = c.tk - 150
			ins = append(ins, b.put(ir.I32, layouts[0], slices.Repeat([]float64{float64(sees)}, int(c.batches)),
				c.batches))
		}
		all := b.room(ir.BF16, layouts[0], q.shape...)
		b.add("attention", Computation{Op: device.Attention{Scale: 0.1, Causal: true, Fixed: true}, Out: all, Ins: ins},
			func() {})
		type part struct {
			batch, i, n int64
			out         Operand
		}
		var parts []part
		for batch := range c.batches {
			parts = append(parts, part{batch, 0, c.tq, add(batch, 0, c.tq, sees)})
			for _, n := range []int64{1, 5, c.tq / 2} {
				parts = append(parts, part{batch, c.tq - n, n, add(batch, c.tq-n, n, sees)})
				if c.lengths {
					parts = append(parts, part{batch, 2, n, add(batch, 2, n, sees)})
				}
			}
		}
		b.run()
		for _, p := range parts {
			at := (p.batch*c.tq + p.i) * row
			same(t, fmt.Sprintf("queries %d to %d of sequence %d", p.i, p.i+p.n, p.batch), b.vals(p.out),
				b.vals(all)[at:][:p.n*row], 0)
		}
	}
}

// TestFixedAttentionRoom checks that a fixed attention of many rows takes several launches, which use the same memory
// for partial results.
func TestFixedAttentionRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q, kv := noise(ir.F16, 1, 70, 2, 64), noise(ir.F16, 1, 1100, 2, 64)
	add := func(room int64) Operand {
		b.plan = func(p Problem, j *job) ([]launch, error) {
			f, err := newAttending(j, p.(Computation).Op.(device.Attention), p.(Computation).Stored)
			if err != nil {
				return nil, err
			}
			f.room = room
			return f.split(j)
		}
		put := func(x values) Operand { return b.put(ir.F16, layouts[0], x.vals, x.shape...) }
		out := b.room(ir.F16, layouts[0], q.shape...)
		b.add("attention", Computation{Op: device.Attention{Scale: 0.1, Causal: true, Fixed: true}, Out: out,
			Ins: []Operand{put(q), put(kv), put(kv)}}, func() {})
		return out
	}
	one := add(splitRoom)
	if n := len(b.launches); n != 2 {
		t.Errorf("%d launches", n)
	}
	many := add(1) // 6 units, one per launch
	if n := len(b.launches); n != 2+12 {
		t.Errorf("%d launches", n)
	}
	b.run()
	same(t, "rows", b.vals(many), b.vals(one), 0)
}

// TestLengthFault checks that an invalid length is reported.
func TestLengthFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, dh := range []int64{5, 64, 96} {
		for _, bad := range []float64{-1, 33} {
			q, k := noise(ir.BF16, 3, 2, 1, dh), noise(ir.BF16, 3, 32, 1, dh)
			put := func(x values) Operand { return b.put(ir.BF16, layouts[0], x.vals, x.shape...) }
			word := b.alloc(FaultBytes)
			clear(b.mem[word-memoryAt:])
			b.add("attention", Computation{Op: device.Attention{Scale: 1},
				Ins: []Operand{put(q), put(k), put(k), b.put(ir.I64, layouts[0], []float64{3, 32, bad}, 3)},
				Out: b.room(ir.BF16, layouts[0], q.shape...), Fault: word, Tag: 5}, func() {
				f, ok := ReadFault(b.mem[word-memoryAt:])
				if want := (Fault{FaultLength, 5, [3]int64{int64(bad), 32, 2}}); !ok || f != want {
					t.Errorf("fault %v, %v; want %v", f, ok, want)
				}
			})
		}
	}
	b.run()
}

// TestKeptRefuses checks that the operations in kept.go refuse operands that do not fit.
func TestKeptRefuses(t *testing.T) {
	x := func(dt ir.DType, shape ...int64) Operand {
		return Operand{Addr: 256, DType: dt, Shape: shape, Strides: rowMajor(shape)}
	}
	q := x(ir.F32, 2, 3, 4, 8)
	for want, p := range map[string]Computation{
		"mask of shape [2]":        {Op: device.Attention{}, Ins: []Operand{q, q, q, x(ir.F32, 2)}, Out: q},
		"lengths have type i32[3]": {Op: device.Attention{}, Ins: []Operand{q, q, q, x(ir.I32, 3)}, Out: q},
		"operand 1 is i32[2]":      {Op: device.Rope{Rope: ir.Rope{Theta: 1}}, Ins: []Operand{q, x(ir.I32, 2)}, Out: q},
		"a base of 0":              {Op: device.Rope{}, Ins: []Operand{q, x(ir.I32, 3)}, Out: q},
		"not defined for i32": {Op: device.Rope{}, Ins: []Operand{x(ir.I32, 1, 1, 2), x(ir.I32, 1)},
			Out: x(ir.I32, 1, 1, 2)},
		"frequencies f32[5] do not fit heads of 8": {Op: device.Rope{}, Ins: []Operand{q, x(ir.I32, 3), x(ir.F32, 5)}, Out: q},
		"frequencies f64[4] do not fit heads of 8": {Op: device.Rope{}, Ins: []Operand{q, x(ir.I32, 3), x(ir.F64, 4)}, Out: q},
		"f32[1 1 3] into": {Op: device.Rope{Rope: ir.Rope{Theta: 1}},
			Ins: []Operand{x(ir.F32, 1, 1, 3), x(ir.I32, 1)}, Out: x(ir.F32, 1, 1, 3)},
		"at most 768": {Op: device.Rope{Rope: ir.Rope{Theta: 1}},
			Ins: []Operand{x(ir.F32, 1, 1, 800), x(ir.I32, 1)}, Out: x(ir.F32, 1, 1, 800)},
		"rows bf16[2 2]": {Op: device.IndexCopy{Axis: 0}, Ins: []Operand{x(ir.BF16, 2, 2), x(ir.I32, 2)},
			Out: x(ir.F32, 5, 2)},
		"rows f32[2 3]": {Op: device.IndexCopy{Axis: 0}, Ins: []Operand{x(ir.F32, 2, 3), x(ir.I32, 2)},
			Out: x(ir.F32, 5, 2)},
		"operand 1 is f32[2]": {Op: device.IndexCopy{Axis: 0}, Ins: []Operand{x(ir.F32, 2, 2), x(ir.F32, 2)},
			Out: x(ir.F32, 5, 2)},
		"axis 2 is outside": {Op: device.IndexCopy{Axis: 2}, Ins: []Operand{x(ir.F32, 2, 2), x(ir.I32, 2)},
			Out: x(ir.F32, 5, 2)},
		"along axis 1 does not have the result's type and shape, i64": {Op: device.Argmax{Axis: 1}, Ins: []Operand{x(ir.F32, 2, 2)}, Out: x(ir.I64, 2)},
		"[2 0] along axis 1": {Op: device.Argmax{Axis: 1}, Ins: []Operand{x(ir.F32, 2, 0)}, Out: x(ir.I32, 2)},
	} {
		if _, err := plan(p, Target{}); err == nil ||
			!strings.Contains(fmt.Sprintf("%s: %v", p, err), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestUnchanged checks that Unchanged finds a changed byte.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, at := range []int64{-1, 0, 2049, 2050} {
		vals := noise(ir.BF16, 2051).vals
		before := b.put(ir.BF16, layouts[0], vals, 2051)
		if at >= 0 {
			vals = slices.Clone(vals)
			vals[at]++
		}
		now := b.put(ir.BF16, layouts[0], vals, 2051)
		word := b.alloc(FaultBytes)
		clear(b.mem[word-memoryAt:])
		b.launches = append(b.launches, Unchanged{Now: now.Addr, Before: before.Addr, Bytes: 2 * 2051,
			Kind: FaultWritten, Argument: 3, Size: 2, First: 10,
			Fault: word, Tag: 9}.launch())
		b.checks = append(b.checks, func() {
			f, ok := ReadFault(b.mem[word-memoryAt:])
			if want := (Fault{FaultWritten, 9, [3]int64{3, 10 + at, 0}}); ok != (at >= 0) || ok && f != want {
				t.Errorf("fault %v, %v; want %v", f, ok, want)
			}
		})
	}
	b.run()
}
