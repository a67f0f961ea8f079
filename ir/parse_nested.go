package ir

import (
	"fmt"
	"strconv"
)

// argument reads an operand of s: a name or, if s has one result, also a value without a name. A value without a name
// is a row of a tensor, %w[e], or the result of an operation, (OP args).
func (p *statements) argument(s *Stmt) Place {
	pos := p.tok.pos
	switch _, op := ParseOp(p.tok.text); {
	case p.is(tokLParen):
		return p.operationInside(s)
	case p.is(tokIdent) && op:
		p.failAt(pos, fmt.Sprintf("write an operation that is an operand in parentheses: (%s …)", p.tok.text),
			"expected %s, found %s", spelling[tokVar], describe(p.tok))
	}
	place := p.place()
	if p.bad || place.Index == nil || !nests(s) || p.arrays[place.Name] {
		return place
	}
	if p.is(tokLBracket) {
		p.failAt(p.tok.pos, "an index in brackets selects along dimension 0; for another dimension write (select "+
			"%x, axis=…, index=…)", "a second index is not allowed here")
	}
	row := &Stmt{
		Op: OpSelect, Pos: pos, Args: []Place{{Pos: pos, Name: place.Name}},
		Attrs: []Attr{
			{Pos: pos, Name: "axis", Kind: AttrExpr, Exprs: []*Expr{Int(0)}},
			{Pos: pos, Name: "index", Kind: AttrExpr, Exprs: []*Expr{place.Index}},
		},
	}
	return p.addInside(s, row, pos)
}

// operationInside reads "(OP args)".
func (p *statements) operationInside(s *Stmt) Place {
	open, around := p.expect(tokLParen), p.open
	switch {
	case !nests(s):
		p.failAt(open.pos, nameFirst, "%s has no result, so its operands cannot be operations", s.Op)
	case p.is(tokVar) && len(s.Args) == 0:
		p.failAt(open.pos, fmt.Sprintf("write operands without parentheses: %s %%x, …", s.Op), "expected an operand, found \"(\"")
	case p.is(tokVar) || p.is(tokLParen):
		p.failAt(open.pos, "remove the parentheses", "expected an operation in the parentheses, found %s", describe(p.tok))
	}
	if p.bad {
		return Place{Pos: open.pos}
	}
	if p.inner++; p.inner > MaxNesting {
		p.limit("operands are")
	}
	p.open = open.pos
	n := &Stmt{Results: []Name{nestedName(s, open.pos)}}
	p.verb(n)
	if !p.bad && !nests(n) {
		p.failAt(n.Pos, "", "%s has no result that could be an operand", n.Op)
	}
	p.closing(open, true)
	p.inner--
	p.open = around
	return p.addInside(s, n, open.pos)
}

// nameFirst is the help for an operation that is written where it cannot be an operand.
const nameFirst = "name its result in a separate statement: %y = OP …"

// addInside names the result of n as the next operand of s, and adds n to the statements.
func (p *statements) addInside(s, n *Stmt, pos Pos) Place {
	name := nestedName(s, pos)
	n.Results, n.Nested = []Name{name}, true
	p.inside = append(p.inside, n)
	return Place{Pos: pos, Name: name.Text}
}

// nests reports whether the operands of s may be operations, and whether s may itself be an operand.
func nests(s *Stmt) bool {
	class := s.Op.Info().Class
	return len(s.Results) == 1 && s.Into == nil && (class == ClassTensor || class == ClassView || class == ClassCollective)
}

// nestedName returns the name of the next operand of s, for an operand without a name.
func nestedName(s *Stmt, pos Pos) Name { return Name{Pos: pos, Text: operandName(s, len(s.Args))} }

// operandName returns the name of operand i of s, for an operand that the program's text does not name.
func operandName(s *Stmt, i int) string { return s.Results[0].Text + "." + strconv.Itoa(i) }

// operations maps the name of a result to the statement that is printed as an operand.
type operations map[string]*Stmt

// nestedRun returns the number of statements at the beginning of list that are printed inside the statement after them,
// and these statements.
func nestedRun(list []*Stmt) (int, operations) {
	n := 0
	for n < len(list) && list[n].Nested {
		n++
	}
	if n == 0 || n == len(list) {
		return 0, nil
	}
	// In the text, these statements are in the order of the operands, inner ones first.
	at, in := n, operations{}
	var take func(s *Stmt)
	take = func(s *Stmt) {
		for i := len(s.Args) - 1; i >= 0; i-- {
			if at > 0 && operandOf(s, i, list[at-1]) {
				at--
				in[list[at].Results[0].Text] = list[at]
				take(list[at])
			}
		}
	}
	take(list[n])
	if at > 0 { // if at is not 0, the statements before index at are printed separately
		return 0, nil
	}
	return n, in
}

// operandOf reports whether n can be printed as operand i of s.
func operandOf(s *Stmt, i int, n *Stmt) bool {
	a := s.Args[i]
	return n.Nested && nests(s) && nests(n) && n.Type == nil && a.Index == nil && !a.Main && a.Name == n.Results[0].Text &&
		a.Name == operandName(s, i) && len(n.Comments.Lead) == 0 && !n.Comments.HasTrail
}

// appendArgument appends operand i of s.
func appendArgument(b []byte, s *Stmt, i int, in operations) []byte {
	n := in[s.Args[i].Name]
	if n == nil || s.Args[i].Index != nil || n.Results[0].Text != operandName(s, i) {
		return appendPlace(b, s.Args[i])
	}
	if row := rowOf(n); row != nil && in[row.Name] == nil {
		return appendPlace(b, *row)
	}
	b = append(b, '(')
	b = append(b, n.Op.String()...)
	return append(appendOperands(b, n, in), ')')
}

// rowOf returns the place as which a nested select is written, or nil if it cannot be written as a place.
func rowOf(n *Stmt) *Place {
	if n.Op != OpSelect || len(n.Args) != 1 || n.Args[0].Index != nil || len(n.Attrs) != 2 {
		return nil
	}
	axis, index := n.Attrs[0], n.Attrs[1]
	if axis.Name != "axis" || index.Name != "index" || !axis.Exprs[0].IsInt(0) {
		return nil
	}
	return &Place{Name: n.Args[0].Name, Index: index.Exprs[0]}
}
