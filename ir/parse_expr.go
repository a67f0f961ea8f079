package ir

import (
	"fmt"
	"math"
	"strconv"
)

// exprFuncs maps the names of functions in expressions to their kinds.
var exprFuncs = map[string]ExprKind{
	"ceildiv": ExprCeilDiv, "floordiv": ExprFloorDiv, "min": ExprMin, "max": ExprMax,
	"rank": ExprRank, "size": ExprSize, "extent": ExprExtent,
}

// exprWord reports whether a word has a fixed meaning inside or next to expressions, so that no dim may have it as its
// name.
func exprWord(w string) bool {
	switch w {
	case "mod", "of", "main", "inf", "nan":
		return true
	}
	_, ok := exprFuncs[w]
	return ok
}

// expressions reads index expressions, types and attributes.
type expressions struct {
	lookahead
	nest int // number of open parentheses and signs in the current expression
}

// expr reads an index expression.
func (p *expressions) expr() *Expr {
	e, _ := p.sum()
	if p.is(tokVar) && !p.bad && p.tok.pos.Line == p.before {
		p.failAt(p.tok.pos, fmt.Sprintf("write mod for the remainder: … mod %%%s", clipWord(p.tok.text)),
			"expected an operator, found %s", describe(p.tok))
	}
	return e
}

// sum reads products joined by + and -. Like all functions below, it also returns the height of the expression, which
// is limited by MaxNesting.
func (p *expressions) sum() (*Expr, int) {
	e, h := p.product()
	for {
		kind := ExprAdd
		if p.is(tokMinus) {
			kind = ExprSub
		} else if !p.is(tokPlus) {
			return e, h
		}
		p.advance()
		right, hr := p.product()
		e, h = p.binary(kind, e, h, right, hr)
	}
}

// product reads operands joined by * and mod.
func (p *expressions) product() (*Expr, int) {
	e, h := p.operand()
	for {
		kind := ExprMul
		if p.isWord("mod") {
			kind = ExprMod
		} else if !p.is(tokStar) {
			return e, h
		}
		p.advance()
		right, hr := p.operand()
		e, h = p.binary(kind, e, h, right, hr)
	}
}

func (p *expressions) binary(kind ExprKind, a *Expr, ha int, b *Expr, hb int) (*Expr, int) {
	h := max(ha, hb) + 1
	if h > MaxNesting {
		p.limit("an expression is")
	}
	return Bin(kind, a, b), h
}

// operand reads one operand of + - * mod.
func (p *expressions) operand() (*Expr, int) {
	pos := p.tok.pos
	switch p.tok.kind {
	case tokInt:
		return &Expr{Kind: ExprInt, Pos: pos, Val: p.integer()}, 1
	case tokVar:
		return &Expr{Kind: ExprVar, Pos: pos, Name: p.variable().Text}, 1
	case tokIdent:
		return p.nameOrCall()
	case tokMinus, tokLParen:
		if p.nest++; p.nest > MaxNesting {
			p.limit("an expression is")
		}
		defer func() { p.nest-- }()
		if p.got(tokMinus) {
			return p.negative(pos)
		}
		open := p.tok
		p.advance()
		e, h := p.sum()
		p.closing(open, false)
		return e, h
	case tokFloat:
		p.failAt(pos, "index expressions have only integers", "expected an integer, found %s", describe(p.tok))
	default:
		p.expected("an expression")
	}
	return &Expr{Pos: pos}, 1
}

// negative reads the operand after a minus sign. The sign before a literal is a part of the literal.
func (p *expressions) negative(pos Pos) (*Expr, int) {
	if p.is(tokInt) {
		if v, err := strconv.ParseInt("-"+p.tok.text, 10, 64); err == nil {
			p.advance()
			return &Expr{Kind: ExprInt, Pos: pos, Val: v}, 1
		}
	}
	e, h := p.operand()
	if e.Kind == ExprInt && e.Val != math.MinInt64 {
		return &Expr{Kind: ExprInt, Pos: pos, Val: -e.Val}, 1
	}
	return p.binary(ExprSub, &Expr{Kind: ExprInt, Pos: pos}, 1, e, h)
}

