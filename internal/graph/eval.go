package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Tensor is a dense tensor whose elements are stored as float64. The elements are rounded to DType; the elements of a
// Bool are 0 and 1.
type Tensor struct {
	DType DType
	Shape []int64
	Elems []float64
}

// NewTensor returns a tensor of zeros.
func NewTensor(dt DType, shape []int64) *Tensor {
	n, _ := count(shape)
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Elems: make([]float64, n)}
}

// As returns t converted to another type.
func (t *Tensor) As(dt DType) *Tensor {
	u := NewTensor(dt, t.Shape)
	for i, x := range t.Elems {
		if !dt.IsFloat() && dt != Bool {
			x = math.Trunc(x)
		}
		u.Elems[i] = round(dt, x)
	}
	return u
}

// Uniform returns the value that all elements of t have. If the elements differ, ok is false.
func (t *Tensor) Uniform() (x float64, ok bool) {
	if len(t.Elems) == 0 {
		return 0, false
	}
	for _, x := range t.Elems {
		if x != t.Elems[0] {
			return 0, false
		}
	}
	return t.Elems[0], true
}

// round returns the element of type dt nearest to x.
func round(dt DType, x float64) float64 {
	switch dt {
	case F64, I64:
		return x
	case F32:
		return float64(float32(x))
	case Bool:
		if x != 0 {
			return 1
		}
		return 0
	}
	if k, ok := ir.ParseDType(string(dt)); ok {
		return tensor.Round(k, x)
	}
	return x
}

// ErrTooLarge is wrapped by errors about a computation that would need more elements than it is allowed.
var ErrTooLarge = errors.New("too many elements to compute")

// Folder computes values that depend only on constants.
type Folder struct {
	// Elems is the maximum total number of elements that the computed values may have.
	Elems int64

	known    map[*Value]*Tensor
	constant map[*Value]bool
}

// IsConstant reports whether v depends only on constants.
func (f *Folder) IsConstant(v *Value) bool {
	if v.Node == nil {
		return v.Leaf == Constant
	}
	if is, ok := f.constant[v]; ok {
		return is
	}
	if f.constant == nil {
		f.constant = map[*Value]bool{}
	}
	is := v.Node.Op != AllReduce // its result depends on the number of ranks
	for _, w := range v.Node.In {
		if !f.IsConstant(w) {
			is = false
			break
		}
	}
	f.constant[v] = is
	return is
}

// Value returns the elements of v, for which IsConstant must hold. The caller must not change the result.
func (f *Folder) Value(v *Value) (*Tensor, error) {
	if f.known == nil {
		f.known = map[*Value]*Tensor{}
	}
	return compute(v, f.known, &f.Elems)
}

// Eval computes the outputs of g. given maps the inputs, weights and states to their tensors; Eval replaces the states
// with their values after the call.
func Eval(g *Graph, given map[*Value]*Tensor) ([]*Tensor, error) {
	known := map[*Value]*Tensor{}
	for v, t := range given {
		if t.DType != v.DType || !slices.Equal(t.Shape, v.Shape) {
			return nil, fmt.Errorf("%s is %s%v, want %s", v.Name, t.DType, t.Shape, v)
		}
		known[v] = t
	}
	elems := int64(math.MaxInt64)
	for _, n := range g.Nodes { // nodes are computed in the order of the graph, so that compute does not recurse deeply
		if _, err := compute(n.Out[0], known, &elems); err != nil {
			return nil, err
		}
	}
	var out []*Tensor
	for _, v := range g.Outputs {
		t, err := compute(v, known, &elems)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	left := make([]*Tensor, len(g.Updates))
	for i, u := range g.Updates {
		var err error
		if left[i], err = compute(u.To, known, &elems); err != nil {
			return nil, err
		}
	}
	for i, u := range g.Updates {
		given[u.State] = left[i]
	}
	return out, nil
}

// compute returns the tensor of v, and computes it if it is not known yet. It first computes the nodes on which v
// depends.
func compute(v *Value, known map[*Value]*Tensor, elems *int64) (*Tensor, error) {
	if t := known[v]; t != nil {
		return t, nil
	}
	if v.Node == nil {
		if v.Leaf == Constant {
			return v.Data, nil
		}
		return nil, fmt.Errorf("%s is not given", v.Name)
	}
	// need lists the nodes that are not computed yet, in the order of the graph.
	var need []*Node
	seen := map[*Node]bool{}
	stack := []*Node{v.Node}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[n] || known[n.Out[0]] != nil {
			continue
		}
		seen[n] = true
		need = append(need, n)
		for _, w := range n.In {
			if w.Node != nil {
				stack = append(stack, w.Node)
			}
		}
	}
	sort.Slice(need, func(i, j int) bool { return need[i].Order < need[j].Order })
	for _, n := range need {
		in := make([]*Tensor, len(n.In))
		for i, w := range n.In {
			t := known[w]
			if t == nil && w.Leaf == Constant {
				t = w.Data
			}
			if t == nil {
				return nil, fmt.Errorf("%s is not given", w.Name)
			}
			in[i] = t
		}
		for _, w := range n.Out {
			if *elems -= w.Count(); *elems < 0 {
				return nil, fmt.Errorf("%s: %w", n.From, ErrTooLarge)
			}
		}
		out, err := evalNode(n, in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.From, err)
		}
		for i, t := range out {
			known[n.Out[i]] = t
		}
	}
	return known[v], nil
}

