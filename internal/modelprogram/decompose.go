package modelprogram

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// The functions in this file express operations that the language does not have by operations that it has. The
// functions add the operations of the language to the graph as nodes.

// node adds a node to the graph. In the order of nodes, the new node has the position of n.
func (l *recognition) node(n *graph.Node, op graph.Op, a graph.Attrs, dt graph.DType, in ...*graph.Value) (*graph.Value,
	error) {
	m, err := l.g.Add(op, a, n.From, []graph.DType{dt}, in...)
	if err != nil {
		return nil, refuse(n, "%v", err)
	}
	if m.Order >= l.given {
		if at, ok := l.places[m]; !ok || at > l.order(n) {
			l.places[m] = l.order(n)
		}
	}
	return m.Out[0], nil
}

// order returns the position of n in the order of nodes. A node that was added in place of another node has the
// position of that node.
func (l *recognition) order(n *graph.Node) int {
	if at, ok := l.places[n]; ok {
		return at
	}
	return n.Order
}

// chain adds a sequence of operations to the graph. After an error it adds no further operations.
type chain struct {
	l   *lowering
	n   *graph.Node
	err error
}

func (c *chain) add(op graph.Op, a graph.Attrs, dt graph.DType, in ...*graph.Value) *graph.Value {
	if c.err != nil {
		return nil
	}
	var v *graph.Value
	v, c.err = c.l.node(c.n, op, a, dt, in...)
	return v
}

func (c *chain) cast(v *graph.Value, dt graph.DType) *graph.Value {
	if c.err != nil || v.DType == dt {
		return v
	}
	return c.add(graph.Cast, graph.Attrs{}, dt, v)
}

func (c *chain) reshape(v *graph.Value, shape []int64) *graph.Value {
	if c.err != nil || slices.Equal(v.Shape, shape) {
		return v
	}
	return c.add(graph.Reshape, graph.Attrs{Shape: shape}, v.DType, v)
}

// swap exchanges two dimensions.
func (c *chain) swap(v *graph.Value, i, j int) *graph.Value {
	if c.err != nil || i == j {
		return v
	}
	return c.add(graph.Transpose, graph.Attrs{Axes: graph.Swapped(len(v.Shape), i, j)}, v.DType, v)
}

// lower converts the value v, which the chain computes, to instructions.
func (c *chain) lower(v *graph.Value) (*val, error) {
	if c.err != nil {
		return nil, c.err
	}
	return c.l.lower(v)
}

// maxCumsum is the largest length of a cumulative sum, which is computed as a product with a triangular matrix.
const maxCumsum = 4096

// cumsum converts a cumulative sum to a product with a triangular matrix of ones. In f32, sums of integers are exact
// below 2²⁴, which suffices for masks. In f64, they are exact below 2⁵³.
func (l *lowering) cumsum(n *graph.Node) (*val, error) {
	x, out := n.In[0], n.Out[0]
	axis, size := n.Attrs.Axis, int64(1)
	if len(x.Shape) > 0 {
		size = x.Shape[axis]
	}
	c := &chain{l: l, n: n}
	dt := out.DType
	if !dt.IsFloat() {
		dt = graph.F64
		if uncast(x).DType == graph.Bool {
			dt = graph.F32
		}
	}
	if size > maxCumsum {
		return nil, refuse(n, "a cumulative sum of %d elements; the limit is %d", size, maxCumsum)
	}
	if len(x.Shape) == 0 {
		return l.lower(x)
	}
	t := graph.NewTensor(dt, []int64{size, size})
	for i := range size {
		for j := range i + 1 {
			t.Elems[i*size+j] = 1
		}
	}
	end := len(x.Shape) - 1
	y := c.swap(c.cast(x, dt), axis, end)
	y = c.add(graph.Linear, graph.Attrs{}, dt, y, l.g.Constant("triangle", t))
	return c.lower(c.cast(c.swap(y, axis, end), out.DType))
}

