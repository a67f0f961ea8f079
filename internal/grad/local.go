package grad

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file differentiates operations on each rank's own tensors. This file supports buffers that are always written as
// a whole, by statements of the function's own block. The gradient of a local tensor is local.

// findWriters records the statements that write each buffer, in the order of the text.
func (g *gradder) findWriters() {
	g.writers = map[string][]*ir.Stmt{}
	note := func(sym *ir.Sym, s *ir.Stmt) {
		if sym != nil && sym.Root().Kind == ir.SymBuffer {
			name := sym.Root().Name
			g.writers[name] = append(g.writers[name], s)
		}
	}
	g.fn.Body.Walk(func(s *ir.Stmt) {
		note(g.info.Into[s], s)
		for i, sym := range g.info.Operands[s] {
			if s.Op == ir.OpRecv || s.Op == ir.OpLaunch && s.Launch.Operand(i).Writes() {
				note(sym, s)
			}
		}
		if into := s.Into == nil && s.Op != ir.OpAlloc; into && s.Op.Info().Class != ir.ClassView {
			for _, sym := range g.info.Results[s] {
				note(sym, s)
			}
		}
	})
}

// isActive reports whether a value, or the contents of a buffer, depends on a parameter with respect to which the
// program is differentiated.
func (g *gradder) isActive(sym *ir.Sym) bool { return g.active[sym.Name] || g.active[sym.Root().Name] }

// isLocal reports whether a name in the function's block denotes a local tensor.
func (g *gradder) isLocal(name string) bool {
	def := g.root.defs[name]
	if def == nil {
		return false
	}
	r := g.info.Results[def]
	return len(r) == 1 && r[0].Kind == ir.SymBuffer
}

// written returns the buffer that s writes, or the local tensor that s defines. It returns nil if s does neither.
func (g *gradder) written(s *ir.Stmt) *ir.Sym {
	if into := g.info.Into[s]; into != nil {
		return into
	}
	if r := g.info.Results[s]; len(r) == 1 && r[0].Kind == ir.SymBuffer && s.Op != ir.OpAlloc {
		return r[0]
	}
	return nil
}

// local differentiates a statement that computes the local tensor y.
func (b *backward) local(s *ir.Stmt, y *ir.Sym) {
	g := b.g
	if b.parent != nil || !g.isActive(y) || y.Type.DType.IsInt() {
		return
	}
	dy := b.finish(y.Name, "d"+y.Name)
	if dy == "" || !g.whole(y) {
		return
	}
	r := ruleOf(s)
	if r == nil || s.Op == ir.OpClaim {
		g.refuse(s.Pos, "exclude it from differentiation with --of or --wrt", "%s has no gradient rule", s.Op)
		return
	}
	if list := g.writers[y.Root().Name]; s.Op.Info().Class == ir.ClassView && len(list) > 0 &&
		g.at(list[len(list)-1]) > g.at(s) {
		g.refuse(s.Pos, "take the part after the buffer is written", "%%%s is a part of %%%s, which is written after the part is taken", y.Name,
			y.Root().Name)
		return
	}
	r(&call{statement{backward: b, s: s, y: y.Name, dy: dy, dyType: y.Type, local: true}})
}

// whole reports whether all statements that write a buffer are operations of the function's own block that write the
// whole buffer. It reports an error for the others.
func (g *gradder) whole(y *ir.Sym) bool {
	if y.Root().Kind != ir.SymBuffer { // a part of a value
		return true
	}
	for _, s := range g.writers[y.Root().Name] {
		class := s.Op.Info().Class
		computes := class == ir.ClassTensor || class == ir.ClassCollective
		into := g.info.Into[s]
		if computes && slices.Contains(g.root.block.Stmts, s) &&
			(into == nil || into.Base == nil && into.Count == nil) {
			continue
		}
		what := "written in parts, in a loop, on another stream or by a peer"
		if s.Op == ir.OpLaunch {
			what = "written by a kernel of the program, which has no backward kernel"
		}
		g.refuse(s.Pos, "compute %"+y.Root().Name+" by operations on values, or write all of it by one operation",
			"%%%s has no gradient: it is %s", y.Root().Name, what)
		return false
	}
	return true
}

