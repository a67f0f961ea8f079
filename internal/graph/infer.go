package graph

import (
	"errors"
	"fmt"
	"slices"
)

// operation describes an operation of the graph.
type operation struct {
	least, most int                            // limits of the number of operands
	results     int                            // number of results; they have the same shape
	shape       func(n *Node) ([]int64, error) // returns the shape of a result, or an error if the operands do not fit
	eval        evaluator
}

// evaluator computes the results out, which are zeros before, of an operation with the operands in.
type evaluator func(a *Attrs, in, out []*Tensor) error

// operations describes the operations that are not elementwise functions of one or two operands.
var operations = map[Op]operation{
	Where:         {3, 3, 1, sameShapes, evalWhere},
	Cast:          {1, 1, 1, sameShape, evalCast},
	Reshape:       {1, 1, 1, shapeOfReshape, evalReshape},
	Transpose:     {1, 1, 1, shapeOfTranspose, evalTranspose},
	Broadcast:     {1, 1, 1, shapeOfBroadcast, evalBroadcast},
	SliceOp:       {1, 1, 1, shapeOfSlice, evalSlice},
	Concat:        {1, 1 << 16, 1, shapeOfConcat, evalConcat},
	SumOp:         {1, 1, 1, shapeOfReduction, evalReduction(SumOp)},
	Mean:          {1, 1, 1, shapeOfReduction, evalReduction(Mean)},
	MaxOf:         {1, 1, 1, shapeOfReduction, evalReduction(MaxOf)},
	MinOf:         {1, 1, 1, shapeOfReduction, evalReduction(MinOf)},
	ArgMax:        {1, 1, 1, shapeOfArgMax, alongLines(argMax)},
	Cumsum:        {1, 1, 1, shapeAlongAxis, alongLines(cumsum)},
	TopK:          {1, 1, 2, shapeOfTopK, evalTopK},
	SortOp:        {1, 1, 2, shapeAlongAxis, alongLines(sortLine)},
	Softmax:       {1, 1, 1, shapeAlongAxis, alongLines(softmax)},
	Linear:        {2, 3, 1, shapeOfLinear, evalLinear},
	MatMul:        {2, 2, 1, shapeOfMatMul, evalMatMul},
	GroupedMatMul: {3, 3, 1, shapeOfGroupedMatMul, evalGroupedMatMul},
	LayerNorm:     {1, 3, 1, shapeOfNorm, evalNorm(LayerNorm)},
	RMSNorm:       {1, 2, 1, shapeOfNorm, evalNorm(RMSNorm)},
	Attention:     {3, 4, 1, shapeOfAttention, evalAttention},
	Embedding:     {2, 2, 1, shapeOfEmbedding, evalEmbedding},
	Take:          {2, 9, 1, shapeOfTake, evalTake},
	TakeAlong:     {2, 2, 1, shapeOfTakeAlong, evalTakeAlong},
	PutAt:         {3, 10, 1, shapeOfPutAt, evalPutAt},
	IndexCopy:     {3, 3, 1, shapeOfIndexCopy, evalIndexCopy},
	IndexAdd:      {2, 2, 1, shapeOfIndexAdd, evalIndexAdd},
	BinCount:      {1, 1, 1, shapeOfBinCount, evalBinCount},
}

// operationOf returns the description of an operation. If there is no such operation, its field results is 0.
func operationOf(op Op) operation {
	if f := unary[op]; f != nil {
		return operation{1, 1, 1, sameShape, evalUnary(f)}
	}
	if f := binary[op]; f != nil {
		return operation{2, 2, 1, sameShapes, evalBinary(f)}
	}
	return operations[op]
}

// infer returns the number of a node's results and their shape, or an error if the operands do not fit.
func infer(n *Node) (results int, shape []int64, err error) {
	o := operationOf(n.Op)
	switch {
	case o.results == 0:
		return 0, nil, fmt.Errorf("there is no operation %q", n.Op)
	case len(n.In) < o.least || len(n.In) > o.most:
		return 0, nil, fmt.Errorf("it has %d operands", len(n.In))
	case slices.Contains(n.In, nil):
		return 0, nil, errors.New("an operand is no tensor")
	}
	shape, err = o.shape(n)
	return o.results, shape, err
}

// misfit returns the error that the operands of n do not fit each other.
func misfit(n *Node) ([]int64, error) {
	list := [][]int64{}
	for _, v := range n.In {
		list = append(list, v.Shape)
	}
	return nil, fmt.Errorf("operands %v do not fit", list)
}

func sameShape(n *Node) ([]int64, error) { return n.In[0].Shape, nil }

// sameShapes returns the shape to which all operands broadcast.
func sameShapes(n *Node) ([]int64, error) { return broadcastAll(n.In) }

