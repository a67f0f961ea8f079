package grad

import (
	"maps"
	"slices"

	"hocket.example/hocket/ir"
)

// loop differentiates a loop that carries values. The gradient is a loop that runs from the last iteration to the first
// and carries the gradients of the carried values. The gradients of values from outside of the loop are accumulated in
// buffers.
func (b *backward) loop(s *ir.Stmt) {
	g := b.g
	fwd := b.fwd.bodyOf(s)
	yield := s.Body.Stmts[len(s.Body.Stmts)-1]
	var carried []int
	begin := make([]contribution, len(s.Carry))
	for k, r := range s.Results[1:] {
		if g.types[r.Text].DType.IsInt() || !g.active[r.Text] {
			continue
		}
		if dy := b.finish(r.Text, "d"+r.Text); dy != "" {
			begin[k] = contribution{name: dy, typ: reduced(g.types[r.Text])}
		}
		carried = append(carried, k)
	}
	if !slices.ContainsFunc(begin, func(c contribution) bool { return c.name != "" }) {
		return
	}
	in := &backward{g: g, fwd: fwd, parent: b, avail: map[string]string{}, contributions: map[string][]contribution{},
		parts: map[string][]part{}}
	back := &ir.Stmt{Op: ir.OpFor, Pos: s.Pos, Exprs: slices.Clone(s.Exprs), Body: &ir.Block{}}
	index := g.fresh(s.Results[0].Text + ".b")
	back.Results = []ir.Name{{Text: index}}
	for _, k := range carried {
		name := g.fresh("d" + s.Carry[k].Text)
		t := reduced(g.types[s.Carry[k].Text])
		if begin[k].name == "" {
			begin[k].name = g.fresh(name + ".0")
			b.add(stmt(s.Pos, ir.OpFill, begin[k].name, t, []ir.Attr{ir.NumberAttr("value", 0)}))
		}
		back.Carry = append(back.Carry, ir.Name{Text: name})
		back.Args = append(back.Args, ir.Place{Name: begin[k].name})
		in.contribute(yield.Args[k].Name, contribution{name: name, typ: t})
	}
	last := ir.Sub(ir.Sub(ir.Add(s.Exprs[0], s.Exprs[1]), ir.Int(1)), ir.Var(index))
	in.add(&ir.Stmt{Op: ir.OpLet, Results: []ir.Name{s.Results[0]}, Exprs: []*ir.Expr{last}})
	for _, st := range s.Body.Stmts {
		if st.Op == ir.OpLet {
			in.add(st.Clone())
		}
	}
	in.run(s.Body.Stmts[:len(s.Body.Stmts)-1])
	end := &ir.Stmt{Op: ir.OpYield}
	for _, k := range carried {
		name := s.Carry[k].Text
		next := in.finish(name, "d"+name+".n")
		if next == "" {
			next = g.fresh("d" + name + ".n")
			in.add(stmt(s.Pos, ir.OpFill, next, reduced(g.types[name]), []ir.Attr{ir.NumberAttr("value", 0)}))
		}
		end.Args = append(end.Args, ir.Place{Name: next})
		made := g.fresh("d" + name + ".0")
		back.Results = append(back.Results, ir.Name{Text: made})
		b.contribute(s.Args[k].Name, contribution{name: made, typ: reduced(g.types[name]), own: true})
	}
	after := in.captured(s)
	back.Body.Stmts = append(in.stmts, end)
	b.add(back)
	for _, f := range after {
		f()
	}
}

// captured accumulates in buffers the gradients of values that are defined outside of loop s. It returns functions that
// make contributions from these buffers after the loop.
func (b *backward) captured(s *ir.Stmt) (after []func()) {
	names := map[string]bool{}
	for n := range b.contributions {
		names[n] = true
	}
	for n := range b.parts {
		names[n] = true
	}
	g := b.g
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := reduced(g.types[name])
		buffer := g.fresh("d" + name + ".b")
		alloc := &ir.Stmt{Op: ir.OpAlloc, Results: []ir.Name{{Text: buffer}}, Type: t, Flags: ir.Zero}
		if parts := b.parts[name]; b.contributions[name] == nil && len(parts) == 1 && covers(s, parts[0], t) {
			alloc.Flags = 0
			b.into(ir.OpCopy, b.row(buffer, parts[0]), b.settle(name, parts[0], t))
		} else {
			for _, p := range parts {
				b.into(ir.OpAdd, b.row(buffer, p), b.settle(name, p, t))
			}
			if sum := b.finish(name, "d"+name+".s"); sum != "" {
				b.into(ir.OpAdd, buffer, sum)
			}
		}
		b.parent.add(alloc)
		after = append(after, func() {
			sum := g.fresh("d" + name + ".s")
			b.parent.add(stmt(s.Pos, ir.OpClaim, sum, t.Clone(), nil, buffer))
			b.parent.contribute(name, contribution{name: sum, typ: t, own: true})
		})
	}
	return after
}

