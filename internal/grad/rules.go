package grad

import (
	"slices"

	"hocket.example/hocket/ir"
)

// rules maps the operations whose gradients cannot be written as formulas to functions. A function contributes to the
// gradients of the operands. The gradients of elementwise operations are in the Op table.
var rules = map[ir.Op]func(*call){
	ir.OpLinear: linear, ir.OpMatmul: matmul,
	ir.OpCast:      cast,
	ir.OpAllReduce: collective, ir.OpAllGather: collective, ir.OpReduceScatter: collective, ir.OpAllToAll: collective,
	ir.OpAllGatherV: collective, ir.OpReduceScatterV: collective, ir.OpAllToAllV: collective, ir.OpPermute: collective,
	ir.OpClaim: claim, ir.OpLocal: shard,
	ir.OpSum: sum, ir.OpMean: mean, ir.OpMax: extreme, ir.OpMin: extreme,
	ir.OpExpand: expand, ir.OpConcat: concat,
	ir.OpChunk: slice, ir.OpSlice: slice, ir.OpSelect: selected, ir.OpTranspose: transpose, ir.OpReshape: reshape,
	ir.OpSoftmax: softmax, ir.OpRMSNorm: rmsNorm, ir.OpLayerNorm: layerNorm,
	ir.OpAttention: attention, ir.OpRope: rope, ir.OpEmbedding: embedding, ir.OpIndexAdd: indexAdd,
}

// differentiable reports whether a result of op is a differentiable function of its operands and not piecewise
// constant.
func differentiable(op ir.Op) bool {
	g := op.Info().Gradients
	return g == nil || slices.ContainsFunc(g, func(rule string) bool { return rule != "" })
}

// pass contributes the result's gradient to the operand's gradient without a change.
func pass(c *call) { c.give(0, contribution{name: c.dy, typ: c.dyType}) }

// ruleOf returns the rule of a statement, or nil if it has none. A linear of 8-bit types, for example, has none.
func ruleOf(s *ir.Stmt) func(*call) {
	switch r := rules[s.Op]; {
	case s.Op == ir.OpLinear && len(s.Args) == 4:
		return nil
	case r == nil && s.Op.Info().Gradients != nil:
		return elementwise
	default:
		return r
	}
}

// linear differentiates y = x·wᵀ + b: dx = dy·w, dw = dyᵀ·x, db = Σ dy.
func linear(c *call) {
	x, w := c.argType(0), c.argType(1)
	n := len(x.Dims)
	if c.wants(0) {
		dx := contribution{partial: len(w.Dims[0].Axes) > 0}
		if n > 1 {
			dx.name = c.op(ir.OpMatmul, nil, nil, c.dy, c.arg(1))
		} else {
			dx.name = c.op(ir.OpLinear, nil, nil, c.dy, c.op(ir.OpTranspose, nil, nil, c.arg(1)))
		}
		c.give(0, dx)
	}
	if c.wants(1) {
		dy, in := c.rows(c.dy, c.dyType), c.rows(c.arg(0), x)
		dw := contribution{partial: split(x, n-1)}
		dw.name = c.op(ir.OpMatmul, nil, []ir.Attr{ir.WordAttr("ta", "true")}, dy, in)
		c.give(1, dw)
	}
	if len(c.s.Args) > 2 && c.wants(2) {
		if n == 1 {
			c.give(2, contribution{name: c.dy, typ: c.dyType})
		} else {
			c.give(2, contribution{name: c.sumLeading(c.dy, n-1), partial: split(x, n-1)})
		}
	}
}

// split reports whether one of the first n dimensions of t is split.
func split(t *ir.Type, n int) bool {
	return slices.ContainsFunc(t.Dims[:n], func(d ir.Dimension) bool { return len(d.Axes) > 0 })
}