func broadcastAll(list []*Value) (s []int64, err error) {
	for _, v := range list {
		if s, err = broadcastShapes(s, v.Shape); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func shapeOfReshape(n *Node) ([]int64, error) {
	have, err := count(n.In[0].Shape)
	if err != nil {
		return nil, err
	}
	want, err := count(n.Attrs.Shape)
	if err == nil && have != want {
		err = fmt.Errorf("%v has not as many elements as %v", n.In[0].Shape, n.Attrs.Shape)
	}
	return n.Attrs.Shape, err
}

// shapeOfTranspose returns the shape of the operand with its dimensions permuted.
func shapeOfTranspose(n *Node) ([]int64, error) {
	shape, perm := n.In[0].Shape, n.Attrs.Axes
	if !slices.Equal(slices.Sorted(slices.Values(perm)), Counting(len(shape))) {
		return nil, fmt.Errorf("%v is no order of the dimensions of %v", perm, shape)
	}
	return Pick(shape, perm), nil
}

func shapeOfBroadcast(n *Node) ([]int64, error) {
	if _, err := count(n.Attrs.Shape); err != nil {
		return nil, err
	}
	s, err := broadcastShapes(n.In[0].Shape, n.Attrs.Shape)
	if err == nil && !slices.Equal(s, n.Attrs.Shape) {
		err = fmt.Errorf("%v does not become %v", n.In[0].Shape, n.Attrs.Shape)
	}
	return s, err
}

func shapeOfSlice(n *Node) ([]int64, error) {
	x, a := n.In[0].Shape, &n.Attrs
	if err := axisIn(a.Axis, x); err != nil {
		return nil, err
	}
	if a.Step < 1 || a.Lo < 0 || a.Hi < a.Lo || a.Hi > x[a.Axis] {
		return nil, fmt.Errorf("%d..%d by %d is no part of dimension %d of %v", a.Lo, a.Hi, a.Step, a.Axis, x)
	}
	return WithExtent(x, a.Axis, (a.Hi-a.Lo+a.Step-1)/a.Step), nil
}

func shapeOfConcat(n *Node) ([]int64, error) {
	axis := n.Attrs.Axis
	if err := axisIn(axis, n.In[0].Shape); err != nil {
		return nil, err
	}
	s := slices.Clone(n.In[0].Shape)
	for _, v := range n.In[1:] {
		if len(v.Shape) != len(s) || !slices.Equal(WithExtent(v.Shape, axis, s[axis]), s) {
			return nil, fmt.Errorf("the shapes %v and %v cannot be concatenated", s, v.Shape)
		}
		s[axis] += v.Shape[axis]
	}
	return s, nil
}

func shapeAlongAxis(n *Node) ([]int64, error) {
	return n.In[0].Shape, axisIn(n.Attrs.Axis, n.In[0].Shape)
}

func shapeOfReduction(n *Node) ([]int64, error) {
	return reduced(n.In[0].Shape, n.Attrs.Axes, n.Attrs.Keep)
}

func shapeOfArgMax(n *Node) ([]int64, error) {
	return reduced(n.In[0].Shape, []int64{int64(n.Attrs.Axis)}, n.Attrs.Keep)
}

func shapeOfTopK(n *Node) ([]int64, error) {
	x, k := n.In[0].Shape, n.Attrs.K
	if k < 0 || k > Last(x) {
		return nil, fmt.Errorf("the %d largest of %v", k, x)
	}
	return WithExtent(x, len(x)-1, k), nil
}

func shapeOfBinCount(n *Node) ([]int64, error) {
	if n.Attrs.K < 1 || n.Attrs.K > 1<<24 {
		return nil, fmt.Errorf("%d bins", n.Attrs.K)
	}
	return []int64{n.Attrs.K}, nil
}

func shapeOfLinear(n *Node) ([]int64, error) {
	x, w := n.In[0].Shape, n.In[1].Shape
	if len(w) != 2 || Last(x) != w[1] || len(n.In) == 3 && !slices.Equal(n.In[2].Shape, w[:1]) {
		return misfit(n)
	}
	return WithExtent(x, len(x)-1, w[0]), nil
}

func shapeOfMatMul(n *Node) ([]int64, error) {
	x, y := n.In[0].Shape, n.In[1].Shape
	if len(x) < 2 || len(y) < 2 || Last(x) != y[len(y)-2] {
		return misfit(n)
	}
	s, err := broadcastShapes(x[:len(x)-2], y[:len(y)-2])
	if err != nil {
		return nil, err
	}
	return append(s, x[len(x)-2], Last(y)), nil
}

func shapeOfGroupedMatMul(n *Node) ([]int64, error) {
	x, w := n.In[0].Shape, n.In[1].Shape
	if len(x) != 2 || len(w) != 3 || w[1] != x[1] || !slices.Equal(n.In[2].Shape, w[:1]) {
		return misfit(n)
	}
	return []int64{x[0], w[2]}, nil
}

func shapeOfNorm(n *Node) ([]int64, error) {
	x := n.In[0].Shape
	if len(x) == 0 {
		return misfit(n)
	}
	for _, v := range n.In[1:] {
		if !slices.Equal(v.Shape, x[len(x)-1:]) {
			return misfit(n)
		}
	}
	return x, nil
}

func shapeOfAttention(n *Node) ([]int64, error) {
	q, k, v := n.In[0].Shape, n.In[1].Shape, n.In[2].Shape
	d := len(q)
	if d < 2 || len(k) != d || len(v) != d || k[d-1] != q[d-1] || k[d-2] != v[d-2] ||
		!slices.Equal(q[:d-2], k[:d-2]) || !slices.Equal(q[:d-2], v[:d-2]) {
		return misfit(n)
	}
	if len(n.In) == 4 {
		scores := WithExtent(q, d-1, k[d-2])
		s, err := broadcastShapes(n.In[3].Shape, scores)
		if err != nil || !slices.Equal(s, scores) {
			return misfit(n)
		}
	}
	return WithExtent(q, d-1, v[d-1]), nil
}

func shapeOfEmbedding(n *Node) ([]int64, error) {
	if len(n.In[0].Shape) != 2 {
		return misfit(n)
	}
	return slices.Concat(n.In[1].Shape, n.In[0].Shape[1:]), nil
}

func shapeOfIndexAdd(n *Node) ([]int64, error) {
	x, at := n.In[0].Shape, n.In[1].Shape
	if len(x) != 2 || len(at) != 1 || at[0] != x[0] || n.Attrs.K < 0 {
		return misfit(n)
	}
	return []int64{n.Attrs.K, x[1]}, nil
}

func shapeOfTake(n *Node) ([]int64, error) { return indexed(n, n.In[1:]) }

func shapeOfPutAt(n *Node) ([]int64, error) {
	s, err := indexed(n, n.In[2:])
	if err != nil {
		return nil, err
	}
	got, err := broadcastShapes(n.In[1].Shape, s)
	if err != nil || !slices.Equal(got, s) {
		return misfit(n)
	}
	return n.In[0].Shape, nil
}

// indexed returns the shape of the elements of the first operand that the indices at select.
func indexed(n *Node, at []*Value) ([]int64, error) {
	x := n.In[0].Shape
	if len(at) > len(x) {
		return misfit(n)
	}
	s, err := broadcastAll(at)
	if err != nil {
		return nil, err
	}
	return append(s, x[len(at):]...), nil
}

func shapeOfTakeAlong(n *Node) ([]int64, error) {
	x, i := n.In[0].Shape, n.In[1].Shape
	if err := axisIn(n.Attrs.Axis, x); err != nil || len(i) != len(x) {
		return misfit(n)
	}
	for d := range x {
		if d != n.Attrs.Axis && i[d] > x[d] {
			return misfit(n)
		}
	}
	return i, nil
}

func shapeOfIndexCopy(n *Node) ([]int64, error) {
	x, at, rows := n.In[0].Shape, n.In[1].Shape, n.In[2].Shape
	if axisIn(n.Attrs.Axis, x) != nil || len(rows) != len(x) || len(at) != 1 ||
		!slices.Equal(WithExtent(x, n.Attrs.Axis, at[0]), rows) {
		return misfit(n)
	}
	return x, nil
}

func axisIn(axis int, shape []int64) error {
	if axis < 0 || axis >= len(shape) {
		return fmt.Errorf("%v has no dimension %d", shape, axis)
	}
	return nil
}

// broadcastShapes returns the shape to which two shapes broadcast, by numpy's rules.
func broadcastShapes(a, b []int64) ([]int64, error) {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, d := range b {
		j := len(a) - len(b) + i
		switch {
		case out[j] == 1:
			out[j] = d
		case d != 1 && d != out[j]:
			return nil, fmt.Errorf("the shapes %v and %v do not broadcast to one shape", a, b)
		}
	}
	return out, nil
}

// reduced returns a shape without the given dimensions. If keep is set, the given dimensions remain with extent 1.
func reduced(shape, axes []int64, keep bool) ([]int64, error) {
	for _, d := range axes {
		if d < 0 || d >= int64(len(shape)) {
			return nil, fmt.Errorf("%v has no dimension %d", shape, d)
		}
	}
	out := []int64{}
	for i, d := range shape {
		switch {
		case !slices.Contains(axes, int64(i)):
			out = append(out, d)
		case keep:
			out = append(out, 1)
		}
	}
	return out, nil
}
