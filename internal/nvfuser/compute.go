package nvfuser

import (
	"slices"
	"sort"

	"hocket.example/hocket/ir"
)

// computeStmt translates a computation, which each rank executes on its own tensors.
func (t *translator) computeStmt(s *stmt) {
	if l := t.streamLoop(s.out); l != nil && t.unit == nil {
		t.slicing = l
		defer func() { t.slicing = nil }()
	}
	c := &computation{translator: t, s: s}
	for _, o := range s.in {
		var b *binding
		if o.t != nil {
			if b = t.reading(o.t); b == nil {
				return
			}
		}
		c.in = append(c.in, b)
	}
	if c.out = t.writing(s.out); c.out == nil {
		return
	}
	c.ranks = s.out.mesh.ranks()
	for _, o := range s.in {
		if s.out.mesh == nil && o.t != nil && o.t.mesh != nil {
			c.ranks = o.t.mesh.ranks()
		}
	}
	c.translate()
}

// computation is one computation together with the bindings of its tensors. An element of the field in is nil if
// the operand is a number.
type computation struct {
	*translator
	s     *stmt
	in    []*binding
	out   *binding
	ranks rankSet
}

func (c *computation) translate() {
	s := c.s
	switch {
	case s.op == "Set" || s.op == "SegmenterSet":
		c.copy(c.in[0])
	case s.op == "Set.Permute":
		c.permute()
	case s.op == "linear":
		if c.count(2, 3) {
			c.op(ir.OpLinear, c.out, c.in...)
		}
	case s.op == "matmul":
		if c.count(2, 2) {
			c.matmul()
		}
	case s.op == "broadcast" || s.op == "squeeze":
		c.reshape()
	case reductions[s.op] != ir.InvalidOp:
		c.reduce()
	case unaries[s.op] != ir.InvalidOp:
		if c.count(1, 1) {
			c.op(unaries[s.op], c.out, c.in...)
		}
	case binaries[s.op] != ir.InvalidOp:
		if c.count(2, 2) {
			c.binary(binaries[s.op])
		}
	default:
		c.errorf(s.pos, "the operation %s is not supported", brief(s.op))
	}
}

func (c *computation) count(least, most int) bool {
	if n := len(c.in); n < least || n > most {
		c.errorf(c.s.pos, "%s has %d operands here, which is not supported", c.s.op, n)
		return false
	}
	if c.in[0] == nil && binaries[c.s.op] == ir.InvalidOp {
		c.errorf(c.s.pos, "an operand of %s is a number; only tensors are supported", c.s.op)
		return false
	}
	return true
}

// op emits one operation of the converted program.
func (c *computation) op(op ir.Op, out *binding, in ...*binding) {
	c.with(op, out, in)
}

func (c *computation) with(op ir.Op, out *binding, in []*binding, attrs ...ir.Attr) {
	s := &ir.Stmt{Op: op, Pos: c.s.pos, Into: ptr(out.at(c.s.out.pos)), Attrs: attrs}
	for i, b := range in {
		pos := c.s.pos
		if i < len(c.s.in) && c.s.in[i].t != nil {
			pos = c.s.in[i].t.pos
		}
		s.Args = append(s.Args, b.at(pos))
	}
	c.emit(s, c.ranks)
}

// copy emits a copy of an operand that has the shape of the result. If the dtypes differ, the copy is a cast.
func (c *computation) copy(in *binding) {
	op := ir.OpCopy
	if in.t.dtype != c.out.t.dtype {
		op = ir.OpCast
	}
	c.op(op, c.out, in)
}

// view defines a view of b with another shape.
func (c *computation) view(op ir.Op, b *binding, shape []*ir.Expr, attr ir.Attr) *binding {
	v := &binding{name: c.fresh(b.name + "_v"), t: b.t, mem: b.mem, value: b.value, shape: shape}
	c.define(c.blk, &ir.Stmt{Op: op, Pos: c.s.pos, Results: []ir.Name{{Pos: c.s.pos, Text: v.name}}, Args: []ir.Place{b.at(c.s.pos)}, Attrs: []ir.Attr{attr}})
	return v
}

// scratch defines a buffer for an intermediate value between the operands and the result.
func (c *computation) scratch(dtype ir.DType, shape []*ir.Expr) *binding {
	x := &tensor{pos: c.s.pos, id: c.s.out.id, dtype: dtype}
	v := &binding{name: c.fresh(c.s.out.id + "_t"), t: x, shape: shape, mem: &storage{}}
	c.define(c.blk, &ir.Stmt{Op: ir.OpAlloc, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: v.name}}, Type: typeOf(x, shape)})
	return v
}

// permute emits a copy of the operand with its axes in another order. nvFuser numbers the axes of the result in the
// order of the operand, but prints them in the order of the result.
func (c *computation) permute() {
	from := c.sources(c.s.in[0].t, c.s.out)
	if from == nil {
		return
	}
	c.permuted(c.in[0], from)
}

