package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// This test checks layout inference by brute force. For one random operation on values in random layouts, the test
// computes the operation on whole tensors, and again on each rank's blocks, with the operands in the layouts that Check
// requires. The ranks' results must be the blocks, or the contributions to blocks, that the inferred type of the result
// describes.

// bruteMesh is the test's model of a mesh: rank ranks[i] has the coordinates of position i, with the last axis fastest.
type bruteMesh struct {
	axes  []string
	sizes []int
	ranks []int
}

func (m *bruteMesh) text() string {
	var b strings.Builder
	b.WriteString("mesh")
	for i, a := range m.axes {
		fmt.Fprintf(&b, " %s[%d]", a, m.sizes[i])
	}
	return b.String()
}

func (m *bruteMesh) size(axis string) int { return m.sizes[slices.Index(m.axes, axis)] }

// coords returns the coordinates of position i, keyed by axis.
func (m *bruteMesh) coords(i int) map[string]int {
	c := map[string]int{}
	for a := len(m.axes) - 1; a >= 0; a-- {
		c[m.axes[a]] = i % m.sizes[a]
		i /= m.sizes[a]
	}
	return c
}

// place returns the position with the given coordinates.
func (m *bruteMesh) place(c map[string]int) int {
	i := 0
	for a, name := range m.axes {
		i = i*m.sizes[a] + c[name]
	}
	return i
}

// team returns the positions that differ from position i only along the given axes, first axis major.
func (m *bruteMesh) team(i int, axes []string) []int {
	team := []int{i}
	for _, a := range axes {
		var next []int
		for _, j := range team {
			for k := range m.size(a) {
				c := m.coords(j)
				c[a] = k
				next = append(next, m.place(c))
			}
		}
		team = next
	}
	return team
}

// brute holds one random test case.
type brute struct {
	*rand.Rand
	meshes []*bruteMesh // main first
	decl   strings.Builder
	body   strings.Builder
	args   []*nd // operands, whole
	names  []string
	// op computes the operation on whole tensors or on the blocks of one rank. The argument out is the shape of the
	// result.
	op func(args []*nd, out []int) *nd
	// team computes, for a collective, the result at position i from the blocks of all positions.
	team func(m *bruteMesh, all []*nd, i int) *nd
	stmt string // "%y = …"
	bias bool
	ids  bool // operands to come are integers
	f8   bool // the operands that follow have 8-bit types
	// first is the row of the whole second operand at which the block that op receives begins.
	first int
	// row is the row of the whole result at which the block that op computes begins.
	row int
}

func newBrute(seed uint64) *brute {
	b := &brute{Rand: rand.New(rand.NewPCG(seed, 7))}
	main := &bruteMesh{axes: []string{"a", "b", "c"}[:1+b.IntN(3)]}
	total := 1
	for range main.axes {
		n := 1 + b.IntN(3)
		if total*n > 8 {
			n = 1
		}
		total *= n
		main.sizes = append(main.sizes, n)
	}
	for r := range total {
		main.ranks = append(main.ranks, r)
	}
	b.meshes = []*bruteMesh{main}
	fmt.Fprintln(&b.decl, main.text())
	if b.IntN(4) == 0 {
		sub := &bruteMesh{axes: []string{"d"}, sizes: []int{1 + b.IntN(total)}}
		sub.ranks = b.Perm(total)[:sub.sizes[0]]
		b.meshes = append(b.meshes, sub)
		fmt.Fprintf(&b.decl, "%s = {%s}\n", sub.text(), strings.Trim(fmt.Sprint(sub.ranks), "[]"))
	}
	return b
}

// extent returns a size that is divisible in every layout of the mesh, or a smaller size that is divisible for the
// given axes.
func (b *brute) extent(least int) int {
	switch b.IntN(4) {
	case 0:
		return least * (1 + b.IntN(3))
	default:
		n := 1
		for _, s := range b.meshes[0].sizes {
			n *= s
		}
		if n%least != 0 {
			n *= least
		}
		return n
	}
}

// layout assigns axes of a mesh to dimensions at random.
func (b *brute) layout(m *bruteMesh, dims int) (split [][]string, partial []string) {
	split = make([][]string, dims)
	for _, i := range b.Perm(len(m.axes)) {
		switch k := b.IntN(dims + 3); {
		case k < dims:
			split[k] = append(split[k], m.axes[i])
		case k == dims && b.IntN(2) == 0:
			partial = append(partial, m.axes[i])
		}
	}
	return split, partial
}

// operand declares a value of the given shape in a random layout.
func (b *brute) operand(shape []int) string {
	m := b.meshes[b.IntN(len(b.meshes))]
	split, partial := b.layout(m, len(shape))
	return b.value(shape, m, split, partial, pickOf(b.Rand, ir.Sum, ir.Sum, ir.Sum, ir.Max, ir.Min, ir.Avg))
}

