package ir

import "strings"

// ParseExpr reads one index expression, such as the value of --define: "T*size(tp) + 1". The error of ParseExpr is of
// type Diagnostics, and has positions in src.
func ParseExpr(src string) (*Expr, error) {
	p := &expressions{lookahead: lookahead{prog: &Program{File: "expression", Source: src}}}
	if !p.checkText(src) {
		return nil, p.diags
	}
	if strings.TrimSpace(src) == "" {
		p.errorAt(Pos{Line: 1, Col: 1}, "", "the expression is empty")
		return nil, p.diags
	}
	p.lexer = newLexer(src)
	p.tok = p.lexer.next()
	e := p.expr()
	for !p.bad && p.got(tokNewline) {
	}
	if !p.is(tokEOF) {
		p.expected("an operator or the end of the expression")
	}
	if len(p.diags) > 0 {
		return nil, p.diags
	}
	return e, nil
}
