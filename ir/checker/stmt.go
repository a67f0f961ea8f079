package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
	"strings"
)

// checkBlock checks the statements of a block in a new scope.
func (c *checker) checkBlock(b *ir.Block) {
	mark := c.scope.open()
	c.blocks++
	for i, s := range b.Stmts {
		if c.full() {
			break
		}
		if s.Op == ir.OpReturn && (b != c.fn.Body || i != len(b.Stmts)-1) {
			c.errorf("structure", s.Pos, "return must be the last statement of the function").
				help("compute the results in the branches, and return after them")
			continue
		}
		if s.Op == ir.OpYield && (b != c.carrying || i != len(b.Stmts)-1) {
			c.errorf("structure", s.Pos, "yield must be the last statement of a loop that carries values").
				help("write %y = for %i in 0..L carry %h = %x { … yield %z }")
			continue
		}
		c.checkStmt(s)
	}
	c.blocks--
	c.scope.close(mark)
}

func (c *checker) checkStmt(s *ir.Stmt) {
	if !s.Op.Valid() {
		c.errorf("structure", s.Pos, "this statement has no operation")
		return
	}
	c.norm.forget()
	if c.blocks > ir.MaxNesting {
		c.errorf("limit", s.Pos, "blocks are nested deeper than %d",
			ir.MaxNesting).help("move the inner blocks into a function")
		return
	}
	if !c.checkParts(s) {
		c.defineBad(s)
		return
	}
	if c.inGroup && !allowedInGroup(s) {
		c.errorf("structure", s.Pos, "a group cannot contain %s", s.Op).
			help("a group may contain sends and recvs, and lets, views, fors and ifs that select them")
	}
	if !c.checkShape(s) {
		c.defineBad(s)
		return
	}
	switch s.Op.Info().Class {
	case ir.ClassTensor, ir.ClassView, ir.ClassCollective:
		c.checkTensorOp(s)
	case ir.ClassTransfer:
		c.checkTransfer(s)
	case ir.ClassLaunch:
		c.checkLaunch(s)
	case ir.ClassOrder:
		c.checkOrder(s)
	case ir.ClassMemory:
		c.checkMemory(s)
	case ir.ClassControl:
		c.checkControl(s)
	}
}

func allowedInGroup(s *ir.Stmt) bool {
	switch s.Op {
	case ir.OpSend, ir.OpRecv, ir.OpLet, ir.OpIf, ir.OpGroup: // a nested group is reported separately
		return true
	case ir.OpFor:
		return s.Streams == 0
	}
	return s.Op.Info().Class == ir.ClassView && s.Into == nil
}

// defineBad defines the results of a statement that has an error, so that the uses of these results are not reported as
// errors too.
func (c *checker) defineBad(s *ir.Stmt) {
	results := s.Results
	if s.Op == ir.OpFor { // the loop variable is visible only in the body
		results = results[min(1, len(results)):]
	}
	for _, r := range results {
		if c.scope.names[r.Text] == nil {
			kind := ir.SymValue
			switch s.Op {
			case ir.OpStream:
				kind = ir.SymStream
			case ir.OpEvent:
				kind = ir.SymEvent
			case ir.OpCounter:
				kind = ir.SymCounter
			case ir.OpLet:
				kind = ir.SymIndex
			case ir.OpAlloc:
				kind = ir.SymBuffer
			}
			c.define(&ir.Sym{Kind: kind, Name: r.Text, Pos: r.Pos, Def: s, Count: s.Count})
		}
	}
}

