package ir

import (
	"slices"
	"strings"
)

// checkBlock checks the statements of a block in a scope of their own.
func (c *checker) checkBlock(b *Block) {
	mark := c.scope.open()
	for i, s := range b.Stmts {
		if c.returned {
			c.errorf("structure", s.Pos, "nothing may follow return")
			break
		}
		if s.Op == OpReturn && (b != c.fn.Body || i != len(b.Stmts)-1) {
			c.errorf("structure", s.Pos, "return must be the last statement of the function")
			continue
		}
		c.checkStmt(s)
	}
	c.scope.close(mark)
}

func (c *checker) checkStmt(s *Stmt) {
	if s.Op == InvalidOp {
		return
	}
	if c.inGroup && !allowedInGroup(s) {
		c.errorf("structure", s.Pos, "%s cannot stand in a group", s.Op).
			help("a group holds sends and recvs, and the lets, views, fors and ifs that choose them")
	}
	if !c.checkShape(s) {
		c.defineBad(s)
		return
	}
	switch s.Op.Info().Class {
	case ClassTensor, ClassView, ClassCollective:
		c.checkTensorOp(s)
	case ClassTransfer:
		c.checkTransfer(s)
	case ClassOrder:
		c.checkOrder(s)
	case ClassMemory:
		c.checkMemory(s)
	case ClassControl:
		c.checkControl(s)
	}
}

func allowedInGroup(s *Stmt) bool {
	switch s.Op {
	case OpSend, OpRecv, OpLet, OpFor, OpIf:
		return true
	}
	return s.Op.Info().Class == ClassView && s.Into == nil
}

// defineBad defines the results of a statement that did not check, so that
// their uses are not reported as well.
func (c *checker) defineBad(s *Stmt) {
	for _, r := range s.Results {
		if c.scope.names[r.Text] == nil {
			kind := SymValue
			switch s.Op {
			case OpStream:
				kind = SymStream
			case OpEvent:
				kind = SymEvent
			case OpCounter:
				kind = SymCounter
			case OpLet, OpFor:
				kind = SymIndex
			}
			c.define(&Sym{Kind: kind, Name: r.Text, Pos: r.Pos, Def: s})
		}
	}
}

// checkShape checks what the Op table says of every statement: the number of
// operands, into, and attributes.
func (c *checker) checkShape(s *Stmt) bool {
	before := len(c.ds)
	info := s.Op.Info()
	if n := len(s.Args); n < info.MinArgs || n > info.MaxArgs {
		want := plural(info.MinArgs, "operand")
		if info.MaxArgs != info.MinArgs && info.MaxArgs < 1<<10 {
			want = "between " + plural(info.MinArgs, "operand") + " and " + plural(info.MaxArgs, "operand")
		}
		c.errorf("structure", s.Pos, "%s takes %s, not %d", s.Op, want, n).help(s.Op.String() + ": " + info.Doc)
	}
	switch {
	case s.Into != nil && info.Into == IntoNever:
		c.errorf("structure", s.Into.Pos, "%s takes no into", s.Op)
	case s.Into == nil && info.Into == IntoMust:
		c.errorf("structure", s.Pos, "%s needs into %%place", s.Op)
	case s.Into != nil && len(s.Results) > 0:
		c.errorf("structure", s.Into.Pos, "a statement has a result or an into, not both")
	case info.Into == IntoMay && s.Into == nil && len(s.Results) == 0:
		c.errorf("structure", s.Pos, "the result of %s is dropped", s.Op).help("%y = " + s.Op.String() + " …, or … into %y")
	}
	for i := range s.Attrs {
		c.checkAttr(s, i)
	}
	for _, spec := range info.Attrs {
		if spec.Required && s.Attr(spec.Name) == nil {
			c.errorf("structure", s.Pos, "%s needs %s=", s.Op, spec.Name).help(spec.Name + ": " + spec.Doc)
		}
	}
	for _, e := range s.Exprs {
		c.checkExpr(e)
	}
	if s.Count != nil {
		c.checkExpr(s.Count)
	}
	if s.Peer != nil {
		c.checkPeer(s.Peer)
	}
	return len(c.ds) == before
}