func pickOf[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (b *brute) value(shape []int, m *bruteMesh, split [][]string, partial []string, red ir.Red) string {
	t := b.typeText(shape, m, split)
	local := strings.Split(t, " @")[0]
	for _, a := range partial {
		t = strings.Replace(t, "]", fmt.Sprintf("] partial(%s, %s)", a, red), 1)
	}
	name := fmt.Sprintf("v%d", len(b.args))
	fmt.Fprintf(&b.body, "  %%b%s = alloc %s\n  %%%s: %s = claim %%b%s\n", name, local, name, t, name)
	b.args = append(b.args, gen(shape, func([]int) int64 { return b.Int64N(7) - 3 }))
	b.names = append(b.names, name)
	return "%" + name
}

func (b *brute) typeText(shape []int, m *bruteMesh, split [][]string) string {
	var dims []string
	for i, e := range shape {
		d := fmt.Sprint(e)
		switch {
		case len(split[i]) == 1:
			d += "/" + split[i][0]
		case len(split[i]) > 1:
			d += "/(" + strings.Join(split[i], ",") + ")"
		}
		dims = append(dims, d)
	}
	t := "f32[" + strings.Join(dims, ", ") + "]"
	if b.ids {
		t = "i32" + t[3:]
	}
	if b.f8 {
		t = "f8e5m2" + t[3:]
	}
	if m != b.meshes[0] {
		t += " @" + m.axes[0]
	}
	return t
}

func (b *brute) shape(dims int) []int {
	shape := make([]int, dims)
	for i := range shape {
		shape[i] = b.extent(pickOf(b.Rand, 1, 2))
	}
	return shape
}

// annotate adds an annotation with a random layout of the result in some cases.
func (b *brute) annotate(shape []int) string {
	if b.IntN(3) > 0 {
		return "%y"
	}
	m := b.meshes[b.IntN(len(b.meshes))]
	split, _ := b.layout(m, len(shape))
	return "%y: " + b.typeText(shape, m, split)
}

// generators maps each operation to a function that generates one random statement.
var generators = map[ir.Op]func(*brute){
	ir.OpLinear: func(b *brute) {
		if b.IntN(3) == 0 {
			b.scaledLinear()
			return
		}
		x := b.shape(1 + b.IntN(3))
		k, n := x[len(x)-1], b.extent(1)
		args := b.operand(x) + ", " + b.operand([]int{n, k})
		if b.bias = b.IntN(2) == 0; b.bias {
			args += ", " + b.operand([]int{n})
		}
		out := append(slices.Clone(x[:len(x)-1]), n)
		b.stmt = b.annotate(out) + " = linear " + args
		b.op = func(a []*nd, _ []int) *nd {
			x := a[0]
			if len(x.shape) == 1 {
				x = x.reshaped([]int{1, x.shape[0]})
			}
			y := matmulND(x, a[1].swapped())
			if len(a) == 3 {
				y = y.trailing(a[2], func(p, q int64) int64 { return p + q })
			}
			return y.reshaped(append(slices.Clone(a[0].shape[:len(a[0].shape)-1]), a[1].shape[0]))
		}
	},
	ir.OpScales: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		if b.IntN(3) == 0 {
			shape = b.manyBlocks(2)
		}
		dims, forms := len(shape), []string{"", ", block=1"}
		if dims > 1 {
			forms = append(forms, ", block=(1, 128)")
		}
		if dims == 2 {
			forms = append(forms, ", block=(128, 128)")
		}
		kind := b.IntN(len(forms))
		b.stmt = "%y = scales " + b.operand(shape) + forms[kind]
		b.op = func(a []*nd, _ []int) *nd {
			out := scaleShapes(a[0].shape)[kind]
			y := gen(out, func([]int) int64 { return 0 })
			gen(a[0].shape, func(ix []int) int64 {
				at := scaleIndex(a[0].shape, out, ix)
				y.data[y.off(at)] = max(y.at(at), a[0].at(ix), -a[0].at(ix))
				return 0
			})
			return y
		}
	},
	ir.OpQuantize: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		if b.IntN(3) == 0 {
			shape = b.manyBlocks(1 + b.IntN(2))
		}
		scales := scaleShapes(shape)
		b.stmt = "%y = quantize " + b.operand(shape) + ", " + b.operand(scales[b.IntN(len(scales))])
		b.op = func(a []*nd, _ []int) *nd {
			return gen(a[0].shape, func(ix []int) int64 {
				return 10*a[0].at(ix) + a[1].at(scaleIndex(a[0].shape, a[1].shape, ix))
			})
		}
	},
	ir.OpGroupedLinear: func(b *brute) {
		x, w := b.shape(2), b.shape(3)
		w[2] = x[1]
		args := b.operand(x) + ", " + b.operand(w)
		b.ids = true
		args += ", " + b.operand(w[:1])
		b.ids = false
		b.args[2] = b.args[2].mapped(func(v int64) int64 { return max(v, -v) % int64(x[0]/w[0]+1) })
		b.stmt = b.annotate([]int{x[0], w[1]}) + " = grouped_linear " + args
		b.op = func(a []*nd, _ []int) *nd {
			return gen([]int{a[0].shape[0], a[1].shape[1]}, func(ix []int) (sum int64) {
				expert, end := 0, 0
				for ; expert < a[2].shape[0]; expert++ {
					if end += int(a[2].at([]int{expert})); ix[0] < end {
						break
					}
				}
				if expert == a[2].shape[0] || expert < b.first || expert >= b.first+a[1].shape[0] {
					return 0
				}
				for k := range a[0].shape[1] {
					sum += a[0].at([]int{ix[0], k}) * a[1].at([]int{expert - b.first, ix[1], k})
				}
				return sum
			})
		}
	},
	ir.OpMatmul: func(b *brute) {
		a := b.shape(2 + b.IntN(2))
		n := len(a)
		w := append(slices.Clone(a[:n-2]), a[n-1], b.extent(1))
		if b.IntN(2) == 0 {
			w = w[n-2:]
		}
		out := append(slices.Clone(a[:n-1]), w[len(w)-1])
		ta, tb := b.IntN(2) == 0, b.IntN(2) == 0
		swap := func(t bool, s []int) []int {
			if s = slices.Clone(s); t {
				s[len(s)-1], s[len(s)-2] = s[len(s)-2], s[len(s)-1]
			}
			return s
		}
		b.stmt = fmt.Sprintf("%s = matmul %s, %s, ta=%v, tb=%v", b.annotate(out), b.operand(swap(ta, a)),
			b.operand(swap(tb, w)), ta, tb)
		b.op = func(arg []*nd, _ []int) *nd {
			x, y := arg[0], arg[1]
			if ta {
				x = x.swapped()
			}
			if tb {
				y = y.swapped()
			}
			return matmulND(x, y)
		}
	},
	ir.OpAdd: binaryCase("add", func(p, q int64) int64 { return p + q }),
	ir.OpSub: binaryCase("sub", func(p, q int64) int64 { return p - q }),
	ir.OpMul: binaryCase("mul", func(p, q int64) int64 { return p * q }),
	ir.OpDiv: binaryCase("div", func(p, q int64) int64 { return p*7 - q*q }),
	// any function that is not linear
	ir.OpNeg:          unaryCase("neg", func(p int64) int64 { return -p }),
	ir.OpScale:        unaryCase("scale", func(p int64) int64 { return -3 * p }),
	ir.OpCopy:         unaryCase("copy", func(p int64) int64 { return p }),
	ir.OpRelu:         unaryCase("relu", func(p int64) int64 { return max(p, 0) }),
	ir.OpGelu:         unaryCase("gelu", func(p int64) int64 { return p*p*p - 7 }), // any function that is not linear
	ir.OpSilu:         unaryCase("silu", func(p int64) int64 { return p*p*p - 7 }),
	ir.OpSoftplus:     unaryCase("softplus", func(p int64) int64 { return p*p + 2 }),
	ir.OpExp:          unaryCase("exp", func(p int64) int64 { return p*p - 5 }),
	ir.OpRsqrt:        unaryCase("rsqrt", func(p int64) int64 { return p*p + 3 }),
	ir.OpClamp:        unaryCase("clamp", func(p int64) int64 { return min(max(p, -3), 5) }),
	ir.OpTanh:         unaryCase("tanh", func(p int64) int64 { return 2*p*p - p }),
	ir.OpGeluTanh:     unaryCase("gelu_tanh", func(p int64) int64 { return p*p*p - 5 }),
	ir.OpSigmoid:      unaryCase("sigmoid", func(p int64) int64 { return p*p - 4*p }),
	ir.OpSqrt:         unaryCase("sqrt", func(p int64) int64 { return p*p + 7*p }),
	ir.OpSin:          unaryCase("sin", func(p int64) int64 { return p*p*p + 3 }),
	ir.OpCos:          unaryCase("cos", func(p int64) int64 { return p*p*p + 4 }),
	ir.OpErf:          unaryCase("erf", func(p int64) int64 { return 3*p*p - 1 }),
	ir.OpLog:          unaryCase("log", func(p int64) int64 { return 2*p*p + p }),
	ir.OpFloor:        unaryCase("floor", func(p int64) int64 { return p - (p%3+3)%3 }),
	ir.OpReciprocal:   unaryCase("reciprocal", func(p int64) int64 { return p*p*p + p*p }),
	ir.OpPow:          unaryCase("pow", func(p int64) int64 { return p * p }),
	ir.OpAbs:          unaryCase("abs", func(p int64) int64 { return max(p, -p) }),
	ir.OpMaximum:      binaryCase("maximum", func(p, q int64) int64 { return max(p, q) }),
	ir.OpMinimum:      binaryCase("minimum", func(p, q int64) int64 { return min(p, q) }),
	ir.OpLess:         binaryCase("lt", func(p, q int64) int64 { return map[bool]int64{true: 1}[p < q] }),
	ir.OpLessEqual:    binaryCase("le", func(p, q int64) int64 { return map[bool]int64{true: 1}[p <= q] }),
	ir.OpGreater:      binaryCase("gt", func(p, q int64) int64 { return map[bool]int64{true: 1}[p > q] }),
	ir.OpGreaterEqual: binaryCase("ge", func(p, q int64) int64 { return map[bool]int64{true: 1}[p >= q] }),
	ir.OpEqual:        binaryCase("eq", func(p, q int64) int64 { return map[bool]int64{true: 1}[p == q] }),
	ir.OpNotEqual:     binaryCase("ne", func(p, q int64) int64 { return map[bool]int64{true: 1}[p != q] }),
	ir.OpWhere: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		var args []string
		for k := range 3 {
			of := shape
			if k > 0 && b.IntN(3) == 0 {
				of = shape[1+b.IntN(len(shape)):]
			}
			args = append(args, b.operand(of))
		}
		b.stmt = b.annotate(shape) + " = where " + strings.Join(args, ", ")
		b.op = func(a []*nd, _ []int) *nd {
			chosen := a[0].trailing(a[1], func(p, q int64) int64 { return map[bool]int64{true: q}[p != 0] })
			rest := a[0].trailing(a[2], func(p, q int64) int64 { return map[bool]int64{true: q}[p == 0] })
			return chosen.trailing(rest, func(p, q int64) int64 { return p + q })
		}
	},
	ir.OpCast: unaryCase("cast", func(p int64) int64 { return p }),
	ir.OpSum:  reduceCase("sum", ir.Sum),
	ir.OpMax:  reduceCase("max", ir.Max),
	ir.OpMin:  reduceCase("min", ir.Min),
	ir.OpMean: reduceCase("mean", ir.Avg),
	ir.OpExpand: func(b *brute) {
		from := b.shape(b.IntN(4))
		to := slices.Clone(from)
		for i := range from {
			if b.IntN(3) == 0 {
				from[i] = 1
			}
		}
		for range b.IntN(3) {
			to = append([]int{b.extent(1)}, to...)
		}
		b.stmt = fmt.Sprintf("%s = broadcast %s, shape=(%s)", b.annotate(to), b.operand(from), list(to))
		b.op = func(a []*nd, out []int) *nd { return a[0].stretched(out) }
	},
	ir.OpConcat: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d, joined := b.IntN(len(shape)), 0
		var args []string
		same := b.IntN(2) == 0
		m, split, partial, red := b.partialOperand(len(shape))
		for range 1 + b.IntN(3) {
			shape = slices.Clone(shape)
			shape[d] = b.extent(1)
			joined += shape[d]
			if same {
				args = append(args, b.value(shape, m, split, partial, red))
			} else {
				args = append(args, b.operand(shape))
			}
		}
		shape[d] = joined
		b.stmt = fmt.Sprintf("%s = concat %s, axis=%d", b.annotate(shape), strings.Join(args, ", "), d)
		b.op = func(a []*nd, _ []int) *nd { return concat(d, a) }
	},
	ir.OpSoftmax: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d := b.IntN(len(shape))
		b.stmt = fmt.Sprintf("%s = softmax %s, axis=%d", b.annotate(shape), b.operand(shape), d)
		if d == len(shape)-1 {
			b.stmt = strings.Split(b.stmt, ", axis")[0]
		}
		b.op = func(a []*nd, _ []int) *nd { return a[0].mixed(d) }
	},
	ir.OpRMSNorm:   normCase("rms_norm", 1),
	ir.OpLayerNorm: normCase("layer_norm", 2),
	ir.OpRMSNormDX: normGradCase(ir.OpRMSNormDX), ir.OpRMSNormDW: normGradCase(ir.OpRMSNormDW),
	ir.OpAttentionLSE: gradCase(ir.OpAttentionLSE), ir.OpAttentionDQ: gradCase(ir.OpAttentionDQ),
	ir.OpAttentionDKV: gradCase(ir.OpAttentionDKV),
	ir.OpAttention: func(b *brute) {
		n := b.IntN(2) // leading dimensions
		q := b.shape(n + 3)
		q[n+2] = 1 + b.IntN(3)
		kv := slices.Clone(q)
		kv[n] = q[n] + b.IntN(3)
		causal := b.IntN(2) == 0
		if b.IntN(3) == 0 { // the same number of keys for all
			x := fmt.Sprintf("%s = attention %s, %s, %s", b.annotate(q), b.operand(q), b.operand(kv), b.operand(kv))
			b.ids = true
			b.stmt = x + ", " + b.operand(q[:n+b.IntN(2)])
			b.ids = false
			keys := b.IntN(kv[n] + 1)
			b.args[3] = b.args[3].mapped(func(int64) int64 { return int64(keys) })
			b.op = func(a []*nd, _ []int) *nd {
				return attend(a[0], a[1].along(n, 0, keys), a[2].along(n, 0, keys),
					false)
			}
			return
		}
		if b.IntN(2) == 0 {
			kv[n+1] = pickOf(b.Rand, 1, q[n+1])
		}
		if b.IntN(3) == 0 {
			q[n+1] *= 2
		}
		b.stmt = fmt.Sprintf("%s = attention %s, %s, %s", b.annotate(q), b.operand(q), b.operand(kv), b.operand(kv))
		masked := b.IntN(2) == 0
		if masked {
			b.stmt += ", " + b.operand(append(slices.Clone(q[b.IntN(2)*n:n+1]), kv[n]))
		}
		b.stmt += fmt.Sprintf(", causal=%v", causal)
		if causal && b.IntN(2) == 0 { // each head may compute any function of all keys
			b.stmt += ", window=2, softcap=7"
		}
		b.op = func(a []*nd, _ []int) *nd {
			y := attend(a[0], a[1], a[2], causal)
			if !masked {
				return y
			}
			return gen(y.shape, func(ix []int) (v int64) { // any function of a query's row of the mask
				at := ix[:n+1]
				if len(a[3].shape) == 2 {
					at = ix[n : n+1]
				}
				for j := range kv[n] {
					v = 3*v + a[3].at(append(slices.Clone(at), j))
				}
				return v + y.at(ix)
			})
		}
	},
	ir.OpEmbedding: func(b *brute) {
		ids, table := b.shape(b.IntN(3)), b.shape(2)
		b.ids = true
		x := b.operand(ids)
		b.ids = false
		rows := int64(table[0])
		b.args[0] = b.args[0].mapped(func(v int64) int64 { return (v%rows + rows) % rows })
		b.stmt = fmt.Sprintf("%s = embedding %s, %s", b.annotate(append(slices.Clone(ids), table[1])), x,
			b.operand(table))
		b.op = func(a []*nd, _ []int) *nd {
			return gen(append(slices.Clone(a[0].shape), a[1].shape[1]), func(ix []int) int64 {
				row := int(a[0].at(ix[:len(ix)-1])) - b.first
				if row < 0 || row >= a[1].shape[0] {
					return 0
				}
				return a[1].at([]int{row, ix[len(ix)-1]})
			})
		}
	},
	ir.OpRope: func(b *brute) {
		x := b.shape(3 + b.IntN(2))
		n := len(x)
		x[n-1] *= 2
		at := x[:n-2]
		if b.IntN(2) == 0 {
			at = x[n-3 : n-2]
		}
		first := b.operand(x)
		b.ids = true
		second := b.operand(at)
		b.ids = false
		b.stmt = fmt.Sprintf("%s = rope %s, %s", b.annotate(x), first, second)
		if b.IntN(2) == 0 {
			b.stmt += ", " + b.operand([]int{1 + b.IntN(x[n-1]/2)})
		}
		b.op = func(a []*nd, _ []int) *nd { // any mixture of pairs by position, and by frequency
			half := a[0].shape[n-1] / 2
			if len(a) == 3 {
				half = a[2].shape[0]
			}
			return gen(a[0].shape, func(ix []int) int64 {
				if ix[n-1] >= 2*half {
					return a[0].at(ix)
				}
				other := slices.Clone(ix)
				other[n-1] = (ix[n-1] + half) % (2 * half)
				turned := a[1].at(ix[n-2-len(a[1].shape):n-2]) * a[0].at(other)
				if len(a) == 3 {
					turned *= a[2].at([]int{ix[n-1] % half})
				}
				return a[0].at(ix) + turned
			})
		}
	},
	ir.OpArgmax: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d := b.IntN(len(shape))
		x := b.operand(shape)
		b.ids = true
		b.stmt = fmt.Sprintf("%s = argmax %s, axis=%d", b.annotate(slices.Delete(slices.Clone(shape), d, d+1)), x, d)
		b.ids = false
		b.op = func(a []*nd, out []int) *nd {
			return gen(out, func(ix []int) int64 {
				best := 0
				at := func(i int) int64 { return a[0].at(slices.Insert(slices.Clone(ix), d, i)) }
				for i := range a[0].shape[d] {
					if at(i) > at(best) {
						best = i
					}
				}
				return int64(best)
			})
		}
	},
	ir.OpTopK:    orderCase("topk"),
	ir.OpArgTopK: orderCase("argtopk"),
	ir.OpArgsort: orderCase("argsort"),
	ir.OpTakeAlong: func(b *brute) {
		x := b.shape(1 + b.IntN(3))
		last := len(x) - 1
		at := append(slices.Clone(x[:last]), b.extent(1))
		first := b.operand(x)
		b.ids = true
		second := b.operand(at)
		b.ids = false
		n := int64(x[last])
		b.args[1] = b.args[1].mapped(func(v int64) int64 { return (v%n + n) % n })
		b.stmt = fmt.Sprintf("%s = take_along %s, %s", b.annotate(at), first, second)
		b.op = func(a []*nd, _ []int) *nd {
			return gen(a[1].shape, func(ix []int) int64 {
				return a[0].at(append(slices.Clone(ix[:last]), int(a[1].at(ix))))
			})
		}
	},
	ir.OpBincount: func(b *brute) {
		shape := b.shape(b.IntN(4))
		n := b.extent(1)
		b.ids = true
		b.stmt = fmt.Sprintf("%s = bincount %s, n=%d", b.annotate([]int{n}), b.operand(shape), n)
		b.ids = false
		b.op = func(a []*nd, _ []int) *nd {
			return gen([]int{n}, func(ix []int) (count int64) {
				for _, v := range a[0].data {
					if v == int64(ix[0]) {
						count++
					}
				}
				return count
			})
		}
	},
	ir.OpIndexAdd: func(b *brute) {
		shape, n := b.shape(1+b.IntN(3)), b.extent(1)
		last := len(shape) - 1
		x := b.operand(shape)
		b.ids = true
		ids := b.operand(shape[:last])
		b.ids = false
		b.args[1] = b.args[1].mapped(func(v int64) int64 { return (v%int64(n) + int64(n)) % int64(n) })
		b.stmt = fmt.Sprintf("%s = index_add %s, %s, n=%d", b.annotate([]int{n, shape[last]}), x, ids, n)
		b.op = func(a []*nd, out []int) *nd {
			return gen(out, func(ix []int) (sum int64) {
				for i, id := range a[1].data {
					if id == int64(ix[0]+b.row) {
						sum += a[0].data[i*a[0].shape[last]+ix[1]]
					}
				}
				return sum
			})
		}
	},
	ir.OpChunk: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d, count := b.IntN(len(shape)), 1+b.IntN(4)
		i := b.IntN(count)
		rows := (shape[d] + count - 1) / count
		lo, hi := min(i*rows, shape[d]), min((i+1)*rows, shape[d])
		b.stmt = fmt.Sprintf("%%y = chunk %s, axis=%d, %d of %d", b.operand(shape), d, i, count)
		b.op = func(a []*nd, _ []int) *nd { return a[0].along(d, lo, hi) }
	},
	ir.OpSlice: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d := b.IntN(len(shape))
		lo := b.IntN(shape[d] + 1)
		hi := lo + b.IntN(shape[d]-lo+1)
		b.stmt = fmt.Sprintf("%%y = slice %s, axis=%d, %d..%d", b.operand(shape), d, lo, hi)
		b.op = func(a []*nd, _ []int) *nd { return a[0].along(d, lo, hi) }
	},
	ir.OpSelect: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		d := b.IntN(len(shape))
		i := b.IntN(shape[d])
		b.stmt = fmt.Sprintf("%%y = select %s, axis=%d, index=%d", b.operand(shape), d, i)
		b.op = func(a []*nd, out []int) *nd { return a[0].along(d, i, i+1).reshaped(out) }
	},
	ir.OpTranspose: func(b *brute) {
		shape := b.shape(2 + b.IntN(2))
		if b.IntN(3) == 0 {
			b.stmt = "%y = transpose " + b.operand(shape)
			b.op = func(a []*nd, _ []int) *nd { return a[0].swapped() }
			return
		}
		perm := b.Perm(len(shape))
		b.stmt = fmt.Sprintf("%%y = transpose %s, perm=(%s)", b.operand(shape), list(perm))
		b.op = func(a []*nd, _ []int) *nd { return a[0].permuted(perm) }
	},
	ir.OpReshape: func(b *brute) {
		from, to := b.regrouped()
		b.stmt = fmt.Sprintf("%%y = reshape %s, shape=(%s)", b.operand(from), list(to))
		b.op = func(a []*nd, out []int) *nd { return a[0].reshaped(out) }
	},
	ir.OpAllReduce: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		m, split, partial, red := b.partialOperand(len(shape))
		over := partial[:1+b.IntN(len(partial))]
		b.stmt = fmt.Sprintf("%%y = all_reduce %s, over=(%s), op=%s", b.value(shape, m, split, partial, red),
			strings.Join(over, ","), red)
		b.team = func(m *bruteMesh, all []*nd, i int) *nd { return reduceAll(red, of(all, m.team(i, over))) }
	},
	ir.OpReduceScatter: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		m, split, partial, red := b.partialOperand(len(shape))
		over := partial[:1+b.IntN(len(partial))]
		d := b.IntN(len(shape))
		b.stmt = fmt.Sprintf("%%y = reduce_scatter %s, over=(%s), op=%s, axis=%d",
			b.value(shape, m, split, partial, red), strings.Join(over, ","), red, d)
		b.team = func(m *bruteMesh, all []*nd, i int) *nd {
			team := m.team(i, over)
			return blockOf(reduceAll(red, of(all, team)), d, slices.Index(team, i), len(team))
		}
	},
	ir.OpAllGather: func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		m, split, partial, red := b.partialOperand(len(shape))
		d, over := lastAxes(b, split)
		b.stmt = fmt.Sprintf("%%y = all_gather %s, over=(%s), axis=%d", b.value(shape, m, split, partial[1:], red),
			strings.Join(over, ","), d)
		b.team = func(m *bruteMesh, all []*nd, i int) *nd { return concat(d, of(all, m.team(i, over))) }
	},
	ir.OpAllToAll: func(b *brute) {
		shape := b.shape(2 + b.IntN(2))
		m, split, partial, red := b.partialOperand(len(shape))
		d, over := lastAxes(b, split)
		to := (d + 1 + b.IntN(len(shape)-1)) % len(shape)
		b.stmt = fmt.Sprintf("%%y = all_to_all %s, over=(%s), split=%d, concat=%d",
			b.value(shape, m, split, partial[1:], red), strings.Join(over, ","), to, d)
		b.team = func(m *bruteMesh, all []*nd, i int) *nd {
			team := m.team(i, over)
			var mine []*nd
			for _, j := range team {
				mine = append(mine, blockOf(all[j], to, slices.Index(team, i), len(team)))
			}
			return concat(d, mine)
		}
	},
}

