package modelprogram

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// scores describes the scores of attention that the model computes by separate operations: scale · q·kᵀ, which may be
// capped, and the keys that each query sees.
type scores struct {
	q, k    *graph.Value // queries and keys; k is transposed
	scale   float64
	softcap float64
	add     []float64    // the numbers that are added to the scores, indexed by query and key; nil if none are added
	zeroed  map[int]bool // indices of scores that a mask multiplied by zero; add must exclude these keys
	tq, tk  int64
}

// maxMask is the largest number of elements in a mask that is examined.
const maxMask = 1 << 24

// eagerAttention recognizes softmax(scale · q·kᵀ + mask)·v if the mask is known and only hides keys.
func eagerAttention(l *lowerer, v *graph.Value) (*val, error) {
	n := v.Made(graph.MatMul)
	if n == nil {
		return nil, nil
	}
	p := uncast(n.In[0])
	for r := p.Made(graph.Reshape); r != nil && sameMatrices(p, r.In[0]); r = p.Made(graph.Reshape) {
		p = uncast(r.In[0])
	}
	soft := p.Made(graph.Softmax)
	if soft == nil || soft.Attrs.Axis != len(p.Shape)-1 {
		return nil, nil
	}
	s := &scores{}
	if !l.scores(s, soft.In[0]) {
		return nil, nil
	}
	w := n.In[1]
	if len(s.q.Shape) != len(w.Shape) || !slices.Equal(s.q.Shape[:len(w.Shape)-2], w.Shape[:len(w.Shape)-2]) ||
		!slices.Equal(s.k.Shape[:len(w.Shape)-2], w.Shape[:len(w.Shape)-2]) || s.q.DType != w.DType ||
		s.k.DType != w.DType ||
		w.DType != v.DType {
		return nil, nil
	}
	c := &chain{l: &l.lowering, n: n}
	in := []*graph.Value{s.q, c.swap(s.k, len(w.Shape)-1, len(w.Shape)-2), w}
	if s.add != nil {
		mask := graph.NewTensor(graph.Bool, []int64{s.tq, s.tk})
		for i, x := range s.add {
			switch {
			case x == 0 && !s.zeroed[i]:
				mask.Elems[i] = 1
			case x > -1e4:
				return nil, nil // the numbers that are added to the scores are a bias and not a mask
			}
		}
		in = append(in, l.g.Constant("mask", mask))
	}
	y := c.add(graph.Attention, graph.Attrs{Scale: s.scale, Softcap: s.softcap}, v.DType, in...)
	if c.err != nil || !slices.Equal(y.Shape, v.Shape) {
		return nil, c.err
	}
	if s.add != nil {
		if _, ok, err := l.mask(y.Node.In[3], s.tq, s.tk); err != nil || !ok {
			return nil, nil
		}
	}
	return c.lower(y)
}

// sameMatrices reports whether the last two dimensions of two shapes are equal.
func sameMatrices(a, b *graph.Value) bool {
	x, y := a.Shape, b.Shape
	return len(x) >= 2 && len(y) >= 2 && slices.Equal(x[len(x)-2:], y[len(y)-2:])
}

// scores recognizes v as scores of attention. It recurses through the operations from v to the product of queries and
// keys, and then applies each operation to s in the order of computation.
func (l *recognition) scores(s *scores, v *graph.Value) bool {
	n := v.Node
	if n == nil || len(v.Shape) < 2 {
		return false
	}
	switch n.Op {
	case graph.Cast:
		return v.DType.IsFloat() && n.In[0].DType.IsFloat() && l.scores(s, n.In[0])
	case graph.Reshape:
		return sameMatrices(v, n.In[0]) && l.scores(s, n.In[0])
	case graph.MatMul:
		s.q, s.k, s.scale = n.In[0], n.In[1], 1
		s.tq, s.tk = v.Shape[len(v.Shape)-2], graph.Last(v.Shape)
		return true
	case graph.Div:
		c, ok := l.uniform(n.In[1])
		return ok && c != 0 && l.scores(s, n.In[0]) && s.scaleBy(1/c)
	case graph.Max: // the maximum of a score and the smallest number of its type is the score itself
		c, x, ok := l.number(n)
		return ok && c <= -1e30 && l.scores(s, x) && (s.add != nil)
	case graph.Mul:
		return l.scoresTimes(s, n)
	case graph.AddOp:
		by, ok := l.scoresAndConstant(s, n)
		if ok {
			s.addAll(by)
		}
		return ok
	case graph.Where:
		return l.scoresWhere(s, n)
	}
	return false
}