func (c *checker) checkAttr(s *Stmt, i int) {
	a := &s.Attrs[i]
	spec := s.Op.Info().AttrSpec(a.Name)
	if spec == nil {
		c.errorf("structure", a.Pos, "%s has no attribute %s", s.Op, a.Name).help(attrHelp(s.Op))
		return
	}
	for k := range i {
		if s.Attrs[k].Name == a.Name {
			c.errorf("structure", a.Pos, "%s= is given twice", a.Name)
			return
		}
	}
	for _, e := range a.Exprs {
		c.checkExpr(e)
	}
	if a.Kind == AttrWord && spec.Words != nil && len(a.Words) == 1 && !slices.Contains(spec.Words, a.Words[0]) {
		c.errorf("structure", a.Pos, "%s=%s is not known", a.Name, a.Words[0]).help("one of: " + strings.Join(spec.Words, ", "))
	}
	if a.Name == "over" {
		c.checkOver(a)
	}
}

func attrHelp(op Op) string {
	specs := op.Info().Attrs
	if len(specs) == 0 {
		return op.String() + " takes no attributes"
	}
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	return op.String() + " takes " + strings.Join(names, ", ")
}

// checkOver checks the axes of a team: known, distinct, of one mesh.
func (c *checker) checkOver(a *Attr) {
	var mesh *Mesh
	for i, ax := range a.Words {
		m, known := c.axes[ax]
		switch {
		case ax == WorldAxis && len(a.Words) > 1:
			c.errorf("structure", a.Pos, "over=%s is all ranks already", WorldAxis)
		case ax == WorldAxis:
		case !known:
			c.errorf("scope", a.Pos, "there is no mesh axis %s", ax).help(didYouMean(ax, c.axisNames()))
		case slices.Contains(a.Words[:i], ax):
			c.errorf("structure", a.Pos, "mesh axis %s is named twice", ax)
		case mesh != nil && m != mesh:
			c.errorf("structure", a.Pos, "%s and %s are axes of different meshes", a.Words[0], ax)
		default:
			mesh = m
		}
	}
}

func (c *checker) checkPeer(p *Peer) {
	if p.Axis != WorldAxis && c.axes[p.Axis] == nil {
		c.errorf("scope", p.Pos, "there is no mesh axis %s", p.Axis).help(didYouMean(p.Axis, c.axisNames()))
	}
	c.checkExpr(p.Index)
}

// place resolves an operand and checks its index. It returns nil after an error.
func (c *checker) place(p *Place) *Sym {
	s := c.lookup(p.Name, p.Pos)
	if s == nil {
		return nil
	}
	if p.Index != nil && !c.checkExpr(p.Index) {
		return nil
	}
	switch {
	case s.Count == nil && p.Index != nil:
		c.errorf("type", p.Pos, "%%%s is no array", p.Name).help("only what is declared as kind[N] is indexed; a part of a tensor is a chunk, slice or select")
		return nil
	case s.Count != nil && p.Index == nil:
		c.errorf("type", p.Pos, "%%%s is an array", p.Name).help("name an element: %" + p.Name + "[0]")
		return nil
	}
	if pos, freed := c.freed[s.Root()]; freed {
		c.errorf("lifetime", p.Pos, "%%%s is used after it was freed", p.Name).at(pos, "freed here").
			help("move the free behind the last use")
		return nil
	}
	return s
}

// kinded resolves an operand that must be of one of the given kinds.
func (c *checker) kinded(s *Stmt, p *Place, kinds ...SymKind) *Sym {
	if p.Main {
		return nil
	}
	sym := c.place(p)
	if sym == nil {
		return nil
	}
	if !slices.Contains(kinds, sym.Kind) {
		words := make([]string, len(kinds))
		for i, k := range kinds {
			words[i] = k.String()
		}
		c.errorf("type", p.Pos, "%s takes %s, but %%%s is %s", s.Op, strings.Join(words, " or "), p.Name, sym.Kind)
		return nil
	}
	return sym
}

// tensors resolves all operands as tensors; false after an error, or where an
// operand's own error was reported before.
func (c *checker) tensors(s *Stmt) ([]*Sym, bool) {
	ok := true
	syms := make([]*Sym, len(s.Args))
	for i := range s.Args {
		if s.Args[i].Main {
			c.errorf("type", s.Args[i].Pos, "%s takes tensors, and main is a stream", s.Op)
			ok = false
			continue
		}
		syms[i] = c.kinded(s, &s.Args[i], SymValue, SymBuffer)
		ok = ok && syms[i] != nil && syms[i].Type != nil
	}
	c.in.Operands[s] = syms
	return syms, ok
}