// list prints a list of numbers as an attribute's.
func list(n []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(n), "[]"), " ", ", ")
}

func of(all []*nd, places []int) []*nd {
	var tensors []*nd
	for _, i := range places {
		tensors = append(tensors, all[i])
	}
	return tensors
}

func blockOf(t *nd, d, i, n int) *nd { return t.along(d, t.shape[d]/n*i, t.shape[d]/n*(i+1)) }

// lastAxes selects a split dimension and some of its minor-most axes.
func lastAxes(b *brute, split [][]string) (int, []string) {
	for _, d := range b.Perm(len(split)) {
		if n := len(split[d]); n > 0 {
			if b.IntN(4) == 0 { // axes that Check must refuse, unless they happen to be right
				over := slices.Clone(split[d])
				b.Shuffle(n, func(i, j int) { over[i], over[j] = over[j], over[i] })
				return d, over[:1+b.IntN(n)]
			}
			return d, split[d][b.IntN(n):]
		}
	}
	return 0, []string{b.meshes[0].axes[0]} // refused by Check
}

// partialOperand returns a layout with at least one partial axis.
func (b *brute) partialOperand(dims int) (*bruteMesh, [][]string, []string, ir.Red) {
	m := b.meshes[b.IntN(len(b.meshes))]
	for range 50 {
		if split, partial := b.layout(m, dims); len(partial) > 0 {
			return m, split, partial, pickOf(b.Rand, ir.Sum, ir.Max, ir.Min, ir.Avg)
		}
	}
	return m, make([][]string, dims), m.axes[:1], ir.Sum
}

