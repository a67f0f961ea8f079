package modelprogram

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// In a mixture of experts, the router's topk selects the experts of each token. The rows of tokens are sorted by
// expert, each group of rows is multiplied by the weights of its expert, and the rows are put back in their original
// order. The model masks rows whose expert does not exist. The bounds of the indices show that there are no such rows.

func init() { recognizers = append(recognizers, dispatch) }

// dispatch converts the operations that sort rows by expert, and the products of the groups.
func dispatch(l *lowerer, v *graph.Value) (*val, error) {
	n := v.Node
	switch n.Op {
	case graph.Where:
		if x := l.chosen(n); x != nil && slices.Equal(x.Shape, v.Shape) {
			return l.lower(x)
		}
	case graph.TopK:
		if v.Index == 0 {
			return l.direct(n, "topk", fmt.Sprintf("k=%d", n.Attrs.K), n.In...)
		}
	case graph.SortOp:
		if v.Index == 0 && v.DType.IsFloat() && n.Attrs.Axis == len(v.Shape)-1 {
			return l.takeAlong(n, n.Out[1], l.index)
		}
	case graph.Take:
		return l.takeRows(n)
	case graph.TakeAlong:
		if n.Attrs.Axis == len(v.Shape)-1 && slices.Equal(n.In[0].Shape[:n.Attrs.Axis], v.Shape[:n.Attrs.Axis]) {
			return l.takeAlong(n, n.In[1], l.indexOrPlain)
		}
	case graph.GroupedMatMul:
		return l.grouped(n)
	case graph.SliceOp:
		return l.groupedPart(n)
	}
	if v.DType != graph.I64 && v.DType != graph.I32 && n.Op != graph.BinCount {
		return nil, nil
	}
	x, ok, err := l.index(v)
	if !ok || err != nil {
		return nil, err
	}
	if x.dtype() == v.DType {
		return &val{operand: x}, nil
	}
	y := l.emitted(n, "cast", "", v.DType, v.Shape, -1, x)
	y.in.typed = true
	return y, nil
}

// takeAlong converts a selection of elements of n's first operand along its last dimension. The function convert
// converts the indices at. The result is nil if it does not support them.
func (l *lowerer) takeAlong(n *graph.Node, at *graph.Value, convert func(*graph.Value) (operand, bool, error)) (*val,
	error) {
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	o, ok, err := convert(at)
	if err != nil || !ok {
		return nil, err
	}
	return l.emitted(n, "take_along", "", x.dtype(), n.Out[0].Shape, -1, x, o), nil
}

// index converts the indices that a sort or topk returns to an operand of type i32. For all other values, ok is false.
func (l *lowerer) index(v *graph.Value) (o operand, ok bool, err error) {
	if o, ok := l.indices[v]; ok {
		return o, true, nil
	}
	if v.Node == nil || l.folder.IsConstant(v) {
		return o, false, nil
	}
	if o, ok, err = l.makeIndex(v); ok && err == nil {
		l.indices[v] = o
	}
	return o, ok, err
}

// indexOrPlain is index, or plain for values that index does not convert.
func (l *lowerer) indexOrPlain(v *graph.Value) (o operand, ok bool, err error) {
	if o, ok, err = l.index(v); err == nil && !ok {
		o, err = l.plain(v)
	}
	return o, true, err
}

// emitIndex emits an instruction for v with a result of type i32.
func (l *lowerer) emitIndex(v *graph.Value, op, attrs string, args ...operand) operand {
	return l.emitted(v.Node, op, attrs, graph.I32, v.Shape, -1, args...).operand
}

