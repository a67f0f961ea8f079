package grad

import "hocket.example/hocket/ir"

// attention differentiates attention with operations that exist only for its gradients. These compute the weights again
// from lse, row by row. They also use delta = Σ y·dy, which equals Σ p·dp for the weights p and their gradients dp.
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
	var attrs []ir.Attr
	for _, name := range []string{"causal", "scale"} {
		if a := c.s.Attr(name); a != nil {
			attrs = append(attrs, *a)
		}
	}
	q, k, v := c.arg(0), c.arg(1), c.arg(2)
	lse := c.op(ir.OpAttentionLSE, nil, attrs, q, k)
	last := len(c.dyType.Dims) - 1
	delta := c.op(ir.OpSum, nil, []ir.Attr{along(last)},
		c.op(ir.OpMul, nil, nil, c.wide(c.result(), c.dyType), c.wide(c.dy, c.dyType)))
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