// rows returns a tensor as a matrix: its leading dimensions are merged into one.
func (c *statement) rows(name string, t *ir.Type) string {
	n := len(t.Dims)
	switch {
	case n == 2:
		return name
	case n == 1:
		return c.reshape(name, ir.Int(1), t.Dims[0].Extent)
	}
	return c.reshape(name, product(t.Dims[:n-1]), t.Dims[n-1].Extent)
}

func (c *statement) reshape(name string, extents ...*ir.Expr) string {
	a := ir.ExprsAttr("shape", extents...)
	a.Paren = true
	return c.op(ir.OpReshape, nil, []ir.Attr{a}, name)
}

// product returns the number of elements in the given dimensions.
func product(dims []ir.Dimension) *ir.Expr {
	e := ir.Int(1)
	for _, d := range dims {
		e = ir.Mul(e, d.Extent)
	}
	return e
}

// matmul differentiates y = a·b, where each operand may be stored transposed: da = dy·bᵀ, db = aᵀ·dy.
func matmul(c *call) {
	ta, tb := c.s.Word("ta", "false") == "true", c.s.Word("tb", "false") == "true"
	a, b := c.argType(0), c.argType(1)
	n := len(a.Dims)
	product := func(x string, tx bool, y string, ty bool) string {
		var attrs []ir.Attr
		if tx {
			attrs = append(attrs, ir.WordAttr("ta", "true"))
		}
		if ty {
			attrs = append(attrs, ir.WordAttr("tb", "true"))
		}
		return c.op(ir.OpMatmul, nil, attrs, x, y)
	}
	alone := len(b.Dims) < n // one matrix for all batches
	if c.wants(0) {
		last := len(b.Dims) - 1
		if tb {
			last--
		}
		da := contribution{partial: len(b.Dims[last].Axes) > 0}
		switch {
		case !ta:
			da.name = product(c.dy, false, c.arg(1), !tb)
		case !alone:
			da.name = product(c.arg(1), tb, c.dy, true)
		default:
			da.name = c.op(ir.OpTranspose, nil, nil, product(c.dy, false, c.arg(1), !tb))
		}
		c.give(0, da)
	}
	if c.wants(1) {
		x, dy, tx := c.arg(0), c.dy, ta
		if alone && ta {
			x, tx = c.op(ir.OpTranspose, nil, nil, x), false
			t := a.Clone()
			t.Dims[n-1], t.Dims[n-2] = t.Dims[n-2], t.Dims[n-1]
			a = t
		}
		if alone {
			x, dy = c.rows(x, a), c.rows(dy, c.dyType)
		}
		db := contribution{partial: alone && split(a, n-1) || !ta && len(a.Dims[n-2].Axes) > 0 || ta &&
			len(a.Dims[n-1].Axes) > 0}
		if tb {
			db.name = product(dy, true, x, tx)
		} else {
			db.name = product(x, !tx, dy, false)
		}
		c.give(1, db)
	}
}

// cast differentiates a cast: it converts the gradient to the operand's type.
func cast(c *call) {
	if !c.wants(0) {
		return
	}
	t := c.dyType.Clone()
	t.DType = c.argType(0).DType
	c.give(0, contribution{name: c.op(ir.OpCast, t, nil, c.dy), typ: t})
}

// reducedAxes returns the dimensions that a reduction removes.
func (c *statement) reducedAxes() []int {
	var list []int
	for _, e := range c.s.Attr("axis").Exprs {
		list = append(list, c.constantOf(e))
	}
	return list
}

// constantOf returns the value of an expression that names a dimension. The checker ensures that this value is
// constant.
func (c *statement) constantOf(e *ir.Expr) int {
	v, err := e.Eval(noNames{})
	if err != nil {
		c.g.refuse(e.Pos, "write the dimension as a number",
			"the dimension %s must be a number, because %s has no gradient otherwise", e, c.s.Op)
	}
	return int(v)
}

// noNames is an environment in which no name has a value.
type noNames struct{}

