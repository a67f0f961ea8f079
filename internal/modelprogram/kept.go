package modelprogram

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// A state is an inout parameter. A state is treated as a cache if its only use is a copy of rows into it. A cache is
// updated in place, and attention reads the rows that the mask permits for each query. Any other state is copied before
// the operations that change it, and is written at the end.

// updates converts the computation of the states' contents after a call.
func (l *lowerer) updates() error {
	for _, u := range l.g.Updates {
		if l.keeps(u.To) != nil {
			if _, err := l.cache(u.To); err != nil {
				return err
			}
			continue
		}
		x, err := l.plain(u.To)
		if err != nil {
			return err
		}
		p := l.param(u.State)
		// Every rank holds the whole state.
		if x.in != nil && x.in.name == "" {
			x.in.whole = true
		}
		in := l.emit(&inst{op: "copy", args: []operand{x, {p: p}}, into: true, dt: p.dt, shape: p.shape, split: -1,
			order: math.MaxInt})
		if u.To.Node != nil {
			in.from = u.To.Node.From
		}
	}
	return nil
}

// readState returns the contents that a state has at the given position in the order of instructions.
func (l *emission) readState(v *graph.Value, order int) *val {
	p := l.param(v)
	c := l.emit(&inst{op: "copy", args: []operand{{p: p}}, dt: p.dt, shape: p.shape, split: p.split, order: order})
	if w := l.writers[p]; w != nil {
		c.after = []*inst{w}
	}
	y := &val{operand: operand{in: l.claim(c)}}
	if p.perm != nil {
		y.perm = graph.Inverse(p.perm)
	}
	return y
}

// claim returns an instruction that turns a buffer into a value.
func (l *emission) claim(buffer *inst) *inst {
	return l.emit(&inst{op: "claim", args: []operand{{in: buffer}}, dt: buffer.dt, shape: buffer.shape,
		split: buffer.split, typed: true, from: buffer.from, order: buffer.order})
}

// keeps returns the state whose new contents are v, if v is the result of copying rows into the state and no other
// operation reads the old contents. Otherwise it returns nil.
func (l *recognition) keeps(v *graph.Value) *graph.Value {
	n := v.Made(graph.IndexCopy)
	if n == nil || n.In[0].Leaf != graph.State || len(l.users[n.In[0]]) != 1 {
		return nil
	}
	for _, u := range l.g.Updates {
		if u.State == n.In[0] && u.To == v {
			return u.State
		}
	}
	return nil
}

// cache emits the instruction that copies rows into a cache, and returns the parameter of the cache. The value v is the
// cache's new contents. The copy is emitted only once.
func (l *lowering) cache(v *graph.Value) (*param, error) {
	n, s := v.Node, v.Node.In[0]
	if p := l.params[s]; p != nil {
		return p, nil
	}
	p := l.param(s)
	axis := n.Attrs.Axis
	if len(s.Shape) == 4 && axis == 2 {
		// The layout that the language's attention requires: [B, S, H, D].
		p.perm, axis = headsAfterTokens, 1
		p.shape = graph.Pick(s.Shape, p.perm)
	}
	rows, err := l.lower(n.In[2])
	if err != nil {
		return nil, err
	}
	if p.perm != nil {
		if rows.shape != nil {
			l.settle(n.In[2], rows)
		}
		rows = permuted(rows, p.perm)
		l.settle(&graph.Value{Shape: graph.Pick(n.In[2].Shape, p.perm), Node: n.In[2].Node}, rows)
	}
	at, err := l.plain(n.In[1])
	if err != nil {
		return nil, err
	}
	ro := l.settle(n.In[2], rows)
	p.split = ro.splitDim()
	if p.split == axis {
		return nil, refuse(n, "a copy of split rows into a cache")
	}
	l.writers[p] = l.emit(&inst{op: "index_copy", args: []operand{ro, at, {p: p}}, into: true,
		attrs: fmt.Sprintf("axis=%d", axis),
		dt:    p.dt, shape: p.shape, split: p.split, from: n.From, order: n.Order})
	return p, nil
}

// indexCopy converts a copy of rows into a tensor.
func (l *lowering) indexCopy(n *graph.Node) (*val, error) {
	out := n.Out[0]
	if s := l.keeps(out); s != nil {
		if _, err := l.cache(out); err != nil {
			return nil, err
		}
		return l.readState(s, n.Order), nil
	}
	args, err := l.plains(n.In...)
	if err != nil {
		return nil, err
	}
	b := l.emit(&inst{op: "alloc", attrs: typeText(out.DType, out.Shape, -1), dt: out.DType, shape: out.Shape,
		split: -1,
		from:  n.From, order: n.Order})
	for _, in := range []*inst{{op: "copy", args: []operand{args[0], {in: b}}},
		{op: "index_copy", args: []operand{args[2], args[1], {in: b}}, attrs: fmt.Sprintf("axis=%d", n.Attrs.Axis)}} {
		in.into, in.dt, in.shape, in.split, in.from, in.order = true, b.dt, b.shape, -1, n.From, n.Order
		l.emit(in)
	}
	for _, x := range []operand{args[0], args[2]} {
		if x.in != nil && x.in.name == "" {
			x.in.whole = true
		}
	}
	return &val{operand: operand{in: l.claim(b)}}, nil
}

