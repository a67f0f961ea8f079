package verify

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/ir"
)

// This file finds claim statements that are wrong for almost all inputs. The type in a claim may state that all ranks
// along an axis hold the same data. This is wrong if the data of each rank depend on the rank's own block of a
// parameter that is split along that axis, and the rank receives no data of the other ranks.
//
// The analysis visits the statements in the order of the text, which determines the results of a program without
// races. A fact about a tensor must hold on all ranks and for every element that was written. If this is not
// certain, the fact is dropped. Therefore every claim that is reported is wrong, but some wrong claims are not
// reported.

// facts is a bit set of facts.
type facts uint64

const (
	// The fact varies: every element depends on a parameter, so no element is zero for all inputs.
	varies facts = 1 << (63 - iota)
	// The fact signed: every element may have either sign, so relu does not always return zero.
	signed
	// The fact positive: no element is ever negative, and no element is zero for all inputs.
	positive
	// onAxes selects the bits of the facts that exist for each axis. There are at most 60 axes.
	onAxes  = positive - 1
	maxAxes = 60
)

// content holds the facts about the elements of a tensor.
type content struct {
	// depends has bit i set if the elements depend on the executing rank's own block of a parameter that is split
	// along axis i.
	depends facts
	// own has bit i set if the elements depend on no data of other ranks along axis i, except data that are equal
	// on all ranks along that axis.
	own facts
	// via identifies the set of statements that negated or inverted the rank's own block before it reached the tensor.
	via int
}

// unwritten is the content of a tensor whose elements have not been written. It has all facts, because a fact is a
// statement about the written elements.
var unwritten = content{^facts(0), ^facts(0), noWay}

// constants is the content of a tensor that depends on no input.
var constants = content{0, ^facts(0), noWay}

// and returns a content with the facts that k and o have in common.
func (k content) and(o content) content {
	switch {
	case k == unwritten:
		return o
	case o == unwritten:
		return k
	case k.via != o.via:
		k.via = anyWay
	}
	return content{k.depends & o.depends, k.own & o.own, k.via}
}

// origin records where the data of a rank's own block entered a computation: the value to which the block belongs, and
// the position where the program refers to the rank's own part of the value.
type origin struct {
	pos   ir.Pos
	value *ir.Sym
}

// originKey identifies an origin by a tensor and the axis on which the tensor depends.
type originKey struct {
	root *ir.Sym
	axis int
}

// claims is an analysis of the program for all ranks at once. Extents are evaluated for one rank. Tensors are
// identified by the symbol that owns their memory.
type claims struct {
	b      *ir.Bound
	info   *ir.Info
	source *ir.Program
	rank   int

	axes  []string         // names of all mesh axes
	mesh  []int            // for each axis: index of the axis's mesh
	sized facts            // bits of the axes that have more than one rank
	puts  map[*ir.Sym]bool // buffers that peers write
	carry map[carried]*ir.Sym

	of      map[*ir.Sym]content
	origins map[originKey]origin
	vars    map[string]int64
	tensors map[string]*ir.Sym
	yields  []content
	returns []content
	quiet   int // greater than 0 while visiting a statement that may be skipped
	ways    *ways
	told    map[ir.Pos]bool
	ds      ir.Diagnostics
}

// carried is the map key of a value that a loop carries.
type carried struct {
	loop *ir.Stmt
	name string
}

// Claims checks the claims, returned buffers and inout parameters of an explicit program. It returns an error for each
// of them whose type states that ranks hold the same data, although each rank computed the data from its own block of a
// parameter. Positions refer to the program source.
func Claims(b *ir.Bound, source *ir.Program) ir.Diagnostics {
	c := &claims{b: b, info: b.Info, source: source, ways: newWays(), told: map[ir.Pos]bool{}}
	ranks := []int{0}
	for i, m := range b.Info.Prog.Meshes {
		for _, a := range m.Axes {
			if n, _ := b.AxisSize(a.Name); n > 1 && len(c.axes) < maxAxes {
				c.sized |= 1 << len(c.axes)
			}
			c.axes, c.mesh = append(c.axes, a.Name), append(c.mesh, i)
		}
		if m.HasDevices && len(m.Devices) > 0 && !slices.Contains(ranks, int(m.Devices[0])) {
			ranks = append(ranks, int(m.Devices[0]))
		}
	}
	if c.sized == 0 {
		return nil
	}
	c.prepare()
	for _, c.rank = range ranks {
		c.of, c.origins, c.vars, c.tensors = map[*ir.Sym]content{}, map[originKey]origin{}, map[string]int64{},
			map[string]*ir.Sym{}
		for _, p := range c.info.Params[b.Func] {
			c.parameter(p)
		}
		c.function(b.Func)
	}
	return c.ds
}