func (noNames) Dim(string) (int64, bool)         { return 0, false }
func (noNames) Var(string) (int64, bool)         { return 0, false }
func (noNames) Rank(string) (int64, bool)        { return 0, false }
func (noNames) Size(string) (int64, bool)        { return 0, false }
func (noNames) Extent(string, int) (int64, bool) { return 0, false }

// spread repeats a tensor along the dimensions that it lacks. The result has the operand's shape and layout.
func (c *statement) spread(name string, missing []int, t *ir.Type) string {
	var ones []*ir.Expr
	for i, d := range t.Dims {
		if slices.Contains(missing, i) {
			ones = append(ones, ir.Int(1))
		} else {
			ones = append(ones, d.Extent)
		}
	}
	lead := true // the missing dimensions are the first ones: broadcast adds them
	for i := range missing {
		lead = lead && slices.Contains(missing, i)
	}
	if !lead {
		name = c.reshape(name, ones...)
	}
	return c.op(ir.OpExpand, reduced(t), []ir.Attr{shape(t)}, name)
}

func sum(c *call) {
	t := reduced(c.argType(0))
	c.give(0, contribution{name: c.spread(c.dy, c.reducedAxes(), t), typ: t})
}

// mean differentiates a mean. It divides by the number of elements first, in a wider type, since that number may exceed
// the range of 16-bit types.
func mean(c *call) {
	t, missing := reduced(c.argType(0)), c.reducedAxes()
	n := ir.Int(1)
	for _, i := range missing {
		n = ir.Mul(n, t.Dims[i].Extent)
	}
	wide := c.wide(c.dy, c.dyType)
	count := c.op(ir.OpFill, &ir.Type{DType: wider(t.DType)},
		[]ir.Attr{{Name: "value", Kind: ir.AttrNumber, Exprs: []*ir.Expr{n}}})
	dy := c.narrow(c.op(ir.OpDiv, nil, nil, wide, count), c.dyType)
	c.give(0, contribution{name: c.spread(dy, missing, t), typ: t})
}

// extreme differentiates max and min: the elements that equal the extreme receive equal shares of the gradient.
func extreme(c *call) {
	t, missing := reduced(c.argType(0)), c.reducedAxes()
	x := c.arg(0)
	mask := c.op(ir.OpEqual, t, nil, x, c.spread(c.result(), missing, t))
	list := ir.ExprsAttr("axis", c.s.Attr("axis").Exprs...)
	share := c.op(ir.OpDiv, nil, nil, c.dy, c.op(ir.OpSum, c.dyType, []ir.Attr{list}, mask))
	c.give(0, contribution{name: c.op(ir.OpMul, t, nil, mask, c.spread(share, missing, t)), typ: t})
}

// expand differentiates a broadcast: it adds the gradient over the dimensions that were repeated.
func expand(c *call) {
	x, y := c.argType(0), c.dyType
	skip := len(y.Dims) - len(x.Dims)
	var repeated []*ir.Expr
	stretched := false
	for i, d := range y.Dims {
		if i < skip {
			repeated = append(repeated, ir.Int(int64(i)))
		} else if e := x.Dims[i-skip].Extent; e.IsInt(1) && !d.Extent.IsInt(1) {
			repeated, stretched = append(repeated, ir.Int(int64(i))), true
		}
	}
	if len(repeated) == 0 {
		pass(c)
		return
	}
	dx := c.op(ir.OpSum, nil, []ir.Attr{ir.ExprsAttr("axis", repeated...)}, c.dy)
	if stretched {
		dx = c.op(ir.OpReshape, nil, []ir.Attr{shape(x)}, dx)
	}
	c.give(0, contribution{name: dx, partial: split(y, len(y.Dims))})
}

// along returns the attribute axis=.
func along(axis int) ir.Attr { return ir.ExprAttr("axis", ir.Int(int64(axis))) }

// axis returns the dimension that the statement's attribute axis= names, or byDefault.
func (c *statement) axis(byDefault int) int {
	if a := c.s.Attr("axis"); a != nil {
		return c.constantOf(a.Exprs[0])
	}
	return byDefault
}

