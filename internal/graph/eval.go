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
		u.put(i, x)
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

// put stores x, rounded to t's type, as element i.
func (t *Tensor) put(i int, x float64) { t.Elems[i] = round(t.DType, x) }

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
	for _, n := range pending(v.Node, known) {
		in := make([]*Tensor, len(n.In))
		for i, w := range n.In {
			if in[i] = known[w]; in[i] == nil && w.Leaf == Constant {
				in[i] = w.Data
			}
			if in[i] == nil {
				return nil, fmt.Errorf("%s is not given", w.Name)
			}
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

// pending lists, in the order of the graph, the nodes that must be computed for n and are not known yet.
func pending(n *Node, known map[*Value]*Tensor) []*Node {
	var need []*Node
	seen := map[*Node]bool{}
	stack := []*Node{n}
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
	slices.SortFunc(need, func(a, b *Node) int { return a.Order - b.Order })
	return need
}

// unary holds the elementwise operations with one operand.
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
	Reshard: func(x float64) float64 { return x }, AllReduce: func(x float64) float64 { return x },
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// binary holds the elementwise operations with two operands.
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
	return out, operationOf(n.Op).eval(&n.Attrs, in, out)
}

// evalUnary returns an evaluator that applies f to each element.
func evalUnary(f func(x float64) float64) evaluator {
	return func(_ *Attrs, in, out []*Tensor) error {
		for i, x := range in[0].Elems {
			out[0].put(i, f(x))
		}
		return nil
	}
}

// evalBinary returns an evaluator that applies f to each pair of elements.
func evalBinary(f func(a, b float64) float64) evaluator {
	return func(_ *Attrs, in, out []*Tensor) error {
		return evalBroadcasting(in, out, func(at []int64) float64 { return f(in[0].Elems[at[0]], in[1].Elems[at[1]]) })
	}
}

func evalWhere(_ *Attrs, in, out []*Tensor) error {
	return evalBroadcasting(in, out, func(at []int64) float64 {
		if in[0].Elems[at[0]] != 0 {
			return in[1].Elems[at[1]]
		}
		return in[2].Elems[at[2]]
	})
}

func evalBroadcast(_ *Attrs, in, out []*Tensor) error {
	return evalBroadcasting(in, out, func(at []int64) float64 { return in[0].Elems[at[0]] })
}

// evalBroadcasting computes each element of the result by a function of the offsets of the operands' elements. The
// operands broadcast to the result.
func evalBroadcasting(in, out []*Tensor, f func(at []int64) float64) error {
	y := out[0]
	var steps [][]int64
	for _, x := range in {
		steps = append(steps, strides(x.Shape, y.Shape))
	}
	i := 0
	each(y.Shape, func(at []int64) { y.put(i, f(at)); i++ }, steps...)
	return nil
}

func evalCast(a *Attrs, in, out []*Tensor) error {
	out[0] = in[0].As(out[0].DType)
	return nil
}

func evalReshape(_ *Attrs, in, out []*Tensor) error {
	copy(out[0].Elems, in[0].Elems)
	return nil
}

func evalTranspose(a *Attrs, in, out []*Tensor) error {
	return pickStrided(in[0], out[0], 0, Pick(tensor.Strides(in[0].Shape), a.Axes))
}

func evalSlice(a *Attrs, in, out []*Tensor) error {
	s := tensor.Strides(in[0].Shape)
	from := a.Lo * s[a.Axis]
	s[a.Axis] *= a.Step
	return pickStrided(in[0], out[0], from, s)
}

// pickStrided sets the elements of y to the elements of x from offset from on, with the given strides.
func pickStrided(x, y *Tensor, from int64, strides []int64) error {
	i := 0
	each(y.Shape, func(at []int64) { y.put(i, x.Elems[from+at[0]]); i++ }, strides)
	return nil
}

func evalConcat(a *Attrs, in, out []*Tensor) error {
	y, axis := out[0], a.Axis
	lines(y.Shape, axis, func(outer, inner, size int64) {
		at := int64(0)
		for _, x := range in {
			k := x.Shape[axis] * inner
			copy(y.Elems[outer*size*inner+at:][:k], x.Elems[outer*k:][:k])
			at += k
		}
	})
	return nil
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

// evalReduction returns the evaluator of the reduction op.
func evalReduction(op Op) evaluator {
	return func(a *Attrs, in, out []*Tensor) error {
		x, y := in[0], out[0]
		kept, _ := reduced(x.Shape, a.Axes, true)
		first := make([]bool, len(y.Elems))
		i := 0
		each(x.Shape, func(at []int64) {
			v, to := x.Elems[i], &y.Elems[at[0]]
			i++
			switch {
			case op == SumOp || op == Mean:
				*to += v
			case !first[at[0]] || math.IsNaN(v):
				*to = v
			case op == MaxOf:
				*to = math.Max(*to, v)
			default:
				*to = math.Min(*to, v)
			}
			first[at[0]] = true
		}, strides(kept, x.Shape))
		per := 1.0
		if op == Mean && len(y.Elems) > 0 {
			per = float64(len(x.Elems)) / float64(len(y.Elems))
		}
		for i, v := range y.Elems {
			y.put(i, v/per)
		}
		return nil
	}
}

// line is a line of elements along one dimension of a tensor.
type line struct {
	number int64 // number of the line
	size   int64
	at     func(i int64) int64 // offset of element i of the line
}

// alongLines returns an evaluator that calls f for each line along the node's axis.
func alongLines(f func(l line, a *Attrs, x *Tensor, out []*Tensor)) evaluator {
	return func(a *Attrs, in, out []*Tensor) error {
		lines(in[0].Shape, a.Axis, func(outer, inner, size int64) {
			for j := range inner {
				at := func(i int64) int64 { return (outer*size+i)*inner + j }
				f(line{number: outer*inner + j, size: size, at: at}, a, in[0], out)
			}
		})
		return nil
	}
}

func cumsum(l line, _ *Attrs, x *Tensor, out []*Tensor) {
	sum := 0.0
	for i := range l.size {
		sum += x.Elems[l.at(i)]
		out[0].put(int(l.at(i)), sum)
	}
}

func softmax(l line, _ *Attrs, x *Tensor, out []*Tensor) {
	most, sum := math.Inf(-1), 0.0
	for i := range l.size {
		most = math.Max(most, x.Elems[l.at(i)])
	}
	for i := range l.size {
		sum += math.Exp(x.Elems[l.at(i)] - most)
	}
	for i := range l.size {
		out[0].put(int(l.at(i)), math.Exp(x.Elems[l.at(i)]-most)/sum)
	}
}

func argMax(l line, _ *Attrs, x *Tensor, out []*Tensor) {
	best := int64(0)
	for i := range l.size {
		if x.Elems[l.at(i)] > x.Elems[l.at(best)] {
			best = i
		}
	}
	out[0].Elems[l.number] = float64(best)
}

func sortLine(l line, a *Attrs, x *Tensor, out []*Tensor) {
	for i, from := range sorted(l.size, a.Desc, func(i int64) float64 { return x.Elems[l.at(i)] }) {
		out[0].Elems[l.at(int64(i))] = x.Elems[l.at(from)]
		out[1].Elems[l.at(int64(i))] = float64(from)
	}
}

func evalTopK(a *Attrs, in, out []*Tensor) error {
	x, last, k := in[0], Last(in[0].Shape), a.K
	for r := range int64(len(x.Elems)) / max(last, 1) {
		order := sorted(last, true, func(i int64) float64 { return x.Elems[r*last+i] })
		for i, from := range order[:k] {
			out[0].Elems[r*k+int64(i)] = x.Elems[r*last+from]
			out[1].Elems[r*k+int64(i)] = float64(from)
		}
	}
	return nil
}

// sorted returns the indices below n sorted by their values. The sort is stable.
func sorted(n int64, desc bool, value func(int64) float64) []int64 {
	order := Counting(int(n))
	sort.SliceStable(order, func(i, j int) bool {
		if desc {
			return value(order[i]) > value(order[j])
		}
		return value(order[i]) < value(order[j])
	})
	return order
}

func evalBinCount(a *Attrs, in, out []*Tensor) error {
	for _, v := range in[0].Elems {
		if i := int64(v); v >= 0 && i < a.K {
			out[0].Elems[i]++
		}
	}
	return nil
}

// evalNorm returns the evaluator of the normalization op.
func evalNorm(op Op) evaluator {
	return func(a *Attrs, in, out []*Tensor) error {
		x, d := in[0], Last(in[0].Shape)
		for r := range int64(len(x.Elems)) / max(d, 1) {
			row, mean, square := x.Elems[r*d:][:d], 0.0, 0.0
			if op == LayerNorm {
				for _, v := range row {
					mean += v / float64(d)
				}
			}
			for _, v := range row {
				square += (v - mean) * (v - mean) / float64(d)
			}
			for i, v := range row {
				v = (v - mean) / math.Sqrt(square+a.Eps)
				if len(in) > 1 {
					v *= in[1].Elems[i]
				}
				if len(in) > 2 {
					v += in[2].Elems[i]
				}
				out[0].put(int(r*d)+i, v)
			}
		}
		return nil
	}
}

// dot returns the product of a row with a column, whose elements are step apart.
func dot(row, column []float64, step int64) float64 {
	sum := 0.0
	for i, v := range row {
		sum += v * column[int64(i)*step]
	}
	return sum
}

func evalLinear(_ *Attrs, in, out []*Tensor) error {
	x, w, y := in[0], in[1], out[0]
	k, cols := Last(x.Shape), Last(y.Shape)
	for i := range y.Elems {
		r, c := int64(i)/cols, int64(i)%cols
		v := dot(x.Elems[r*k:][:k], w.Elems[c*k:], 1)
		if len(in) == 3 {
			v += in[2].Elems[c]
		}
		y.put(i, v)
	}
	return nil
}

func evalMatMul(_ *Attrs, in, out []*Tensor) error {
	x, w, y := in[0], in[1], out[0]
	k, cols := Last(x.Shape), Last(y.Shape)
	nx, nw, ny := len(x.Shape)-2, len(w.Shape)-2, len(y.Shape)-2
	rows, i := y.Shape[ny], 0
	if k == 0 || cols == 0 || rows == 0 {
		return nil
	}
	each(y.Shape[:ny], func(at []int64) {
		for r := range rows {
			for c := range cols {
				y.put(i, dot(x.Elems[at[0]*rows*k+r*k:][:k], w.Elems[at[1]*k*cols+c:], cols))
				i++
			}
		}
	}, strides(x.Shape[:nx], y.Shape[:ny]), strides(w.Shape[:nw], y.Shape[:ny]))
	return nil
}

func evalGroupedMatMul(_ *Attrs, in, out []*Tensor) error {
	x, w, y := in[0], in[1], out[0]
	k, cols := Last(x.Shape), Last(y.Shape)
	from := int64(0)
	for e, end := range in[2].Elems {
		if end < float64(from) || end > float64(x.Shape[0]) {
			return fmt.Errorf("group %d ends at row %v of %d", e, end, x.Shape[0])
		}
		for ; from < int64(end) && k > 0; from++ {
			for c := range cols {
				y.put(int(from*cols+c), dot(x.Elems[from*k:][:k], w.Elems[int64(e)*k*cols+c:], cols))
			}
		}
	}
	return nil
}

func evalAttention(a *Attrs, in, out []*Tensor) error {
	q, k, v := in[0], in[1], in[2]
	d := len(q.Shape)
	tq, tk, dim, dv := q.Shape[d-2], k.Shape[d-2], q.Shape[d-1], v.Shape[d-1]
	masked := func(row, j int64, s float64) float64 { return s }
	if len(in) == 4 {
		masked = maskOf(in[3], WithExtent(q.Shape, d-1, tk))
	}
	s := make([]float64, tk)
	for row := range int64(len(out[0].Elems)) / max(dv, 1) {
		head, i := row/tq, row%tq
		most := math.Inf(-1)
		for j := range tk {
			x := a.Scale * dot(q.Elems[row*dim:][:dim], k.Elems[(head*tk+j)*dim:], 1)
			if c := a.Softcap; c != 0 {
				x = c * math.Tanh(x/c)
			}
			if a.Causal && j > i {
				x = math.Inf(-1)
			}
			s[j] = masked(row, j, x)
			most = math.Max(most, s[j])
		}
		sum := 0.0
		for j := range s {
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
			out[0].put(int(row*dv+e), total)
		}
	}
	return nil
}

// maskOf returns the function that applies a mask, bool or added, to score s of a row and key j. The mask broadcasts to
// the shape of the scores.
func maskOf(mask *Tensor, shape []int64) func(row, j int64, s float64) float64 {
	var at []int64 // for each row, the offset of its elements in the mask
	steps, end := strides(mask.Shape, shape), len(shape)-1
	each(shape[:end], func(offset []int64) { at = append(at, offset[0]) }, steps[:end])
	return func(row, j int64, s float64) float64 {
		m := mask.Elems[at[row]+j*steps[end]]
		switch {
		case mask.DType != Bool:
			return s + m
		case m == 0:
			return math.Inf(-1)
		}
		return s
	}
}

// place returns the index that v denotes in a dimension of size elements. A negative v counts from the end.
func place(v float64, size int64) (int64, error) {
	i := int64(v)
	if i < 0 {
		i += size
	}
	if i < 0 || i >= size {
		return 0, fmt.Errorf("index %v of %d elements", v, size)
	}
	return i, nil
}

func evalEmbedding(_ *Attrs, in, out []*Tensor) error {
	x, d := in[0], in[0].Shape[1]
	for r, v := range in[1].Elems {
		i, err := place(v, x.Shape[0])
		if err != nil {
			return err
		}
		copy(out[0].Elems[int64(r)*d:][:d], x.Elems[i*d:][:d])
	}
	return nil
}

func evalIndexAdd(a *Attrs, in, out []*Tensor) error {
	x, d := in[0], in[0].Shape[1]
	for r, v := range in[1].Elems {
		i := int64(v)
		if i < -1 || i >= a.K {
			return fmt.Errorf("index %v of %d elements", v, a.K)
		}
		if i < 0 {
			continue
		}
		for j := range d {
			out[0].Elems[i*d+j] += x.Elems[int64(r)*d+j]
		}
	}
	return nil
}

func evalTakeAlong(a *Attrs, in, out []*Tensor) (err error) {
	x, y := in[0], out[0]
	s := tensor.Strides(x.Shape)
	step := s[a.Axis]
	s[a.Axis] = 0
	i := 0
	each(y.Shape, func(at []int64) {
		j, wrong := place(in[1].Elems[i], x.Shape[a.Axis])
		if wrong != nil {
			err = wrong
			return
		}
		y.Elems[i] = x.Elems[at[0]+j*step]
		i++
	}, s)
	return err
}

func evalIndexCopy(a *Attrs, in, out []*Tensor) (err error) {
	copy(out[0].Elems, in[0].Elems)
	lines(in[0].Shape, a.Axis, func(outer, inner, size int64) {
		for r, v := range in[1].Elems {
			j, wrong := place(v, size)
			if wrong != nil {
				err = wrong
				return
			}
			from := (outer*int64(len(in[1].Elems)) + int64(r)) * inner
			copy(out[0].Elems[(outer*size+j)*inner:][:inner], in[2].Elems[from:][:inner])
		}
	})
	return err
}

// rowsAt returns the offsets of the rows of x that the indices at select, and the shape of the rows together.
func rowsAt(x *Tensor, at []*Tensor) (rows, shape []int64, err error) {
	for _, t := range at {
		shape, _ = broadcastShapes(shape, t.Shape)
	}
	var steps [][]int64
	for _, t := range at {
		steps = append(steps, strides(t.Shape, shape))
	}
	inner := Product(x.Shape[len(at):])
	each(shape, func(offsets []int64) {
		row := int64(0)
		for k, t := range at {
			i, wrong := place(t.Elems[offsets[k]], x.Shape[k])
			if wrong != nil {
				err = wrong
			}
			row = row*x.Shape[k] + i
		}
		rows = append(rows, row*inner)
	}, steps...)
	return rows, slices.Concat(shape, x.Shape[len(at):]), err
}

func evalTake(_ *Attrs, in, out []*Tensor) error {
	rows, _, err := rowsAt(in[0], in[1:])
	if err != nil {
		return err
	}
	inner := int(Product(in[0].Shape[len(in)-1:]))
	for i, from := range rows {
		copy(out[0].Elems[i*inner:][:inner], in[0].Elems[from:])
	}
	return nil
}

func evalPutAt(_ *Attrs, in, out []*Tensor) error {
	copy(out[0].Elems, in[0].Elems)
	rows, shape, err := rowsAt(in[0], in[2:])
	if err != nil {
		return err
	}
	inner, i := int(Product(in[0].Shape[len(in)-2:])), 0
	each(shape, func(at []int64) {
		out[0].put(int(rows[i/inner])+i%inner, in[1].Elems[at[0]])
		i++
	}, strides(in[1].Shape, shape))
	return nil
}