var unary = map[Op]func(x float64) float64{
	Neg: func(x float64) float64 { return -x }, Exp: math.Exp, Log: math.Log, Sin: math.Sin, Cos: math.Cos,
	Tanh: math.Tanh, Sqrt: math.Sqrt, Rsqrt: func(x float64) float64 { return 1 / math.Sqrt(x) },
	Sigmoid: sigmoid, SiLU: func(x float64) float64 { return x * sigmoid(x) },
	GELU: func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) },
	GELUTanh: func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	},
	ReLU: func(x float64) float64 { return math.Max(x, 0) },
	Softplus: func(x float64) float64 {
		return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
	},
	Erf: math.Erf, Abs: math.Abs, Floor: math.Floor, Not: func(x float64) float64 { return truth(x == 0) },
	Cast: func(x float64) float64 { return x }, Reshard: func(x float64) float64 { return x },
	AllReduce: func(x float64) float64 { return x },
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var binary = map[Op]func(a, b float64) float64{
	AddOp: func(a, b float64) float64 { return a + b }, Sub: func(a, b float64) float64 { return a - b },
	Mul: func(a, b float64) float64 { return a * b }, Div: func(a, b float64) float64 { return a / b },
	FloorDiv: func(a, b float64) float64 { return math.Floor(a / b) },
	Rem:      func(a, b float64) float64 { return a - math.Floor(a/b)*b },
	Pow:      math.Pow, Max: math.Max, Min: math.Min,
	And: func(a, b float64) float64 { return truth(a != 0 && b != 0) },
	Or:  func(a, b float64) float64 { return truth(a != 0 || b != 0) },
	Eq:  func(a, b float64) float64 { return truth(a == b) }, Ne: func(a, b float64) float64 { return truth(a != b) },
	Lt: func(a, b float64) float64 { return truth(a < b) }, Le: func(a, b float64) float64 { return truth(a <= b) },
	Gt: func(a, b float64) float64 { return truth(a > b) }, Ge: func(a, b float64) float64 { return truth(a >= b) },
}

// strides returns the row-major strides of shape. The strides are 0 in the dimensions in which shape is broadcast to
// out.
func strides(shape, out []int64) []int64 {
	s := make([]int64, len(out))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		j := len(out) - len(shape) + i
		if shape[i] != 1 {
			s[j] = step
		}
		step *= shape[i]
	}
	return s
}

// each is an iterator: for every element of a shape, in row-major order, it calls f with the offsets of the operands'
// elements. Each operand is given by its strides.
func each(shape []int64, f func(at []int64), operands ...[]int64) {
	n, _ := count(shape)
	at := make([]int64, len(operands))
	idx := make([]int64, len(shape))
	for range n {
		f(at)
		for d := len(shape) - 1; d >= 0; d-- {
			idx[d]++
			for k, s := range operands {
				at[k] += s[d]
			}
			if idx[d] < shape[d] {
				break
			}
			for k, s := range operands {
				at[k] -= s[d] * shape[d]
			}
			idx[d] = 0
		}
	}
}