// leftOver reports an error for each buffer that has a gradient although no statement that writes it was
// differentiated.
func (b *backward) leftOver() {
	for _, s := range b.fwd.block.Stmts {
		if s.Op != ir.OpAlloc || len(b.contributions[s.Results[0].Text]) == 0 {
			continue
		}
		if y := b.g.info.Results[s][0]; b.g.isActive(y) {
			b.g.whole(y)
		}
	}
}

// held returns the name of a local tensor that s reads or, if made is set, that s writes. It reports an error if a
// later statement overwrites the tensor.
func (c *statement) held(sym *ir.Sym, made bool) string {
	list := c.g.writers[sym.Root().Name]
	if n := len(list); n > 0 && (c.g.at(list[n-1]) > c.g.at(c.s) || list[n-1] == c.s && !made) {
		c.g.refuse(c.s.Pos, "write to another buffer", "the gradient of %s needs the contents of %%%s, which are overwritten later", c.s.Op,
			sym.Name)
	}
	return sym.Name
}

// at returns the position of a statement in the text, counted in statements.
func (g *gradder) at(s *ir.Stmt) int {
	if g.order == nil {
		g.order = map[*ir.Stmt]int{}
		g.fn.Body.Walk(func(s *ir.Stmt) { g.order[s] = len(g.order) })
	}
	return g.order[s]
}

// claimed adds the gradient of each rank's shard of x as a contribution to the gradient of x. Over axes that do not
// split x, the ranks' gradients are partial sums.
func (c *statement) claimed(x *ir.Sym, local string) {
	t := x.Type.Clone()
	if len(t.Partial) > 0 || t.Mesh != "" {
		c.g.refuse(c.s.Pos, "reduce it first", "%%%s of type %s has no gradient with respect to a rank's own part",
			x.Name, x.Type)
		return
	}
	for _, axis := range c.g.copied(t) {
		t.Partial = append(t.Partial, ir.Partial{Axis: axis, Red: ir.Sum})
	}
	buffer := c.op(ir.OpCopy, nil, nil, local)
	c.contribute(x.Name, contribution{name: c.op(ir.OpClaim, t, nil, buffer), typ: t, partial: len(t.Partial) > 0,
		own: true})
}

// claim differentiates a claim: each rank receives its shard of the value's gradient.
func claim(c *call) {
	sym := c.g.info.Operands[c.s][0]
	for _, p := range c.g.info.Results[c.s][0].Type.Partial {
		if p.Red != ir.Sum && p.Red != ir.Avg {
			c.g.refuse(c.s.Pos, "reduce it by a collective on values", "a claim of parts of a %s has no gradient rule",
				p.Red)
		}
	}
	c.give(0, contribution{name: c.share(c.s.Pos, c.dy, c.g.info.Results[c.s][0].Type), typ: sym.Type})
}

// share adds a statement that defines the gradient of each rank's part of a value of type t, whose gradient is dy. If
// several ranks hold copies, the value is treated as the mean of the copies, so that each copy receives an equal share
// of the gradient.
func (b *backward) share(pos ir.Pos, dy string, t *ir.Type) string {
	g := b.g
	local := g.fresh(dy + ".l")
	b.add(stmt(pos, ir.OpLocal, local, nil, nil, dy))
	copies := ir.Int(1)
	for _, axis := range g.copied(t) {
		copies = ir.Mul(copies, ir.Size(axis))
	}
	for _, p := range t.Partial {
		if p.Red == ir.Avg {
			copies = ir.Mul(copies, ir.Size(p.Axis))
		}
	}
	if copies.IsInt(1) {
		return local
	}
	count, shared := g.fresh(dy+".n"), g.fresh(dy+".s")
	b.add(stmt(pos, ir.OpFill, count, &ir.Type{DType: t.DType},
		[]ir.Attr{{Name: "value", Kind: ir.AttrNumber, Exprs: []*ir.Expr{copies}}}))
	b.add(stmt(pos, ir.OpDiv, shared, nil, nil, local, count))
	return shared
}