// keptAttention recognizes attention with caches whose mask permits the first keys for each query. It returns nil for
// other attention.
func (l *lowerer) keptAttention(n *graph.Node, k, w *graph.Value) (*val, error) {
	if len(n.In) != 4 || n.Attrs.Causal || l.keeps(k) == nil || l.keeps(w) == nil {
		return nil, nil
	}
	q, mask := n.In[0], n.In[3]
	seen, plus, ok := l.firstKeys(mask, k.Shape[2])
	b, tq := q.Shape[0], q.Shape[2]
	if !ok || seen.Count() != tq && seen.Count() != b*tq {
		return nil, nil
	}
	x, err := l.byToken(q)
	if err != nil {
		return nil, err
	}
	args := []operand{x}
	for _, v := range []*graph.Value{k, w} {
		p, err := l.cache(v)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(p.perm, headsAfterTokens) {
			return nil, nil
		}
		args = append(args, operand{p: p})
	}
	length, err := l.length(seen, plus, b, tq)
	if err != nil {
		return nil, err
	}
	args = append(args, length)
	y := l.emitted(n, "attention", strings.Join(scoreAttrs(n), ", "), q.DType, x.shape(), x.splitDim(), args...)
	for _, a := range args[1:3] {
		y.in.after = append(y.in.after, l.writers[a.p])
	}
	return permuted(&val{operand: operand{in: l.claim(y.in)}}, headsAfterTokens), nil
}

// length returns the number of keys of each of b·tq queries: seen + plus.
func (l *lowerer) length(seen *graph.Value, plus float64, b, tq int64) (operand, error) {
	key := fmt.Sprintf("%p %v %d %d", seen, plus, b, tq)
	if o, ok := l.lengths[key]; ok {
		return o, nil
	}
	x, err := l.lower(seen)
	if err != nil {
		return operand{}, err
	}
	o := l.shaped(seen, x, []int64{seen.Count() / tq, tq})
	at := &inst{dt: seen.DType, split: -1, order: -1}
	if seen.Node != nil {
		at.from, at.order = seen.Node.From, seen.Node.Order
	}
	then := func(op, attrs string, shape []int64, args ...operand) {
		in := *at
		in.op, in.attrs, in.shape, in.args = op, attrs, shape, args
		o = operand{in: l.emit(&in)}
	}
	if plus != 0 {
		then("add", "", o.shape(), o, l.fill(seen.DType, []int64{}, plus))
	}
	if seen.Count() != b*tq {
		then("broadcast", "shape="+tuple([]int64{b, tq}), []int64{b, tq}, o)
	}
	l.lengths[key] = o
	return o, nil
}

// firstKeys recognizes a mask that permits the first of tk keys for each query: the keys whose index is below seen +
// plus, where seen has one number for each query.
func (l *recognition) firstKeys(m *graph.Value, tk int64) (seen *graph.Value, plus float64, ok bool) {
	for m.Node != nil {
		n := m.Node
		switch n.Op {
		case graph.Broadcast, graph.Reshape, graph.Cast:
			if graph.Last(n.In[0].Shape) != graph.Last(m.Shape) {
				return nil, 0, false
			}
			m = n.In[0]
		case graph.And:
			c, other, is := l.number(n)
			if !is || c == 0 {
				return nil, 0, false
			}
			m = other
		case graph.Where: // the mask adds 0 for permitted keys, and a very small number for others
			yes, is := l.uniform(n.In[1])
			no, is2 := l.uniform(n.In[2])
			if !is || !is2 || yes != 0 || no > -1e4 {
				return nil, 0, false
			}
			m = n.In[0]
		case graph.Le:
			return l.below(n.In[0], n.In[1], tk, 1)
		case graph.Lt:
			return l.below(n.In[0], n.In[1], tk, 0)
		case graph.Ge:
			return l.below(n.In[1], n.In[0], tk, 1)
		case graph.Gt:
			return l.below(n.In[1], n.In[0], tk, 0)
		default:
			return nil, 0, false
		}
	}
	return nil, 0, false
}

// below returns seen and plus if the elements of keys are 0 to tk-1 along the last dimension and seen has one number
// for each query.
func (l *recognition) below(keys, seen *graph.Value, tk int64, plus float64) (*graph.Value, float64, bool) {
	if !l.folder.IsConstant(keys) || keys.Count() != tk || graph.Last(keys.Shape) != tk ||
		graph.Last(seen.Shape) != 1 ||
		seen.DType != graph.I64 && seen.DType != graph.I32 {
		return nil, 0, false
	}
	t, err := l.folder.Value(keys)
	if err != nil {
		return nil, 0, false
	}
	for i, x := range t.Elems {
		if x != float64(i) {
			return nil, 0, false
		}
	}
	for seen.Node != nil && seen.Node.Op == graph.Reshape {
		seen = seen.Node.In[0]
	}
	return seen, plus, true
}

// reshaped returns v in another shape. In the order of nodes, the new node has the position of n.
func (l *recognition) reshaped(v *graph.Value, shape []int64, n *graph.Node) *graph.Value {
	if slices.Equal(v.Shape, shape) {
		return v
	}
	return &graph.Value{DType: v.DType, Shape: shape, Node: &graph.Node{Op: graph.Reshape, In: []*graph.Value{v},
		Attrs: graph.Attrs{Shape: shape}, From: n.From, Order: n.Order}}
}