// parameter sets the content of a parameter of the analysed function.
func (c *claims) parameter(p *ir.Sym) {
	t, m := p.Param.Type, varies|signed
	if len(t.Partial) == 0 {
		for _, a := range t.Axes() {
			m |= c.bit(a) & c.sized
		}
	}
	c.set(p, content{m, ^facts(0), noWay})
	for i := range min(len(c.axes), maxAxes) {
		if m&(1<<i) != 0 {
			c.origins[originKey{p, i}] = origin{p.Pos, p}
		}
	}
}

// prepare finds the buffers that peers write, and the values that loops carry.
func (c *claims) prepare() {
	c.puts, c.carry = map[*ir.Sym]bool{}, map[carried]*ir.Sym{}
	for _, args := range c.info.Operands {
		for _, a := range args { // carried values that the loop's body uses
			if a != nil && a.Def != nil && a.Def.Op == ir.OpFor && a.Kind == ir.SymValue &&
				!slices.Contains(c.info.Results[a.Def], a) {
				c.carry[carried{a.Def, a.Name}] = a
			}
		}
	}
	for n := -1; n < len(c.puts); { // repeats until calls add no further buffers
		n = len(c.puts)
		for _, f := range c.info.Prog.Funcs {
			f.Body.Walk(func(s *ir.Stmt) {
				switch s.Op {
				case ir.OpPut:
					c.puts[c.info.Into[s].Root()] = true
				case ir.OpCall:
					for i, p := range c.info.Params[c.info.Prog.Func(s.Callee.Text)] {
						if c.puts[p] {
							c.puts[c.info.Operands[s][i].Root()] = true
						}
					}
				}
			})
		}
	}
}

// set records k as the content of the memory that a symbol owns. For a value, it adds the axes along which all ranks
// hold the same data according to the value's type.
func (c *claims) set(s *ir.Sym, k content) {
	if s.Kind == ir.SymValue {
		same := c.same(s.Type)
		k.depends &^= same
		k.own |= same
	}
	if k != unwritten && k.depends&onAxes == 0 {
		k.via = noWay
	}
	c.of[s.Root()] = k
}

// same returns the axes along which all ranks hold the same data, according to the type t.
func (c *claims) same(t *ir.Type) facts {
	m := facts(0)
	for i, name := range c.axes {
		partial := slices.ContainsFunc(t.Partial, func(p ir.Partial) bool { return p.Axis == name })
		if c.onMesh(i, t) && !partial && !slices.Contains(t.Axes(), name) {
			m |= c.bit(name)
		}
	}
	return m
}

func (c *claims) bit(axis string) facts {
	if i := slices.Index(c.axes, axis); i >= 0 && i < maxAxes {
		return 1 << i
	}
	return 0
}

// claimed checks the buffers that a return or call converts to values.
func (c *claims) claimed(s *ir.Stmt) {
	for i, a := range c.info.Operands[s] {
		if a.Kind != ir.SymBuffer {
			continue
		}
		pos := s.Args[i].Pos
		if s.Op == ir.OpCall {
			if p := c.b.Info.Prog.Func(s.Callee.Text).Params[i]; !p.Inout {
				c.check(a, p.Type, pos, fmt.Sprintf("%%%s of %s says that %%%s is", p.Name, s.Callee.Text, a.Name))
			}
		} else if f := c.funcOf(s); f != nil {
			c.check(a, f.Results[i], pos, fmt.Sprintf("the result of %s says that %%%s is", f.Name, a.Name))
		}
	}
}

// funcOf returns the function whose last statement is the given return.
func (c *claims) funcOf(ret *ir.Stmt) *ir.Func {
	for _, f := range c.info.Prog.Funcs {
		if slices.Contains(f.Body.Stmts, ret) {
			return f
		}
	}
	return nil
}

func (c *claims) all(syms []*ir.Sym) []content {
	ks := make([]content, len(syms))
	for i, s := range syms {
		ks[i] = c.know(s)
	}
	return ks
}

// know returns the content that is recorded for a tensor.
func (c *claims) know(s *ir.Sym) content {
	if c.puts[s.Root()] {
		return content{}
	}
	return c.of[s.Root()]
}

// target returns the symbol that a statement writes, and reports whether the statement writes all of its elements.
func (c *claims) target(s *ir.Stmt) (sym *ir.Sym, all bool) {
	if sym = c.info.Into[s]; sym != nil {
		return sym, sym.Base == nil && sym.Count == nil
	}
	if rs := c.info.Results[s]; len(rs) == 1 && rs[0].Base == nil {
		return rs[0], true
	}
	return nil, false // a view has the facts of the memory that it views
}

// write records k as the content that a statement writes, and records the origins of that content.
func (c *claims) write(s *ir.Stmt, k content) {
	sym, all := c.target(s)
	if sym == nil {
		return
	}
	for i := range min(len(c.axes), maxAxes) {
		for n, a := range c.info.Operands[s] {
			if k.depends&c.know(a).depends&(1<<i) != 0 && k != unwritten {
				c.origins[originKey{sym.Root(), i}] = c.entered(s, n, sym, i)
				break
			}
		}
	}
	if !all {
		k = k.and(c.know(sym))
	}
	c.set(sym, k)
}

