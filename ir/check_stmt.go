package ir

import (
	"fmt"
	"slices"
	"strings"
)

// checkBlock checks the statements of a block in a scope of their own.
func (c *checker) checkBlock(b *Block) {
	mark := c.scope.open()
	c.blocks++
	for i, s := range b.Stmts {
		if c.full() {
			break
		}
		if s.Op == OpReturn && (b != c.fn.Body || i != len(b.Stmts)-1) {
			c.errorf("structure", s.Pos, "return must be the last statement of the function").
				help("functions have one way out: write results in the branches, return behind them")
			continue
		}
		c.checkStmt(s)
	}
	c.blocks--
	c.scope.close(mark)
}

func (c *checker) checkStmt(s *Stmt) {
	if s.Op == InvalidOp || s.Op >= numOps {
		c.errorf("structure", s.Pos, "a statement without an operation")
		return
	}
	c.norm.forget()
	if c.blocks > maxNesting {
		c.errorf("limit", s.Pos, "blocks nest deeper than %d", maxNesting).help("move the inner ones into a function")
		return
	}
	if !c.checkParts(s) {
		c.defineBad(s)
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
	case OpSend, OpRecv, OpLet, OpIf, OpGroup: // a group in a group is reported as such
		return true
	case OpFor:
		return s.Streams == 0
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
			case OpAlloc:
				kind = SymBuffer
			}
			c.define(&Sym{Kind: kind, Name: r.Text, Pos: r.Pos, Def: s, Count: s.Count})
		}
	}
}

// checkShape checks what the Op table says of every statement: the number of
// operands, into, and attributes.
func (c *checker) checkShape(s *Stmt) bool {
	before := c.failed
	info := s.Op.Info()
	if n := len(s.Args); n < info.MinArgs || n > info.MaxArgs {
		want := plural(info.MinArgs, "operand")
		if info.MaxArgs != info.MinArgs && info.MaxArgs < 1<<10 {
			want = fmt.Sprintf("%d to %d operands", info.MinArgs, info.MaxArgs)
		}
		c.errorf("structure", s.Pos, "%s takes %s, not %d", s.Op, want, n).help(s.Op.String() + ": " + info.Doc)
	}
	switch {
	case s.Into != nil && info.Into == IntoNever:
		c.errorf("structure", s.Into.Pos, "%s takes no into", s.Op).help(s.Op.String() + ": " + info.Doc)
	case s.Into == nil && info.Into == IntoMust:
		c.errorf("structure", s.Pos, "%s needs into %%place", s.Op).help(s.Op.String() + ": " + info.Doc)
	case s.Into != nil && len(s.Results) > 0:
		c.errorf("structure", s.Into.Pos, "a statement has a result or an into, not both").help("leave one out")
	case computes(s.Op) && s.Into == nil && len(s.Results) == 0:
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
	return c.failed == before
}

// computes reports whether op leaves its result in a name or a place.
func computes(op Op) bool {
	class := op.Info().Class
	return class == ClassTensor || class == ClassView || class == ClassCollective
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
			c.errorf("structure", a.Pos, "%s= is given twice", a.Name).help("leave one out")
			return
		}
	}
	if !wellMade(a, spec.Kind) {
		c.errorf("structure", a.Pos, "%s= has no value that %s takes", a.Name, s.Op).help(a.Name + ": " + spec.Doc)
		return
	}
	for _, e := range a.Exprs {
		if c.wholeExpr(a.Pos, e) {
			c.checkExpr(e)
		}
	}
	if a.Kind == AttrWord && spec.Words != nil && len(a.Words) == 1 && !slices.Contains(spec.Words, a.Words[0]) {
		c.errorf("structure", a.Pos, "%s=%s is not known", a.Name, a.Words[0]).help("one of: " + strings.Join(spec.Words, ", "))
	}
	if a.Name == "over" {
		c.checkOver(a)
	}
}

// wellMade reports whether a's value is of the kind its operation declares.
func wellMade(a *Attr, kind AttrKind) bool {
	switch kind {
	case AttrExpr:
		return a.Kind == kind && len(a.Exprs) == 1
	case AttrNumber:
		return a.Kind == kind && (a.IsNum || len(a.Exprs) == 1)
	case AttrWord:
		return a.Kind == kind && len(a.Words) == 1
	case AttrWords:
		return a.Kind == kind && len(a.Words) > 0
	}
	return a.Kind == kind
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
			c.errorf("structure", a.Pos, "over=%s is all ranks already", WorldAxis).help("leave the other axes out")
		case ax == WorldAxis:
		case !known:
			c.knownAxis("scope", ax, a.Pos)
		case slices.Contains(a.Words[:i], ax):
			c.errorf("structure", a.Pos, "mesh axis %s is named twice", ax).help("leave one out")
		case mesh != nil && m != mesh:
			c.errorf("structure", a.Pos, "%s and %s are axes of different meshes", a.Words[0], ax).help("a team lies in one mesh")
		default:
			mesh = m
		}
	}
}

