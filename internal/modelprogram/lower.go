package modelprogram

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/ir"
)

// lowerer converts a graph to instructions.
type lowerer struct {
	lowering
	results []*inst
	lengths map[string]operand // results of the method length, by its arguments
	indices map[*graph.Value]operand
}

// val describes what represents a value of the graph in the program: an operand, which may be viewed as transposed or
// in another shape. Views are emitted only where an instruction needs them, so that a transposition followed by its
// inverse emits nothing.
type val struct {
	operand
	perm  []int64 // dimension i of the value is dimension perm[i] of the operand; nil for the same order
	shape []int64 // the shape in which the operand is viewed; nil for the operand's own shape
}

// outputs converts the graph's outputs.
func (l *lowerer) outputs() error {
	for i, v := range l.g.Outputs {
		x, err := l.plain(v)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("out%d", i)
		in := x.in
		if in == nil || in.name != "" {
			in = l.emit(&inst{op: "copy", args: []operand{x}, dt: v.DType, shape: v.Shape, split: -1,
				order: math.MaxInt})
		}
		in.name = name
		l.results = append(l.results, in)
	}
	return l.updates()
}

// emission emits the program's statements.
type emission struct {
	recognition
	plan      Plan
	layout    map[*graph.Value]layout
	unused    []Unused       // entries of the plan
	kept      []string       // names of linear weights that are not quantized
	unfit     []string       // see Model.Unfit
	params    map[any]*param // the key is a value of the graph, or the name of a constant
	list      []*inst
	constants []*param
	fills     map[string]*inst // by attributes
	reshapes  map[operand][]*inst
	writers   map[*param]*inst // maps a cache to the instruction that writes it
}

// sorted returns the instructions in the order of the graph, each after those that it depends on. If only one
// instruction uses the result of an elementwise instruction, the elementwise instruction comes immediately before it,
// so that one kernel can compute both.
func (l *emission) sorted() []*inst {
	slices.SortStableFunc(l.list, func(a, b *inst) int { return cmp.Compare(a.order, b.order) })
	users := map[*inst]int{}
	for _, in := range l.list {
		for _, a := range in.args {
			users[a.in]++
		}
	}
	list, done := make([]*inst, 0, len(l.list)), map[*inst]bool{}
	var add func(in *inst)
	add = func(in *inst) {
		if in == nil || done[in] {
			return
		}
		done[in] = true
		for _, a := range in.args {
			add(a.in)
		}
		for _, other := range in.after {
			add(other)
		}
		list = append(list, in)
	}
	for _, in := range l.list {
		if users[in] != 1 || !in.movable() {
			add(in)
		}
	}
	return list
}

// movable reports whether an instruction may come later in the program: it is elementwise, does not involve states, and
// its result is not smaller than its operands, since moving it lengthens the life of the operands.
func (in *inst) movable() bool {
	if op, ok := ir.ParseOp(in.op); !ok || !op.Info().Elementwise {
		return false
	}
	return in.order >= 0 && !in.into && in.reduce == "" && len(in.after) == 0 &&
		!slices.ContainsFunc(in.args, func(a operand) bool {
			return a.p != nil && a.p.state || bytesOf(a.dtype(), a.shape()) > bytesOf(in.dt, in.shape)
		})
}

func bytesOf(dt graph.DType, shape []int64) int64 {
	return graph.Product(shape) * dt.Size()
}

func (l *emission) emit(in *inst) *inst {
	l.list = append(l.list, in)
	return in
}

// emitted adds an instruction for node n and returns its result as a val without a view.
func (l *emission) emitted(n *graph.Node, op, attrs string, dt graph.DType, shape []int64, split int,
	args ...operand) *val {
	in := l.emit(&inst{op: op, args: args, attrs: attrs, dt: dt, shape: shape, split: split, from: n.From,
		order: l.order(n)})
	return &val{operand: operand{in: in}}
}

// lowering converts the nodes of a graph one after another.
type lowering struct {
	emission
	// recognized converts a value that one instruction computes in place of many operations. It returns nil if no such
	// instruction exists for v.
	recognized func(v *graph.Value) (*val, error)

	values map[*graph.Value]*val
}

// lower returns the val that represents v in the program. It emits the instructions on the first call.
func (l *lowering) lower(v *graph.Value) (*val, error) {
	if x := l.values[v]; x != nil {
		return x, nil
	}
	if len(l.list) > maxInsts {
		return nil, fmt.Errorf("%w: the program has more than %d operations", ErrUnsupported, maxInsts)
	}
	x, err := l.make(v)
	if err != nil {
		return nil, err
	}
	l.values[v] = x
	return x, nil
}