// evalNode computes the results of a node.
func evalNode(n *Node, in []*Tensor) ([]*Tensor, error) {
	out := make([]*Tensor, len(n.Out))
	for i, v := range n.Out {
		out[i] = NewTensor(v.DType, v.Shape)
	}
	y, a := out[0], &n.Attrs
	i := 0
	put := func(x float64) { y.Elems[i] = round(y.DType, x); i++ }
	switch {
	case isUnary[n.Op]:
		f := unary[n.Op]
		for _, x := range in[0].Elems {
			if n.Op == Cast && !y.DType.IsFloat() && y.DType != Bool {
				x = math.Trunc(x)
			}
			put(f(x))
		}
		return out, nil
	case isBinary[n.Op]:
		f := binary[n.Op]
		each(y.Shape, func(at []int64) { put(f(in[0].Elems[at[0]], in[1].Elems[at[1]])) },
			strides(in[0].Shape, y.Shape), strides(in[1].Shape, y.Shape))
		return out, nil
	case isReduce[n.Op]:
		reduce(n, in[0], y)
		return out, nil
	}
	switch n.Op {
	case Where:
		each(y.Shape, func(at []int64) {
			if in[0].Elems[at[0]] != 0 {
				put(in[1].Elems[at[1]])
			} else {
				put(in[2].Elems[at[2]])
			}
		}, strides(in[0].Shape, y.Shape), strides(in[1].Shape, y.Shape), strides(in[2].Shape, y.Shape))
	case Reshape:
		copy(y.Elems, in[0].Elems)
	case Broadcast:
		each(y.Shape, func(at []int64) { put(in[0].Elems[at[0]]) }, strides(in[0].Shape, y.Shape))
	case Transpose:
		s := tensor.Strides(in[0].Shape)
		t := make([]int64, len(s))
		for d, p := range a.Axes {
			t[d] = s[p]
		}
		each(y.Shape, func(at []int64) { put(in[0].Elems[at[0]]) }, t)
	case SliceOp:
		s := tensor.Strides(in[0].Shape)
		from := a.Lo * s[a.Axis]
		s[a.Axis] *= a.Step
		each(y.Shape, func(at []int64) { put(in[0].Elems[from+at[0]]) }, s)
	case Concat:
		lines(y.Shape, a.Axis, func(outer, inner, size int64) {
			at := int64(0)
			for _, x := range in {
				k := x.Shape[a.Axis] * inner
				copy(y.Elems[outer*size*inner+at:][:k], x.Elems[outer*k:][:k])
				at += k
			}
		})
	default:
		return out, evalLine(n, in, out)
	}
	return out, nil
}

// lines calls f for every index of the dimensions before axis. size is the extent of axis, and inner is the number of
// elements for one index of axis.
func lines(shape []int64, axis int, f func(outer, inner, size int64)) {
	outer, inner := int64(1), int64(1)
	for d, e := range shape {
		if d < axis {
			outer *= e
		} else if d > axis {
			inner *= e
		}
	}
	for o := range outer {
		f(o, inner, shape[axis])
	}
}

// reduce computes a reduction along some dimensions.
func reduce(n *Node, x, y *Tensor) {
	kept, _ := reduced(x.Shape, n.Attrs.Axes, true)
	s := strides(kept, x.Shape)
	for d := range s {
		if kept[d] == 1 && x.Shape[d] != 1 {
			s[d] = 0
		}
	}
	first := make([]bool, len(y.Elems))
	i := 0
	each(x.Shape, func(at []int64) {
		v, to := x.Elems[i], &y.Elems[at[0]]
		i++
		switch {
		case n.Op == SumOp || n.Op == Mean:
			*to += v
		case !first[at[0]] || math.IsNaN(v):
			*to = v
		case n.Op == MaxOf:
			*to = math.Max(*to, v)
		default:
			*to = math.Min(*to, v)
		}
		first[at[0]] = true
	}, s)
	per := 1.0
	if n.Op == Mean && len(y.Elems) > 0 {
		per = float64(len(x.Elems)) / float64(len(y.Elems))
	}
	for i, v := range y.Elems {
		y.Elems[i] = round(y.DType, v/per)
	}
}