// take converts a selection of elements by index. It merges the indexed leading dimensions, so that the operation
// selects rows of a table.
func (l *lowering) take(n *graph.Node) (*val, error) {
	x, at := n.In[0], n.In[1:]
	if !x.DType.IsFloat() {
		return nil, refuse(n, "a selection of elements of %s by an index that depends on the input", x)
	}
	c := &chain{l: l, n: n}
	var row *graph.Value
	rows := int64(1)
	for i, v := range at {
		size := x.Shape[i]
		rows *= size
		if l.folder.IsConstant(v) {
			t, err := l.folder.Value(v)
			if err != nil {
				return nil, err
			}
			t = t.As(graph.I64)
			for j, k := range t.Elems {
				if k < 0 {
					t.Elems[j] = k + float64(size)
				}
				if t.Elems[j] < 0 || t.Elems[j] >= float64(size) {
					return nil, refuse(n, "index %g of %d elements", k, size)
				}
			}
			v = l.g.Constant("index", t)
		} else if v.DType == graph.Bool {
			return nil, refuse(n, "a mask as an index, since the number of selected elements depends on the mask")
		}
		v = c.cast(v, graph.I64)
		if row == nil {
			row = v
			continue
		}
		row = c.add(graph.Mul, graph.Attrs{}, graph.I64, row, l.g.Scalar(graph.I64, float64(size)))
		row = c.add(graph.AddOp, graph.Attrs{}, graph.I64, row, v)
	}
	width := graph.Product(x.Shape[len(at):])
	if c.err != nil {
		return nil, c.err
	}
	count := row.Count()
	y := c.add(graph.Embedding, graph.Attrs{}, x.DType, c.reshape(x, []int64{rows, width}),
		c.reshape(row, []int64{count}))
	return c.lower(c.reshape(y, n.Out[0].Shape))
}

// productOfBatches converts a matrix product whose leading dimensions must be broadcast. The operands are repeated so
// that their leading dimensions are equal. The result is nil if the leading dimensions are already equal, or if the
// second operand has no leading dimensions.
func (l *lowering) productOfBatches(n *graph.Node) (*val, error) {
	if n.Op != graph.MatMul || len(n.In[1].Shape) <= 2 {
		return nil, nil
	}
	out := n.Out[0]
	lead := out.Shape[:len(out.Shape)-2]
	c := &chain{l: l, n: n}
	in := slices.Clone(n.In)
	for i, v := range in {
		if own := len(v.Shape) - 2; !slices.Equal(v.Shape[:own], lead) {
			shape := append(slices.Clone(lead), v.Shape[own:]...)
			in[i] = c.add(graph.Broadcast, graph.Attrs{Shape: shape}, v.DType, v)
		}
	}
	if slices.Equal(in, n.In) {
		return nil, c.err
	}
	return c.lower(c.add(graph.MatMul, graph.Attrs{}, out.DType, in...))
}

// productTurned converts the transpose of a matrix product, such as the gradient of a weight in JAX, to a product of
// the transposed matrices in reverse order. The result then needs no copy. It returns nil for other transpositions.
func (l *lowering) productTurned(v *graph.Value) (*val, error) {
	of := v.Node.In[0]
	m := of.Made(graph.MatMul)
	if m == nil || len(of.Shape) != 2 || len(m.In[0].Shape) != 2 || !slices.Equal(v.Node.Attrs.Axes, []int64{1, 0}) ||
		len(l.users[of]) != 1 || slices.Contains(l.g.Outputs, of) {
		return nil, nil
	}
	c := &chain{l: l, n: v.Node}
	turned := func(x *graph.Value) *graph.Value {
		return c.add(graph.Transpose, graph.Attrs{Axes: []int64{1, 0}}, x.DType, x)
	}
	return c.lower(c.add(graph.MatMul, graph.Attrs{}, v.DType, turned(m.In[1]), turned(m.In[0])))
}

// argmax converts the operation that returns the index of the largest element.
func (l *lowering) argmax(n *graph.Node) (*val, error) {
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	out := n.Out[0]
	shape := slices.Delete(slices.Clone(n.In[0].Shape), n.Attrs.Axis, n.Attrs.Axis+1)
	y := l.emitted(n, "argmax", fmt.Sprintf("axis=%d", n.Attrs.Axis), graph.I32, shape, -1, x)
	y = l.mapped(n, y, "cast", "")
	if n.Attrs.Keep {
		y.shape = out.Shape
	}
	return y, nil
}

