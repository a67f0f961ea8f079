package nvfuser

import (
	"fmt"
	"strings"

	"hocket.example/hocket/ir"
)

// token is a word, a number or a punctuation mark in a line.
type token struct {
	text string
	off  int
	kind tokenKind
}

type tokenKind uint8

const (
	tokEnd tokenKind = iota
	tokWord
	tokNumber
	tokMark
)

// twoByteMarks holds the punctuation marks that consist of two bytes. All other marks consist of one byte.
var twoByteMarks = map[string]bool{"->": true, "==": true, "!=": true, "<=": true, ">=": true, "&&": true, "||": true}

func isWordByte(c byte) bool {
	return c == '_' || c == '.' || c == '?' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// next returns the first token at or after the offset off.
func (l *line) next(off int) token {
	s := l.text
	for off < len(s) && (s[off] == ' ' || s[off] == '\t') {
		off++
	}
	if off >= len(s) {
		return token{off: off}
	}
	end := off
	for end < len(s) && isWordByte(s[end]) {
		end++
	}
	switch {
	case end > off && isDigit(s[off]):
		return token{s[off:exponent(s, end)], off, tokNumber}
	case end > off:
		return token{s[off:end], off, tokWord}
	case off+2 <= len(s) && twoByteMarks[s[off:off+2]]:
		return token{s[off : off+2], off, tokMark}
	}
	return token{s[off : off+1], off, tokMark}
}

// exponent returns the end of a number such as 1e-5, including the sign and the digits of its exponent; end is the
// end of the number without them. The e in a hexadecimal number such as 0x1e does not begin an exponent.
func exponent(s string, end int) int {
	if start := strings.LastIndexFunc(s[:end], func(r rune) bool { return r > 0x7f || !isWordByte(byte(r)) }) + 1; strings.HasPrefix(s[start:end], "0x") {
		return end
	}
	if (s[end-1] != 'e' && s[end-1] != 'E') || end+1 >= len(s) || s[end] != '-' && s[end] != '+' || !isDigit(s[end+1]) {
		return end
	}
	for end++; end < len(s) && isWordByte(s[end]); end++ {
	}
	return end
}

// cursor reads a logical line. After an error, the cursor moves to the end of the line, so that its callers behave as
// if the line had ended there. Only the first error of a line is kept.
type cursor struct {
	words
	nest int
}

func (r *reader) cursor(l *line) *cursor {
	c := &cursor{words: words{l: l, r: r}}
	c.tok = l.next(0)
	return c
}

// words reads a line token by token, and reports a missing token that was expected.
type words struct {
	l   *line
	tok token
	r   *reader
	bad bool
}

func (c *words) pos() ir.Pos { return c.l.at(c.tok.off) }

func (c *words) advance() token {
	t := c.tok
	c.tok = c.l.next(t.off + len(t.text))
	if c.r.words++; c.r.words > maxWords {
		c.fail(fmt.Sprintf("the dump has more than %d words and signs, which is the limit", maxWords))
	}
	return t
}

func (c *words) is(text string) bool { return c.tok.kind != tokEnd && c.tok.text == text }

func (c *words) got(text string) bool {
	if !c.is(text) {
		return false
	}
	c.advance()
	return true
}

func (c *words) want(text string) {
	if !c.got(text) {
		c.expected("\"" + text + "\"")
	}
}

// word reads a word and reports whether there was one.
func (c *words) word(what string) string {
	if c.tok.kind != tokWord {
		c.expected(what)
		return ""
	}
	return c.advance().text
}

func (c *words) expected(what string) {
	found := "the line's end"
	if c.tok.kind != tokEnd {
		found = "\"" + brief(c.tok.text) + "\""
	}
	c.fail("this line cannot be read: expected " + what + ", found " + found)
}

// fail reports the first error of the line and moves to the end of the line.
func (c *words) fail(message string) *ir.Diagnostic {
	pos := c.pos()
	c.tok = token{off: len(c.l.text)}
	if c.bad {
		return &ir.Diagnostic{}
	}
	c.bad = true
	d := c.r.errorf(pos, "%s", message)
	d.Help = "docs/nvfuser.md lists the supported statements; the importer skips none, because that would change " +
		"the result"
	return d
}

// peekAfter returns the token after the current one.
func (c *words) peekAfter() token { return c.l.next(c.tok.off + len(c.tok.text)) }

func brief(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
