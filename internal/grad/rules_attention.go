package grad

import "hocket.example/hocket/ir"

// attention computes the weights p = softmax(scale·q·kᵀ) again, and with them, for each head, dv = pᵀ·dy,
// ds = p·(dp − Σ dp·p) with dp = dy·vᵀ, dq = scale·ds·k and dk = scale·dsᵀ·q. Heads that share keys are rows of one
// product.
func attention(c *call) {
	if len(c.s.Args) > 3 {
		c.g.refuse(c.s.Pos, "leave the lengths out, or leave %"+c.y+" out of what is differentiated, with --of or --wrt",
			"attention with lengths has no gradient rule")
		return
	}
	t, kt := reduced(c.argType(0)), reduced(c.argType(1))
	n := len(t.Dims)
	seq, heads := n-3, n-2
	a := &attentionHeads{call: c, tq: t.Dims[seq].Extent, tk: kt.Dims[seq].Extent, hq: t.Dims[heads].Extent,
		hkv: kt.Dims[heads].Extent, lead: t.Dims[:seq], dh: t.Dims[n-1].Extent}
	a.together = a.hq.String() == a.hkv.String()
	q, k, v, dy := a.rows(c.arg(0), t, true), a.rows(c.arg(1), kt, false), a.rows(c.arg(2), kt, false),
		a.rows(c.dy, t, true)
	s := a.scaled(c.op(ir.OpMatmul, nil, []ir.Attr{ir.WordAttr("tb", "true")}, q, k))
	if c.s.Word("causal", "false") == "true" {
		s = c.op(ir.OpAdd, nil, nil, s, a.unseen(wider(t.DType)))
	}
	p := c.op(ir.OpSoftmax, nil, nil, s)
	if c.wants(2) {
		a.give(2, c.op(ir.OpMatmul, nil, []ir.Attr{ir.WordAttr("ta", "true")}, p, dy), kt)
	}
	if !c.wants(0) && !c.wants(1) {
		return
	}
	dp := c.op(ir.OpMatmul, nil, []ir.Attr{ir.WordAttr("tb", "true")}, dy, v)
	// Σ dp·p, a column that is repeated along the keys.
	sum := c.op(ir.OpSum, nil, []ir.Attr{along(seq + 2)}, c.op(ir.OpMul, nil, nil, dp, p))
	extents := append(a.extents(a.hkv), a.queries(), ir.Int(1))
	column := c.reshape(sum, extents...)
	wide := ir.ExprsAttr("shape", append(append(a.extents(a.hkv), a.queries()), a.tk)...)
	ds := a.scaled(c.op(ir.OpMul, nil, nil, p,
		c.op(ir.OpSub, nil, nil, dp, c.op(ir.OpExpand, nil, []ir.Attr{wide}, column))))
	if c.wants(0) {
		a.give(0, c.op(ir.OpMatmul, nil, nil, ds, k), t)
	}
	if c.wants(1) {
		a.give(1, c.op(ir.OpMatmul, nil, []ir.Attr{ir.WordAttr("ta", "true")}, ds, q), kt)
	}
}

// attentionHeads has the extents of an attention.
type attentionHeads struct {
	*call
	tq, tk, hq, hkv, dh *ir.Expr
	lead                []ir.Dimension
	// together: queries have as many heads as keys.
	together bool
}

// extents returns those of the leading dimensions, and heads behind them.
func (a *attentionHeads) extents(heads *ir.Expr) []*ir.Expr {
	var list []*ir.Expr
	for _, d := range a.lead {
		list = append(list, d.Extent)
	}
	return append(list, heads)
}

// queries returns the rows of queries that one head of keys serves.
func (a *attentionHeads) queries() *ir.Expr {
	if a.together {
		return a.tq
	}
	return ir.Mul(ir.FloorDiv(a.hq, a.hkv), a.tq)
}

// swapped is the attribute that swaps sequences and heads.
func (a *attentionHeads) swapped() ir.Attr {
	n := len(a.lead)
	var perm []*ir.Expr
	for i := range n {
		perm = append(perm, ir.Int(int64(i)))
	}
	for _, i := range []int{n + 1, n, n + 2} {
		perm = append(perm, ir.Int(int64(i)))
	}
	return ir.ExprsAttr("perm", perm...)
}

// rows returns an operand as […, heads of keys, rows, Dh], in the type that is computed in.
func (a *attentionHeads) rows(name string, t *ir.Type, query bool) string {
	name = a.op(ir.OpTranspose, nil, []ir.Attr{a.swapped()}, a.wide(name, t))
	if query && !a.together {
		name = a.reshape(name, append(a.extents(a.hkv), a.queries(), a.dh)...)
	}
	return name
}

// give contributes to operand i, of type t, what is laid out as rows returns it.
func (a *attentionHeads) give(i int, name string, t *ir.Type) {
	if i == 0 && !a.together {
		name = a.reshape(name, append(a.extents(a.hq), a.tq, a.dh)...)
	}
	a.giveWide(i, a.op(ir.OpTranspose, nil, []ir.Attr{a.swapped()}, name), t)
}

// scaled multiplies by scale=, 1/√Dh by default.
func (a *attentionHeads) scaled(name string) string {
	dt := wider(a.dyType.DType)
	if s := a.s.Attr("scale"); s != nil {
		by := *s
		by.Name = "by"
		return a.op(ir.OpScale, nil, []ir.Attr{by}, name)
	}
	size := a.op(ir.OpFill, &ir.Type{DType: dt},
		[]ir.Attr{{Name: "value", Kind: ir.AttrNumber, Exprs: []*ir.Expr{a.dh}}})
	return a.op(ir.OpMul, nil, nil, name, a.op(ir.OpRsqrt, nil, nil, size))
}

// unseen returns a matrix that is added to the scores of a head of keys: 0 where a query sees a key, else a number that
// makes the weight 0.
func (a *attentionHeads) unseen(dt ir.DType) string {
	square := func(dt ir.DType) *ir.Type {
		return &ir.Type{DType: dt, Dims: []ir.Dimension{{Extent: a.tq}, {Extent: a.tk}}}
	}
	start := ir.Attr{Name: "start", Kind: ir.AttrNumber, Exprs: []*ir.Expr{ir.Sub(a.tk, a.tq)}}
	last := a.op(ir.OpIota, square(ir.I32), []ir.Attr{along(0), start})
	key := a.op(ir.OpIota, square(ir.I32), []ir.Attr{along(1)})
	hidden := a.op(ir.OpCast, square(dt), nil, a.op(ir.OpGreater, nil, nil, key, last))
	bias := a.op(ir.OpScale, nil, []ir.Attr{ir.NumberAttr("by", -1e30)}, hidden)
	if a.together {
		return bias
	}
	bias = a.op(ir.OpExpand, nil, []ir.Attr{ir.ExprsAttr("shape", ir.FloorDiv(a.hq, a.hkv), a.tq, a.tk)}, bias)
	return a.reshape(bias, a.queries(), a.tk)
}