func (l *lowerer) makeIndex(v *graph.Value) (o operand, ok bool, err error) {
	n := v.Node
	switch n.Op {
	case graph.TopK:
		if v.Index != 1 {
			return o, false, nil
		}
		x, err := l.plain(n.In[0])
		if err != nil {
			return o, false, err
		}
		return l.emitIndex(v, "argtopk", fmt.Sprintf("k=%d", n.Attrs.K), x), true, nil
	case graph.SortOp:
		return l.sortedIndex(v)
	case graph.Reshape:
		x, ok, err := l.index(n.In[0])
		if err != nil || !ok {
			return o, false, err
		}
		return l.shaped(n.In[0], &val{operand: x}, v.Shape), true, nil
	case graph.Cast:
		if v.DType == graph.I64 || v.DType == graph.I32 {
			return l.index(n.In[0])
		}
	case graph.Min, graph.Max:
		c, x, ok := l.number(n)
		lo, hi, known := l.bounds(x)
		if ok && known && (n.Op == graph.Min && hi <= c || n.Op == graph.Max && lo >= c) {
			return l.index(x)
		}
	case graph.FloorDiv:
		return l.token(n)
	case graph.PutAt:
		return l.inverse(n)
	case graph.BinCount:
		return l.histogram(v)
	}
	return o, false, nil
}

// sortedIndex converts a result of a sort along the last dimension: the indices of a sort, or sorted indices.
func (l *lowerer) sortedIndex(v *graph.Value) (o operand, ok bool, err error) {
	n := v.Node
	if n.Attrs.Axis != len(v.Shape)-1 {
		return o, false, nil
	}
	if v.Index == 0 {
		x, ok, err := l.index(n.In[0])
		if err != nil || !ok {
			return o, false, err
		}
		at, _, err := l.index(n.Out[1])
		if err != nil {
			return o, false, err
		}
		return l.emitIndex(v, "take_along", "", x, at), true, nil
	}
	x, _, err := l.indexOrPlain(n.In[0])
	if err != nil {
		return o, false, err
	}
	if n.Attrs.Desc { // in a descending sort, equal elements must keep their order
		x = l.emitted(n, "neg", "", x.dtype(), v.Shape, -1, x).operand
	}
	return l.emitIndex(v, "argsort", "", x), true, nil
}

// histogram converts a count of the occurrences of each number. The histogram of sorted ids equals that of the unsorted
// ids.
func (l *lowerer) histogram(v *graph.Value) (o operand, ok bool, err error) {
	ids := v.Node.In[0]
	for ids.Node != nil && (ids.Node.Op == graph.Cast || ids.Node.Op == graph.SortOp && ids.Index == 0) {
		ids = ids.Node.In[0]
	}
	if _, _, known := l.bounds(ids); !known {
		if ids = v.Node.In[0]; ids.DType.IsFloat() {
			return o, false, nil
		}
	}
	x, _, err := l.indexOrPlain(ids)
	if err != nil {
		return o, false, err
	}
	return l.emitIndex(v, "bincount", fmt.Sprintf("n=%d", v.Node.Attrs.K), x), true, nil
}

// token converts the index of the token to which a row belongs: the number of the row divided by the number of rows of
// each token.
func (l *lowerer) token(n *graph.Node) (o operand, ok bool, err error) {
	k, x, is := l.number(n)
	lo, hi, known := l.bounds(x)
	rows := int64(hi) + 1
	if !is || !known || x != n.In[0] || len(x.Shape) != 1 || lo != 0 || k < 1 || k != float64(int64(k)) ||
		rows%int64(k) != 0 || rows < 2 {
		return o, false, nil
	}
	at, ok, err := l.index(x)
	if err != nil || !ok {
		return o, false, err
	}
	each := int64(k)
	key := fmt.Sprintf("tokens %d %d", rows, each)
	if l.fills[key] == nil {
		all := l.emit(&inst{op: "iota", attrs: "axis=0", dt: graph.I32, shape: []int64{rows / each, each}, split: -1,
			typed: true, order: -1})
		l.fills[key] = l.emit(&inst{op: "reshape", attrs: "shape=" + tuple([]int64{rows}), args: []operand{{in: all}},
			dt: graph.I32, shape: []int64{rows}, split: -1, order: -1})
	}
	return l.emitted(n, "take_along", "", graph.I32, x.Shape, -1, operand{in: l.fills[key]}, at).operand, true, nil
}