// scoresAndConstant recognizes one operand of n as scores, and returns the other, a constant, for each score.
func (l *recognition) scoresAndConstant(s *scores, n *graph.Node) ([]float64, bool) {
	known, x, ok := either(n, l.folder.IsConstant)
	if !ok || !l.scores(s, x) {
		return nil, false
	}
	return l.perKey(s, known)
}

// scoresTimes recognizes scores that are multiplied by a number or by a mask, and c · tanh(x / c).
func (l *recognition) scoresTimes(s *scores, n *graph.Node) bool {
	c, x, ok := l.number(n)
	if !ok {
		by, ok := l.scoresAndConstant(s, n)
		return ok && s.maskBy(by)
	}
	t := uncast(x).Made(graph.Tanh)
	if t == nil {
		return l.scores(s, x) && s.scaleBy(c)
	}
	if !l.scores(s, t.In[0]) || s.add != nil || s.softcap != 0 || !(c > 0) {
		return false
	}
	s.softcap, s.scale = c, s.scale*c
	return true
}

// scoresWhere recognizes a selection between scores and a small number.
func (l *recognition) scoresWhere(s *scores, n *graph.Node) bool {
	if !l.folder.IsConstant(n.In[0]) {
		return false
	}
	x, hides := n.In[1], false // the value of the condition for hidden keys
	low, ok := l.uniform(n.In[2])
	if !ok {
		x, hides = n.In[2], true
		low, ok = l.uniform(n.In[1])
	}
	if !ok || low > -1e4 || !l.scores(s, x) {
		return false
	}
	where, ok := l.perKey(s, n.In[0])
	if !ok {
		return false
	}
	for i, is := range where {
		where[i] = 0
		if (is != 0) == hides {
			where[i] = math.Inf(-1)
		}
	}
	s.addAll(where)
	return true
}

// scaleBy multiplies the attention scores, and the numbers that were added to them, by c.
func (s *scores) scaleBy(c float64) bool {
	s.scale *= c
	for i := range s.add {
		s.add[i] *= c
	}
	return c > 0 && s.softcap == 0
}

// addAll adds a number to each score.
func (s *scores) addAll(by []float64) {
	if s.add == nil {
		s.add = by
		return
	}
	for i, x := range by {
		s.add[i] += x
	}
}

// maskBy multiplies the scores by a mask of zeros and ones.
func (s *scores) maskBy(by []float64) bool {
	if s.zeroed == nil {
		s.zeroed = map[int]bool{}
	}
	for i, x := range by {
		switch x {
		case 0:
			s.zeroed[i] = true
		case 1:
		default:
			return false
		}
	}
	s.addAll(make([]float64, len(by)))
	return true
}

// perKey returns the elements of a constant, one for each query and key, if they are the same for all heads and
// sequences.
func (l *recognition) perKey(s *scores, v *graph.Value) ([]float64, bool) {
	t, err := l.folder.Value(v)
	if err != nil || s.tq*s.tk > maxMask || s.tq*s.tk == 0 {
		return nil, false
	}
	rows, cols := int64(1), int64(1)
	if d := len(t.Shape); d > 0 {
		cols = t.Shape[d-1]
		if d > 1 {
			rows = t.Shape[d-2]
		}
	}
	if rows != 1 && rows != s.tq || cols != 1 && cols != s.tk || rows*cols == 0 {
		return nil, false
	}
	for i, x := range t.Elems[rows*cols:] {
		if x != t.Elems[int64(i)%(rows*cols)] {
			return nil, false
		}
	}
	out := make([]float64, s.tq*s.tk)
	for i := range s.tq {
		for j := range s.tk {
			out[i*s.tk+j] = t.Elems[min(i, rows-1)*cols+min(j, cols-1)]
		}
	}
	return out, true
}