// attentionByParts lowers attention to two products and a softmax. attentionByParts is used for masks that the
// language's attention does not support.
func (l *lowering) attentionByParts(n *graph.Node) (*val, error) {
	q, k, w := n.In[0], n.In[1], n.In[2]
	c := &chain{l: l, n: n}
	d := len(q.Shape)
	dt := q.DType
	if dt == graph.BF16 || dt == graph.F16 {
		dt = graph.F32 // torch's kernels also compute in f32
	}
	s := c.add(graph.MatMul, graph.Attrs{}, dt, c.cast(q, dt), c.swap(c.cast(k, dt), d-1, d-2))
	s = c.add(graph.Mul, graph.Attrs{}, dt, s, l.g.Scalar(dt, n.Attrs.Scale))
	if by := n.Attrs.Softcap; by != 0 {
		s = c.add(graph.Mul, graph.Attrs{}, dt, s, l.g.Scalar(dt, 1/by))
		s = c.add(graph.Mul, graph.Attrs{}, dt, c.add(graph.Tanh, graph.Attrs{}, dt, s), l.g.Scalar(dt, by))
	}
	var seen *graph.Value
	if n.Attrs.Causal {
		tq, tk := q.Shape[d-2], k.Shape[d-2]
		t := graph.NewTensor(graph.Bool, []int64{tq, tk})
		for i := range tq {
			for j := range min(i+1, tk) {
				t.Elems[i*tk+j] = 1
			}
		}
		s = c.add(graph.Where, graph.Attrs{}, dt, l.g.Constant("causal", t), s, l.g.Scalar(dt, hidden))
	}
	if len(n.In) == 4 {
		if m := n.In[3]; m.DType == graph.Bool {
			s = c.add(graph.Where, graph.Attrs{}, dt, m, s, l.g.Scalar(dt, hidden))
			seen = m
		} else {
			s = c.add(graph.AddOp, graph.Attrs{}, dt, s, c.cast(m, dt))
		}
	}
	p := c.add(graph.Softmax, graph.Attrs{Axis: d - 1}, dt, s)
	if seen != nil { // the result of a query without keys is zero
		p = c.add(graph.Mul, graph.Attrs{}, dt, p, c.cast(seen, dt))
	}
	y := c.add(graph.MatMul, graph.Attrs{}, dt, p, c.cast(w, dt))
	return c.lower(c.cast(y, n.Out[0].DType))
}

// hidden is the score of a key that the mask excludes for a query.
const hidden = -1e30

// attentionOfShape converts attention to attention with four dimensions and with heads of equal extents for keys and
// values. It returns nil if the attention already has this form.
func (l *lowering) attentionOfShape(n *graph.Node) (*val, error) {
	q, k, w, out := n.In[0], n.In[1], n.In[2], n.Out[0]
	c := &chain{l: l, n: n}
	in := slices.Clone(n.In)
	if d := len(q.Shape); d != 4 {
		four := func(s []int64) []int64 {
			lead := max(d-3, 0)
			return []int64{graph.Product(s[:lead]), graph.Product(s[lead : d-2]), s[d-2], s[d-1]}
		}
		if len(in) == 4 && len(in[3].Shape) > 2 {
			m := in[3]
			full := append(slices.Clone(q.Shape[:d-1]), k.Shape[d-2])
			if !slices.Equal(m.Shape, full) {
				m = c.add(graph.Broadcast, graph.Attrs{Shape: full}, m.DType, m)
			}
			in[3] = c.reshape(m, four(full))
		}
		for i, v := range in[:3] {
			in[i] = c.reshape(v, four(v.Shape))
		}
		y := c.add(graph.Attention, n.Attrs, out.DType, in...)
		return c.lower(c.reshape(y, out.Shape))
	}
	have, want := graph.Last(q.Shape), graph.Last(w.Shape)
	if have == want {
		return nil, nil
	}
	wider := func(v *graph.Value, by int64) *graph.Value {
		a := graph.Attrs{Shape: graph.WithExtent(v.Shape, 3, by)}
		zeros := c.add(graph.Broadcast, a, v.DType, l.g.Scalar(v.DType, 0))
		return c.add(graph.Concat, graph.Attrs{Axis: 3}, v.DType, v, zeros)
	}
	if have > want {
		in[2] = wider(w, have-want)
	} else {
		in[0], in[1] = wider(q, want-have), wider(k, want-have)
	}
	y := c.add(graph.Attention, n.Attrs, out.DType, in...)
	if have > want {
		y = c.add(graph.SliceOp, graph.Attrs{Axis: 3, Hi: want, Step: 1}, out.DType, y)
	}
	return c.lower(y)
}