// inverse converts the computation of an inverse permutation, which stores 0, 1, 2, … at the positions in the
// permutation.
func (l *lowerer) inverse(n *graph.Node) (o operand, ok bool, err error) {
	if len(n.In) != 3 || len(n.In[0].Shape) != 1 || !l.folder.IsConstant(n.In[1]) {
		return o, false, nil
	}
	perm := n.In[2]
	sort := perm.Node
	if sort == nil || sort.Op != graph.SortOp || perm.Index != 1 || !slices.Equal(perm.Shape, n.In[0].Shape) {
		return o, false, nil
	}
	t, err := l.folder.Value(n.In[1])
	if err != nil {
		return o, false, err
	}
	if start, ok := counts(t); !ok || start != 0 || int64(len(t.Elems)) != n.In[0].Count() {
		return o, false, nil
	}
	at, ok, err := l.index(perm)
	if err != nil || !ok {
		return o, false, err
	}
	return l.emitIndex(n.Out[0], "argsort", "", at), true, nil
}

// takeRows converts a selection of rows, or of elements of a vector, by indices that a sort returns.
func (l *lowerer) takeRows(n *graph.Node) (*val, error) {
	x, out := n.In[0], n.Out[0]
	if len(n.In) != 2 || len(n.In[1].Shape) != 1 {
		return nil, nil
	}
	if lo, hi, known := l.bounds(n.In[1]); !known || lo < 0 || hi >= float64(x.Shape[0]) {
		return nil, nil
	}
	at, ok, err := l.index(n.In[1])
	if err != nil || !ok {
		return nil, err
	}
	if len(x.Shape) == 1 {
		o, err := l.plain(x)
		if err != nil {
			return nil, err
		}
		return l.emitted(n, "take_along", "", o.dtype(), out.Shape, -1, o, at), nil
	}
	if !x.DType.IsFloat() {
		return nil, nil
	}
	y, err := l.lower(x)
	if err != nil {
		return nil, err
	}
	width := x.Count() / max(x.Shape[0], 1)
	rows := l.shaped(x, y, []int64{x.Shape[0], width})
	z := l.emitted(n, "embedding", "", x.DType, []int64{out.Shape[0], width}, rows.splitDim(), at, rows)
	return seen(z, out.Shape), nil
}

// grouped converts the product of sorted rows with the weights of their groups.
func (l *lowerer) grouped(n *graph.Node) (*val, error) {
	return l.byParts(n, l.packed(groupWeight(n)), l.groupedOf)
}

// groupWeight returns the weight of a grouped product, without a transposition that exchanges its last two dimensions.
func groupWeight(n *graph.Node) *graph.Value {
	w := n.In[1]
	if t := w.Made(graph.Transpose); t != nil && swapsLast(t.Attrs.Axes) {
		return t.In[0]
	}
	return w
}

// groupedOf converts a grouped product. If part is not negative, it uses only this part of a packed weight.
func (l *lowerer) groupedOf(n *graph.Node, part int) (*val, error) {
	var counted *graph.Value
	if c := uncast(n.In[2]).Made(graph.Cumsum); c != nil {
		counted = uncast(c.In[0])
	}
	if counted.Made(graph.BinCount) == nil {
		return nil, refuse(n, "a grouped product whose groups are not counted by a histogram")
	}
	counts, ok, err := l.index(counted)
	if err != nil || !ok {
		return nil, refuse(n, "a grouped product whose experts are not selected by a topk: %v", err)
	}
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	w, err := l.lower(n.In[1])
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(n.Out[0].Shape)
	var wo operand
	if part >= 0 {
		wo = l.part(n, w.operand, part).operand
		shape[1] /= int64(w.p.parts)
	} else {
		turned := permuted(w, []int64{0, 2, 1})
		s := n.In[1].Shape
		wo = l.settle(&graph.Value{Shape: []int64{s[0], s[2], s[1]}, Node: n}, turned)
	}
	y := l.emitted(n, "grouped_linear", "", n.Out[0].DType, shape, -1, x, wo, counts)
	switch s := wo.splitDim(); {
	case s == 1:
		y.in.split = 1
	case s >= 0:
		y.in.whole = true
	}
	return y, nil
}

