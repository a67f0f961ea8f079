package graph

import (
	"errors"
	"fmt"
	"slices"
)

// operands maps each operation to its minimum and maximum number of operands.
var operands = map[Op][2]int{
	Where: {3, 3}, Concat: {1, 1 << 16}, Linear: {2, 3}, MatMul: {2, 2}, GroupedMatMul: {3, 3}, LayerNorm: {1, 3},
	RMSNorm: {1, 2}, Attention: {3, 4}, Embedding: {2, 2}, Take: {2, 9}, TakeAlong: {2, 2}, PutAt: {3, 10},
	IndexCopy: {3, 3}, IndexAdd: {2, 2},
}

// isUnary and isBinary are the sets of elementwise operations.
var (
	isUnary = set(Neg, Exp, Log, Sin, Cos, Tanh, Sqrt, Rsqrt, Sigmoid, SiLU, GELU, GELUTanh, ReLU, Softplus, Erf, Abs,
		Floor, Not, Cast, Reshard, AllReduce)
	isBinary = set(AddOp, Sub, Mul, Div, FloorDiv, Rem, Pow, Max, Min, And, Or, Eq, Ne, Lt, Le, Gt, Ge)
	isReduce = set(SumOp, Mean, MaxOf, MinOf)
)

func set(ops ...Op) map[Op]bool {
	m := map[Op]bool{}
	for _, op := range ops {
		m[op] = true
	}
	return m
}

// infer returns the shapes of a node's results, or an error if the operands do not fit.
func infer(n *Node) ([][]int64, error) {
	most, ok := operands[n.Op]
	switch {
	case isBinary[n.Op]:
		most = [2]int{2, 2}
	case !ok:
		most = [2]int{1, 1}
	}
	if len(n.In) < most[0] || len(n.In) > most[1] {
		return nil, fmt.Errorf("it has %d operands", len(n.In))
	}
	if slices.Contains(n.In, nil) {
		return nil, errors.New("an operand is no tensor")
	}
	x := n.In[0].Shape
	one := func(s []int64, err error) ([][]int64, error) { return [][]int64{s}, err }
	a := &n.Attrs
	switch {
	case isUnary[n.Op]:
		return one(slices.Clone(x), nil)
	case isBinary[n.Op] || n.Op == Where:
		s := x
		var err error
		for _, v := range n.In[1:] {
			if s, err = broadcastShapes(s, v.Shape); err != nil {
				return nil, err
			}
		}
		return one(slices.Clone(s), nil)
	case isReduce[n.Op]:
		return one(reduced(x, a.Axes, a.Keep))
	}
	switch n.Op {
	case Reshape:
		have, err := count(x)
		if err != nil {
			return nil, err
		}
		want, err := count(a.Shape)
		if err == nil && have != want {
			err = fmt.Errorf("%v has not as many elements as %v", x, a.Shape)
		}
		return one(slices.Clone(a.Shape), err)
	case Transpose:
		return one(permuted(x, a.Axes))
	case Broadcast:
		if _, err := count(a.Shape); err != nil {
			return nil, err
		}
		s, err := broadcastShapes(x, a.Shape)
		if err == nil && !slices.Equal(s, a.Shape) {
			err = fmt.Errorf("%v does not become %v", x, a.Shape)
		}
		return one(s, err)
	case SliceOp:
		if err := axisIn(a.Axis, x); err != nil {
			return nil, err
		}
		if a.Step < 1 || a.Lo < 0 || a.Hi < a.Lo || a.Hi > x[a.Axis] {
			return nil, fmt.Errorf("%d..%d by %d is no part of dimension %d of %v", a.Lo, a.Hi, a.Step, a.Axis, x)
		}
		s := slices.Clone(x)
		s[a.Axis] = (a.Hi - a.Lo + a.Step - 1) / a.Step
		return one(s, nil)
	case Concat:
		if err := axisIn(a.Axis, x); err != nil {
			return nil, err
		}
		s := slices.Clone(x)
		for _, v := range n.In[1:] {
			if len(v.Shape) != len(s) {
				return nil, fmt.Errorf("the shapes %v and %v cannot be concatenated", s, v.Shape)
			}
			for i := range s {
				if i != a.Axis && s[i] != v.Shape[i] {
					return nil, fmt.Errorf("the shapes %v and %v cannot be concatenated", s, v.Shape)
				}
			}
			s[a.Axis] += v.Shape[a.Axis]
		}
		return one(s, nil)
	case Cumsum, Softmax:
		return one(slices.Clone(x), axisIn(a.Axis, x))
	case ArgMax:
		if err := axisIn(a.Axis, x); err != nil {
			return nil, err
		}
		return one(reduced(x, []int64{int64(a.Axis)}, a.Keep))
	case SortOp:
		return [][]int64{slices.Clone(x), slices.Clone(x)}, axisIn(a.Axis, x)
	case TopK:
		if len(x) == 0 || a.K < 0 || a.K > x[len(x)-1] {
			return nil, fmt.Errorf("the %d largest of %v", a.K, x)
		}
		s := slices.Clone(x)
		s[len(s)-1] = a.K
		return [][]int64{s, slices.Clone(s)}, nil
	case BinCount:
		if a.K < 1 || a.K > 1<<24 {
			return nil, fmt.Errorf("%d bins", a.K)
		}
		return one([]int64{a.K}, nil)
	}
	return inferContraction(n)
}

