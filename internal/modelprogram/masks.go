package modelprogram

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// Programs have no type bool. A bool that depends on the input becomes a mask: 1 or 0 of the type of the compared
// numbers.

// comparisons maps each comparison to its name in the language, and to the name of the comparison with exchanged
// operands.
var comparisons = map[graph.Op][2]string{graph.Eq: {"eq", "eq"}, graph.Ne: {"ne", "ne"}, graph.Lt: {"lt", "gt"},
	graph.Le: {"le", "ge"}, graph.Gt: {"gt", "lt"}, graph.Ge: {"ge", "le"}}

// lowerAs converts v to numbers of type dt. A bool becomes 1 or 0.
func (l *lowering) lowerAs(v *graph.Value, dt graph.DType) (*val, error) {
	if l.folder.IsConstant(v) && v.DType != dt {
		t, err := l.folder.Value(v)
		if err != nil {
			return nil, err
		}
		return l.known(t.As(dt)), nil
	}
	x, err := l.lower(v)
	if err != nil || x.dtype() == dt {
		return x, err
	}
	y := l.emit(&inst{op: "cast", args: []operand{x.operand}, dt: dt, shape: x.operand.shape(), split: x.splitDim(),
		typed: true, from: v.Node.From, order: l.order(v.Node)})
	return &val{operand: operand{in: y}, perm: x.perm, shape: x.shape}, nil
}

// maskType returns the type of the mask that represents a bool. The type is f32 if no operand determines it.
func (l *lowering) maskType(list ...*graph.Value) (graph.DType, error) {
	for _, v := range list {
		if v.DType != graph.Bool {
			return v.DType, nil
		}
		if !l.folder.IsConstant(v) {
			x, err := l.lower(v)
			if err != nil {
				return "", err
			}
			return x.dtype(), nil
		}
	}
	return graph.F32, nil
}

// compare converts comparisons, and logical operations on bools.
func (l *lowering) compare(n *graph.Node) (*val, error) {
	a, b := n.In[0], n.In[1]
	dt, err := l.maskType(a, b)
	if err != nil {
		return nil, err
	}
	name := comparisons[n.Op]
	switch n.Op {
	case graph.And:
		name = [2]string{"mul", "mul"}
	case graph.Or:
		name = [2]string{"maximum", "maximum"}
	}
	op := name[0]
	if x, ok := l.uniform(a); ok && slices.Equal(b.Shape, n.Out[0].Shape) {
		op = name[1]
		a, b = b, l.g.Scalar(a.DType, x)
	} else if x, ok := l.uniform(b); ok && slices.Equal(a.Shape, n.Out[0].Shape) {
		b = l.g.Scalar(b.DType, x)
	} else if len(a.Shape) < len(b.Shape) {
		op = name[1]
		a, b = b, a
	}
	return l.elementwise(n, op, dt, []*graph.Value{a, b})
}

// isZero converts a comparison of a number or mask with 0. The argument op is eq, or ne for the opposite.
func (l *lowering) isZero(n *graph.Node, op string) (*val, error) {
	dt, err := l.maskType(n.In[0])
	if err != nil {
		return nil, err
	}
	return l.elementwise(n, op, dt, []*graph.Value{n.In[0], l.g.Scalar(dt, 0)})
}

// where converts an elementwise selection.
func (l *lowering) where(n *graph.Node) (*val, error) {
	dt := n.Out[0].DType
	if dt == graph.Bool {
		var err error
		if dt, err = l.maskType(n.In[1], n.In[2], n.In[0]); err != nil {
			return nil, err
		}
	}
	in := slices.Clone(n.In)
	for i, v := range in[1:] {
		if x, ok := l.uniform(v); ok {
			in[i+1] = l.g.Scalar(v.DType, x)
		}
	}
	return l.elementwise(n, "where", dt, in)
}

// elementwise converts an elementwise operation on operands of type dt. In the program, the first operand must have the
// result's shape, and the shapes of the others must be trailing dimensions of it. Operands with other shapes are
// repeated.
func (l *lowering) elementwise(n *graph.Node, op string, dt graph.DType, in []*graph.Value) (*val, error) {
	shape := n.Out[0].Shape
	var args []operand
	for i, v := range in {
		x, err := l.lowerAs(v, dt)
		if err != nil {
			return nil, err
		}
		if i > 0 && v.Count() == 1 && len(v.Shape) > 0 { // one element is used for all elements
			args = append(args, l.shaped(v, x, []int64{}))
			continue
		}
		o := l.settle(v, x)
		k := len(shape) - len(v.Shape)
		if !slices.Equal(v.Shape, shape[k:]) || i == 0 && k > 0 {
			o = l.emitted(n, "broadcast", "shape="+tuple(shape), dt, shape, -1, o).operand
		}
		args = append(args, o)
	}
	return l.emitted(n, op, "", dt, shape, args[0].splitDim(), args...), nil
}