// evalLine computes operations that work along one dimension, and operations that contract or index.
func evalLine(n *Node, in, out []*Tensor) error {
	x, y, a := in[0], out[0], &n.Attrs
	switch n.Op {
	case Cumsum, Softmax, ArgMax, SortOp:
		lines(x.Shape, a.Axis, func(outer, inner, size int64) {
			for j := range inner {
				at := func(i int64) int64 { return (outer*size+i)*inner + j }
				alongLine(n, x, out, size, at, outer*inner+j)
			}
		})
		return nil
	case TopK:
		last := x.Shape[len(x.Shape)-1]
		for r := range int64(len(x.Elems)) / max(last, 1) {
			order := sorted(last, true, func(i int64) float64 { return x.Elems[r*last+i] })
			for k := range a.K {
				y.Elems[r*a.K+k] = x.Elems[r*last+order[k]]
				out[1].Elems[r*a.K+k] = float64(order[k])
			}
		}
		return nil
	case BinCount:
		for _, v := range x.Elems {
			if i := int64(v); v >= 0 && i < a.K {
				y.Elems[i]++
			}
		}
		return nil
	case LayerNorm, RMSNorm:
		norm(n, in, y)
		return nil
	case Linear, MatMul, GroupedMatMul:
		return contract(n, in, y)
	case Attention:
		attend(n, in, y)
		return nil
	}
	return index(n, in, y)
}

// alongLine computes the results for one line of x. at(i) is the offset of its element i, and line
// is its number.
func alongLine(n *Node, x *Tensor, out []*Tensor, size int64, at func(int64) int64, line int64) {
	y := out[0]
	switch n.Op {
	case Cumsum:
		sum := 0.0
		for i := range size {
			sum += x.Elems[at(i)]
			y.Elems[at(i)] = round(y.DType, sum)
		}
	case Softmax:
		most, sum := math.Inf(-1), 0.0
		for i := range size {
			most = math.Max(most, x.Elems[at(i)])
		}
		for i := range size {
			sum += math.Exp(x.Elems[at(i)] - most)
		}
		for i := range size {
			y.Elems[at(i)] = round(y.DType, math.Exp(x.Elems[at(i)]-most)/sum)
		}
	case ArgMax:
		best := int64(0)
		for i := range size {
			if x.Elems[at(i)] > x.Elems[at(best)] {
				best = i
			}
		}
		y.Elems[line] = float64(best)
	case SortOp:
		for i, from := range sorted(size, n.Attrs.Desc, func(i int64) float64 { return x.Elems[at(i)] }) {
			y.Elems[at(int64(i))] = x.Elems[at(from)]
			out[1].Elems[at(int64(i))] = float64(from)
		}
	}
}

// sorted returns the indices below n sorted by their values. The sort is stable.
func sorted(n int64, desc bool, value func(int64) float64) []int64 {
	order := make([]int64, n)
	for i := range order {
		order[i] = int64(i)
	}
	sort.SliceStable(order, func(i, j int) bool {
		if desc {
			return value(order[i]) > value(order[j])
		}
		return value(order[i]) < value(order[j])
	})
	return order
}

// norm computes layer_norm and rms_norm.
func norm(n *Node, in []*Tensor, y *Tensor) {
	x := in[0]
	d := x.Shape[len(x.Shape)-1]
	for r := range int64(len(x.Elems)) / max(d, 1) {
		row, mean, square := x.Elems[r*d:][:d], 0.0, 0.0
		if n.Op == LayerNorm {
			for _, v := range row {
				mean += v / float64(d)
			}
		}
		for _, v := range row {
			square += (v - mean) * (v - mean) / float64(d)
		}
		for i, v := range row {
			v = (v - mean) / math.Sqrt(square+n.Attrs.Eps)
			if len(in) > 1 {
				v *= in[1].Elems[i]
			}
			if len(in) > 2 {
				v += in[2].Elems[i]
			}
			y.Elems[r*d+int64(i)] = round(y.DType, v)
		}
	}
}