// permuted emits a copy of in. Dimension i of the result is dimension from[i] of in.
func (c *computation) permuted(in *binding, from []int) {
	perm := make([]*ir.Expr, len(from))
	shape := make([]*ir.Expr, len(from))
	identity := true
	for i, k := range from {
		perm[i], shape[i] = num(c.s.pos, int64(k)), in.shape[k]
		identity = identity && i == k
	}
	if !identity {
		in = c.view(ir.OpTranspose, in, shape, ir.ExprsAttr("perm", perm...))
	}
	c.copy(in)
}

// sources returns, for each dimension of a rank's part of the result, the dimension of the operand's part from which it
// is copied. The result must have the axes of the operand. If the result's axes are new, they are numbered in the
// operand's order. After an error, sources returns nil.
func (c *computation) sources(in, out *tensor) []int {
	a, b := kept(in.axes), kept(out.axes)
	if len(a) != len(b) {
		c.errorf(c.s.pos, "%s has %d axes but %s has %d; a permutation preserves their number", in.id, len(a),
			out.id, len(b)).Help = "the dump contradicts itself"
		return nil
	}
	byNumber := numbered(b)
	// The operand's axes are usually printed in the order that they have in memory. The exception is an operand
	// whose device axis is printed first although it is not the first axis: its axes are in the order of their
	// numbers.
	for _, order := range [][]int{identityOrder(len(a)), numbered(a)} {
		source := make([]int, len(b)) // source maps axis i of out to axis source[i] of in
		fits := true
		for k, i := range byNumber {
			source[i] = order[k]
			fits = fits && a[order[k]].device() == b[i].device() && a[order[k]].extent.String() == b[i].extent.String()
		}
		if fits {
			return localSources(a, b, source)
		}
	}
	c.errorf(c.s.pos, "it is unclear in which order %s has the axes of %s", out.id, in.id).Help =
		"there is no order of the axes in which the printed extents of the two tensors match"
	return nil
}

// kept returns the axes that are not reduced.
func kept(axes []axis) []axis {
	return slices.DeleteFunc(slices.Clone(axes), func(a axis) bool { return a.reduced() })
}

// numbered returns the positions of the axes, sorted by the numbers of the axes.
func numbered(axes []axis) []int {
	order := identityOrder(len(axes))
	sort.SliceStable(order, func(i, j int) bool { return axes[order[i]].num < axes[order[j]].num })
	return order
}