func (c *checker) checkPeer(p *Peer) {
	c.knownAxis("scope", p.Axis, p.Pos)
	c.checkExpr(p.Index)
}

// inRange refuses an index that is surely not in 0..count. What is not decided
// here shows when indices are known, by running into the range itself.
func (c *checker) inRange(e, count *Expr, what string) bool {
	if c.norm.atMost(Int(0), e) != no && c.norm.atMost(count, e) != yes {
		return true
	}
	c.errorf("type", e.Pos, "%s %s is not in 0..%s", what, brief(e), brief(count)).help("indices count from 0")
	return false
}

// place resolves an operand and checks its index. It returns nil after an error.
func (c *checker) place(st *Stmt, p *Place) *Sym {
	s := c.lookup(p.Name, p.Pos)
	if s == nil {
		return nil
	}
	if p.Index != nil && (!c.wholeExpr(p.Pos, p.Index) || !c.checkExpr(p.Index)) {
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
	if pos, freed := c.ended.freed(s); freed {
		if st.Op == OpFree {
			c.errorf("lifetime", p.Pos, "%%%s is freed twice", p.Name).at(pos, "first here").help("leave one out")
		} else {
			c.errorf("lifetime", p.Pos, "%%%s is used after it was freed", p.Name).at(pos, "freed here").
				help("move the free behind the last use")
		}
		return nil
	}
	return s
}

// kinded resolves an operand that must be of one of the given kinds.
func (c *checker) kinded(s *Stmt, p *Place, kinds ...SymKind) *Sym {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = k.String()
	}
	want := strings.Join(words, " or ")
	if p.Main {
		c.errorf("type", p.Pos, "%s takes %s, and main is a stream", s.Op, want).help(s.Op.String() + ": " + s.Op.Info().Doc)
		return nil
	}
	sym := c.place(s, p)
	if sym == nil {
		return nil
	}
	if !slices.Contains(kinds, sym.Kind) {
		c.errorf("type", p.Pos, "%s takes %s, and %%%s is %s", s.Op, want, p.Name, sym.Kind).
			at(sym.Pos, "defined here").help(s.Op.String() + ": " + s.Op.Info().Doc)
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
		syms[i] = c.kinded(s, &s.Args[i], SymValue, SymBuffer)
		ok = ok && syms[i] != nil && syms[i].Type != nil
	}
	c.in.Operands[s] = syms
	return syms, ok
}

// destination resolves into and checks that it may be written.
func (c *checker) destination(s *Stmt) *Sym {
	d := c.kinded(s, s.Into, SymBuffer, SymValue)
	if d == nil || d.Type == nil || !c.writable(d, s.Into.Pos) {
		return nil
	}
	c.in.Into[s] = d
	return d
}

// writable reports writes to what is read-only.
func (c *checker) writable(d *Sym, pos Pos) bool {
	root := d.Root()
	claim, claimed := c.ended.claimed(d)
	switch {
	case root.Kind == SymValue && root.Param != nil:
		c.errorf("alias", pos, "the parameter %%%s is read-only", root.Name).at(root.Pos, "declared here").
			help("declare it inout, or write to a buffer: %b = alloc …")
	case root.Kind == SymValue:
		c.errorf("alias", pos, "%%%s is a value and cannot be written", root.Name).at(root.Pos, "defined here").
			help("values are immutable; write to a buffer: %b = alloc …")
	case claimed:
		c.errorf("alias", pos, "%%%s was claimed as a value and cannot be written any more", root.Name).at(claim, "claimed here").
			help("write before the claim, or to another buffer")
	default:
		return true
	}
	return false
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
		c.errorf("type", pos, "%s: %s", message, rel.broken(a, brief(a), brief(b))).help(help)
		return false
	}
	k := Constraint{Pos: pos, Rel: rel, A: a, B: b, Message: message, Help: help}
	k.late = c.lateIf > 0 || !static(a) || !static(b)
	c.in.Constraints[s] = append(c.in.Constraints[s], k)
	return true
}