// contract computes matrix products.
func contract(n *Node, in []*Tensor, y *Tensor) error {
	x, w := in[0], in[1]
	k := x.Shape[len(x.Shape)-1]
	cols := y.Shape[len(y.Shape)-1]
	dot := func(row []float64, from []float64, step int64) float64 {
		sum := 0.0
		for i, v := range row {
			sum += v * from[int64(i)*step]
		}
		return sum
	}
	switch n.Op {
	case Linear:
		for i := range y.Elems {
			r, c := int64(i)/cols, int64(i)%cols
			v := 0.0
			if k > 0 {
				v = dot(x.Elems[r*k:][:k], w.Elems[c*k:], 1)
			}
			if len(in) == 3 {
				v += in[2].Elems[c]
			}
			y.Elems[i] = round(y.DType, v)
		}
	case MatMul:
		nx, nw, ny := len(x.Shape)-2, len(w.Shape)-2, len(y.Shape)-2
		rows, batch := y.Shape[ny], int64(0)
		if k == 0 || cols == 0 || rows == 0 {
			return nil
		}
		each(y.Shape[:ny], func(at []int64) {
			for r := range rows {
				for c := range cols {
					v := dot(x.Elems[at[0]*rows*k+r*k:][:k], w.Elems[at[1]*k*cols+c:], cols)
					y.Elems[(batch*rows+r)*cols+c] = round(y.DType, v)
				}
			}
			batch++
		}, strides(x.Shape[:nx], y.Shape[:ny]), strides(w.Shape[:nw], y.Shape[:ny]))
	case GroupedMatMul:
		from := int64(0)
		for e, end := range in[2].Elems {
			if end < float64(from) || end > float64(x.Shape[0]) {
				return fmt.Errorf("group %d ends at row %v of %d", e, end, x.Shape[0])
			}
			for ; from < int64(end) && k > 0; from++ {
				for c := range cols {
					v := dot(x.Elems[from*k:][:k], w.Elems[int64(e)*k*cols+c:], cols)
					y.Elems[from*cols+c] = round(y.DType, v)
				}
			}
		}
	}
	return nil
}

// attend computes attention.
func attend(n *Node, in []*Tensor, y *Tensor) {
	q, k, v := in[0], in[1], in[2]
	d := len(q.Shape)
	tq, tk, dim, dv := q.Shape[d-2], k.Shape[d-2], q.Shape[d-1], v.Shape[d-1]
	scores := append(slices.Clone(q.Shape[:d-1]), tk)
	var mask *Tensor
	var ms []int64
	if len(in) == 4 {
		mask, ms = in[3], strides(in[3].Shape, scores)
	} else {
		ms = make([]int64, d)
	}
	s := make([]float64, tk)
	row := int64(0)
	each(q.Shape[:d-1], func(at []int64) {
		head, i := row/tq, row%tq
		most, sum := math.Inf(-1), 0.0
		for j := range tk {
			s[j] = 0
			for e := range dim {
				s[j] += q.Elems[row*dim+e] * k.Elems[(head*tk+j)*dim+e]
			}
			s[j] *= n.Attrs.Scale
			if c := n.Attrs.Softcap; c != 0 {
				s[j] = c * math.Tanh(s[j]/c)
			}
			if n.Attrs.Causal && j > i {
				s[j] = math.Inf(-1)
			}
			if mask != nil {
				m := mask.Elems[at[0]+j*ms[d-1]]
				switch {
				case mask.DType != Bool:
					s[j] += m
				case m == 0:
					s[j] = math.Inf(-1)
				}
			}
			most = math.Max(most, s[j])
		}
		for j := range tk {
			if s[j] = math.Exp(s[j] - most); math.IsInf(most, -1) {
				s[j] = 0
			}
			sum += s[j]
		}
		for e := range dv {
			total := 0.0
			for j := range tk {
				total += s[j] * v.Elems[(head*tk+j)*dv+e]
			}
			if sum > 0 {
				total /= sum
			}
			y.Elems[row*dv+e] = round(y.DType, total)
		}
		row++
	}, ms[:d-1])
}

