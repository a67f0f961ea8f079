package verify

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/ir"
)

// This file refutes claims that are wrong for almost all inputs: a type says
// that all ranks along an axis hold the same, each rank's bytes depend on its
// own block of a parameter that is split along that axis, and nothing of the
// other ranks reaches them.
//
// Claims follows the text, in text order, which is what a program without races
// computes. A fact about a tensor holds on all ranks, of every element that was
// written there, and is dropped where that is not certain: every claim that is
// reported is wrong, and a wrong claim may pass.

// facts are a set of facts.
type facts uint64

const (
	// varies: every element depends on a parameter, so it is not always zero.
	varies facts = 1 << (63 - iota)
	// signed: every element may have either sign, so that relu leaves something.
	signed
	// positive: no element is ever negative, and none is always zero.
	positive
	// onAxes are the facts that there are for each axis, of 60 axes at most.
	onAxes  = positive - 1
	maxAxes = 60
)

// content is what is known of the elements of a tensor.
type content struct {
	// depends: bit i says that the elements depend on this rank's own block of a
	// parameter along axis i.
	depends facts
	// own: bit i says that no data of other ranks along axis i is in them, but for
	// what all those ranks have.
	own facts
	// via is what negated or inverted that block on the way.
	via int
}

// unwritten tensors have all facts, since they have no element.
var unwritten = content{^facts(0), ^facts(0), noWay}

// constants depend on nothing.
var constants = content{0, ^facts(0), noWay}

// and returns the facts that hold of both.
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

// origin is where a rank's own part entered a computation: a value, and the
// place where its own part was named.
type origin struct {
	pos   ir.Pos
	value *ir.Sym
}

// originKey asks for the origin of a tensor's dependence on an axis.
type originKey struct {
	root *ir.Sym
	axis int
}

// claims follows the ranks, and evaluates extents on one. Tensors are known by the
// symbol that owns the memory.
type claims struct {
	b      *ir.Bound
	info   *ir.Info
	source *ir.Program
	rank   int

	axes  []string         // names of all mesh axes
	mesh  []int            // the mesh of each
	sized facts            // axes of more than one rank
	puts  map[*ir.Sym]bool // buffers that peers write
	carry map[carried]*ir.Sym

	of      map[*ir.Sym]content
	origins map[originKey]origin
	vars    map[string]int64
	tensors map[string]*ir.Sym
	yields  []content
	returns []content
	quiet   int // above 0: it is not certain that the statement runs
	ways    *ways
	told    map[ir.Pos]bool
	ds      ir.Diagnostics
}

// carried names what a loop carries.
type carried struct {
	loop *ir.Stmt
	name string
}

// Claims returns an error for every claim, returned buffer and inout parameter
// of an explicit program that says that ranks hold the same, though each holds
// what it computed from its own block of a parameter. Positions refer to source.
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

// parameter sets what is known of a parameter of the function that runs.
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

// prepare finds the buffers that peers write, and what loops carry.
func (c *claims) prepare() {
	c.puts, c.carry = map[*ir.Sym]bool{}, map[carried]*ir.Sym{}
	for _, args := range c.info.Operands {
		for _, a := range args { // what a loop carries is a symbol of its uses only
			if a != nil && a.Def != nil && a.Def.Op == ir.OpFor && a.Kind == ir.SymValue &&
				!slices.Contains(c.info.Results[a.Def], a) {
				c.carry[carried{a.Def, a.Name}] = a
			}
		}
	}
	for n := -1; n < len(c.puts); { // until calls name no more
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

// set makes k what is known of the memory that a symbol owns. Of a value, the
// type says along which axes all ranks have the same.
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

// same returns the axes along which a value of type t is the same on all ranks.
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

// claimed checks the buffers that a return or call makes values of.
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

// funcOf returns the function that a return is the last statement of.
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

// know returns what is known of the elements of a tensor.
func (c *claims) know(s *ir.Sym) content {
	if c.puts[s.Root()] {
		return content{}
	}
	return c.of[s.Root()]
}

// target returns what a statement writes, and whether it writes all of that.
func (c *claims) target(s *ir.Stmt) (sym *ir.Sym, all bool) {
	if sym = c.info.Into[s]; sym != nil {
		return sym, sym.Base == nil && sym.Count == nil
	}
	if rs := c.info.Results[s]; len(rs) == 1 && rs[0].Base == nil {
		return rs[0], true
	}
	return nil, false // a view, which has its memory's facts
}

// write makes k what is known of what a statement writes, and keeps where that
// is from.
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

// entered returns where operand k's dependence on an axis is from: where a
// rank names its own part of a value, if this statement does that.
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

// collected returns what is known of a collective's result.
func (c *claims) collected(s *ir.Stmt) content {
	k := c.know(c.info.Operands[s][0])
	if k == unwritten {
		return k
	}
	team := facts(0)
	for _, name := range s.Over() {
		if team |= c.bit(name); c.bit(name) == 0 {
			return content{} // over all ranks, which are on any axis
		}
	}
	for i, name := range c.axes { // ranks of one mesh lie in another as they like
		if !slices.Contains(s.Over(), name) && c.mesh[i] != c.mesh[slices.Index(c.axes, s.Over()[0])] {
			k.own &^= c.bit(name)
		}
	}
	k.depends &^= team
	switch s.Op {
	case ir.OpAllReduce, ir.OpAllGather, ir.OpBroadcast: // the same on the whole team
		k.own |= team
		return k
	case ir.OpReduceScatter, ir.OpAllToAll, ir.OpPermute:
		k.own &^= team
		return k
	}
	return content{} // some ranks get nothing, or zeros
}

// check reports a tensor whose type says that ranks along some axis hold the same.
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

// onMesh reports whether axis i is one of the mesh that t's values are on.
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
	d := c.source.Diag(KindClaim, pos, "%s the same on all ranks of %s, but each holds what it computed from %s, "+
		"and nothing of the others reaches it", says, name, own)
	if note.Pos.Valid() {
		d.Notes = append(d.Notes, note)
	}
	part := *t
	part.Partial = append(slices.Clone(t.Partial), ir.Partial{Axis: name, Red: ir.Sum})
	d.Help = fmt.Sprintf("if each holds a part of a sum, all_reduce it over %s first, or claim it as %s", name, &part)
	return d
}

// onRank gives index expressions the variables and extents of a rank; below 0,
// those that are the same on all ranks.
type onRank struct {
	c    *claims
	rank int
}

// Var returns the value of a variable, if it is known.
func (r onRank) Var(name string) (int64, bool) { v, ok := r.c.vars[name]; return v, ok }

// Extent returns a local extent of a tensor, if it is known.
func (r onRank) Extent(name string, axis int) (int64, bool) {
	if sym := r.c.tensors[name]; sym != nil && sym.Type != nil && axis < len(sym.Type.Dims) {
		if shape, err := r.c.b.LocalShape(sym.Type, r.c.b.Env(r.rank, r)); err == nil {
			return shape[axis], true
		}
	}
	return 0, false
}

// everywhere evaluates what is the same on all ranks: a branch that depends on
// the rank is taken by some of them.
func (c *claims) everywhere() ir.Env { return c.b.Env(-1, onRank{c, -1}) }
