package grad

import (
	"slices"

	"hocket.example/hocket/ir"
)

// forward describes a block of the forward pass in which values have gradients: the function's own block, or the body
// of a loop that carries values. Statements that the backward pass needs are added to the block.
type forward struct {
	// loop is the loop whose body this block is, and parent is the block around that loop. loop and parent are nil for
	// the function's own block.
	loop   *ir.Stmt
	parent *forward
	block  *ir.Block
	// defs maps each value of the block to the statement that defines it.
	defs map[string]*ir.Stmt
	// first, before and after hold the statements to be added: at the beginning of the block, before other statements, and
	// after other statements.
	first         []*ir.Stmt
	before, after map[*ir.Stmt][]*ir.Stmt
	// reshards maps the name of an operand and a type to the name of the reshard that was added.
	reshards map[string]string
	// stacks maps the name of a value to the name of the value that holds all iterations' instances of it.
	stacks map[string]string
	// lses maps the name of the result of an attention to the name of the attention_lse that was added.
	lses  map[string]string
	inner []*forward
}

func newForward(loop *ir.Stmt, parent *forward, b *ir.Block) *forward {
	f := &forward{loop: loop, parent: parent, block: b, defs: map[string]*ir.Stmt{},
		before: map[*ir.Stmt][]*ir.Stmt{}, after: map[*ir.Stmt][]*ir.Stmt{}, reshards: map[string]string{},
		stacks: map[string]string{}, lses: map[string]string{}}
	if parent != nil {
		parent.inner = append(parent.inner, f)
	}
	return f
}

// close inserts the added statements into the block.
func (f *forward) close() {
	out := slices.Clone(f.first)
	for _, s := range f.block.Stmts {
		out = append(append(append(out, f.before[s]...), s), f.after[s]...)
	}
	f.block.Stmts = out
	for _, inner := range f.inner {
		inner.close()
	}
}

// unnested returns the statement of the block that contains s: s itself, or the one in which it is nested.
func (f *forward) unnested(s *ir.Stmt) *ir.Stmt {
	for i := slices.Index(f.block.Stmts, s); i >= 0 && s.Nested && i+1 < len(f.block.Stmts); {
		i++
		s = f.block.Stmts[i]
	}
	return s
}

// collect records the values of a block: their types, and the blocks in which they are defined.
func (g *gradder) collect(f *forward) {
	for _, s := range f.block.Stmts {
		for i, sym := range g.info.Results[s] {
			if s.Op == ir.OpFor && i == 0 {
				continue
			}
			g.names[sym.Name] = true
			if sym.Kind == ir.SymValue || sym.Kind == ir.SymBuffer && f.parent == nil {
				g.types[sym.Name], g.home[sym.Name], f.defs[sym.Name] = sym.Type, f, s
			}
		}
		if s.Op != ir.OpFor || len(s.Carry) == 0 {
			for _, b := range []*ir.Block{s.Body, s.Else} {
				b.Walk(func(s *ir.Stmt) {
					for _, r := range s.Results {
						g.names[r.Text] = true
					}
					for _, c := range s.Carry {
						g.names[c.Text] = true
					}
				})
			}
			for _, r := range s.Results {
				g.names[r.Text] = true
			}
			continue
		}
		g.names[s.Results[0].Text] = true
		inner := newForward(s, f, s.Body)
		for k, c := range s.Carry {
			g.names[c.Text] = true
			g.types[c.Text], g.home[c.Text] = reduced(g.info.Operands[s][k].Type), inner
		}
		g.collect(inner)
	}
}

// bodyOf returns the description of the block that is the body of a loop in f.
func (f *forward) bodyOf(loop *ir.Stmt) *forward {
	i := slices.IndexFunc(f.inner, func(b *forward) bool { return b.loop == loop })
	if i < 0 {
		return nil
	}
	return f.inner[i]
}