// nameOrCall reads a dim, or a function call with its arguments.
func (p *expressions) nameOrCall() (*Expr, int) {
	t := p.tok
	kind, call := exprFuncs[t.text]
	if !call && exprWord(t.text) {
		p.expected("an expression")
		return &Expr{Pos: t.pos}, 1
	}
	p.advance()
	if !call {
		if p.is(tokLParen) {
			p.failAt(t.pos, "the functions are ceildiv, floordiv, min, max, rank, size and extent",
				"there is no function %q in expressions", clipWord(t.text))
		}
		return &Expr{Kind: ExprName, Pos: t.pos, Name: t.text}, 1
	}
	open := p.expect(tokLParen)
	e, h := &Expr{Kind: kind, Pos: t.pos}, 1
	switch kind {
	case ExprRank, ExprSize:
		e.Name = p.ident("a mesh axis").Text
	case ExprExtent:
		e.Name = p.variable().Text
		p.expect(tokComma)
		e.Val = p.integer()
	default:
		e, h = p.twoArgs(e)
	}
	p.closing(open, false)
	return e, h
}

func (p *expressions) twoArgs(e *Expr) (*Expr, int) {
	if p.nest++; p.nest > MaxNesting {
		p.limit("an expression is")
	}
	a, ha := p.sum()
	p.expect(tokComma)
	b, hb := p.sum()
	p.nest--
	e.Args = []*Expr{a, b}
	h := max(ha, hb) + 1
	if h > MaxNesting {
		p.limit("an expression is")
	}
	return e, h
}

// typ reads a type such as "bf16[T/tp, K] partial(tp, sum) @d".
func (p *expressions) typ() *Type {
	t := &Type{Pos: p.tok.pos, DType: p.dtype()}
	open := p.expect(tokLBracket)
	for !p.bad && !p.is(tokRBracket) {
		d := Dimension{Extent: p.expr()}
		if p.got(tokSlash) {
			d.Axes = p.shardAxes()
		}
		t.Dims = append(t.Dims, d)
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	for p.gotWord("partial") {
		t.Partial = append(t.Partial, p.partial())
	}
	if p.got(tokAt) {
		t.Mesh = p.ident("an axis of the mesh").Text
	}
	return t
}

func (p *expressions) dtype() DType {
	t := p.tok
	if !p.is(tokIdent) {
		p.expected("a type such as bf16[T, K]")
		return InvalidDType
	}
	d, ok := ParseDType(t.text)
	if !ok {
		p.failAt(t.pos, "the element types are f32, f16, bf16, f64, i32, i64, f8e4m3 and f8e5m2", "%q is not an element type", clipWord(t.text))
		return InvalidDType
	}
	p.advance()
	return d
}

// shardAxes reads "tp" or "(dp, tp)" after the / in a type.
func (p *expressions) shardAxes() []string {
	if p.is(tokInt) || p.is(tokVar) {
		p.failAt(p.tok.pos, "in a type, / shards a dimension over a mesh axis; to divide, write ceildiv(a, b)",
			"expected a mesh axis, found %s", describe(p.tok))
	}
	axes, _ := p.words("a mesh axis")
	return axes
}

// words reads a name or a list of names in parentheses, and reports whether it was a list.
func (p *lookahead) words(what string) (list []string, paren bool) {
	open := p.tok
	if !p.got(tokLParen) {
		return []string{p.ident(what).Text}, false
	}
	for !p.bad && !p.is(tokRParen) {
		list = append(list, p.ident(what).Text)
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	return list, true
}

// partial reads "(tp, sum)" after the word partial.
func (p *expressions) partial() Partial {
	p.expect(tokLParen)
	axis := p.ident("a mesh axis").Text
	p.expect(tokComma)
	t := p.tok
	word := p.ident("a reduction").Text
	red, ok := ParseRed(word)
	if !ok {
		p.failAt(t.pos, "the reductions are sum, max, min and avg", "%q is not a reduction", clipWord(word))
	}
	p.expect(tokRParen)
	return Partial{Axis: axis, Red: red}
}