// plain returns an operand with the elements and the shape of v. It emits the views that are needed.
func (l *lowering) plain(v *graph.Value) (operand, error) {
	x, err := l.lower(v)
	if err != nil {
		return operand{}, err
	}
	return l.settle(v, x), nil
}

// plains is plain for several values.
func (l *lowering) plains(list ...*graph.Value) ([]operand, error) {
	var args []operand
	for _, v := range list {
		x, err := l.plain(v)
		if err != nil {
			return nil, err
		}
		args = append(args, x)
	}
	return args, nil
}

// settle emits the view that x describes.
func (l *emission) settle(v *graph.Value, x *val) operand {
	if x.perm == nil && x.shape == nil {
		return x.operand
	}
	in := &inst{dt: x.dtype(), shape: v.Shape, args: []operand{x.operand}, split: -1, order: -1}
	if v.Node != nil {
		in.from, in.order = v.Node.From, l.order(v.Node)
	}
	if x.perm != nil {
		in.op, in.attrs = "transpose", "perm="+tuple(x.perm)
		in.split = slices.Index(x.perm, int64(x.splitDim()))
	} else {
		in.op, in.attrs = "reshape", "shape="+tuple(x.shape)
		in.split = reshapedSplit(x.operand.shape(), x.shape, x.splitDim())
	}
	*x = val{operand: operand{in: l.emit(in)}}
	return x.operand
}

// shaped returns x, which represents v, in another shape. An existing reshape to this shape is used again.
func (l *emission) shaped(v *graph.Value, x *val, shape []int64) operand {
	if x.perm != nil {
		l.settle(v, x)
	}
	if slices.Equal(x.operand.shape(), shape) {
		return x.operand
	}
	for _, in := range l.reshapes[x.operand] {
		if slices.Equal(in.shape, shape) {
			return operand{in: in}
		}
	}
	o := l.settle(&graph.Value{Shape: shape, Node: v.Node}, seen(x, shape))
	l.reshapes[x.operand] = append(l.reshapes[x.operand], o.in)
	return o
}

// seen returns x viewed in another shape. The dimensions of x must not be permuted.
func seen(x *val, shape []int64) *val {
	if slices.Equal(x.operand.shape(), shape) {
		return &val{operand: x.operand}
	}
	return &val{operand: x.operand, shape: append([]int64{}, shape...)} // for a scalar, the shape must be empty but not nil
}

// reshapedSplit returns the dimension of a reshaped value that begins at the same element as the split dimension, or
// -1.
func reshapedSplit(from, to []int64, split int) int {
	if split < 0 {
		return -1
	}
	before := graph.Product(from[:split])
	at := int64(1)
	for i, d := range to {
		if at == before && d > 1 {
			return i
		}
		at *= d
	}
	return -1
}

func tuple(list []int64) string {
	s := "("
	for i, d := range list {
		if i > 0 {
			s += ", "
		}
		s += strconv.FormatInt(d, 10)
	}
	return s + ")"
}

