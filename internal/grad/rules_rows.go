package grad

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file holds the rules of operations that process each row separately. The rules compute in f32 if tensors have
// 16-bit types, and round the result once.

// wider returns the type in which rows are computed.
func wider(dt ir.DType) ir.DType { return dt.Accum() }

// wide returns a tensor, converted to the type in which rows are computed.
func (c *statement) wide(name string, t *ir.Type) string {
	if wider(t.DType) == t.DType {
		return name
	}
	u := reduced(t)
	u.DType = wider(t.DType)
	return c.op(ir.OpCast, u, nil, name)
}

// narrow converts a tensor from the type in which rows are computed to type t.
func (c *statement) narrow(name string, t *ir.Type) string {
	if wider(t.DType) == t.DType {
		return name
	}
	return c.op(ir.OpCast, reduced(t), nil, name)
}

// giveWide rounds a value that was computed in the wider type, and adds it as a contribution to the gradient of operand
// i.
func (c *statement) giveWide(i int, name string, t *ir.Type) {
	if wider(t.DType) == t.DType {
		c.give(i, contribution{name: name})
		return
	}
	u := reduced(t)
	c.give(i, contribution{name: c.op(ir.OpCast, u, nil, name), typ: u})
}

// over returns the sum or mean over one dimension, repeated along that dimension.
func (c *statement) over(op ir.Op, name string, axis int, t *ir.Type) string {
	u := reduced(t)
	u.DType = wider(t.DType)
	return c.spread(c.op(op, nil, []ir.Attr{along(axis)}, name), []int{axis}, u)
}

// softmax differentiates y = softmax(x): dx = y·(dy − Σ dy·y).
func softmax(c *call) {
	t := c.dyType
	axis := c.axis(len(t.Dims) - 1)
	y, dy := c.wide(c.result(), t), c.wide(c.dy, t)
	dot := c.over(ir.OpSum, c.op(ir.OpMul, nil, nil, dy, y), axis, t)
	c.giveWide(0, c.op(ir.OpMul, nil, nil, y, c.op(ir.OpSub, nil, nil, dy, dot)), t)
}

// root returns 1/√(mean x² + eps) for each row of x, repeated along the row.
func (c *statement) root(x string, t *ir.Type) string {
	last := len(t.Dims) - 1
	eps := c.s.Op.Info().AttrSpec("eps").Default
	value := ir.NumberAttr("value", eps)
	if a := c.s.Attr("eps"); a != nil {
		value = ir.Attr{Name: "value", Kind: ir.AttrNumber, Exprs: a.Exprs, Num: a.Num, IsNum: a.IsNum}
	}
	square := c.op(ir.OpMean, nil, []ir.Attr{along(last)}, c.op(ir.OpMul, nil, nil, x, x))
	r := c.op(ir.OpRsqrt, nil, nil, c.op(ir.OpAdd, nil, nil, square, c.g.scalar(value, "eps", wider(t.DType))))
	u := reduced(t)
	u.DType = wider(t.DType)
	return c.spread(r, []int{last}, u)
}

// rmsNorm differentiates rms_norm with two operations that exist only for its gradients. With r = 1/√(mean x² + eps),
// n = x·r and g = dy·w: dx = r·(g − n·mean(g·n)), dw = Σ dy·n.
func rmsNorm(c *call) {
	var attrs []ir.Attr
	if a := c.s.Attr("eps"); a != nil {
		attrs = append(attrs, *a)
	}
	if c.wants(0) {
		c.give(0, contribution{name: c.op(ir.OpRMSNormDX, nil, attrs, c.arg(0), c.arg(1), c.dy)})
	}
	if c.wants(1) {
		c.giveWeight(1, c.op(ir.OpRMSNormDW, nil, attrs, c.arg(0), c.dy), split(c.dyType, len(c.dyType.Dims)-1))
	}
}