func identityOrder(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// localSources converts indices that count all axes of a tensor to indices that count only the axes that are not
// split over devices.
func localSources(in, out []axis, source []int) []int {
	local := make([]int, len(in))
	n := 0
	for i := range in {
		local[i] = n
		if !in[i].device() {
			n++
		}
	}
	list := []int{}
	for i := range out {
		if !out[i].device() {
			list = append(list, local[source[i]])
		}
	}
	return list
}

// matmul emits a matrix product with the semantics of PyTorch: the batch dimensions of the operands are aligned at
// the end, and a batch extent of 1 is broadcast. The op matmul of the program, however, requires operands with
// equal batch dimensions, or a second operand that is a single matrix. A second operand whose batch dimensions all
// have extent 1 is therefore viewed as a matrix. Other operands that are broadcast are expanded.
func (c *computation) matmul() {
	a, b := c.in[0], c.in[1]
	if len(b.shape) > 2 && len(a.shape) >= len(b.shape) && allOnes(b.shape[:len(b.shape)-2]) {
		for len(b.shape) > 2 {
			b = c.selected(b, 0, num(c.s.pos, 0), c.fresh(b.name+"_v"), c.s.pos)
		}
	}
	if len(a.shape) > 1 && len(b.shape) > 2 {
		batch := broadcast(a.shape[:len(a.shape)-2], b.shape[:len(b.shape)-2])
		a, b = c.repeated(a, batch), c.repeated(b, batch)
	}
	c.op(ir.OpMatmul, c.out, a, b)
}

// broadcast returns the shape to which a and b are broadcast. The shapes are aligned at the end.
func broadcast(a, b []*ir.Expr) []*ir.Expr {
	if len(a) < len(b) {
		a, b = b, a
	}
	shape := slices.Clone(a)
	for i, e := range b {
		if at := &shape[len(a)-len(b)+i]; isOne(*at) {
			*at = e
		}
	}
	return shape
}

// repeated returns x with the given batch dimensions. If x has other batch dimensions, it is expanded.
func (c *computation) repeated(x *binding, batch []*ir.Expr) *binding {
	n := len(x.shape) - 2
	same := len(batch) == n
	for i := 0; same && i < n; i++ {
		same = isOne(x.shape[i]) == isOne(batch[i])
	}
	if same {
		return x
	}
	shape := slices.Concat(batch, x.shape[n:])
	wide := c.scratch(x.t.dtype, shape)
	c.with(ir.OpExpand, wide, []*binding{x}, ir.ExprsAttr("shape", shape...))
	return wide
}

func isOne(e *ir.Expr) bool { return e.Kind == ir.ExprInt && e.Val == 1 }

func allOnes(shape []*ir.Expr) bool {
	return !slices.ContainsFunc(shape, func(e *ir.Expr) bool { return !isOne(e) })
}

// reshape adds or removes axes of extent 1.
func (c *computation) reshape() {
	c.copy(c.view(ir.OpReshape, c.in[0], c.out.shape, ir.ExprsAttr("shape", c.out.shape...)))
}

// reduce emits a sum, maximum or minimum over the axes that the result prints as reduced.
func (c *computation) reduce() {
	in, out := kept(c.s.in[0].t.axes), c.s.out.axes
	if len(in) != len(out) {
		c.errorf(c.s.pos, "%s has %d axes, but the result of its reduction is printed with %d", c.s.in[0].t.id,
			len(in), len(out)).Help = "the dump contradicts itself"
		return
	}
	whole := *c.s.out // a copy of the result without reduced axes, which shows the source of each axis
	whole.axes = slices.Clone(out)
	var drop []*ir.Expr
	for i := range whole.axes {
		whole.axes[i].kind = 'i'
	}
	from := c.sources(c.s.in[0].t, &whole)
	if from == nil {
		return
	}
	reduced := map[int]bool{}
	var keep []int
	at := 0
	for _, a := range out {
		if a.device() {
			if a.reduced() {
				c.errorf(a.pos, "this kernel reduces over a device axis").Help =
					"only a Communication moves data between devices"
				return
			}
			continue
		}
		if a.reduced() {
			reduced[from[at]] = true
			drop = append(drop, num(a.pos, int64(from[at])))
		} else {
			keep = append(keep, from[at])
		}
		at++
	}
	c.reduceInto(reductions[c.s.op], reduced, drop, keep)
}

// reduceInto emits a reduction into the result. If the axes of the result are in another order than those of the
// operand, it reduces into a scratch buffer and copies that, permuted, to the result.
func (c *computation) reduceInto(op ir.Op, reduced map[int]bool, drop []*ir.Expr, keep []int) {
	in := c.in[0]
	if len(drop) == 0 {
		c.copy(in)
		return
	}
	if slices.IsSorted(keep) && in.t.dtype == c.out.t.dtype {
		c.with(op, c.out, []*binding{in}, ir.ExprsAttr("axis", drop...))
		return
	}
	var shape []*ir.Expr
	place := map[int]int{} // maps a dimension of the operand to the dimension of the reduced tensor
	for i, e := range in.shape {
		if !reduced[i] {
			place[i] = len(shape)
			shape = append(shape, e)
		}
	}
	part := c.scratch(in.t.dtype, shape)
	c.with(op, part, []*binding{in}, ir.ExprsAttr("axis", drop...))
	from := make([]int, len(keep))
	for i, k := range keep {
		from[i] = place[k]
	}
	c.permuted(part, from)
}

// binary emits a pointwise operation on two operands. An operand that is a number is broadcast. An operand that is
// a tensor is broadcast along the axes that are printed as broadcast.
func (c *computation) binary(op ir.Op) {
	if c.in[0] == nil && c.in[1] == nil {
		c.errorf(c.s.pos, "both operands of %s are numbers; at least one must be a tensor", c.s.op)
		return
	}
	if op == ir.OpMul && (c.in[0] == nil || c.in[1] == nil) {
		x, by := c.in[0], c.s.in[1].num
		if x == nil {
			x, by = c.in[1], c.s.in[0].num
		}
		c.with(ir.OpScale, c.out, []*binding{x}, ir.NumberAttr("by", by))
		return
	}
	args := make([]*binding, 2)
	for i, b := range c.in {
		args[i] = b
		switch {
		case b == nil:
			args[i] = c.scratch(c.out.t.dtype, c.out.shape)
			c.with(ir.OpFill, args[i], nil, ir.NumberAttr("value", c.s.in[i].num))
		case c.repeats(b):
			args[i] = c.scratch(b.t.dtype, c.out.shape)
			c.with(ir.OpExpand, args[i], []*binding{b}, ir.ExprsAttr("shape", c.out.shape...))
		}
	}
	c.op(op, c.out, args...)
}

// repeats reports whether b is broadcast along an axis of the result.
func (c *computation) repeats(b *binding) bool {
	if len(b.axes) != len(c.out.axes) {
		return false
	}
	for i, a := range b.axes {
		if a.kind == 'b' && c.out.axes[i].kind != 'b' {
			return true
		}
	}
	return false
}