func binaryCase(name string, f func(p, q int64) int64) func(*brute) {
	return func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		second := shape
		if b.IntN(3) == 0 {
			second = shape[1+b.IntN(len(shape)):]
		}
		b.stmt = b.annotate(shape) + " = " + name + " " + b.operand(shape) + ", "
		if b.IntN(3) == 0 && len(second) == len(shape) { // the same partial layout twice
			b.args, b.names = nil, nil
			b.body.Reset()
			m, split, partial, red := b.partialOperand(len(shape))
			b.stmt = "%y = " + name + " " + b.value(shape, m, split, partial, red) + ", " + b.value(shape, m, split,
				partial, red)
		} else {
			b.stmt += b.operand(second)
		}
		b.op = func(a []*nd, _ []int) *nd { return a[0].trailing(a[1], f) }
	}
}

func unaryCase(name string, f func(int64) int64) func(*brute) {
	return func(b *brute) {
		shape := b.shape(b.IntN(4))
		result := b.annotate(shape)
		if name == "cast" {
			result = "%y: " + strings.Replace(b.typeText(shape, b.meshes[0], make([][]string, len(shape))), "f32",
				"f64", 1)
		}
		b.stmt = result + " = " + name + " " + b.operand(shape)
		b.stmt += map[string]string{"scale": ", by=-3", "pow": ", by=2", "clamp": ", lo=-3, hi=5"}[name]
		b.op = func(a []*nd, _ []int) *nd { return a[0].mapped(f) }
	}
}