// covers reports whether the iterations of loop s contribute exactly once to each row of a value of type t.
func covers(s *ir.Stmt, p part, t *ir.Type) bool {
	return p.index.Kind == ir.ExprVar && p.index.Name == s.Results[0].Text && s.Exprs[0].IsInt(0) &&
		s.Exprs[1].String() == t.Dims[p.axis].Extent.String()
}

// row returns a view of the row of a buffer to which p contributes.
func (b *backward) row(buffer string, p part) string {
	name := b.g.fresh(buffer + ".i")
	b.add(stmt(ir.Pos{}, ir.OpSelect, name, nil,
		[]ir.Attr{ir.ExprAttr("axis", ir.Int(int64(p.axis))), ir.ExprAttr("index", p.index)}, buffer))
	return name
}

// settle reshards part p of the gradient of a value of type t to the layout that t has in the other dimensions.
func (b *backward) settle(name string, p part, t *ir.Type) string {
	want := t.Clone()
	want.Dims = slices.Delete(want.Dims, p.axis, p.axis+1)
	if p.typ != nil && ir.SameLayout(p.typ, want) {
		return p.name
	}
	called := "d" + name + ".p"
	if p.typ == nil {
		b.annotate(p.name, want)
		return b.called(p.name, called)
	}
	made := b.g.fresh(called)
	b.add(stmt(ir.Pos{}, ir.OpReshard, made, want, nil, p.name))
	return made
}

// into adds a statement that writes a value to a place, or that adds the value to the contents of the place. The
// argument op selects which.
func (b *backward) into(op ir.Op, place, value string) {
	s := &ir.Stmt{Op: op, Into: &ir.Place{Name: place}}
	if op == ir.OpAdd {
		s.Args = append(s.Args, ir.Place{Name: place})
	}
	s.Args = append(s.Args, ir.Place{Name: value})
	b.add(s)
}

// stack stores a value of every iteration of the loop whose body is f. It returns the value that holds all of them,
// which is defined in the block around the loop, and the index of the current iteration in it.
func (g *gradder) stack(f *forward, name string) (string, *ir.Expr) {
	s, t := f.loop, g.types[name]
	index := ir.Sub(ir.Var(s.Results[0].Text), s.Exprs[0])
	if made, ok := f.stacks[name]; ok {
		return made, index
	}
	for _, d := range t.Dims {
		if varies(d.Extent) {
			g.refuse(s.Pos, "use the same extents in all iterations",
				"the gradient needs %%%s of every iteration, but its type, %s, differs between iterations", name, t)
		}
	}
	stacked := t.Clone()
	stacked.Dims = append([]ir.Dimension{{Extent: ir.Sub(s.Exprs[1], s.Exprs[0])}}, stacked.Dims...)
	made, buffer, row := g.fresh(name+".k"), g.fresh(name+".b"), g.fresh(name+".i")
	f.stacks[name] = made
	p := f.parent
	p.before[s] = append(p.before[s], &ir.Stmt{Op: ir.OpAlloc, Results: []ir.Name{{Text: buffer}},
		Type: reduced(stacked)})
	claim := stmt(s.Pos, ir.OpClaim, made, stacked, nil, buffer)
	p.after[s] = append(p.after[s], claim)
	g.types[made], g.home[made], p.defs[made] = stacked, p, claim
	keep := []*ir.Stmt{
		stmt(s.Pos, ir.OpSelect, row, nil, []ir.Attr{ir.ExprAttr("axis", ir.Int(0)), ir.ExprAttr("index", index)},
			buffer),
		{Op: ir.OpCopy, Args: []ir.Place{{Name: name}}, Into: &ir.Place{Name: row}},
	}
	f.keep(name, keep)
	return made, index
}

// keep inserts statements after the definition of a value.
func (f *forward) keep(name string, add []*ir.Stmt) {
	def := f.defs[name]
	if def == nil { // a value that the loop carries
		f.first = append(f.first, add...)
		return
	}
	if slices.Contains(f.block.Stmts, def) {
		s := f.unnested(def) // a statement and its nested operands stay together
		f.after[s] = append(f.after[s], add...)
		return
	}
	for s, list := range f.before {
		if i := slices.Index(list, def); i >= 0 {
			f.before[s] = slices.Insert(list, i+1, add...)
			return
		}
	}
	for s, list := range f.after {
		if i := slices.Index(list, def); i >= 0 {
			f.after[s] = slices.Insert(list, i+1, add...)
			return
		}
	}
}

// varies reports whether an extent may differ between the iterations of a loop.
func varies(e *ir.Expr) bool {
	found := false
	e.Walk(func(e *ir.Expr) { found = found || e.Kind == ir.ExprVar })
	return found
}
