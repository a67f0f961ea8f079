package grad

import "hocket.example/hocket/ir"

// attention differentiates attention with operations that exist only for its gradients. These operations compute the
// weights again from lse, row by row. These operations also use delta = Σ y·dy, which equals Σ p·dp for the weights p
// and their gradients dp.
func attention(c *call) {
	for _, name := range []string{"window", "softcap"} {
		if a := c.s.Attr(name); a != nil {
			c.g.refuse(a.Pos, "remove it, or exclude %"+c.y+" from differentiation with --of or --wrt",
				"attention with %s= has no gradient rule", name)
			return
		}
	}
	if len(c.s.Args) > 3 {
		c.g.refuse(c.s.Pos, "remove them, or exclude %"+c.y+" from differentiation with --of or --wrt",
			"attention with lengths or a mask has no gradient rule")
		return
	}
	attrs := gradientAttrs(c.s)
	q, k, v, y := c.arg(0), c.arg(1), c.arg(2), c.result()
	lse := c.lse(attrs)
	last := len(c.dyType.Dims) - 1
	delta := c.op(ir.OpSum, nil, []ir.Attr{along(last)},
		c.op(ir.OpMul, nil, nil, c.wide(y, c.dyType), c.wide(c.dy, c.dyType)))
	if c.wants(0) {
		c.give(0, contribution{name: c.op(ir.OpAttentionDQ, nil, attrs, q, k, v, c.dy, lse, delta)})
	}
	if !c.wants(1) && !c.wants(2) {
		return
	}
	both := c.op(ir.OpAttentionDKV, nil, attrs, q, k, v, c.dy, lse, delta)
	for i := 1; i <= 2; i++ {
		if c.wants(i) {
			index := ir.ExprAttr("index", ir.Int(int64(i-1)))
			c.give(i, contribution{name: c.op(ir.OpSelect, nil, []ir.Attr{along(0), index}, both)})
		}
	}
}

// gradientAttrs returns the attributes of an attention that the operations of its gradients have, too.
func gradientAttrs(s *ir.Stmt) (attrs []ir.Attr) {
	for _, name := range []string{"causal", "scale"} {
		if a := s.Attr(name); a != nil {
			attrs = append(attrs, *a)
		}
	}
	return attrs
}

// lse returns the name, in the backward pass, of attention_lse of the statement's queries and keys. For local tensors
// it computes attention_lse in the backward pass, because the contents of buffers are not kept.
func (c *call) lse(attrs []ir.Attr) string {
	if c.local {
		return c.op(ir.OpAttentionLSE, nil, attrs, c.arg(0), c.arg(1))
	}
	return c.use(c.g.lse(c.fwd, c.s))
}

// hasLSE reports whether the backward pass needs attention_lse of the operands of s.
func (g *gradder) hasLSE(s *ir.Stmt) bool {
	return s.Op == ir.OpAttention && g.active[s.Results[0].Text] && len(s.Args) == 3 && s.Attr("window") == nil &&
		s.Attr("softcap") == nil
}

// lse returns the name, in the forward pass, of attention_lse of the operands of the attention s in block f. The first
// call adds the statement directly after s, since GPUs compute both in one kernel, unless the backward pass computes
// both again.
func (g *gradder) lse(f *forward, s *ir.Stmt) string {
	y := s.Results[0].Text
	if name, ok := f.lses[y]; ok {
		return name
	}
	t := g.types[y]
	if natural := g.info.Natural[s]; natural != nil {
		t = natural
	}
	t = reduced(t)
	t.DType, t.Dims = t.DType.Accum(), t.Dims[:len(t.Dims)-1]
	name := g.fresh(y + ".lse")
	def := stmt(s.Pos, ir.OpAttentionLSE, name, nil, gradientAttrs(s), g.in(f, s, 0), g.in(f, s, 1))
	g.types[name], g.home[name], f.defs[name], f.lses[y] = t, f, def, name
	g.attentions[def] = s
	if !g.again(f, def) {
		at := f.unnested(s)
		f.after[at] = append([]*ir.Stmt{def}, f.after[at]...)
	}
	return name
}