// checkShape checks a statement against its row in the Op table: the number of operands, the into clause, and the
// attributes.
func (c *checker) checkShape(s *ir.Stmt) bool {
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
	case s.Into != nil && info.Into == ir.IntoNever:
		c.errorf("structure", s.Into.Pos, "%s cannot have an into clause", s.Op).help(s.Op.String() + ": " + info.Doc)
	case s.Into == nil && info.Into == ir.IntoMust:
		c.errorf("structure", s.Pos, "%s needs an into clause: into %%place",
			s.Op).help(s.Op.String() + ": " + info.Doc)
	case s.Into != nil && len(s.Results) > 0:
		c.errorf("structure", s.Into.Pos, "a statement cannot have both a result and an into clause").help(
			"remove one of them")
	case computes(s.Op) && s.Into == nil && len(s.Results) == 0:
		c.errorf("structure", s.Pos, "the result of %s has no name",
			s.Op).help("%y = " + s.Op.String() + " …, or … into %y")
	}
	for i := range s.Attrs {
		c.checkAttr(s, i)
	}
	for _, spec := range info.Attrs {
		if spec.Required && s.Attr(spec.Name) == nil {
			c.errorf("structure", s.Pos, "%s needs the attribute %s=", s.Op,
				spec.Name).help(spec.Name + ": " + spec.Doc)
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

// computes reports whether op computes a result, which is either given a name or written to a place.
func computes(op ir.Op) bool {
	class := op.Info().Class
	return class == ir.ClassTensor || class == ir.ClassView || class == ir.ClassCollective
}

func (c *checker) checkAttr(s *ir.Stmt, i int) {
	a := &s.Attrs[i]
	spec := s.Op.Info().AttrSpec(a.Name)
	if spec == nil {
		c.errorf("structure", a.Pos, "%s has no attribute %s", s.Op, a.Name).help(attrHelp(s.Op))
		return
	}
	for k := range i {
		if s.Attrs[k].Name == a.Name {
			c.errorf("structure", a.Pos, "%s= is given twice", a.Name).help("remove one of them")
			return
		}
	}
	if !wellMade(a, spec.Kind) {
		c.errorf("structure", a.Pos, "the value of %s= has a kind that %s does not accept", a.Name,
			s.Op).help(a.Name + ": " + spec.Doc)
		return
	}
	for _, e := range a.Exprs {
		if c.wholeExpr(a.Pos, e) {
			c.checkExpr(e)
		}
	}
	if a.Kind == ir.AttrWord && spec.Words != nil && len(a.Words) == 1 && !slices.Contains(spec.Words, a.Words[0]) {
		c.errorf("structure", a.Pos, "%s=%s is not a known value", a.Name,
			a.Words[0]).help("one of: " + strings.Join(spec.Words, ", "))
	}
	if a.Kind == ir.AttrWord && spec.Words == nil && !ir.IsHyphened(a.Words[0]) {
		c.errorf("structure", a.Pos, "%s=%q is not a name", a.Name,
			a.Words[0]).help("use words of letters, digits and _, joined by hyphens, such as this-one")
	}
	if a.Name == "over" {
		c.checkOver(a)
	}
}

// wellMade reports whether the value of a has the kind that the operation's row declares.
func wellMade(a *ir.Attr, kind ir.AttrKind) bool {
	switch kind {
	case ir.AttrExpr:
		return a.Kind == kind && len(a.Exprs) == 1
	case ir.AttrNumber:
		return a.Kind == kind && (a.IsNum || len(a.Exprs) == 1)
	case ir.AttrWord:
		return a.Kind == kind && len(a.Words) == 1
	case ir.AttrWords:
		return a.Kind == kind && len(a.Words) > 0
	}
	return a.Kind == kind
}

func attrHelp(op ir.Op) string {
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

// checkOver checks that the axes of a team are known, distinct and on one mesh.
func (c *checker) checkOver(a *ir.Attr) {
	var mesh *ir.Mesh
	for i, ax := range a.Words {
		m, known := c.axes[ax]
		switch {
		case ax == ir.WorldAxis && len(a.Words) > 1:
			c.errorf("structure", a.Pos, "over=%s already selects all ranks", ir.WorldAxis).help(
				"remove the other axes")
		case ax == ir.WorldAxis:
		case !known:
			c.knownAxis("scope", ax, a.Pos)
		case slices.Contains(a.Words[:i], ax):
			c.errorf("structure", a.Pos, "mesh axis %s is named twice", ax).help("remove one of them")
		case mesh != nil && m != mesh:
			c.errorf("structure", a.Pos, "%s and %s are axes of different meshes", a.Words[0],
				ax).help("use axes of one mesh")
		default:
			mesh = m
		}
	}
}

func (c *checker) checkPeer(p *ir.Peer) {
	c.knownAxis("scope", p.Axis, p.Pos)
	c.checkExpr(p.Index)
}
