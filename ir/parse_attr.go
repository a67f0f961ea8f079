package ir

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// attr reads an attribute "name=value" of s.
func (p *expressions) attr(s *Stmt) {
	name := p.ident("an attribute")
	if p.bad {
		return
	}
	spec := s.Op.Info().AttrSpec(name.Text)
	switch {
	case spec == nil:
		p.failAt(name.Pos, unknownAttr(s.Op, name.Text), "%s has no attribute %q", s.Op, clipWord(name.Text))
		return
	case s.Attr(name.Text) != nil:
		p.failAt(name.Pos, "", "the attribute %s= is given twice", name.Text)
		return
	}
	p.expect(tokAssign)
	a := Attr{Pos: name.Pos, Name: name.Text, Kind: spec.Kind}
	switch spec.Kind {
	case AttrExpr:
		a.Exprs = []*Expr{p.expr()}
	case AttrExprs:
		a.Exprs, a.Paren = p.exprs()
	case AttrNumber:
		p.number(&a)
	case AttrWord:
		a.Words = []string{p.attrWord(spec)}
	case AttrWords:
		a.Words, a.Paren = p.words("a mesh axis")
	}
	s.Attrs = append(s.Attrs, a)
}

// unknownAttr returns the help for an attribute that op does not have: a list of those that it has.
func unknownAttr(op Op, name string) string {
	var names []string
	for _, spec := range op.Info().Attrs {
		names = append(names, spec.Name)
	}
	if len(names) == 0 {
		return fmt.Sprintf("%s takes no attributes", op)
	}
	if op == OpBroadcast && name == "shape" {
		return "broadcast with over= is the collective; omit over= to repeat a tensor to a shape"
	}
	help := fmt.Sprintf("attributes of %s: %s", op, strings.Join(names, ", "))
	if w := Nearest(name, names); w != "" {
		help = fmt.Sprintf("did you mean %s=? %s", w, help)
	}
	return help
}

// attrWord reads a word that spec allows. If spec allows any word, attrWord also reads a name with hyphens.
func (p *expressions) attrWord(spec *AttrSpec) string {
	if spec.Words == nil {
		return p.hyphened()
	}
	t := p.tok
	word := p.ident("a word").Text
	if !p.bad && spec.Words != nil && !slices.Contains(spec.Words, word) {
		p.failAt(t.pos, closestHelp(word, spec.Words), "%s= must be one of %s, found %s",
			spec.Name, strings.Join(spec.Words, ", "), describe(t))
	}
	return word
}

// hyphened reads words that are joined by hyphens, without blanks.
func (p *expressions) hyphened() string {
	name := p.ident("a word")
	behind := func(at Pos, n int) Pos { return Pos{Line: at.Line, Col: at.Col + int32(n)} }
	for end := behind(name.Pos, len(name.Text)); !p.bad && p.is(tokMinus) && p.tok.pos == end; {
		p.advance()
		if p.tok.pos != behind(end, 1) {
			p.expected("a word directly after the hyphen")
			break
		}
		word := p.ident("a word")
		name.Text += "-" + word.Text
		end = behind(word.Pos, len(word.Text))
	}
	return name.Text
}

// IsHyphened reports whether s consists of words that are joined by hyphens, as hyphened reads them.
func IsHyphened(s string) bool {
	for word := range strings.SplitSeq(s, "-") {
		if word == "" || !isLetter(word[0]) || strings.ContainsFunc(word, func(r rune) bool { return r > 0x7f || !isWord(byte(r)) }) {
			return false
		}
	}
	return true
}

// exprs reads an expression or a list of expressions in parentheses, and reports whether it was a list. After "=" a
// parenthesis always opens a list.
func (p *expressions) exprs() (list []*Expr, paren bool) {
	open := p.tok
	if !p.got(tokLParen) {
		return []*Expr{p.expr()}, false
	}
	for !p.bad && !p.is(tokRParen) {
		list = append(list, p.expr())
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	return list, true
}

// number reads a literal or an index expression. It stores a literal in Num, unless the literal is an integer that
// float64 does not represent exactly.
func (p *expressions) number(a *Attr) {
	at := *p
	if p.literal(a) {
		return
	}
	p.lexer, p.tok = at.lexer, at.tok
	e := p.expr()
	if f := float64(e.Val); e.Kind == ExprInt && f < math.MaxInt64 && int64(f) == e.Val {
		a.Num, a.IsNum = f, true
		return
	}
	a.Exprs = []*Expr{e}
}

// literal reads a number, unless it is a part of an expression or an integer that must be stored as an expression.
func (p *expressions) literal(a *Attr) bool {
	neg := p.got(tokMinus)
	t := p.tok
	switch {
	case p.isWord("inf"), p.isWord("nan"), p.is(tokFloat), p.is(tokInt) && strings.Trim(t.text, "0") == "":
		p.advance()
	default:
		return false
	}
	if p.is(tokPlus) || p.is(tokMinus) || p.is(tokStar) || p.isWord("mod") {
		return false
	}
	f, err := strconv.ParseFloat(t.text, 64)
	if err != nil {
		p.failAt(t.pos, "", "the number %s is too large", clipWord(t.text))
	}
	if neg {
		f = -f
	}
	a.Num, a.IsNum = f, true
	return true
}