// destination resolves into and checks that it may be written.
func (c *checker) destination(s *Stmt) *Sym {
	if s.Into.Main {
		c.errorf("type", s.Into.Pos, "into takes a buffer, and main is a stream")
		return nil
	}
	d := c.kinded(s, s.Into, SymBuffer, SymValue)
	if d == nil || d.Type == nil {
		return nil
	}
	root := d.Root()
	switch {
	case root.Kind == SymValue && root.Param != nil:
		c.errorf("alias", s.Into.Pos, "the parameter %%%s is read-only", root.Name).at(root.Pos, "declared here").
			help("declare it inout, or write to a buffer: %b = alloc …")
		return nil
	case root.Kind == SymValue:
		c.errorf("alias", s.Into.Pos, "%%%s is a value and cannot be written", root.Name).at(root.Pos, "defined here").
			help("values are immutable; write to a buffer: %b = alloc …")
		return nil
	case root.Claimed:
		c.errorf("alias", s.Into.Pos, "%%%s was claimed as a value and cannot be written any more", root.Name).
			help("write before the claim, or to another buffer")
		return nil
	}
	c.in.Into[s] = d
	return d
}

// require demands a relation: decided here, or kept for bind or unrolling.
// message says what is wrong if it does not hold.
func (c *checker) require(s *Stmt, rel CheckKind, a, b *Expr, pos Pos, message, help string) bool {
	var t tri
	switch rel {
	case CheckEqual:
		t = c.norm.equal(a, b)
	case CheckMultiple:
		t = c.norm.multiple(a, b)
	case CheckAtMost:
		t = c.norm.atMost(a, b)
	case CheckLess:
		t = c.norm.atMost(Bin(ExprAdd, a, Int(1)), b)
	}
	switch t {
	case yes:
		return true
	case no:
		rels := [...]string{"is not", "is not a multiple of", "is more than", "is not less than"}
		c.errorf("type", pos, "%s: %s %s %s", message, a, rels[rel], b).help(help)
		return false
	}
	c.in.Constraints[s] = append(c.in.Constraints[s], Constraint{Pos: pos, Rel: rel, A: a, B: b, Message: message, Help: help})
	return true
}

// checkTransfer checks put, get, send, recv and group.
func (c *checker) checkTransfer(s *Stmt) {
	if s.Op == OpGroup {
		outer := c.inGroup
		if outer {
			c.errorf("structure", s.Pos, "groups do not nest")
		}
		c.inGroup = true
		c.checkBlock(s.Body)
		c.inGroup = outer
		return
	}
	syms, ok := c.tensors(s)
	switch s.Op {
	case OpPut, OpGet:
		dst := c.destination(s)
		if !ok || dst == nil {
			return
		}
		c.sameLocal(s, syms[0], dst)
		remote, pos := dst, s.Into.Pos
		if s.Op == OpGet {
			remote, pos = syms[0], s.Args[0].Pos
		}
		if !remote.symmetric() {
			c.errorf("type", pos, "%s reaches the peer's copy of a symmetric buffer, and %%%s is none", s.Op, remote.Root().Name).
				at(remote.Root().Pos, "defined here").help("alloc it with the word symmetric behind its type")
		}
	case OpSend:
	case OpRecv:
		s.Into = &s.Args[0] // checked like a destination, then put back
		c.destination(s)
		s.Into = nil
		delete(c.in.Into, s)
	}
}

// symmetric reports whether s is, or is a view of, a symmetric buffer.
func (s *Sym) symmetric() bool {
	d := s.Root().Def
	return d != nil && d.Op == OpAlloc && d.Flags&Symmetric != 0
}

// sameLocal demands equal dtype and local shape of a transfer's two ends.
func (c *checker) sameLocal(s *Stmt, from, to *Sym) {
	a, b := from.Type.LocalType(), to.Type.LocalType()
	if len(from.Type.Partial) > 0 {
		// A partial's local contribution may be moved; its shape is local.
		a.Partial = nil
	}
	c.assignable(s, a, b, s.Into.Pos)
}

// checkOrder checks wait, record, signal and barrier.
func (c *checker) checkOrder(s *Stmt) {
	switch s.Op {
	case OpBarrier:
		return
	case OpSignal:
		c.in.Operands[s] = []*Sym{c.kinded(s, &s.Args[0], SymCounter)}
		return
	case OpRecord:
		c.in.Operands[s] = []*Sym{c.kinded(s, &s.Args[0], SymEvent)}
		return
	}
	p := &s.Args[0]
	if p.Main {
		c.in.Operands[s] = []*Sym{nil}
		if len(s.Exprs) > 0 {
			c.errorf("structure", s.Pos, "only a counter is waited for with >=")
		}
		return
	}
	sym := c.kinded(s, p, SymStream, SymEvent, SymCounter)
	c.in.Operands[s] = []*Sym{sym}
	switch {
	case sym == nil:
	case sym.Kind == SymCounter && len(s.Exprs) == 0:
		c.errorf("structure", s.Pos, "waiting for the counter %%%s needs a least value", p.Name).help("wait " + p.String() + " >= 1")
	case sym.Kind != SymCounter && len(s.Exprs) > 0:
		c.errorf("structure", s.Pos, "%%%s is %s; only a counter is waited for with >=", p.Name, sym.Kind)
	}
}