// orderCase returns a generator for topk, argtopk or argsort.
func orderCase(name string) func(*brute) {
	return func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		last := len(shape) - 1
		out := slices.Clone(shape)
		x, how := b.operand(shape), ""
		if name != "argsort" {
			out[last] = b.IntN(shape[last] + 1)
			how = fmt.Sprintf(", k=%d", out[last])
		}
		b.ids = name != "topk"
		b.stmt = fmt.Sprintf("%s = %s %s%s", b.annotate(out), name, x, how)
		b.ids = false
		b.op = func(a []*nd, out []int) *nd {
			return gen(out, func(ix []int) int64 {
				at := func(i int) int64 { return a[0].at(append(slices.Clone(ix[:last]), i)) }
				for i := range a[0].shape[last] { // the index of the element before which ix[last] others are sorted
					before := 0
					for j := range a[0].shape[last] {
						if at(j) == at(i) && j < i || at(j) < at(i) && name == "argsort" || at(j) > at(i) &&
							name != "argsort" {
							before++
						}
					}
					if before == ix[last] && name == "topk" {
						return at(i)
					} else if before == ix[last] {
						return int64(i)
					}
				}
				panic("no such rank")
			})
		}
	}
}

func reduceCase(name string, red ir.Red) func(*brute) {
	return func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		axes := b.Perm(len(shape))[:1+b.IntN(len(shape))]
		b.stmt = fmt.Sprintf("%%y = %s %s, axis=(%s)", name, b.operand(shape), list(axes))
		if red == ir.Avg { // every mean, also that of a part of the elements, is an integer
			b.args[0] = b.args[0].mapped(func(v int64) int64 { return v * int64(volume(shape)) })
		}
		b.op = func(a []*nd, _ []int) *nd { return a[0].over(red, axes) }
	}
}

