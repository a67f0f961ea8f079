package ir

import (
	"fmt"
	"strconv"
)

// place reads "%v", "%v[e]" or "main".
func (p *expressions) place() Place {
	pos := p.tok.pos
	if p.gotWord("main") {
		return Place{Pos: pos, Main: true}
	}
	if p.is(tokLParen) {
		p.failAt(pos, nameFirst, "expected %s, found %s", spelling[tokVar], describe(p.tok))
	}
	return Place{Pos: pos, Name: p.variable().Text, Index: p.count()}
}

// atEnd reports whether the statement, or the operand in parentheses, ends at the current token.
func (p *statements) atEnd() bool {
	return p.is(tokNewline) || p.is(tokRBrace) || p.inner > 0 && p.is(tokRParen)
}

// places reads zero or more places up to the end of the line.
func (p *statements) places() []Place {
	if p.atEnd() {
		return nil
	}
	list := []Place{p.place()}
	for p.got(tokComma) {
		list = append(list, p.place())
	}
	return list
}

// peerWords holds the word before the peer of each transfer.
var peerWords = map[Op]string{OpPut: "at", OpGet: "at", OpSignal: "at", OpSend: "to", OpRecv: "from"}

// operands reads the operands, and then the attributes and the clauses into and at, which may be in any order.
func (p *statements) operands(s *Stmt) {
	if !p.atEnd() && !p.atClause(s) {
		p.operandOrAttr(s)
		for p.got(tokComma) {
			p.operandOrAttr(s)
		}
	}
	for p.clause(s) {
		p.moreAttrs(s)
	}
	if !p.bad {
		p.checkClauses(s)
	}
}

// moreAttrs reads zero or more attributes ", name=value".
func (p *statements) moreAttrs(s *Stmt) {
	for p.got(tokComma) {
		if p.is(tokVar) {
			p.failAt(p.tok.pos, `write operands before "into" and "at"`,
				"expected an attribute, found %s", describe(p.tok))
		}
		p.attr(s)
	}
}

func (p *statements) operandOrAttr(s *Stmt) {
	switch {
	case p.is(tokIdent) && (p.followedByAssign() || s.Op.Info().MaxArgs == 0):
		p.attr(s)
	case len(s.Args) > 0 && portionForm[s.Op] != "":
		p.portion(s)
	default:
		s.Args = append(s.Args, p.argument(s))
	}
}

// portion reads the portion that chunk, slice and reduce_slots select: "I of C" or "LO..HI".
func (p *statements) portion(s *Stmt) {
	if len(s.Exprs) > 0 {
		p.expected("an attribute or end of line")
		return
	}
	first := p.expr()
	if s.Op == OpChunk {
		p.expectWord("of")
	} else {
		p.expect(tokDots)
	}
	s.Exprs = []*Expr{first, p.expr()}
}

// atClause reports whether a clause of s's operation starts at the current token.
func (p *statements) atClause(s *Stmt) bool {
	if !p.is(tokIdent) || p.followedByAssign() {
		return false
	}
	return p.tok.text == "into" || p.tok.text == peerWords[s.Op]
}

// clause reads "into %place" or "at AXIS[e]".
func (p *statements) clause(s *Stmt) bool {
	if !p.atClause(s) {
		return false
	}
	t := p.tok
	p.advance()
	switch {
	case t.text != "into":
		if s.Peer != nil {
			p.failAt(t.pos, "", "the statement has a second %q", t.text)
		}
		s.Peer = p.peer()
	case s.Op.Info().Into == IntoNever:
		p.failAt(t.pos, "", "%s cannot have an \"into\" clause", s.Op)
	case len(s.Results) > 0:
		p.failAt(t.pos, "remove one of them", `%s has both a result and a destination`, s.Op)
	case s.Into != nil:
		p.failAt(t.pos, "", `a second "into"`)
	default:
		into := p.place()
		s.Into = &into
	}
	return !p.bad
}

func (p *expressions) peer() *Peer {
	axis := p.ident("a peer such as tp[0]")
	p.expect(tokLBracket)
	e := p.expr()
	p.expect(tokRBracket)
	return &Peer{Pos: axis.Pos, Axis: axis.Text, Index: e}
}

// checkClauses reports the clauses that s lacks.
func (p *statements) checkClauses(s *Stmt) {
	info := s.Op.Info()
	word, hasPeer := peerWords[s.Op]
	writes := info.Class == ClassTensor || info.Class == ClassView || info.Class == ClassCollective
	switch {
	case !p.atEnd():
		p.expectedMore(s)
	case hasPeer && s.Peer == nil:
		p.failAt(p.tok.pos, clauseHelp(s.Op), "expected %q, found %s", word, describe(p.tok))
	case info.Into == IntoMust && s.Into == nil:
		p.failAt(p.tok.pos, clauseHelp(s.Op), `expected "into", found %s`, describe(p.tok))
	case writes && s.Into == nil && len(s.Results) == 0:
		p.failAt(p.tok.pos, clauseHelp(s.Op), `expected "into", found %s`, describe(p.tok))
	case portionForm[s.Op] != "" && len(s.Exprs) == 0:
		p.failAt(p.tok.pos, "", "expected %s, found %s", portionForm[s.Op], describe(p.tok))
	}
}

// portionForm shows the form of the portion for the operations that have one.
var portionForm = map[Op]string{OpChunk: `", INDEX of COUNT"`, OpSlice: `", LO..HI"`, OpReduceSlots: `", LO..HI"`}

// clauseHelp returns the help that shows how op is written.
func clauseHelp(op Op) string {
	switch op {
	case OpPut:
		return "write put %x into %y at AXIS[index]"
	case OpGet:
		return "write get %x at AXIS[index] into %y"
	case OpSignal, OpSend, OpRecv:
		return fmt.Sprintf("write %s %%x %s AXIS[index]", op, peerWords[op])
	}
	switch op.Info().Into {
	case IntoNever:
		return ""
	case IntoMust:
		return fmt.Sprintf("write the result into a buffer: %s … into %%y", op)
	}
	return fmt.Sprintf("name the result (%%y = %s …), or write it into a buffer (%s … into %%y)", op, op)
}

// expectedMore reports an error at a word that cannot continue the statement s.
func (p *statements) expectedMore(s *Stmt) {
	help := helpFor(p.tok)
	switch {
	case p.is(tokVar), p.is(tokIdent) && s.Op.Info().AttrSpec(p.tok.text) != nil:
		help = "separate operands and attributes by commas"
	case p.isWord("into"), p.isWord("at"), p.isWord("to"), p.isWord("from"):
		help = clauseHelp(s.Op)
	}
	switch {
	case p.inner > 0 && p.tok.pos.Line != p.before:
		p.failAt(p.open, "", `the "(" is not closed`)
	case p.inner > 0:
		p.failAt(p.tok.pos, help, `expected "," or ")", found %s`, describe(p.tok))
	default:
		p.failAt(p.tok.pos, help, "expected %s or end of line, found %s", strconv.Quote(","), describe(p.tok))
	}
}
