package torchexport

import (
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// layers holds the operators that compute matrix products, convolutions, norms and attention.
var layers = map[string]operator{
	"linear": func(c *call) ([]*graph.Value, error) {
		in := []*graph.Value{c.tensor("input"), c.tensor("weight")}
		if c.has("bias") {
			in = append(in, c.tensor("bias"))
		}
		return one(c.op(graph.Linear, c.outDType(0), in...))
	},
	"matmul": func(c *call) ([]*graph.Value, error) {
		a, b := c.tensor("self"), c.tensor("other")
		if c.err == nil && (len(a.Shape) < 2 || len(b.Shape) < 2) {
			return nil, unsupported("matmul of a vector")
		}
		return one(c.op(graph.MatMul, c.outDType(0), a, b))
	},
	"mm": multiply, "bmm": multiply,
	"addmm": addProduct("mat1", "mat2"), "baddbmm": addProduct("batch1", "batch2"), "conv1d": conv1d,
	"einsum":     einsum,
	"layer_norm": func(c *call) ([]*graph.Value, error) { return normalize(c, graph.LayerNorm, 1e-5) },
	"rms_norm":   func(c *call) ([]*graph.Value, error) { return normalize(c, graph.RMSNorm, math.NaN()) },
	"softmax":    softmax, "_softmax": softmax,
	"scaled_dot_product_attention": attention,
	"_grouped_mm":                  grouped, "transformers.grouped_mm_fallback": grouped,
	"_c10d_functional.all_reduce":  allReduce,
	"_c10d_functional.wait_tensor": func(c *call) ([]*graph.Value, error) { return one(c.tensor("tensor")) },
}

// allReduce translates torch.distributed.all_reduce in the form in which torch exports it. The group "0" is the
// group of all processes.
func allReduce(c *call) ([]*graph.Value, error) {
	x, red, group := c.tensor("input"), c.word("reduce_op", ""), c.word("group_name", c.word("group", ""))
	switch {
	case c.err != nil:
		return nil, c.err
	case !slices.Contains([]string{"sum", "max", "min", "avg"}, red):
		return nil, unsupported("an all_reduce with the reduction %q", clip(red))
	case group != "0":
		return nil, unsupported("a reduction over process group %q: hocket reduces over all ranks, group 0", clip(group))
	}
	return one(c.add(graph.AllReduce, graph.Attrs{Red: red}, x.DType, x))
}

// addProduct translates operators that compute beta · self + alpha · first · second, where first · second is a
// matrix product.
func addProduct(first, second string) operator {
	return func(c *call) ([]*graph.Value, error) {
		bias, a, b := c.tensor("self"), c.tensor(first), c.tensor(second)
		dt := c.outDType(0)
		y := c.scaled(c.op(graph.MatMul, dt, a, b), c.number("alpha", 1))
		beta := c.number("beta", 1)
		if beta == 0 { // if beta is 0, torch ignores self, even if self contains NaN
			return one(y)
		}
		return one(c.op(graph.AddOp, dt, y, c.scaled(bias, beta)))
	}
}

// conv1d translates a convolution to one product for each element of the kernel. The products are matrix products
// or, if each channel is a group, elementwise products.
func conv1d(c *call) ([]*graph.Value, error) {
	x, w := c.tensor("input"), c.tensor("weight")
	first := func(name string, def int64) int64 {
		if list := c.ints(name); len(list) > 0 {
			return list[0]
		}
		return def
	}
	if a := c.arg("padding"); a != nil && a.kind == "as_string" {
		return nil, unsupported("padding=%q", clip(c.word("padding", "")))
	}
	stride, padding, dilation, groups := first("stride", 1), first("padding", 0), first("dilation", 1),
		c.int("groups", 1)
	if c.err != nil || len(x.Shape) != 3 || len(w.Shape) != 3 || stride < 1 || dilation < 1 || padding < 0 {
		return nil, malformed("a convolution of %s with kernel %s, whose shapes or attributes do not fit", x, w)
	}
	channels, taps := x.Shape[1], w.Shape[2]
	depthwise := groups == channels && w.Shape[0] == channels && w.Shape[1] == 1
	switch {
	case !depthwise && groups != 1:
		return nil, unsupported("a convolution with %d groups of its %d channels", groups, channels)
	case taps > 64:
		return nil, unsupported("a convolution with a kernel of %d elements", taps)
	}
	x = c.padded(x, 2, padding, padding, 0)
	if c.err != nil {
		return nil, c.err
	}
	span := x.Shape[2] - dilation*(taps-1)
	if span < 1 {
		return nil, malformed("a convolution of %s with kernel %s, whose shapes or attributes do not fit", x, w)
	}
	var y *graph.Value
	dt := c.outDType(0)
	for k := range taps {
		part := c.slice(x, 2, k*dilation, k*dilation+span, stride)
		tap := c.drop(c.slice(w, 2, k, k+1, 1), 2) // the weights of element k of the kernel, as [out, in of the group]
		op := graph.MatMul
		if depthwise {
			op = graph.Mul
		}
		z := c.op(op, dt, tap, part)
		if y == nil {
			y = z
		} else {
			y = c.op(graph.AddOp, dt, y, z)
		}
	}
	if c.has("bias") && c.err == nil {
		b := c.tensor("bias")
		y = c.op(graph.AddOp, dt, y, c.reshape(b, []int64{w.Shape[0], 1}))
	}
	return one(y)
}

// einsum translates a product of two operands whose dimensions are named by letters. It uses transpositions and a
// matrix product.
func einsum(c *call) ([]*graph.Value, error) {
	text, list := strings.ReplaceAll(c.word("equation", ""), " ", ""), c.tensors("tensors")
	in, out, ok := strings.Cut(text, "->")
	first, second, two := strings.Cut(in, ",")
	if c.err != nil || !ok || !two || len(list) != 2 || list[0] == nil || list[1] == nil {
		return nil, unsupported("einsum %q", clip(text))
	}
	extent, err := extentsOf(text, []string{first, second}, list)
	if err != nil {
		return nil, err
	}
	batch, rows, sums, ok1 := divided(first, second, out)
	_, cols, _, ok2 := divided(second, first, out)
	if !ok1 || !ok2 {
		return nil, unsupported("einsum %q, which sums over a dimension that only one operand has", clip(text))
	}
	if len(out) != len(batch)+len(rows)+len(cols) {
		return nil, unsupported("einsum %q", clip(text))
	}
	extents := func(letters string) (shape []int64) {
		for _, r := range letters {
			shape = append(shape, extent[r])
		}
		return shape
	}
	transposed := func(v *graph.Value, from, to string) *graph.Value {
		var perm []int64
		for _, r := range to {
			perm = append(perm, int64(strings.IndexRune(from, r)))
		}
		return c.add(graph.Transpose, graph.Attrs{Axes: perm}, v.DType, v)
	}
	// matrices returns v as matrices, one for each index of batch.
	matrices := func(v *graph.Value, letters, rows, cols string) *graph.Value {
		shape := append(extents(batch), graph.Product(extents(rows)), graph.Product(extents(cols)))
		return c.reshape(transposed(v, letters, batch+rows+cols), shape)
	}
	y := c.op(graph.MatMul, c.outDType(0), matrices(list[0], first, rows, sums), matrices(list[1], second, sums, cols))
	if y = c.reshape(y, extents(batch+rows+cols)); y == nil {
		return nil, c.err
	}
	return one(transposed(y, batch+rows+cols, out))
}

// extentsOf returns the extents of the dimensions of an einsum, by letter.
func extentsOf(text string, operands []string, list []*graph.Value) (map[rune]int64, error) {
	extent := map[rune]int64{}
	for i, letters := range operands {
		v := list[i]
		if len(letters) != len(v.Shape) {
			return nil, unsupported("einsum %q of %s", clip(text), v)
		}
		for d, r := range letters {
			if r < 'A' || r > 'z' || strings.Count(letters, string(r)) > 1 {
				return nil, unsupported("einsum %q", clip(text))
			}
			if n, ok := extent[r]; ok && n != v.Shape[d] {
				return nil, malformed("einsum %q of %s and %s", clip(text), list[0], list[1])
			}
			extent[r] = v.Shape[d]
		}
	}
	return extent, nil
}

// divided divides the letters of an operand into those that both operands and the result have, those that only this
// operand and the result have, and those that both operands have, over which the product sums. If there are others, ok
// is false.
func divided(own, other, out string) (both, only, sums string, ok bool) {
	for _, r := range own {
		switch inOther, inOut := strings.ContainsRune(other, r), strings.ContainsRune(out, r); {
		case inOther && inOut:
			both += string(r)
		case inOther:
			sums += string(r)
		case inOut:
			only += string(r)
		default:
			return "", "", "", false
		}
	}
	return both, only, sums, true
}

func multiply(c *call) ([]*graph.Value, error) {
	a, b := c.tensor("self"), c.tensor("mat2")
	return one(c.op(graph.MatMul, c.outDType(0), a, b))
}

func normalize(c *call, op graph.Op, eps float64) ([]*graph.Value, error) {
	x := c.tensor("input")
	if n := c.ints("normalized_shape"); len(n) != 1 {
		return nil, unsupported("normalization over %d dimensions", len(n))
	}
	if c.err != nil {
		return nil, c.err
	}
	in := []*graph.Value{x}
	if c.has("weight") {
		in = append(in, c.tensor("weight"))
	}
	if c.has("bias") {
		if len(in) == 1 {
			return nil, unsupported("a norm with a bias but without a weight")
		}
		in = append(in, c.tensor("bias"))
	}
	if math.IsNaN(eps) { // torch's default is the machine epsilon of the type
		eps = map[graph.DType]float64{graph.F32: 0x1p-23,
			graph.BF16: 0x1p-23, graph.F16: 0x1p-23, graph.F64: 0x1p-52}[x.DType]
	}
	return one(c.add(op, graph.Attrs{Eps: c.number("eps", eps)}, c.outDType(0), in...))
}

func softmax(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	dt := c.outDType(0)
	return one(c.add(graph.Softmax, graph.Attrs{Axis: c.axis("dim", -1, x)}, dt, c.cast(x, dt)))
}

func attention(c *call) ([]*graph.Value, error) {
	q, k, v := c.tensor("query"), c.tensor("key"), c.tensor("value")
	if c.number("dropout_p", 0) != 0 {
		return nil, unsupported("dropout in attention; export model.eval()")
	}
	if c.err != nil {
		return nil, c.err
	}
	if len(q.Shape) < 3 || len(k.Shape) != len(q.Shape) || len(v.Shape) != len(q.Shape) {
		return nil, malformed("attention with queries %s, keys %s and values %s", q, k, v)
	}
	if c.flag("enable_gqa", false) {
		k, v = c.groups(k, q), c.groups(v, q)
	}
	// Leading dimensions are broadcast; for example, all heads of queries may use one head of keys.
	d := len(q.Shape)
	lead := q.Shape[:d-2]
	for _, x := range []**graph.Value{&k, &v} {
		if c.err == nil && !slices.Equal((*x).Shape[:d-2], lead) {
			*x = c.broadcast(*x, slices.Concat(lead, (*x).Shape[d-2:]))
		}
	}
	a := graph.Attrs{Causal: c.flag("is_causal", false)}
	a.Scale = c.number("scale", 1/math.Sqrt(float64(q.Shape[len(q.Shape)-1])))
	in := []*graph.Value{q, k, v}
	if c.has("attn_mask") {
		in = append(in, c.tensor("attn_mask"))
	}
	return one(c.add(graph.Attention, a, c.outDType(0), in...))
}

// groups repeats each head of k once for each head of q that uses it.
func (c *call) groups(k, q *graph.Value) *graph.Value {
	d := len(k.Shape)
	have, want := k.Shape[d-3], q.Shape[d-3]
	if have == 0 || want%have != 0 {
		c.fail(malformed("the number of heads of queries, %d, is not a multiple of that of keys, %d", want, have))
		return nil
	}
	if have == want {
		return k
	}
	from := slices.Insert(slices.Clone(k.Shape), d-2, 1)
	return c.repeated(k, from, graph.WithExtent(from, d-2, want/have), graph.WithExtent(k.Shape, d-3, want))
}

// grouped translates the grouped matrix product: the rows are sorted by group, and each row is multiplied by the
// matrix of its group.
func grouped(c *call) ([]*graph.Value, error) {
	list := []*graph.Value{}
	for i := range c.node.Inputs {
		if a := &c.node.Inputs[i]; a.Arg.kind == "as_tensor" {
			list = append(list, c.tensor(a.Name))
		}
	}
	if c.err != nil || len(list) != 3 {
		return nil, malformed("it has %d tensors", len(list))
	}
	return one(c.op(graph.GroupedMatMul, c.outDType(0), list...))
}