// copied returns the axes of the main mesh along which ranks hold copies of a value of type t.
func (g *gradder) copied(t *ir.Type) (axes []string) {
	for _, m := range g.prog.Meshes {
		for _, a := range m.Axes {
			if !m.HasDevices && !slices.Contains(t.Axes(), a.Name) {
				axes = append(axes, a.Name)
			}
		}
	}
	return axes
}

// padded adds a contribution to the operand of a view: the gradient of the view, and zeros in all other places.
func (c *statement) padded() {
	t := c.argType(0)
	buffer, view := c.g.fresh("d"+c.y+".b"), c.s.Clone()
	c.add(&ir.Stmt{Op: ir.OpAlloc, Results: []ir.Name{{Text: buffer}}, Type: t, Flags: ir.Zero})
	view.Comments, view.Nested, view.Type = ir.Comments{}, false, nil
	view.Results[0].Text = c.g.fresh("d" + c.y + ".i")
	view.Args[0].Name = buffer
	c.add(view)
	c.into(ir.OpCopy, view.Results[0].Text, c.dy)
	c.give(0, contribution{name: buffer, typ: t})
}

// shard differentiates the operation that names a rank's shard: it adds a contribution to the gradient of the value.
func shard(c *call) { c.claimed(c.g.info.Operands[c.s][0], c.dy) }

// collective differentiates a collective on local tensors: the gradient is computed by the dual collective, and every
// collective has one. Collectives on values only move contributions.
func collective(c *call) {
	over := *c.s.Attr("over")
	attrs := []ir.Attr{over}
	if a := c.s.Attr("axis"); a != nil {
		attrs = append(attrs, *a)
	}
	if c.s.Attr("op") != nil && c.s.Word("op", "") != "sum" || c.s.Attr("counts") != nil {
		c.g.refuse(c.s.Pos, "use op=sum, and pass the counts as an operand",
			"%s of local tensors has a gradient rule only for sums, and only with counts in memory", c.s.Op)
		return
	}
	sum := ir.WordAttr("op", "sum")
	args := []string{c.dy}
	dual := map[ir.Op]ir.Op{
		ir.OpAllReduce: ir.OpAllReduce, ir.OpAllGather: ir.OpReduceScatter, ir.OpReduceScatter: ir.OpAllGather,
		ir.OpAllToAll:   ir.OpAllToAll,
		ir.OpAllGatherV: ir.OpReduceScatterV, ir.OpReduceScatterV: ir.OpAllGatherV, ir.OpAllToAllV: ir.OpAllToAllV,
		ir.OpPermute: ir.OpPermute,
	}[c.s.Op]
	switch dual {
	case ir.OpAllReduce, ir.OpReduceScatter, ir.OpReduceScatterV:
		attrs = append(attrs, sum)
	case ir.OpAllToAll:
		for from, to := range map[string]string{"split": "concat", "concat": "split"} {
			if a := c.s.Attr(from); a != nil {
				swapped := *a
				swapped.Name = to
				attrs = append(attrs, swapped)
			}
		}
	case ir.OpPermute:
		to, from := *c.s.Attr("from"), *c.s.Attr("to")
		to.Name, from.Name = "to", "from"
		attrs = append(attrs, to, from)
	}
	switch dual {
	case ir.OpAllToAllV: // the rows that came from each rank are sent back
		args = append(args, c.op(ir.OpAllToAll, nil, []ir.Attr{over}, c.arg(1)))
	case ir.OpReduceScatterV, ir.OpAllGatherV:
		args = append(args, c.arg(1))
	}
	t := c.argType(0)
	c.give(0, contribution{name: c.op(dual, t, attrs, args...), typ: t})
}
