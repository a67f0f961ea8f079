package nvfuser

import (
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// maxNest is the maximum nesting depth of parentheses and of blocks. Because of this limit, functions that traverse the
// tree may recurse.
const maxNest = 100

// strength holds the precedence of each operator, as in C++.
var strength = map[string]int{
	"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4,
	"+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}

// functions holds the functions that index expressions may call, with their numbers of arguments.
var functions = map[string]int{
	"ceilDiv": 2, "fmax": 2, "fmin": 2, "max": 2, "min": 2, "where": 3, "neg": 1, "abs": 1,
}

// scalar reads an integer expression: "( 8 + ( rank - streamIdx ) ) % 8".
func (c *cursor) scalar() *scalar { return c.binary(1) }

func (c *cursor) binary(least int) *scalar {
	left := c.unary()
	for {
		n := strength[c.tok.text]
		if c.tok.kind != tokMark || n < least {
			return left
		}
		op := c.advance()
		left = &scalar{pos: c.l.at(op.off), op: op.text, args: []*scalar{left, c.binary(n + 1)}}
	}
}

func (c *cursor) unary() *scalar {
	pos := c.pos()
	if c.nest++; c.nest > maxNest {
		c.fail("parentheses are nested deeper than " + strconv.Itoa(maxNest))
	}
	defer func() { c.nest-- }()
	switch {
	case c.got("-"):
		return &scalar{pos: pos, op: "neg", args: []*scalar{c.unary()}}
	case c.got("!"):
		return &scalar{pos: pos, op: "!", args: []*scalar{c.unary()}}
	case c.got("("):
		s := c.scalar()
		c.want(")")
		return s
	case c.tok.kind == tokNumber:
		return c.number(pos)
	case c.tok.kind == tokWord:
		name := c.advance().text
		if c.is("(") {
			return c.call(name, pos)
		}
		if !isName(name) && name != deviceIndex {
			c.failAt(pos, "\""+brief(name)+"\" is not the name of an index")
		}
		return &scalar{pos: pos, name: name}
	}
	c.expected("a number, a name or \"(\"")
	return &scalar{pos: pos}
}

// isName reports whether s can be a name in a program.
func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c == '.' || c == '?' || c >= 0x80 || i == 0 && isDigit(c) {
			return false
		}
	}
	return s != ""
}

// isSymbol reports whether s is the symbol of an extent, such as "i5".
func isSymbol(s string) bool {
	_, err := strconv.ParseUint(strings.TrimPrefix(s, "i"), 10, 63)
	return err == nil && len(s) > 1 && s[0] == 'i' && isDigit(s[1])
}

// name reads a word that can be a name in a program.
func (c *words) name(what string) string {
	pos := c.pos()
	s := c.word(what)
	if !isName(s) {
		c.failAt(pos, "\""+brief(s)+"\" is not a name")
	}
	return s
}

func (c *words) number(pos ir.Pos) *scalar {
	text := c.tok.text
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		c.fail("\"" + brief(text) + "\" is not a 64-bit integer")
		return &scalar{pos: pos}
	}
	c.advance()
	return &scalar{pos: pos, val: v}
}

func (c *cursor) call(name string, pos ir.Pos) *scalar {
	n := functions[name]
	if n == 0 {
		c.fail("an index expression calls \"" + brief(name) + "\", which is not supported")
		return &scalar{pos: pos}
	}
	c.want("(")
	s := &scalar{pos: pos, op: name}
	for i := range n {
		if i > 0 {
			c.want(",")
		}
		s.args = append(s.args, c.scalar())
	}
	c.want(")")
	return s
}

// parseDefine parses a value of --define, which is in the notation of the dump.
func parseDefine(file, text string) (*scalar, ir.Diagnostics) {
	r := &reader{prog: &ir.Program{File: file, Source: text}}
	l := &line{text: text, parts: []part{{0, ir.Pos{Line: 1, Col: 1}}}}
	c := r.cursor(l)
	s := c.scalar()
	if c.tok.kind != tokEnd {
		c.expected("an operator or the end of the expression")
	}
	clearPos(s)
	return s, r.ds
}

// clearPos removes the positions from an expression that --define sets, since they do not refer to the dump.
func clearPos(s *scalar) {
	s.pos = ir.Pos{}
	for _, a := range s.args {
		clearPos(a)
	}
}