// entered returns the origin from which operand k of s depends on an axis. If s refers to a rank's own part of a value,
// that reference is the origin.
func (c *claims) entered(s *ir.Stmt, k int, to *ir.Sym, axis int) origin {
	a := c.info.Operands[s][k]
	if a.Root().Kind == ir.SymValue && to.Kind == ir.SymBuffer {
		for at := a; ; at = c.info.Operands[at.Def][0] {
			switch {
			case at.Def == nil || at.Def.Op.Info().Class != ir.ClassView || at.Base == nil:
				return origin{s.Args[k].Pos, a.Root()}
			case at.Def.Op == ir.OpLocal:
				return origin{at.Def.Pos, a.Root()}
			}
		}
	}
	return c.origins[originKey{a.Root(), axis}]
}

// collected returns the content of a collective's result.
func (c *claims) collected(s *ir.Stmt) content {
	k := c.know(c.info.Operands[s][0])
	if k == unwritten {
		return k
	}
	team := facts(0)
	for _, name := range s.Over() {
		if team |= c.bit(name); c.bit(name) == 0 {
			return content{} // a collective over world mixes data along all axes
		}
	}
	for i, name := range c.axes { // the team may mix data along axes of other meshes
		if !slices.Contains(s.Over(), name) && c.mesh[i] != c.mesh[slices.Index(c.axes, s.Over()[0])] {
			k.own &^= c.bit(name)
		}
	}
	k.depends &^= team
	switch s.Op {
	case ir.OpAllReduce, ir.OpAllGather, ir.OpBroadcast: // the result is the same on all ranks of the team
		k.own |= team
		return k
	case ir.OpReduceScatter, ir.OpAllToAll, ir.OpPermute:
		k.own &^= team
		return k
	}
	return content{} // some ranks receive no data, or zeros
}

// check reports an error if the type t of a tensor states that ranks along some axis hold the same data although
// they do not.
func (c *claims) check(sym *ir.Sym, t *ir.Type, pos ir.Pos, says string) {
	k := c.know(sym)
	if k == unwritten || c.quiet > 0 || c.told[pos] || !c.b.Holds(t, c.rank) {
		return
	}
	if shape, err := c.b.LocalShape(t, c.everywhere()); err != nil || slices.Contains(shape, 0) {
		return
	}
	if wrong := k.depends & k.own & c.sized & c.same(t); wrong != 0 {
		c.told[pos] = true
		c.ds = append(c.ds, c.wrong(sym, t, pos, says, bits.TrailingZeros64(uint64(wrong))))
	}
}

// onMesh reports whether axis i belongs to the mesh on which values of type t are placed.
func (c *claims) onMesh(i int, t *ir.Type) bool {
	if t.Mesh != "" {
		k := slices.Index(c.axes, t.Mesh)
		return k >= 0 && c.mesh[k] == c.mesh[i]
	}
	return !c.info.Prog.Meshes[c.mesh[i]].HasDevices
}

func (c *claims) wrong(sym *ir.Sym, t *ir.Type, pos ir.Pos, says string, axis int) *ir.Diagnostic {
	name, own, note := c.axes[axis], "its own parts", ir.Note{}
	if from := c.origins[originKey{sym.Root(), axis}]; from.value != nil {
		own = "its own part of %" + from.value.Name
		note = ir.Note{Pos: from.pos, Message: fmt.Sprintf("here each rank takes %s, which is %s", own,
			from.value.Type)}
	}
	d := c.source.Diag(KindClaim, pos, "%s the same on all ranks of %s, but each rank computed it from %s, "+
		"and receives no data of the other ranks", says, name, own)
	if note.Pos.Valid() {
		d.Notes = append(d.Notes, note)
	}
	part := *t
	part.Partial = append(slices.Clone(t.Partial), ir.Partial{Axis: name, Red: ir.Sum})
	d.Help = fmt.Sprintf("if each rank has a part of a sum, all_reduce the buffer over %s first, or claim it as %s", name, &part)
	return d
}

// onRank evaluates variables and extents in index expressions for one rank. If the rank is negative, only variables and
// extents that are equal on all ranks have a value.
type onRank struct {
	c    *claims
	rank int
}

// Var returns the value of the variable called name, if it is known.
func (r onRank) Var(name string) (int64, bool) { v, ok := r.c.vars[name]; return v, ok }

// Extent returns a local extent of the tensor called name, if it is known.
func (r onRank) Extent(name string, axis int) (int64, bool) {
	if sym := r.c.tensors[name]; sym != nil && sym.Type != nil && axis < len(sym.Type.Dims) {
		if shape, err := r.c.b.LocalShape(sym.Type, r.c.b.Env(r.rank, r)); err == nil {
			return shape[axis], true
		}
	}
	return 0, false
}

// everywhere returns the environment for expressions that have the same value on all ranks. In this environment,
// expressions that depend on the rank have no value. A branch whose condition has no value is executed by some ranks
// only.
func (c *claims) everywhere() ir.Env { return c.b.Env(-1, onRank{c, -1}) }