// layerNorm differentiates y = n·w + b with n = (x − mean x)·r: dx = r·(dn − mean dn − n·mean(dn·n)), db = Σ dy.
func layerNorm(c *call) {
	t := c.argType(0)
	last := len(t.Dims) - 1
	x := c.wide(c.arg(0), t)
	centred := c.op(ir.OpSub, nil, nil, x, c.over(ir.OpMean, x, last, t))
	r := c.root(centred, t)
	n, dy := c.op(ir.OpMul, nil, nil, centred, r), c.wide(c.dy, c.dyType)
	if c.wants(0) {
		dn := c.op(ir.OpMul, nil, nil, dy, c.wide(c.arg(1), c.argType(1)))
		along := c.over(ir.OpMean, c.op(ir.OpMul, nil, nil, dn, n), last, t)
		rest := c.op(ir.OpSub, nil, nil, dn, c.op(ir.OpMul, nil, nil, n, along))
		rest = c.op(ir.OpSub, nil, nil, rest, c.over(ir.OpMean, dn, last, t))
		c.giveWide(0, c.op(ir.OpMul, nil, nil, r, rest), t)
	}
	if c.wants(1) {
		c.weight(1, c.op(ir.OpMul, nil, nil, dy, n), t)
	}
	if c.wants(2) {
		c.weight(2, c.wide(c.dy, c.dyType), t)
	}
}

// weight contributes the sum of rows to operand i, which has the shape of one row.
func (c *call) weight(i int, rows string, t *ir.Type) {
	n := len(t.Dims) - 1
	if n > 0 {
		rows = c.sumLeading(rows, n)
	} else if w := c.argType(i); wider(w.DType) == w.DType {
		rows = c.op(ir.OpCopy, nil, nil, rows)
	}
	c.giveWeight(i, rows, split(t, n))
}

// giveWeight contributes a sum of rows in the wider type to operand i, rounded to the type of the operand. The argument
// partial has the meaning of contribution.partial.
func (c *call) giveWeight(i int, sum string, partial bool) {
	w := c.argType(i)
	if wider(w.DType) == w.DType {
		c.give(i, contribution{name: sum, partial: partial})
		return
	}
	u := reduced(w)
	c.give(i, contribution{name: c.op(ir.OpCast, u, nil, sum), typ: u})
}

// rope differentiates a rope: it rotates the gradient by the negative positions.
func rope(c *call) {
	c.give(0, contribution{name: c.op(ir.OpRope, nil, slices.Clone(c.s.Attrs), c.dy,
		c.op(ir.OpNeg, nil, nil, c.arg(1)))})
}

// embedding differentiates y = table[ids]: the gradient of a row of the table is the sum of those rows of dy for which
// ids select the row.
func embedding(c *call) {
	if c.s.Attr("first") != nil {
		c.g.refuse(c.s.Pos, "remove first= and of=; the table's layout determines the rows of each rank",
			"embedding of a part of a table (first=) has no gradient")
		return
	}
	ids, table := c.argType(0), reduced(c.argType(1))
	n := []ir.Attr{ir.ExprAttr("n", table.Dims[0].Extent)}
	if split(ids, len(ids.Dims)) {
		c.give(1, contribution{name: c.op(ir.OpIndexAdd, nil, n, c.dy, c.arg(0)), partial: true})
		return
	}
	// Each rank adds the gradients of its own rows of the table, even if the table's gradient has other
	// contributions.
	c.give(1, contribution{name: c.op(ir.OpIndexAdd, table, n, c.dy, c.arg(0)), typ: table, own: true})
}

// indexAdd differentiates y[i] = Σ x over the rows whose id is i: the gradient of a row of x is the row of dy that its
// id selects, and 0 for a row that is skipped.
func indexAdd(c *call) {
	ids, x := c.argType(1).Clone(), c.argType(0)
	if n := c.s.Attr("n"); len(n.Exprs) == 1 && n.Exprs[0].IsInt(0) { // all rows are skipped
		c.give(0, contribution{name: c.op(ir.OpFill, reduced(x), []ir.Attr{ir.NumberAttr("value", 0)})})
		return
	}
	zero := c.op(ir.OpFill, ids, []ir.Attr{ir.NumberAttr("value", 0)})
	at := c.arg(1)
	rows := c.op(ir.OpEmbedding, nil, nil, c.op(ir.OpMaximum, ids, nil, at, zero), c.dy)
	one := ids.Clone()
	one.Dims = append(one.Dims, ir.Dimension{Extent: ir.Int(1)})
	there := c.op(ir.OpCast, &ir.Type{DType: x.DType, Dims: one.Dims, Mesh: one.Mesh}, nil,
		c.op(ir.OpReshape, nil, []ir.Attr{shape(one)}, c.op(ir.OpGreaterEqual, ids, nil, at, zero)))
	wide := c.op(ir.OpExpand, reduced(x), []ir.Attr{shape(x)}, there)
	c.give(0, contribution{name: c.op(ir.OpWhere, nil, nil, wide, rows, c.g.constant(0, x.DType))})
}