// inferContraction is infer for operations that contract or index.
func inferContraction(n *Node) ([][]int64, error) {
	x, a := n.In[0].Shape, &n.Attrs
	one := func(s []int64, err error) ([][]int64, error) { return [][]int64{s}, err }
	wrong := func() ([][]int64, error) {
		list := [][]int64{}
		for _, v := range n.In {
			list = append(list, v.Shape)
		}
		return nil, fmt.Errorf("operands %v do not fit", list)
	}
	last := int64(-1)
	if len(x) > 0 {
		last = x[len(x)-1]
	}
	switch n.Op {
	case Linear:
		w := n.In[1].Shape
		if len(w) != 2 || last != w[1] || len(n.In) == 3 && !slices.Equal(n.In[2].Shape, w[:1]) {
			return wrong()
		}
		return one(append(slices.Clone(x[:len(x)-1]), w[0]), nil)
	case MatMul:
		y := n.In[1].Shape
		if len(x) < 2 || len(y) < 2 || last != y[len(y)-2] {
			return wrong()
		}
		s, err := broadcastShapes(x[:len(x)-2], y[:len(y)-2])
		if err != nil {
			return nil, err
		}
		return one(append(slices.Clone(s), x[len(x)-2], y[len(y)-1]), nil)
	case GroupedMatMul:
		w := n.In[1].Shape
		if len(x) != 2 || len(w) != 3 || w[1] != last || !slices.Equal(n.In[2].Shape, w[:1]) {
			return wrong()
		}
		return one([]int64{x[0], w[2]}, nil)
	case LayerNorm, RMSNorm:
		for _, v := range n.In[1:] {
			if len(v.Shape) != 1 || v.Shape[0] != last {
				return wrong()
			}
		}
		if last < 0 {
			return wrong()
		}
		return one(slices.Clone(x), nil)
	case Attention:
		k, v := n.In[1].Shape, n.In[2].Shape
		d := len(x)
		if d < 2 || len(k) != d || len(v) != d || k[d-1] != last || k[d-2] != v[d-2] ||
			!slices.Equal(x[:d-2], k[:d-2]) || !slices.Equal(x[:d-2], v[:d-2]) {
			return wrong()
		}
		if len(n.In) == 4 {
			scores := append(slices.Clone(x[:d-1]), k[d-2])
			s, err := broadcastShapes(n.In[3].Shape, scores)
			if err != nil || !slices.Equal(s, scores) {
				return wrong()
			}
		}
		return one(append(slices.Clone(x[:d-1]), v[d-1]), nil)
	case Embedding:
		if len(x) != 2 {
			return wrong()
		}
		return one(append(slices.Clone(n.In[1].Shape), x[1]), nil)
	case IndexAdd:
		if at := n.In[1].Shape; len(x) != 2 || len(at) != 1 || at[0] != x[0] || a.K < 0 {
			return wrong()
		}
		return one([]int64{a.K, x[1]}, nil)
	case Take, PutAt:
		at := n.In[1:]
		if n.Op == PutAt {
			at = n.In[2:]
		}
		if len(at) > len(x) {
			return wrong()
		}
		var s []int64
		var err error
		for _, i := range at {
			if s, err = broadcastShapes(s, i.Shape); err != nil {
				return nil, err
			}
		}
		s = append(slices.Clone(s), x[len(at):]...)
		if n.Op == Take {
			return one(s, nil)
		}
		got, err := broadcastShapes(n.In[1].Shape, s)
		if err != nil || !slices.Equal(got, s) {
			return wrong()
		}
		return one(slices.Clone(x), nil)
	case TakeAlong:
		i := n.In[1].Shape
		if err := axisIn(a.Axis, x); err != nil || len(i) != len(x) {
			return wrong()
		}
		for d := range x {
			if d != a.Axis && i[d] > x[d] {
				return wrong()
			}
		}
		return one(slices.Clone(i), nil)
	case IndexCopy:
		at, rows := n.In[1].Shape, n.In[2].Shape
		if err := axisIn(a.Axis, x); err != nil || len(rows) != len(x) || len(at) != 1 || rows[a.Axis] != at[0] {
			return wrong()
		}
		for d := range x {
			if d != a.Axis && rows[d] != x[d] {
				return wrong()
			}
		}
		return one(slices.Clone(x), nil)
	}
	return nil, fmt.Errorf("there is no operation %q", n.Op)
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
	out := []int64{}
	for _, d := range axes {
		if d < 0 || d >= int64(len(shape)) {
			return nil, fmt.Errorf("%v has no dimension %d", shape, d)
		}
	}
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

// permuted returns a shape with its dimensions permuted.
func permuted(shape, perm []int64) ([]int64, error) {
	sorted := slices.Sorted(slices.Values(perm))
	if len(perm) != len(shape) {
		return nil, fmt.Errorf("%v is no order of the dimensions of %v", perm, shape)
	}
	out := make([]int64, len(shape))
	for i, p := range sorted {
		if p != int64(i) {
			return nil, fmt.Errorf("%v is no order of the dimensions of %v", perm, shape)
		}
		out[i] = shape[perm[i]]
	}
	return out, nil
}