// index computes operations that read or write elements by index.
func index(n *Node, in []*Tensor, y *Tensor) error {
	x, a := in[0], &n.Attrs
	place := func(v float64, size int64) (int64, error) {
		i := int64(v)
		if i < 0 {
			i += size
		}
		if i < 0 || i >= size {
			return 0, fmt.Errorf("index %v of %d elements", v, size)
		}
		return i, nil
	}
	switch n.Op {
	case Embedding:
		d := x.Shape[1]
		for r, v := range in[1].Elems {
			i, err := place(v, x.Shape[0])
			if err != nil {
				return err
			}
			copy(y.Elems[int64(r)*d:][:d], x.Elems[i*d:][:d])
		}
		return nil
	case IndexAdd:
		d := x.Shape[1]
		for r, v := range in[1].Elems {
			i := int64(v)
			if i < -1 || i >= a.K {
				return fmt.Errorf("index %v of %d elements", v, a.K)
			}
			for j := range d {
				if i >= 0 {
					y.Elems[i*d+j] += x.Elems[int64(r)*d+j]
				}
			}
		}
		return nil
	case Take, PutAt:
		return takeOrPut(n, in, y, place)
	case TakeAlong:
		s := tensor.Strides(x.Shape)
		step := s[a.Axis]
		s[a.Axis] = 0
		var failed error
		i := 0
		each(y.Shape, func(at []int64) {
			j, err := place(in[1].Elems[i], x.Shape[a.Axis])
			if err != nil {
				failed = err
				return
			}
			y.Elems[i] = x.Elems[at[0]+j*step]
			i++
		}, s)
		return failed
	case IndexCopy:
		copy(y.Elems, x.Elems)
		rows := in[2]
		var failed error
		lines(x.Shape, a.Axis, func(outer, inner, size int64) {
			for r, v := range in[1].Elems {
				j, err := place(v, size)
				if err != nil {
					failed = err
					return
				}
				from := (outer*int64(len(in[1].Elems)) + int64(r)) * inner
				copy(y.Elems[(outer*size+j)*inner:][:inner], rows.Elems[from:][:inner])
			}
		})
		return failed
	}
	return fmt.Errorf("%s is not computed", n.Op)
}

// takeOrPut reads or writes x[i0, i1, …].
func takeOrPut(n *Node, in []*Tensor, y *Tensor, place func(float64, int64) (int64, error)) error {
	x, at := in[0], in[1:]
	if n.Op == PutAt {
		at = in[2:]
		copy(y.Elems, x.Elems)
	}
	var shape []int64
	for _, t := range at {
		shape, _ = broadcastShapes(shape, t.Shape)
	}
	inner := int64(1)
	for _, d := range x.Shape[len(at):] {
		inner *= d
	}
	all := make([][]int64, len(at))
	for k, t := range at {
		all[k] = strides(t.Shape, shape)
	}
	rest := append(slices.Clone(shape), x.Shape[len(at):]...)
	var from []int64
	if n.Op == PutAt {
		from = strides(in[1].Shape, rest)
	}
	var failed error
	row := int64(0)
	var rows []int64 // for each indexed row, its offset in x
	each(shape, func(o []int64) {
		to := int64(0)
		for k, t := range at {
			i, err := place(t.Elems[o[k]], x.Shape[k])
			if err != nil {
				failed = err
				return
			}
			to = to*x.Shape[k] + i
		}
		if n.Op == Take {
			copy(y.Elems[row*inner:][:inner], x.Elems[to*inner:][:inner])
		}
		rows = append(rows, to*inner)
		row++
	}, all...)
	if failed != nil || n.Op == Take || inner == 0 {
		return failed
	}
	i := int64(0)
	each(rest, func(o []int64) {
		y.Elems[rows[i/inner]+i%inner] = round(y.DType, in[1].Elems[o[0]])
		i++
	}, from)
	return nil
}