// part adds a statement that names a slice of a tensor.
func (c *statement) part(name string, axis int, lo, hi *ir.Expr) string {
	made := c.op(ir.OpSlice, nil, []ir.Attr{along(axis)}, name)
	c.stmts[len(c.stmts)-1].Exprs = []*ir.Expr{lo, hi}
	return made
}

func concat(c *call) {
	axis, lo := c.axis(0), ir.Int(0)
	for i := range c.s.Args {
		hi := ir.Add(lo, c.argType(i).Dims[axis].Extent)
		if c.wants(i) {
			c.give(i, contribution{name: c.part(c.dy, axis, lo, hi)})
		}
		lo = hi
	}
}

// slice differentiates slice and chunk: the gradient of the rows outside of the slice is 0.
func slice(c *call) {
	if c.local {
		c.padded()
		return
	}
	axis, x := c.axis(0), c.argType(0)
	extent := x.Dims[axis].Extent
	lo, hi := c.s.Exprs[0], c.s.Exprs[1]
	if c.s.Op == ir.OpChunk {
		rows := ir.Bin(ir.ExprCeilDiv, extent, hi)
		lo = ir.Bin(ir.ExprMin, ir.Mul(c.s.Exprs[0], rows), extent)
		hi = ir.Add(lo, c.dyType.Dims[axis].Extent)
	}
	c.pad(axis, lo, hi, c.dy)
}

// pad contributes dy as rows lo to hi of the first operand's gradient, and zeros as its other rows.
func (c *call) pad(axis int, lo, hi *ir.Expr, dy string) {
	x := reduced(c.argType(0))
	zeros := func(rows *ir.Expr) string {
		t := x.Clone()
		t.Dims[axis] = ir.Dimension{Extent: rows}
		return c.op(ir.OpFill, t, []ir.Attr{ir.NumberAttr("value", 0)})
	}
	list := []string{dy}
	if !lo.IsInt(0) {
		list = append([]string{zeros(lo)}, list...)
	}
	if extent := x.Dims[axis].Extent; hi.String() != extent.String() {
		list = append(list, zeros(ir.Sub(extent, hi)))
	}
	if len(list) == 1 {
		pass(c)
		return
	}
	c.give(0, contribution{name: c.op(ir.OpConcat, nil, []ir.Attr{along(axis)}, list...)})
}

// selected differentiates select. Inside a loop, the rows of a value from outside of the loop receive their gradients
// one at a time.
func selected(c *call) {
	if c.local {
		c.padded()
		return
	}
	axis, index := c.axis(0), c.s.Attr("index").Exprs[0]
	name := c.g.info.Operands[c.s][0].Name
	if t := c.g.types[name]; c.fwd.parent != nil && c.g.home[name] != c.fwd && len(t.Dims[axis].Axes) == 0 {
		c.parts[name] = append(c.parts[name],
			part{axis: axis, index: index, contribution: contribution{name: c.dy, typ: c.dyType}})
		return
	}
	t := c.argType(0).Clone()
	t.Dims[axis] = ir.Dimension{Extent: ir.Int(1)}
	c.pad(axis, index, ir.Add(index, ir.Int(1)), c.op(ir.OpReshape, nil, []ir.Attr{shape(t)}, c.dy))
}

func transpose(c *call) {
	n := len(c.dyType.Dims)
	a := c.s.Attr("perm")
	if a == nil {
		c.give(0, contribution{name: c.op(ir.OpTranspose, nil, nil, c.dy)})
		return
	}
	back := make([]*ir.Expr, n)
	for i, e := range a.Exprs {
		back[c.constantOf(e)] = ir.Int(int64(i))
	}
	c.give(0, contribution{name: c.op(ir.OpTranspose, nil, []ir.Attr{ir.ExprsAttr("perm", back...)}, c.dy)})
}

func reshape(c *call) {
	c.give(0, contribution{name: c.op(ir.OpReshape, nil, []ir.Attr{shape(c.argType(0))}, c.dy)})
}