// groupedPart converts a slice that selects one part of a grouped product with a packed weight. It returns nil for
// other slices.
func (l *lowerer) groupedPart(n *graph.Node) (*val, error) {
	v := n.In[0]
	for v.Made(graph.Where) != nil {
		if l.chosen(v.Node) != v.Node.In[2] {
			return nil, nil
		}
		v = v.Node.In[2]
	}
	g := v.Made(graph.GroupedMatMul)
	if g == nil || n.Attrs.Axis != 1 || l.packed(groupWeight(g)) == nil {
		return nil, nil
	}
	return l.groupedOf(g, int(n.Attrs.Lo/max(n.Attrs.Hi-n.Attrs.Lo, 1)))
}

// chosen returns the operand from which a selection takes all elements, or nil if that depends on the input.
func (l *recognition) chosen(n *graph.Node) *graph.Value {
	switch yes, ok := l.decided(n.In[0]); {
	case !ok:
		return nil
	case yes:
		return n.In[1]
	}
	return n.In[2]
}

// decided returns the value of all elements of a bool if they are equal and independent of the input. Otherwise ok is
// false.
func (l *recognition) decided(v *graph.Value) (yes, ok bool) {
	if x, ok := l.uniform(v); ok {
		return x != 0, true
	}
	if v.Node == nil {
		return false, false
	}
	switch n := v.Node; n.Op {
	case graph.Reshape, graph.Broadcast:
		return l.decided(n.In[0])
	case graph.Not:
		yes, ok = l.decided(n.In[0])
		return !yes, ok
	case graph.Lt, graph.Le, graph.Gt, graph.Ge:
		alo, ahi, ok1 := l.bounds(n.In[0])
		blo, bhi, ok2 := l.bounds(n.In[1])
		if !ok1 || !ok2 {
			return false, false
		}
		always := map[graph.Op]bool{graph.Lt: ahi < blo, graph.Le: ahi <= blo, graph.Gt: alo > bhi,
			graph.Ge: alo >= bhi}
		never := map[graph.Op]bool{graph.Lt: alo >= bhi, graph.Le: alo > bhi, graph.Gt: ahi <= blo, graph.Ge: ahi < blo}
		return always[n.Op], always[n.Op] || never[n.Op]
	}
	return false, false
}

// bounds returns a range that contains all elements of an index tensor.
func (l *recognition) bounds(v *graph.Value) (lo, hi float64, ok bool) {
	if v == nil {
		return 0, 0, false
	}
	if l.folder.IsConstant(v) {
		t, err := l.folder.Value(v)
		if err != nil || len(t.Elems) == 0 || t.DType.IsFloat() {
			return 0, 0, false
		}
		return slices.Min(t.Elems), slices.Max(t.Elems), true
	}
	if v.Node == nil || v.DType.IsFloat() {
		return 0, 0, false
	}
	n := v.Node
	size := func(axis int) (float64, float64, bool) { return 0, float64(n.In[0].Shape[axis] - 1), true }
	switch n.Op {
	case graph.TopK:
		if v.Index == 1 {
			return size(len(n.In[0].Shape) - 1)
		}
	case graph.SortOp:
		if v.Index == 1 {
			return size(n.Attrs.Axis)
		}
		return l.bounds(n.In[0])
	case graph.Reshape, graph.Transpose, graph.SliceOp, graph.Broadcast, graph.Cast, graph.Take, graph.TakeAlong:
		return l.bounds(n.In[0])
	case graph.FloorDiv:
		k, x, is := l.number(n)
		if lo, hi, ok = l.bounds(x); ok && is && x == n.In[0] && k >= 1 && lo >= 0 {
			return float64(int64(lo / k)), float64(int64(hi / k)), true
		}
	case graph.PutAt:
		if made := n.In[2].Node; len(n.In) == 3 && made != nil && made.Op == graph.SortOp {
			return l.bounds(n.In[1]) // all elements are overwritten
		}
	case graph.Min, graph.Max:
		alo, ahi, ok1 := l.bounds(n.In[0])
		blo, bhi, ok2 := l.bounds(n.In[1])
		if ok1 && ok2 && n.Op == graph.Min {
			return min(alo, blo), min(ahi, bhi), true
		}
		return max(alo, blo), max(ahi, bhi), ok1 && ok2
	}
	return 0, 0, false
}