// normCase returns a generator for a norm of x[…, D] with the given number of operands of shape [D].
func normCase(name string, vectors int) func(*brute) {
	return func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		last := len(shape) - 1
		b.stmt = b.annotate(shape) + " = " + name + " " + b.operand(shape)
		for range vectors {
			b.stmt += ", " + b.operand(shape[last:])
		}
		b.op = func(a []*nd, _ []int) *nd {
			y := a[0].mixed(last).trailing(a[1], func(p, q int64) int64 { return p * q })
			if len(a) == 3 {
				y = y.trailing(a[2], func(p, q int64) int64 { return p + q })
			}
			return y
		}
	}
}

// regrouped returns two shapes with the same number of elements.
func (b *brute) regrouped() (from, to []int) {
	group := func() {
		f := []int{b.extent(2), b.extent(1)}
		switch b.IntN(4) {
		case 0:
			from, to = append(from, f...), append(to, f[0]*f[1])
		case 1:
			from, to = append(from, f[0]*f[1]), append(to, f...)
		case 2:
			from, to = append(from, f[0], f[1]), append(to, f[1], f[0])
		default:
			from, to = append(from, f[0]), append(to, f[0])
		}
	}
	for range 1 + b.IntN(2) {
		group()
	}
	for b.IntN(3) == 0 {
		to = slices.Insert(to, b.IntN(len(to)+1), 1)
	}
	if b.IntN(4) == 0 {
		from = slices.Insert(from, b.IntN(len(from)+1), 1)
	}
	return from, to
}