// activate finds the active values and buffers. The active values and buffers depend on a differentiated parameter
// through operations on floating-point numbers.
func (g *gradder) activate() {
	for changed := true; changed; {
		changed = false
		mark := func(name string) {
			if !g.active[name] {
				g.active[name], changed = true, true
			}
		}
		sent := false
		g.fn.Body.Walk(func(s *ir.Stmt) {
			any := false
			for _, sym := range g.info.Operands[s] {
				any = any || sym != nil && g.active[sym.Root().Name]
			}
			switch {
			case s.Op == ir.OpSend && any, s.Op == ir.OpPut && any:
				sent = true
			case s.Op == ir.OpRecv && sent:
				any = true
			}
			if !any || s.Op == ir.OpReturn {
				return
			}
			g.spread(s, mark)
		})
	}
}

// spread marks the results of s as active if they depend on active operands.
func (g *gradder) spread(s *ir.Stmt, mark func(string)) {
	switch s.Op {
	case ir.OpFor:
		for k, sym := range g.info.Operands[s] {
			if g.active[sym.Name] {
				mark(s.Carry[k].Text)
				mark(s.Results[k+1].Text)
			}
		}
		return
	case ir.OpYield:
		loop := g.loopOf(s)
		for k, sym := range g.info.Operands[s] {
			if g.active[sym.Name] {
				mark(loop.Carry[k].Text)
				mark(loop.Results[k+1].Text)
			}
		}
		return
	case ir.OpLaunch, ir.OpRecv:
		for i, sym := range g.info.Operands[s] {
			if s.Op == ir.OpRecv || s.Launch.Operand(i).Writes() {
				mark(sym.Root().Name)
			}
		}
	}
	if into := g.info.Into[s]; into != nil && !into.Type.DType.IsInt() {
		mark(into.Root().Name)
	}
	if !differentiable(s.Op) {
		return
	}
	for _, sym := range g.info.Results[s] {
		if sym.Type != nil && !sym.Type.DType.IsInt() {
			mark(sym.Root().Name)
		}
	}
}

// loopOf returns the loop whose body ends with the given yield.
func (g *gradder) loopOf(yield *ir.Stmt) (loop *ir.Stmt) {
	g.fn.Body.Walk(func(s *ir.Stmt) {
		if s.Op == ir.OpFor && len(s.Body.Stmts) > 0 && s.Body.Stmts[len(s.Body.Stmts)-1] == yield {
			loop = s
		}
	})
	return loop
}

// in returns the name, in the forward pass, of operand i of s in the layout that s requires. If the operand has another
// layout, in adds a reshard as a separate statement, so that both passes can use its result.
func (g *gradder) in(f *forward, s *ir.Stmt, i int) string {
	name := g.info.Operands[s][i].Name
	needs := g.info.Needs[s]
	if needs == nil || needs[i] == nil || s.Op == ir.OpFor {
		return name
	}
	want := needs[i]
	key := name + ": " + want.String()
	made, ok := f.reshards[key]
	if !ok {
		made = g.fresh(name + ".g")
		r := stmt(s.Pos, ir.OpReshard, made, want.Clone(), nil, name)
		first := g.use(f, name, want, made)
		f.before[first] = append(f.before[first], r)
		from, to := &first.Comments, &r.Comments
		to.Lead, to.Blank, to.Gap = from.Lead, from.Blank, from.Gap
		from.Lead, from.Blank, from.Gap = nil, false, false
		f.reshards[key] = made
		g.types[made], g.home[made], f.defs[made] = want, f, r
	}
	return made
}

// use replaces a value by the value made in all statements of the block that need it in the layout of made. It returns
// the statement before which made must be defined.
func (g *gradder) use(f *forward, name string, want *ir.Type, made string) *ir.Stmt {
	first := -1
	for k, u := range f.block.Stmts {
		for i, need := range g.info.Needs[u] {
			if need != nil && g.info.Operands[u][i].Name == name && need.String() == want.String() && u.Op != ir.OpFor {
				u.Args[i].Name = made
				if first < 0 {
					first = k
				}
			}
		}
	}
	// The operations that are nested in a statement remain directly before the statement.
	for first > 0 && f.block.Stmts[first-1].Nested && f.block.Stmts[first-1].Results[0].Text != name {
		first--
	}
	return f.block.Stmts[first]
}
