package grad

import (
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// backward writes the gradients of one block of the forward pass, from its last statement to its first.
type backward struct {
	g      *gradder
	fwd    *forward
	parent *backward
	stmts  []*ir.Stmt
	// avail maps values of the block to their names in the backward pass.
	avail map[string]string
	// contributions lists the summands of each value's gradient, keyed by the value's name.
	contributions map[string][]contribution
	// parts lists the contributions to single rows of values that are defined outside of the current loop.
	parts map[string][]part
}

// contribution is one summand of a value's gradient.
type contribution struct {
	name string
	// typ is the type of the summand. typ is nil if the checker infers the type. The summand is then the result of a
	// separate statement, so an annotation of this statement can set the layout.
	typ *ir.Type
	// partial reports that the summand is probably a partial sum.
	partial bool
	// own reports that no other statement uses the summand, so that its layout may be changed although typ is set.
	own bool
}

// part is a contribution to the gradient of one row of a value: the row at index along axis.
type part struct {
	axis  int
	index *ir.Expr
	contribution
}

func (b *backward) contribute(name string, c contribution) {
	b.contributions[name] = append(b.contributions[name], c)
}

// run differentiates the statements of a list, the last one first.
func (b *backward) run(list []*ir.Stmt) {
	for _, s := range slices.Backward(list) {
		b.stmt(s)
	}
}

func (b *backward) stmt(s *ir.Stmt) {
	g := b.g
	if s.Op == ir.OpFor && len(s.Carry) > 0 {
		b.loop(s)
		return
	}
	if y := g.written(s); y != nil {
		b.local(s, y)
		return
	}
	results := g.info.Results[s]
	if len(results) != 1 || results[0].Kind != ir.SymValue || !g.active[results[0].Name] {
		return
	}
	y := results[0].Name
	if results[0].Type.DType.IsFloat8() && len(b.contributions[y]) > 0 {
		g.refuse(s.Pos, "use a wider type, or exclude the value from differentiation with --of or --wrt",
			"%%%s has type %s, which is too imprecise for gradients", y, results[0].Type.DType)
		return
	}
	if moves(s) { // contributions may have any layout, since the operation only changes the layout
		x := g.info.Operands[s][0].Name
		b.contributions[x] = append(b.contributions[x], b.contributions[y]...)
		delete(b.contributions, y)
		return
	}
	dy := b.finish(y, "d"+y)
	if dy == "" {
		return
	}
	r := ruleOf(s)
	switch {
	case s.Op == ir.OpClaim && b.parent != nil:
		g.refuse(s.Pos, "compute %"+y+" by operations on values, without into",
			"%%%s has no gradient: it is claimed in a loop from the buffer %%%s", y,
			g.info.Operands[s][0].Name)
		return
	case r == nil:
		g.refuse(s.Pos, "exclude %"+y+" from differentiation with --of or --wrt", "%s has no gradient rule",
			s.Op)
		return
	}
	c := &call{statement{backward: b, s: s, y: y, dy: dy, dyType: reduced(results[0].Type)}}
	if natural := g.info.Natural[s]; natural != nil && !ir.SameLayout(reduced(natural), c.dyType) {
		c.dyType = reduced(natural)
		c.dy = g.fresh(dy + ".g")
		b.add(stmt(s.Pos, ir.OpReshard, c.dy, c.dyType, nil, dy))
	}
	r(c)
}

// moves reports whether a statement on values changes only the layout.
func moves(s *ir.Stmt) bool {
	return s.Op == ir.OpReshard || s.Op.Info().Class == ir.ClassCollective && s.Into == nil
}

func (b *backward) add(s *ir.Stmt) { b.stmts = append(b.stmts, s) }

// finish returns the gradient of a value, in the value's layout and without partial reductions. If a new statement
// computes the gradient, the gradient has the name called. The result is empty if there is no contribution to the
// gradient.
func (b *backward) finish(name, called string) string {
	list := b.contributions[name]
	delete(b.contributions, name)
	if len(list) == 0 {
		return ""
	}
	want := reduced(b.g.types[name])
	// Partial sums are added to each other before they are reduced.
	slices.SortStableFunc(list, func(x, y contribution) int { return boolInt(y.partial) - boolInt(x.partial) })
	sum := list[0]
	for k, c := range list[1:] {
		s := stmt(ir.Pos{}, ir.OpAdd, b.g.fresh(called+"."+strconv.Itoa(k+1)), nil, nil, sum.name, c.name)
		b.add(s)
		sum = contribution{name: s.Results[0].Text}
	}
	switch {
	case sum.typ == nil:
		if !b.g.isLocal(name) {
			b.annotate(sum.name, want)
		}
		return b.called(sum.name, called)
	case !ir.SameLayout(sum.typ, want):
		made := b.g.take(called)
		b.add(stmt(ir.Pos{}, ir.OpReshard, made, want, nil, sum.name))
		return made
	case sum.own:
		return b.called(sum.name, called)
	}
	return sum.name
}

// take returns a name for a gradient: the name called, which may have been reserved, or a similar unused name.
func (g *gradder) take(called string) string {
	if g.reserved[called] {
		delete(g.reserved, called)
		return called
	}
	return g.fresh(called)
}

// annotate adds the type t to the definition of a value, which a statement of the block must define.
func (b *backward) annotate(name string, t *ir.Type) {
	i, _ := b.definition(name)
	b.stmts[i].Type = t
}

// called renames a value that has not been used yet. It also renames the operations that are nested in its statement.
func (b *backward) called(name, to string) string {
	to = b.g.take(to)
	i, result := b.definition(name)
	b.stmts[i].Results[result].Text = to
	for k := i - 1; k >= 0 && b.stmts[k].Nested; k-- {
		old := b.stmts[k].Results[0].Text
		rest, ok := strings.CutPrefix(old, name+".")
		if !ok || b.g.names[to+"."+rest] {
			break
		}
		b.g.names[to+"."+rest] = true
		b.stmts[k].Results[0].Text = to + "." + rest
		for _, u := range b.stmts[k+1 : i+1] {
			for a := range u.Args {
				if u.Args[a].Name == old {
					u.Args[a].Name = to + "." + rest
				}
			}
		}
	}
	return to
}

// definition returns the index of the statement of the block that defines a value, and the index of the value among
// that statement's results.
func (b *backward) definition(name string) (int, int) {
	for i, s := range slices.Backward(b.stmts) {
		for k, r := range s.Results {
			if r.Text == name {
				return i, k
			}
		}
	}
	panic("grad: no statement gives %" + name)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// use returns the name that a value of the forward pass has in the backward pass. The value is either kept or computed
// again.
func (b *backward) use(name string) string {
	g := b.g
	if g.home[name] != b.fwd {
		if b.parent == nil {
			panic("grad: %" + name + " is not visible")
		}
		return b.parent.use(name)
	}
	if as, ok := b.avail[name]; ok {
		return as
	}
	def := b.fwd.defs[name]
	switch {
	case def != nil && g.again(b.fwd, def):
		b.avail[name] = b.recompute(name, def)
	case b.parent == nil:
		b.avail[name] = name
	default:
		b.avail[name] = b.restore(name)
	}
	return b.avail[name]
}

// recompute computes a value of the forward pass again.
func (b *backward) recompute(name string, def *ir.Stmt) string {
	s := def.Clone()
	for i, a := range s.Args {
		s.Args[i].Name = b.use(a.Name)
	}
	s.Comments, s.Nested = ir.Comments{}, false
	if s.Type == nil {
		s.Type = b.g.types[name].Clone()
	}
	if b.parent == nil {
		s.Results[0].Text = b.g.fresh(name + ".r")
	}
	b.add(s)
	if b.g.hasLSE(def) {
		b.use(b.g.lse(b.fwd, def))
	}
	return s.Results[0].Text
}

// restore adds a select of the element that the corresponding iteration of the forward loop stored for a value.
func (b *backward) restore(name string) string {
	stack, index := b.g.stack(b.fwd, name)
	s := stmt(ir.Pos{}, ir.OpSelect, name, nil, []ir.Attr{ir.ExprAttr("axis", ir.Int(0)), ir.ExprAttr("index", index)},
		b.parent.use(stack))
	b.add(s)
	return name
}

// call describes the differentiation of one statement.
type call struct {
	statement
}

// statement is a statement of the forward pass, for which its rule adds statements to the backward pass.
type statement struct {
	*backward
	s *ir.Stmt
	// y is the name of the result, and dy is the name of its gradient. dyType is the type of dy: the natural layout of
	// the operation's result, without partial reductions.
	y, dy  string
	dyType *ir.Type
	// local reports that the statement operates on each rank's own tensors.
	local bool
}

// wants reports whether operand i has a gradient.
func (c *statement) wants(i int) bool {
	sym := c.g.info.Operands[c.s][i]
	return c.g.isActive(sym) && !sym.Type.DType.IsInt()
}

// arg returns the name of operand i in the layout that the statement requires.
func (c *statement) arg(i int) string {
	if sym := c.g.info.Operands[c.s][i]; sym.Kind == ir.SymBuffer {
		return c.held(sym, false)
	}
	return c.use(c.g.in(c.fwd, c.s, i))
}

// result returns the name of the statement's result in the backward pass.
func (c *statement) result() string {
	if c.local {
		return c.held(c.g.written(c.s), true)
	}
	return c.use(c.y)
}

// argType returns the type of operand i in the layout that the statement requires.
func (c *statement) argType(i int) *ir.Type {
	if sym := c.g.info.Operands[c.s][i]; c.local && sym.Kind == ir.SymValue {
		return sym.Type.LocalType()
	}
	if needs := c.g.info.Needs[c.s]; needs != nil && needs[i] != nil {
		return needs[i]
	}
	return c.g.info.Operands[c.s][i].Type
}

// dims returns the number of dimensions of operand i.
func (c *statement) dims(i int) int { return len(c.argType(i).Dims) }

// op adds the statement "%new = op %args attrs" and returns the new name. The annotated type t may be nil.
func (c *statement) op(op ir.Op, t *ir.Type, attrs []ir.Attr, args ...string) string {
	name := c.g.fresh("d" + c.y)
	c.add(stmt(c.s.Pos, op, name, t, attrs, args...))
	return name
}

// give adds the contribution x to the gradient of operand i.
func (c *statement) give(i int, x contribution) {
	sym := c.g.info.Operands[c.s][i]
	if c.local && sym.Kind == ir.SymValue {
		c.claimed(sym, x.name)
		return
	}
	c.contribute(sym.Name, x)
}

// shape returns the extents of t as an attribute.
func shape(t *ir.Type) ir.Attr {
	var list []*ir.Expr
	for _, d := range t.Dims {
		list = append(list, d.Extent)
	}
	a := ir.ExprsAttr("shape", list...)
	a.Paren = true
	return a
}