// mesh returns the test's model of the mesh of a type.
func (b *brute) mesh(t *ir.Type) *bruteMesh {
	if t.Mesh != "" {
		return b.meshes[1]
	}
	return b.meshes[0]
}

// box returns the position and size of the block at position i. It returns false if a dimension is not divisible.
func box(shape []int, m *bruteMesh, t *ir.Type, i int) (lo, size []int, ok bool) {
	c := m.coords(i)
	for d, e := range shape {
		parts, block := 1, 0
		for _, a := range t.Dims[d].Axes {
			parts, block = parts*m.size(a), block*m.size(a)+c[a]
		}
		if e%parts != 0 {
			return nil, nil, false
		}
		lo, size = append(lo, block*(e/parts)), append(size, e/parts)
	}
	return lo, size, true
}

// deal cuts the tensor whole into blocks by the layout t, and returns the block of every position. If t is partial, it
// returns contributions that reduce to the block.
func (b *brute) deal(t *testing.T, whole *nd, ty *ir.Type) []*nd {
	m := b.mesh(ty)
	out := make([]*nd, len(m.ranks))
	split := &ir.Type{Dims: ty.Dims}
	var partial []string
	for _, p := range ty.Partial {
		partial = append(partial, p.Axis)
	}
	for i := range out {
		lo, size, ok := box(whole.shape, m, split, i)
		if !ok {
			t.Fatalf("%v does not divide %v", ty, whole.shape)
		}
		out[i] = whole.cut(lo, size)
	}
	if len(partial) == 0 {
		return out
	}
	done := make([]bool, len(out))
	for i := range out {
		if done[i] {
			continue
		}
		// These are all positions that hold the block of position i. Positions that differ along partial axes hold
		// contributions; other positions hold copies of them.
		parts := b.contributions(out[i], ty.Partial[0].Red, len(m.team(i, partial)))
		for j := range out {
			cj, ci := m.coords(j), m.coords(i)
			same := true
			for _, d := range ty.Dims {
				for _, a := range d.Axes {
					same = same && cj[a] == ci[a]
				}
			}
			if same && !done[j] {
				out[j], done[j] = parts[slices.Index(m.team(j, partial), j)], true
			}
		}
	}
	return out
}

// contributions returns n tensors whose reduction is t.
func (b *brute) contributions(t *nd, red ir.Red, n int) []*nd {
	list := make([]*nd, n)
	for i := range list {
		list[i] = newND(t.shape)
	}
	for k, v := range t.data {
		if red == ir.Avg {
			v *= int64(n)
		}
		last := b.IntN(n)
		rest := v
		for i := range list {
			switch {
			case i == last:
				continue
			case red == ir.Max:
				list[i].data[k] = v - b.Int64N(3)
			case red == ir.Min:
				list[i].data[k] = v + b.Int64N(3)
			default:
				list[i].data[k] = b.Int64N(9) - 4
				rest -= list[i].data[k]
			}
		}
		list[last].data[k] = rest
		if red == ir.Max || red == ir.Min {
			list[last].data[k] = v
		}
	}
	return list
}

// holds returns an error unless the tensors got are the blocks of the tensor whole in the layout ty.
func (b *brute) holds(whole *nd, ty *ir.Type, got []*nd) error {
	m := b.mesh(ty)
	for i := range got {
		lo, size, ok := box(whole.shape, m, ty, i)
		if !ok {
			return fmt.Errorf("%v does not divide %v", ty, whole.shape)
		}
		have := got[i]
		if len(ty.Partial) > 0 {
			var axes []string
			for _, p := range ty.Partial {
				axes = append(axes, p.Axis)
			}
			have = reduceAll(ty.Partial[0].Red, of(got, m.team(i, axes)))
		}
		if want := whole.cut(lo, size); !have.same(want) {
			return fmt.Errorf("rank %d holds %v %v of %v, not %v %v", m.ranks[i], have.shape, have.data, ty, want.shape,
				want.data)
		}
	}
	return nil
}

// run executes one case. It returns false if Check or Bind refuses the case.
func (b *brute) run(t *testing.T) bool {
	src := b.decl.String() + "func f() {\n" + b.body.String() + "  " + b.stmt + "\n}\n"
	in, ds := Check(irtest.MustParse(t, "brute", src))
	if ds.HasErrors() {
		return false
	}
	if _, ds := ir.Bind(in, ir.Binding{}); ds.HasErrors() {
		return false
	}
	body := in.Prog.Funcs[0].Body.Stmts
	s := body[len(body)-1]
	result := in.Results[s][0].Type
	natural := result
	if n := in.Natural[s]; n != nil {
		natural = n
	}
	places := len(b.mesh(natural).ranks)
	blocks := make([][]*nd, len(s.Args)) // by operand, then place
	for k, sym := range in.Operands[s] {
		ty := needed(in, s, k)
		if ty == nil {
			t.Fatalf("%%%s has no type", sym.Name)
		}
		blocks[k] = b.deal(t, b.args[k], ty)
		if biasLater := k == 2 && len(natural.Partial) > 0; b.mesh(ty) != b.mesh(natural) && !biasLater {
			t.Fatalf("operand %d lies on another mesh than the result\n%s", k, src)
		}
	}
	whole := b.args[0]
	got := make([]*nd, places)
	late := b.bias && len(natural.Partial) > 0
	if b.team == nil {
		args := b.args
		whole = b.op(args, staticShape(t, result))
		if late {
			blocks, args = blocks[:2], args[:2]
		}
		for i := range got {
			var mine []*nd
			for k := range blocks {
				mine = append(mine, blocks[k][i])
				if k == 1 && len(b.args[k].shape) > 0 {
					lo, _, _ := box(b.args[k].shape, b.mesh(natural), needed(in, s, k), i)
					b.first = lo[0]
				}
			}
			lo, size, ok := box(staticShape(t, natural), b.mesh(natural), natural, i)
			if b.row = 0; len(lo) > 0 {
				b.row = lo[0]
			}
			if !ok {
				t.Fatalf("%v does not divide\n%s", natural, src)
			}
			got[i] = b.op(mine, size)
		}
		if late {
			b.judge(t, src, b.op(args, nil), natural, got)
			b.addBias(t, src, in, s, whole, result)
			return true
		}
	} else {
		for i := range got {
			got[i] = b.team(b.mesh(natural), blocks[0], i)
		}
	}
	b.judge(t, src, whole, natural, got)
	return true
}