// checkMemory checks alloc, free, stream, event, counter and let.
func (c *checker) checkMemory(s *Stmt) {
	if s.Op == OpFree {
		c.checkFree(s)
		return
	}
	sym := &Sym{Def: s, Name: s.Results[0].Text, Pos: s.Results[0].Pos, Count: s.Count}
	switch s.Op {
	case OpAlloc:
		sym.Kind = SymBuffer
		if c.checkAlloc(s) {
			sym.Type = s.Type.LocalType()
		}
	case OpStream:
		sym.Kind = SymStream
	case OpEvent:
		sym.Kind = SymEvent
	case OpCounter:
		sym.Kind = SymCounter
	case OpLet:
		sym.Kind = SymIndex
		sym.RankDependent = c.rankDependent(s.Exprs[0])
	}
	if s.Count != nil && c.rankDependent(s.Count) {
		c.errorf("type", s.Pos, "an array's length must be the same on every rank")
	}
	if s.Count != nil {
		c.require(s, CheckAtMost, Int(0), s.Count, s.Pos, "an array's length cannot be negative", "")
	}
	c.define(sym)
	c.in.Results[s] = []*Sym{sym}
}

func (c *checker) checkAlloc(s *Stmt) bool {
	if !c.checkType(s.Type) {
		return false
	}
	if len(s.Type.Partial) > 0 || s.Type.Mesh != "" {
		c.errorf("layout", s.Type.Pos, "a buffer is local to each rank: neither partial nor placed on a mesh").
			help("write what one rank holds: " + s.Type.LocalType().String())
		return false
	}
	for _, d := range s.Type.Dims {
		if len(d.Axes) > 0 {
			c.require(s, CheckMultiple, d.Extent, sizeOf(d.Axes), s.Type.Pos, "a dimension does not divide over "+sizeWords(d.Axes), "")
		}
		c.require(s, CheckAtMost, Int(0), d.Extent, s.Type.Pos, "an extent cannot be negative", "")
		if s.Flags&Symmetric != 0 && c.rankDependent(d.Extent) {
			c.errorf("type", s.Type.Pos, "a symmetric buffer has the same size on every rank, and %s depends on the rank", d.Extent)
			return false
		}
	}
	if s.Flags&Symmetric != 0 && c.rankIf > 0 {
		c.errorf("structure", s.Pos, "a symmetric alloc is an op of the whole team and cannot stand in a rank-dependent if").
			help("move it above the if")
	}
	if s.Flags&Symmetric != 0 && s.Flags&Host != 0 {
		c.errorf("structure", s.Pos, "a host buffer cannot be symmetric").help("peers reach device memory only")
	}
	return true
}

func (c *checker) checkFree(s *Stmt) {
	sym := c.kinded(s, &s.Args[0], SymBuffer)
	c.in.Operands[s] = []*Sym{sym}
	switch {
	case sym == nil:
	case sym.Param != nil:
		c.errorf("lifetime", s.Pos, "%%%s belongs to the caller and cannot be freed", sym.Name)
	case sym.Base != nil:
		c.errorf("lifetime", s.Pos, "%%%s is a view; free what it is a view of", sym.Name).at(sym.Base.Pos, "%%%s", sym.Base.Name)
	case sym.Def.Op != OpAlloc:
		c.errorf("lifetime", s.Pos, "%%%s is freed by itself after its last use", sym.Name).help("free is for what alloc made")
	case sym.Count != nil:
		// One element of an array: its later uses are found when indices are known.
	case sym.Claimed:
		c.errorf("lifetime", s.Pos, "%%%s was claimed as a value and lives as long as that", sym.Name)
	case sym.depth < c.loops:
		c.errorf("lifetime", s.Pos, "%%%s would be freed once in each iteration", sym.Name).at(sym.Pos, "it is defined outside the loop").
			help("free it behind the loop")
	default:
		c.freed[sym] = s.Pos
	}
}