// number prints x as an attribute of an operation on elements of type dt. If dt is no wider than f32, a number that was
// rounded to f32 is printed with only as many digits as distinguish it from other f32 numbers.
func number(x float64, dt graph.DType) string {
	switch {
	case !dt.IsFloat() && x == math.Trunc(x):
		return strconv.FormatFloat(x, 'f', 0, 64)
	case dt != graph.F64 && float64(float32(x)) == x:
		return strconv.FormatFloat(x, 'g', -1, 32)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// make emits the instructions that compute v.
func (l *lowering) make(v *graph.Value) (*val, error) {
	if v.Node == nil && v.Leaf != graph.Constant && v.DType == graph.Bool {
		return nil, fmt.Errorf("%w: %s is of type bool; convert it to int32 in the model, and compare it with 0 there",
			ErrUnsupported, cmp.Or(v.Path, v.Name))
	}
	if v.Leaf == graph.State {
		return l.readState(v, -1), nil
	}
	if v.Node == nil && v.Leaf != graph.Constant {
		return &val{operand: operand{p: l.param(v)}}, nil
	}
	if l.folder.IsConstant(v) {
		return l.constant(v)
	}
	n := v.Node
	if x, err := l.recognized(v); x != nil || err != nil {
		return x, err
	}
	switch n.Op {
	case graph.Reshape:
		return l.reshape(v)
	case graph.Transpose:
		return l.transpose(v)
	case graph.Linear, graph.MatMul:
		return l.product(n)
	case graph.SliceOp:
		return l.slice(n)
	case graph.Concat:
		return l.concat(n)
	case graph.Embedding:
		return l.embedding(n)
	case graph.IndexAdd:
		return l.direct(n, "index_add", fmt.Sprintf("n=%d", n.Attrs.K), n.In...)
	case graph.Cast:
		x, err := l.lower(n.In[0])
		switch {
		case err != nil:
			return nil, err
		case v.DType == graph.Bool:
			return l.isZero(n, "ne")
		case x.dtype() == v.DType:
			return x, nil
		}
		return l.mapped(n, x, "cast", ""), nil
	case graph.IndexCopy:
		return l.indexCopy(n)
	case graph.Softmax:
		y, err := l.direct(n, "softmax", fmt.Sprintf("axis=%d", n.Attrs.Axis), n.In...)
		if err == nil {
			y.in.split = y.in.args[0].splitDim()
		}
		return y, err
	case graph.LayerNorm, graph.RMSNorm:
		return l.norm(n, n.In[0], n.In[1:], n.Attrs.Eps)
	case graph.Broadcast:
		return l.direct(n, "broadcast", "shape="+tuple(v.Shape), n.In...)
	case graph.Reshard:
		return l.reshard(n)
	case graph.AllReduce:
		return l.allReduce(n)
	case graph.Where:
		return l.where(n)
	case graph.Not:
		return l.isZero(n, "eq")
	case graph.And, graph.Or, graph.Eq, graph.Ne, graph.Lt, graph.Le, graph.Gt, graph.Ge:
		return l.compare(n)
	case graph.Cumsum:
		return l.cumsum(n)
	case graph.Take, graph.TakeAlong:
		if x, ok := l.uniform(n.In[0]); ok { // all elements are equal, so the index does not matter
			return &val{operand: l.fill(v.DType, v.Shape, x)}, nil
		}
		if n.Op == graph.Take {
			return l.take(n)
		}
	case graph.ArgMax:
		return l.argmax(n)
	case graph.SumOp, graph.Mean, graph.MaxOf, graph.MinOf:
		return l.reduce(n)
	}
	if name := unaryOps[n.Op]; name != "" {
		x, err := l.lower(n.In[0])
		if err != nil {
			return nil, err
		}
		return l.mapped(n, x, name, ""), nil
	}
	if len(n.In) == 2 {
		return l.binary(n)
	}
	return nil, refuse(n, "hocket's language has no %s", n.Op)
}

// unaryOps maps elementwise operations of the graph to their names in the language.
var unaryOps = map[graph.Op]string{graph.Neg: "neg", graph.Exp: "exp", graph.Rsqrt: "rsqrt", graph.SiLU: "silu",
	graph.GELU: "gelu", graph.ReLU: "relu", graph.Softplus: "softplus", graph.Tanh: "tanh", graph.GELUTanh: "gelu_tanh",
	graph.Sigmoid: "sigmoid", graph.Sqrt: "sqrt", graph.Sin: "sin", graph.Cos: "cos", graph.Erf: "erf",
	graph.Log: "log",
	graph.Abs: "abs", graph.Floor: "floor"}

// mapped applies an elementwise operation to x, transposed or not, and to other operands that broadcast to it.
func (l *emission) mapped(n *graph.Node, x *val, op, attrs string, others ...operand) *val {
	args := append([]operand{x.operand}, others...)
	y := l.emitted(n, op, attrs, n.Out[0].DType, x.operand.shape(), x.splitDim(), args...)
	y.in.typed = op == "cast"
	y.perm, y.shape = x.perm, x.shape
	return y
}

// direct converts n to one instruction with the operands in. The type of its elements is that of the first operand.
func (l *lowering) direct(n *graph.Node, op, attrs string, in ...*graph.Value) (*val, error) {
	args, err := l.plains(in...)
	if err != nil {
		return nil, err
	}
	return l.emitted(n, op, attrs, args[0].dtype(), n.Out[0].Shape, -1, args...), nil
}

// transpose converts a permutation of dimensions, which is a view.
func (l *lowering) transpose(v *graph.Value) (*val, error) {
	if x, err := l.productTurned(v); x != nil || err != nil {
		return x, err
	}
	of := v.Node.In[0]
	x, err := l.lower(of)
	if err != nil {
		return nil, err
	}
	if x.shape != nil {
		l.settle(of, x)
	}
	return permuted(x, v.Node.Attrs.Axes), nil
}

// embedding converts a selection of rows of a table.
func (l *lowering) embedding(n *graph.Node) (*val, error) {
	table, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	ids, err := l.lower(n.In[1])
	if err != nil {
		return nil, err
	}
	out, rows := n.Out[0], []int64{n.In[1].Count()}
	x := l.emitted(n, "embedding", "", out.DType, append(rows, graph.Last(out.Shape)), -1, l.shaped(n.In[1], ids, rows),
		table)
	x.in.whole = true
	return seen(x, out.Shape), nil
}

// permuted returns x with its dimensions in another order.
func permuted(x *val, perm []int64) *val {
	y := &val{operand: x.operand, perm: make([]int64, len(perm))}
	plain := true
	for i, p := range perm {
		y.perm[i] = p
		if x.perm != nil {
			y.perm[i] = x.perm[p]
		}
		plain = plain && y.perm[i] == int64(i)
	}
	if plain {
		y.perm = nil
	}
	return y
}

func (l *lowering) reshape(v *graph.Value) (*val, error) {
	if x, err := l.row(v); x != nil || err != nil {
		return x, err
	}
	x, err := l.lower(v.Node.In[0])
	if err != nil {
		return nil, err
	}
	if x.perm != nil {
		l.settle(v.Node.In[0], x)
	}
	return seen(x, v.Shape), nil
}

// row converts a reshape that only removes the dimension of extent 1 of a slice. An example is the weight of one layer
// in a stack, in a scan over layers. It returns nil for other reshapes.
func (l *lowering) row(v *graph.Value) (*val, error) {
	of := v.Node.In[0].Made(graph.SliceOp)
	if of == nil || of.Attrs.Step != 1 || of.Attrs.Hi-of.Attrs.Lo != 1 || len(l.users[v.Node.In[0]]) != 1 {
		return nil, nil
	}
	axis := of.Attrs.Axis
	rest := slices.Delete(slices.Clone(of.Out[0].Shape), axis, axis+1)
	if axis == len(rest) || !slices.Equal(v.Shape, rest) {
		return nil, nil
	}
	x, err := l.plain(of.In[0])
	if err != nil {
		return nil, err
	}
	split := x.splitDim()
	switch {
	case split == axis:
		split = -1
	case split > axis:
		split--
	}
	y := l.emitted(v.Node, "select", fmt.Sprintf("axis=%d", axis), v.DType, v.Shape, split, x)
	y.in.selects, y.in.row = true, of.Attrs.Lo
	return y, nil
}

// param returns the program's parameter for an input or weight.
func (l *emission) param(v *graph.Value) *param {
	if p := l.params[v]; p != nil {
		return p
	}
	p := &param{value: v, dt: v.DType, shape: v.Shape, split: -1, packed: -1, number: len(l.params),
		state: v.Leaf == graph.State}
	if v.Layout != nil {
		p.split = l.splitOf(v.Layout)
	}
	if at, ok := l.layout[v]; ok && at.split >= 0 {
		p.split, p.parts = at.split, at.parts
		if at.parts > 1 {
			p.packed, p.split = at.split, at.split+1
			p.shape = slices.Insert(slices.Clone(v.Shape), at.split, int64(at.parts))
			p.shape[p.split] /= int64(at.parts)
		}
	}
	l.params[v] = p
	return p
}

// uniform holds the number that all elements of a constant equal, if ok is set.
type uniform struct {
	number float64
	ok     bool
}

// uniform returns the number that all elements of a constant equal.
func (l *recognition) uniform(v *graph.Value) (float64, bool) {
	if !l.folder.IsConstant(v) {
		return 0, false
	}
	u, ok := l.uniforms[v]
	if !ok {
		if t, err := l.folder.Value(v); err == nil {
			u.number, u.ok = t.Uniform()
		}
		l.uniforms[v] = u
	}
	return u.number, u.ok
}

// constant converts a value that depends only on constants. The value becomes a fill, or a parameter whose contents the
// importer provides.
func (l *emission) constant(v *graph.Value) (*val, error) {
	t, err := l.folder.Value(v)
	if err != nil {
		return nil, err
	}
	if t.DType == graph.Bool {
		t = t.As(graph.F32)
	}
	return l.known(t), nil
}

// known converts a constant.
func (l *emission) known(t *graph.Tensor) *val {
	if x, ok := t.Uniform(); ok && !math.IsInf(x, 0) && !math.IsNaN(x) {
		key := fmt.Sprint(typeText(t.DType, t.Shape, -1), x)
		if l.fills[key] == nil {
			l.fills[key] = l.emit(&inst{op: "fill", attrs: "value=" + number(x, t.DType), dt: t.DType, shape: t.Shape, split: -1,
				typed: true, order: -1})
		}
		return &val{operand: operand{in: l.fills[key]}}
	}
	if start, ok := counts(t); ok {
		return &val{operand: operand{in: l.iota(t.DType, t.Shape, start)}}
	}
	return &val{operand: operand{p: l.constantParam(t, "constant")}}
}

// counts reports whether a tensor's elements are the consecutive numbers start, start+1, and so on.
func counts(t *graph.Tensor) (start int64, ok bool) {
	n := len(t.Elems)
	if n < 2 || t.DType != graph.I32 && t.DType != graph.I64 || graph.Last(t.Shape) != int64(n) {
		return 0, false
	}
	for i, x := range t.Elems {
		if x != t.Elems[0]+float64(i) {
			return 0, false
		}
	}
	return int64(t.Elems[0]), true
}

// iota returns the instruction that counts from start.
func (l *emission) iota(dt graph.DType, shape []int64, start int64) *inst {
	attrs := ""
	if start != 0 {
		attrs = fmt.Sprintf("start=%d", start)
	}
	key := "iota " + attrs + typeText(dt, shape, -1)
	if l.fills[key] == nil {
		l.fills[key] = l.emit(&inst{op: "iota", attrs: attrs, dt: dt, shape: shape, split: -1, typed: true, order: -1})
	}
	return l.fills[key]
}

// constantParam returns the parameter that holds a constant.
func (l *emission) constantParam(t *graph.Tensor, hint string) *param {
	for _, p := range l.constants {
		if p.dt == t.DType && slices.Equal(p.shape, t.Shape) && slices.Equal(p.constant.Elems, t.Elems) {
			return p
		}
	}
	p := &param{constant: t, dt: t.DType, shape: t.Shape, split: -1, packed: -1, number: len(l.params), name: hint}
	l.params[p] = p
	l.constants = append(l.constants, p)
	return p
}

// fill returns a constant of one number.
func (l *emission) fill(dt graph.DType, shape []int64, x float64) operand {
	t := graph.NewTensor(dt, shape)
	for i := range t.Elems {
		t.Elems[i] = x
	}
	return l.known(t).operand
}

// product converts linear and matmul.
func (l *lowering) product(n *graph.Node) (*val, error) {
	w := n.In[1]
	if y, err := l.productOfBatches(n); y != nil || err != nil {
		return y, err
	}
	return l.byParts(n, l.packed(w), l.productOf)
}

// byParts converts a product by the function of. If p is not nil, it is the product's packed weight: of converts the
// product with each part of it, and the results are concatenated along the last dimension.
func (l *emission) byParts(n *graph.Node, p *param, of func(n *graph.Node, part int) (*val, error)) (*val, error) {
	if p == nil {
		return of(n, -1)
	}
	var parts []operand
	for k := range p.parts {
		x, err := of(n, k)
		if err != nil {
			return nil, err
		}
		parts = append(parts, x.operand)
	}
	out := n.Out[0]
	return l.emitted(n, "concat", fmt.Sprintf("axis=%d", len(out.Shape)-1), out.DType, out.Shape, -1, parts...), nil
}

// packed returns the parameter of a weight that the plan packs, or nil for other weights.
func (l *emission) packed(w *graph.Value) *param {
	if w.Leaf == graph.Weight {
		if p := l.param(w); p.parts > 1 {
			return p
		}
	}
	return nil
}

// productOf converts a matrix product. If part is not negative, it uses only this part of a packed weight.
func (l *lowering) productOf(n *graph.Node, part int) (*val, error) {
	out := n.Out[0]
	x, err := l.lower(n.In[0])
	if err != nil {
		return nil, err
	}
	w, err := l.lower(n.In[1])
	if err != nil {
		return nil, err
	}
	wShape := n.In[1].Shape
	shape := slices.Clone(out.Shape)
	if part >= 0 {
		w = l.part(n, w.operand, part)
		wShape = w.operand.shape()
		shape[len(shape)-1] /= int64(l.packed(n.In[1]).parts)
	}
	// The activations are viewed as a matrix of rows for any leading dimensions, so that strategies can divide the rows.
	var xo operand
	pending := shape
	if k := graph.Last(n.In[0].Shape); len(wShape) == 2 && k > 0 {
		rows := n.In[0].Count() / k
		xo = l.shaped(n.In[0], x, []int64{rows, k})
		shape = []int64{rows, graph.Last(shape)}
	} else {
		xo = l.settle(n.In[0], x)
	}
	op, attrs := "linear", ""
	outDim := 0
	var wo operand
	switch {
	case n.Op == graph.MatMul && w.perm != nil && swapsLast(w.perm) && len(wShape) == 2:
		wo = w.operand // x · (wᵀ)ᵀ
	case n.Op == graph.MatMul:
		op, outDim = "matmul", len(wShape)-1
		if w.perm != nil && swapsLast(w.perm) {
			attrs, wo = "tb=true", w.operand
		} else {
			wo = l.settle(n.In[1], w)
		}
	default:
		wo = l.settle(n.In[1], w)
	}
	args := []operand{xo, wo}
	if len(n.In) == 3 {
		b, err := l.plain(n.In[2])
		if err != nil {
			return nil, err
		}
		if part >= 0 && b.p != nil && b.p.parts > 1 {
			b = l.part(n, b, part).operand
		}
		args = append(args, b)
	}
	y := l.emitted(n, op, attrs, out.DType, shape, -1, args...)
	if s := wo.splitDim(); len(wo.shape()) == 2 && s == outDim {
		y.in.split = len(shape) - 1
	} else if len(wo.shape()) == 2 && s >= 0 {
		y.in.whole = true
	}
	if at := l.layout[n.In[1]]; at.style == "colwise_gather_output" {
		y.in.whole, y.in.split = true, -1
	}
	return seen(y, pending), nil
}

// part selects one part of a packed parameter.
func (l *emission) part(n *graph.Node, w operand, k int) *val {
	shape := slices.Delete(slices.Clone(w.p.shape), w.p.packed, w.p.packed+1)
	return l.emitted(n, "select", fmt.Sprintf("axis=%d, index=%d", w.p.packed, k), w.p.dt, shape, w.p.split-1, w)
}

// slice converts a slice along a dimension.
func (l *lowering) slice(n *graph.Node) (*val, error) {
	if n.Attrs.Step != 1 {
		return nil, refuse(n, "a slice with step %d", n.Attrs.Step)
	}
	if n.Attrs.Axis == len(n.Out[0].Shape)-1 {
		if x, err := l.slicePacked(n, n.In[0]); x != nil || err != nil {
			return x, err
		}
	}
	// the slice is one operand of the concat, or a part of it
	if c := n.In[0].Made(graph.Concat); c != nil && c.Attrs.Axis == n.Attrs.Axis {
		at := int64(0)
		for _, v := range c.In {
			end := at + v.Shape[n.Attrs.Axis]
			if at == n.Attrs.Lo && end == n.Attrs.Hi {
				return l.lower(v)
			}
			at = end
		}
	}
	x, err := l.lower(n.In[0])
	if err != nil {
		return nil, err
	}
	if x.shape != nil {
		l.settle(n.In[0], x)
	}
	axis := n.Attrs.Axis
	if x.perm != nil {
		axis = int(x.perm[axis])
	}
	shape := slices.Clone(x.operand.shape())
	shape[axis] = n.Attrs.Hi - n.Attrs.Lo
	y := l.emitted(n, "slice", fmt.Sprintf("axis=%d, %d..%d", axis, n.Attrs.Lo, n.Attrs.Hi), x.dtype(), shape,
		x.splitDim(), x.operand)
	y.perm = x.perm
	return y, nil
}

// slicePacked converts a slice that selects one part of a product with a packed weight. The product may have a bias and
// another shape. It returns nil for other slices.
func (l *lowering) slicePacked(n *graph.Node, v *graph.Value) (*val, error) {
	at := v.Node
	for at != nil && at.Op == graph.Reshape && graph.Last(at.In[0].Shape) == graph.Last(v.Shape) {
		at = at.In[0].Node
	}
	var bias *graph.Value
	if at != nil && at.Op == graph.AddOp && isProduct(at.In[0]) && at.In[1].Leaf == graph.Weight {
		bias, at = at.In[1], at.In[0].Node
	}
	if at == nil || at.Op != graph.Linear && at.Op != graph.MatMul {
		return nil, nil
	}
	p := l.packed(at.In[1])
	if p == nil || bias != nil && l.packed(bias) == nil {
		return nil, nil
	}
	x, err := l.productOf(at, int(n.Attrs.Lo/(n.Attrs.Hi-n.Attrs.Lo)))
	if err != nil {
		return nil, err
	}
	if bias != nil {
		b := l.part(at, operand{p: l.param(bias)}, int(n.Attrs.Lo/(n.Attrs.Hi-n.Attrs.Lo)))
		y := l.emitted(n, "add", "", x.dtype(), x.operand.shape(), x.splitDim(), x.operand, b.operand)
		y.shape = x.shape
		x = y
	}
	return seen(x, n.Out[0].Shape), nil
}

// concat converts a concatenation. The operands may be permuted, but all in the same way.
func (l *lowering) concat(n *graph.Node) (*val, error) {
	var list []*val
	dt := n.Out[0].DType
	if dt == graph.Bool {
		var err error
		if dt, err = l.maskType(n.In...); err != nil {
			return nil, err
		}
	}
	for _, v := range n.In {
		x, err := l.lowerAs(v, dt)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	axis, perm := n.Attrs.Axis, list[0].perm
	for _, x := range list {
		if x.shape != nil || !slices.Equal(x.perm, perm) {
			perm = nil
			for i, x := range list {
				l.settle(n.In[i], x)
			}
			break
		}
	}
	var args []operand
	for _, x := range list {
		args = append(args, x.operand)
	}
	if perm != nil {
		axis = int(perm[axis])
	}
	shape := slices.Clone(args[0].shape())
	shape[axis] = 0
	for _, a := range args {
		shape[axis] += a.shape()[axis]
	}
	y := l.emitted(n, "concat", fmt.Sprintf("axis=%d", axis), dt, shape, args[0].splitDim(), args...)
	y.perm = perm
	return y, nil
}

// reduce converts a reduction. A reduction over dimensions of extent 1 becomes a reshape. A sum of negated numbers
// becomes the negation of their sum, which has the same bits but negates fewer numbers.
func (l *lowering) reduce(n *graph.Node) (*val, error) {
	if n.In[0].Count() == n.Out[0].Count() {
		x, err := l.lower(n.In[0])
		if err != nil {
			return nil, err
		}
		return &val{operand: l.shaped(n.In[0], x, n.Out[0].Shape)}, nil
	}
	if neg := n.In[0].Made(graph.Neg); neg != nil && n.Op == graph.SumOp && len(l.users[n.In[0]]) == 1 {
		sum := *n
		sum.In = neg.In
		x, err := l.reduce(&sum)
		if err != nil {
			return nil, err
		}
		return l.mapped(n, x, "neg", ""), nil
	}
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	name := map[graph.Op]string{graph.SumOp: "sum", graph.Mean: "mean", graph.MaxOf: "max", graph.MinOf: "min"}[n.Op]
	shape := []int64{}
	for i, d := range n.In[0].Shape {
		if !slices.Contains(n.Attrs.Axes, int64(i)) {
			shape = append(shape, d)
		}
	}
	attr := "axis=" + tuple(n.Attrs.Axes)
	if len(n.Attrs.Axes) == 1 {
		attr = fmt.Sprintf("axis=%d", n.Attrs.Axes[0])
	}
	y := l.emitted(n, name, attr, x.dtype(), shape, -1, x)
	if n.Attrs.Keep {
		y.shape = n.Out[0].Shape
	}
	return y, nil
}

// norm converts a normalization of x. params holds its weight and bias, each of which may be absent.
func (l *lowering) norm(n *graph.Node, x *graph.Value, params []*graph.Value, eps float64) (*val, error) {
	out := n.Out[0]
	y, err := l.lower(x)
	if err != nil {
		return nil, err
	}
	xo := y.operand
	if y.perm != nil || graph.Last(xo.shape()) != graph.Last(x.Shape) {
		xo = l.settle(x, y)
	}
	op, want := "rms_norm", 1
	if n.Op == graph.LayerNorm {
		op, want = "layer_norm", 2
	}
	args := []operand{xo}
	for i := range want {
		if i >= len(params) {
			args = append(args, l.fill(out.DType, []int64{graph.Last(x.Shape)}, float64(1-i)))
			continue
		}
		p, err := l.vector(params[i], out.DType)
		if err != nil {
			return nil, err
		}
		args = append(args, p)
	}
	attrs := "eps=" + number(eps, out.DType)
	return seen(l.emitted(n, op, attrs, out.DType, xo.shape(), xo.splitDim(), args...), out.Shape), nil
}

// vector converts a value in which only one dimension has an extent other than 1 to a vector of type dt.
func (l *lowering) vector(v *graph.Value, dt graph.DType) (operand, error) {
	for v.Node != nil && (v.Node.Op == graph.Cast && v.Node.In[0].DType == dt) {
		v = v.Node.In[0]
	}
	x, err := l.lower(v)
	if err != nil {
		return operand{}, err
	}
	o := x.operand
	if len(o.shape()) != 1 {
		o = l.settle(v, x)
		if len(o.shape()) != 1 {
			return o, fmt.Errorf("%w: a weight of a normalization has shape %v", ErrUnsupported, v.Shape)
		}
	}
	if o.dtype() != dt && v.Node != nil {
		o = l.emitted(v.Node, "cast", "", dt, o.shape(), -1, o).operand
		o.in.typed = true
	}
	return o, nil
}

// binary converts elementwise operations with two operands.
func (l *lowering) binary(n *graph.Node) (*val, error) {
	a, b := n.In[0], n.In[1]
	out := n.Out[0]
	if x, ok := l.uniform(b); ok && a.Count() == out.Count() {
		return l.withNumber(n, l.reshaped(a, out.Shape, n), x, false)
	}
	if x, ok := l.uniform(a); ok && b.Count() == out.Count() {
		return l.withNumber(n, l.reshaped(b, out.Shape, n), x, true)
	}
	name := binaryOps[n.Op]
	if name == "" {
		return nil, refuse(n, "hocket's language has no %s", n.Op)
	}
	x, err := l.lower(a)
	if err != nil {
		return nil, err
	}
	y, err := l.lower(b)
	if err != nil {
		return nil, err
	}
	if slices.Equal(a.Shape, b.Shape) && slices.Equal(x.perm, y.perm) && slices.Equal(x.shape, y.shape) &&
		slices.Equal(x.operand.shape(), y.operand.shape()) {
		z := l.mapped(n, x, name, "", y.operand)
		z.in.split = max(x.splitDim(), y.splitDim())
		return z, nil
	}
	commutes := n.Op == graph.AddOp || n.Op == graph.Mul || n.Op == graph.Max || n.Op == graph.Min
	if len(a.Shape) < len(b.Shape) && commutes {
		a, b, x, y = b, a, y, x
	}
	if b.Count() == 1 && len(b.Shape) > 0 && slices.Equal(a.Shape, out.Shape) { // b has one element, which is used for all elements of a
		y = &val{operand: l.shaped(b, y, []int64{})}
		b = &graph.Value{DType: b.DType, Shape: []int64{}, Node: b.Node, Leaf: b.Leaf}
	}
	// The operand a may have any shape in which its last dimension remains last.
	vector := len(b.Shape) == 1 && slices.Equal(a.Shape, out.Shape)
	if base := x.operand.shape(); vector && x.perm == nil && graph.Last(base) == graph.Last(a.Shape) {
		return l.mapped(n, x, name, "", l.settle(b, y)), nil
	}
	stretched := func(v *graph.Value, o operand, shape []int64) operand {
		if slices.Equal(v.Shape, shape) {
			return o
		}
		return l.emitted(n, "broadcast", "shape="+tuple(shape), v.DType, shape, -1, o).operand
	}
	xo, yo := l.settle(a, x), l.settle(b, y)
	xo = stretched(a, xo, out.Shape)
	if k := len(out.Shape) - len(b.Shape); !slices.Equal(b.Shape, out.Shape[k:]) {
		yo = stretched(b, yo, out.Shape)
	}
	return l.emitted(n, name, "", out.DType, out.Shape, xo.splitDim(), xo, yo), nil
}

var binaryOps = map[graph.Op]string{graph.AddOp: "add", graph.Sub: "sub", graph.Mul: "mul", graph.Div: "div",
	graph.Max: "maximum", graph.Min: "minimum"}

// withNumber converts an operation on the tensor a and the number c. If first is set, the number is the first operand.
func (l *lowering) withNumber(n *graph.Node, a *graph.Value, c float64, first bool) (*val, error) {
	x, err := l.lower(a)
	if err != nil {
		return nil, err
	}
	scaled := func(x *val, by float64) *val {
		if by == 1 {
			return x
		}
		return l.mapped(n, x, "scale", "by="+number(by, n.Out[0].DType))
	}
	fill := func() operand { return l.fill(n.Out[0].DType, []int64{}, c) }
	switch op := n.Op; {
	case op == graph.Mul:
		return scaled(x, c), nil
	case op == graph.Div && first:
		return scaled(l.mapped(n, x, "reciprocal", ""), c), nil
	case op == graph.Div && c != 0:
		return scaled(x, 1/c), nil
	case op == graph.Pow && first && c > 0:
		return l.mapped(n, l.mapped(n, x, "scale", "by="+number(math.Log(c), n.Out[0].DType)), "exp", ""), nil
	case op == graph.Pow && first:
	case op == graph.Pow && c == 1 || (op == graph.AddOp || op == graph.Sub && !first) && c == 0:
		return x, nil
	case op == graph.Pow && c == 2:
		return l.mapped(n, x, "mul", "", x.operand), nil
	case op == graph.Pow:
		return l.mapped(n, x, "pow", "by="+number(c, n.Out[0].DType)), nil
	case op == graph.Sub && first:
		return l.mapped(n, l.mapped(n, x, "neg", ""), "add", "", fill()), nil
	case op == graph.AddOp || op == graph.Sub || op == graph.Max || op == graph.Min:
		return l.mapped(n, x, binaryOps[op], "", fill()), nil
	}
	return nil, refuse(n, "hocket's language has no %s with a number", n.Op)
}