// needed returns the type that Check requires for operand k.
func needed(in *ir.Info, s *ir.Stmt, k int) *ir.Type {
	if needs := in.Needs[s]; needs != nil && needs[k] != nil {
		return needs[k]
	}
	return in.Operands[s][k].Type
}

func (b *brute) judge(t *testing.T, src string, whole *nd, ty *ir.Type, got []*nd) {
	t.Helper()
	if err := b.holds(whole, ty, got); err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
}

// addBias checks the second step of a row-parallel linear: the product, reduced and in the layout of the result, plus
// each rank's block of the bias.
func (b *brute) addBias(t *testing.T, src string, in *ir.Info, s *ir.Stmt, whole *nd, result *ir.Type) {
	biasType := needed(in, s, 2)
	product := b.deal(t, b.op(b.args[:2], nil), result)
	bias := b.deal(t, b.args[2], biasType)
	got := make([]*nd, len(product))
	for i := range got {
		if !slices.Equal(bias[i].shape, product[i].shape[len(product[i].shape)-1:]) {
			t.Fatalf("bias %v does not fit %v\n%s", biasType, result, src)
		}
		got[i] = product[i].trailing(bias[i], func(p, q int64) int64 { return p + q })
	}
	b.judge(t, src, whole, result, got)
}

func staticShape(tb *testing.T, t *ir.Type) []int {
	var shape []int
	for _, d := range t.Dims {
		v, err := d.Extent.Eval(irtest.NoNames{})
		if err != nil {
			tb.Fatalf("%v: %v", t, err)
		}
		shape = append(shape, int(v))
	}
	return shape
}

func TestInferredLayoutsHold(t *testing.T) {
	runs := 400
	if testing.Short() {
		runs = 60
	}
	for op, generate := range generators {
		t.Run(op.String(), func(t *testing.T) {
			t.Parallel()
			judged := 0
			for seed := range runs {
				b := newBrute(uint64(seed))
				generate(b)
				if b.run(t) {
					judged++
				}
			}
			t.Logf("%d of %d judged", judged, runs)
			if judged*4 < runs {
				t.Errorf("only %d of %d programs were accepted", judged, runs)
			}
		})
	}
	for _, op := range ir.Ops() {
		class := op.Info().Class
		if class != ir.ClassTensor && class != ir.ClassView && class != ir.ClassCollective {
			continue
		}
		switch op {
		case ir.OpReduceSlots, ir.OpIndexCopy: // they write a buffer
		case ir.OpFill, ir.OpIota, ir.OpReshard, ir.OpClaim: // their result has the annotated type
		case ir.OpLocal: // its result is the shard itself
		case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute, ir.OpAllGatherV, ir.OpReduceScatterV,
			ir.OpAllToAllV: // these are not defined for values
		default:
			if generators[op] == nil {
				t.Errorf("%s is not judged", op)
			}
		}
	}
}

// manyBlocks returns a shape whose last dimension consists of several blocks of 128. In half of the cases, a matrix has
// instead one block of 128 for each rank in both dimensions.
func (b *brute) manyBlocks(dims int) []int {
	shape := b.shape(dims)
	shape[dims-1] = 128 * b.extent(2)
	if dims == 2 && b.IntN(2) == 0 {
		shape[0], shape[1] = 128*len(b.meshes[0].ranks), 128*len(b.meshes[0].ranks)
	}
	return shape
}

// scaleShapes returns the possible shapes of the scales of a tensor: one scale, one for each row, one for each block of
// 1 by 128, and one for each square block of a matrix.
func scaleShapes(shape []int) [][]int {
	last := len(shape) - 1
	blocks := (shape[last] + 127) / 128
	list := [][]int{{}, shape[:last], append(slices.Clone(shape[:last]), blocks)}
	if last == 1 {
		list = append(list, []int{(shape[0] + 127) / 128, blocks})
	}
	return list
}

// scaleIndex returns the index of the scale that applies to an element.
func scaleIndex(shape, scales, ix []int) []int {
	at := append(make([]int, 0, 4), ix[:len(scales)]...) // does not escape where this is inlined
	if last := len(shape) - 1; len(scales) == len(shape) {
		at[last] /= 128
		if last > 0 && scales[last-1] != shape[last-1] {
			at[last-1] /= 128
		}
	}
	return at
}

// scaledLinear generates a linear of 8-bit types with scales.
func (b *brute) scaledLinear() {
	x, n := b.shape(1+b.IntN(2)), b.extent(1)
	if b.IntN(2) == 0 {
		x[len(x)-1] = 128 * len(b.meshes[0].ranks)
	}
	w := []int{n, x[len(x)-1]}
	squares := scaleShapes(w)
	squares = append(squares[:2], squares[3])
	b.f8 = true
	args := b.operand(x) + ", " + b.operand(w)
	b.f8 = false
	args += ", " + b.operand(scaleShapes(x)[b.IntN(3)]) + ", " + b.operand(squares[b.IntN(3)])
	b.stmt = b.annotate(append(slices.Clone(x[:len(x)-1]), n)) + " = linear " + args
	b.op = func(a []*nd, _ []int) *nd {
		x, w := a[0].shape, a[1].shape
		last := len(x) - 1
		return gen(append(slices.Clone(x[:last]), w[0]), func(ix []int) (sum int64) {
			for k := range w[1] {
				i, j := append(append(make([]int, 0, 4), ix[:last]...), k), []int{ix[last], k}
				sum += a[0].at(i) * a[1].at(j) * a[2].at(scaleIndex(x, a[2].shape, i)) * a[3].at(scaleIndex(w,
					a[3].shape, j))
			}
			return sum
		})
	}
}