// checkTransfer checks put, get, send, recv and group.
func (c *checker) checkTransfer(s *Stmt) {
	if s.Op == OpGroup {
		outer := c.inGroup
		if outer {
			c.errorf("structure", s.Pos, "groups do not nest").help("everything in the outer group is posted together already")
		}
		c.inGroup = true
		c.checkBlock(s.Body)
		c.inGroup = outer
		return
	}
	syms, ok := c.tensors(s)
	ok = c.onDevice(s, syms) && ok
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
	case OpRecv:
		if ok {
			c.writable(syms[0], s.Args[0].Pos)
		}
	}
}

// onDevice refuses host buffers where peers or a team would have to reach them.
func (c *checker) onDevice(s *Stmt, syms []*Sym) bool {
	before := c.failed
	for i, sym := range syms {
		if sym != nil && sym.flags()&Host != 0 {
			c.errorf("type", s.Args[i].Pos, "%s works on device memory, and %%%s is a host buffer", s.Op, sym.Root().Name).
				at(sym.Root().Pos, "defined here").help("copy it to a buffer of the device first")
		}
	}
	return c.failed == before
}

// flags returns the flags of the alloc that made s's memory.
func (s *Sym) flags() AllocFlags {
	if d := s.Root().Def; d != nil && d.Op == OpAlloc {
		return d.Flags
	}
	return 0
}

// symmetric reports whether s is, or is a view of, a symmetric buffer.
func (s *Sym) symmetric() bool { return s.flags()&Symmetric != 0 }

// sameLocal demands equal dtype and local shape of a transfer's two ends.
func (c *checker) sameLocal(s *Stmt, from, to *Sym) {
	// Of a partial value it is the rank's contribution that moves.
	c.assignable(s, c.localType(from), c.localType(to), s.Into.Pos)
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
			c.errorf("structure", s.Pos, "only a counter is waited for with >=, and main is a stream").help("wait main")
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
		c.errorf("structure", s.Pos, "only a counter is waited for with >=, and %%%s is %s", p.Name, sym.Kind).help("wait " + p.String())
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
			sym.Type = c.foldExtents(s.Type.LocalType())
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
		sym.value = c.norm.norm(s.Exprs[0])
	}
	if s.Count != nil {
		c.checkCount(s)
	}
	c.define(sym)
	c.in.Results[s] = []*Sym{sym}
}

func (c *checker) checkCount(s *Stmt) {
	if c.rankDependent(s.Count) {
		c.errorf("type", s.Count.Pos, "an array's length must be the same on every rank, and %s is not", s.Count).help("make it as long as the longest")
		return
	}
	c.require(s, CheckAtMost, Int(0), s.Count, s.Count.Pos, "an array's length cannot be negative", "0 is allowed")
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
			c.require(s, CheckMultiple, d.Extent, sizeOf(d.Axes), s.Type.Pos, "a dimension does not divide over "+sizeWords(d.Axes), shardHelp)
		}
		c.require(s, CheckAtMost, Int(0), d.Extent, s.Type.Pos, "an extent cannot be negative", "0 is allowed")
		if s.Flags&Symmetric != 0 && c.rankDependent(d.Extent) {
			c.errorf("type", s.Type.Pos, "a symmetric buffer has the same size on every rank, and %s depends on the rank", d.Extent).help("alloc the largest and use a slice of it")
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
	if sym == nil {
		return
	}
	claim, claimed := c.ended.claimed(sym)
	switch {
	case sym.Param != nil:
		c.errorf("lifetime", s.Pos, "%%%s belongs to the caller and cannot be freed", sym.Name).at(sym.Pos, "declared here").help("leave the free out")
	case sym.Base != nil:
		c.errorf("lifetime", s.Pos, "%%%s is a view; free what it is a view of", sym.Name).at(sym.Base.Pos, "of %%%s", sym.Base.Name).help("views need no free")
	case sym.Def.Op != OpAlloc:
		c.errorf("lifetime", s.Pos, "%%%s is freed by itself after its last use", sym.Name).help("free is for what alloc made")
	case sym.Count != nil && !claimed:
		// One element of an array: its later uses are found when indices are known.
	case claimed:
		c.errorf("lifetime", s.Pos, "%%%s was claimed as a value and lives as long as that", sym.Name).at(claim, "claimed here").help("leave the free out")
	case sym.depth < c.loops:
		c.errorf("lifetime", s.Pos, "%%%s would be freed once in each iteration", sym.Name).at(sym.Pos, "it is defined outside the loop").
			help("free it behind the loop")
	default:
		c.ended.set(sym, bufferEnd{pos: s.Pos})
	}
}
