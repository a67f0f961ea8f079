package ir

import "strings"

// tokKind is the kind of a token.
type tokKind uint8

const (
	tokEOF tokKind = iota
	tokNewline
	tokIdent
	tokVar // token.text does not include the "%"
	tokInt
	tokFloat
	tokString // token.text does not include the quotes
	tokLParen
	tokRParen
	tokLBracket
	tokRBracket
	tokLBrace
	tokRBrace
	tokComma
	tokColon
	tokAssign
	tokEQ
	tokNE
	tokLT
	tokLE
	tokGT
	tokGE
	tokPlus
	tokMinus
	tokStar
	tokSlash
	tokArrow
	tokDots
	tokAt
	tokIllegal // text that no program contains; the parser reports it as an unexpected token
)

// spelling lists the names of tokens in messages. Kinds of tokens that are not listed are shown by their text.
var spelling = [...]string{
	tokEOF: "end of file", tokNewline: "end of line", tokIdent: "a name", tokVar: "a %name",
	tokInt: "an integer", tokFloat: "a number", tokString: "a quoted name",
	tokLParen: `"("`, tokRParen: `")"`, tokLBracket: `"["`, tokRBracket: `"]"`,
	tokLBrace: `"{"`, tokRBrace: `"}"`, tokComma: `","`, tokColon: `":"`, tokAssign: `"="`,
	tokEQ: `"=="`, tokNE: `"!="`, tokLT: `"<"`, tokLE: `"<="`, tokGT: `">"`, tokGE: `">="`,
	tokPlus: `"+"`, tokMinus: `"-"`, tokStar: `"*"`, tokSlash: `"/"`,
	tokArrow: `"->"`, tokDots: `".."`, tokAt: `"@"`, tokIllegal: "an unknown character",
}

// token is one token of the text. The text of a token is a substring of the source.
type token struct {
	kind  tokKind
	blank bool // an empty line precedes the token
	first bool // the token is the first of its line
	trail bool // for tokNewline: the line that ends here has a comment
	pos   Pos
	text  string
}

// lexer splits a text into tokens. A line end is a token unless it is inside parentheses or brackets or follows a
// comma; several line ends in succession are one token. The lexer collects comments in pending. The parser removes the
// comments from pending.
type lexer struct {
	src       string
	off       int
	line      int32
	lineStart int
	depth     int     // open parentheses and brackets
	last      tokKind // kind of the last token
	lastLine  int32   // line of the last token or comment
	pending   []Comment
	seen      int // tokens and comments so far
}

const byteOrderMark = "\ufeff"

func newLexer(src string) lexer {
	l := lexer{src: src, line: 1, last: tokNewline}
	if strings.HasPrefix(src, byteOrderMark) {
		l.off = len(byteOrderMark)
	}
	return l
}

// next returns the next token. The last token before the end of the text is always a newline token, even if the text
// lacks it.
func (l *lexer) next() token {
	trail := false
	for {
		for l.off < len(l.src) && isBlank(l.src[l.off]) {
			l.off++
		}
		switch {
		case l.seen > maxWords: // the parser reports the limit
			return l.token(tokEOF, l.off)
		case l.off >= len(l.src):
			if l.last != tokNewline {
				return l.lineEnd(l.off, trail)
			}
			return l.token(tokEOF, l.off)
		case l.src[l.off] == '\n':
			if l.last != tokNewline && l.last != tokComma && l.depth == 0 {
				t := l.lineEnd(l.off, trail)
				l.newline()
				return t
			}
			l.newline()
			trail = false
		case strings.HasPrefix(l.src[l.off:], "//"):
			l.scanComment()
			trail = true
		default:
			return l.scan()
		}
	}
}

func (l *lexer) newline() {
	l.off++
	l.line++
	l.lineStart = l.off
}

func (l *lexer) lineEnd(start int, trail bool) token {
	t := l.token(tokNewline, start)
	t.trail = trail
	return t
}

// token returns the token from offset start to the current offset.
func (l *lexer) token(kind tokKind, start int) token {
	t := token{kind: kind, blank: l.line-l.lastLine > 1, first: l.last == tokNewline, text: l.src[start:l.off],
		pos: Pos{Line: l.line, Col: int32(start - l.lineStart + 1)}}
	l.last, l.lastLine = kind, l.line
	l.seen++
	return t
}

func (l *lexer) scanComment() {
	start := l.off
	if n := strings.IndexByte(l.src[start:], '\n'); n >= 0 {
		l.off += n
	} else {
		l.off = len(l.src)
	}
	l.pending = append(l.pending, Comment{
		Pos:   Pos{Line: l.line, Col: int32(start - l.lineStart + 1)},
		Text:  strings.TrimRight(l.src[start+2:l.off], " \t\r"),
		Blank: l.line-l.lastLine > 1,
	})
	l.lastLine = l.line
	l.seen++
}

// followedByAssign reports whether the next token is "=".
func (l *lexer) followedByAssign() bool {
	i := l.off
	for i < len(l.src) && isBlank(l.src[i]) {
		i++
	}
	rest := l.src[i:]
	return strings.HasPrefix(rest, "=") && !strings.HasPrefix(rest, "==")
}

// scan reads the token that starts at the current offset.
func (l *lexer) scan() token {
	start := l.off
	c := l.src[start]
	switch {
	case isLetter(c):
		l.skipWord()
		return l.token(tokIdent, start)
	case isDigit(c):
		return l.token(l.scanNumber(), start)
	case c == '%':
		return l.scanVariable()
	case c == '"':
		return l.scanString()
	}
	kind, n := punctuation(l.src[start:])
	l.off += n
	switch kind {
	case tokLParen, tokLBracket:
		l.depth++
	case tokRParen, tokRBracket:
		l.depth = max(l.depth-1, 0)
	}
	return l.token(kind, start)
}

func (l *lexer) skipWord() {
	for l.off < len(l.src) && isWord(l.src[l.off]) {
		l.off++
	}
}

// scanVariable reads "%name". A dot belongs to the name if a letter or digit follows it, so that "%a..%b" is a range.
func (l *lexer) scanVariable() token {
	start := l.off
	l.off++
	l.skipWord()
	for l.off > start+1 && l.off+1 < len(l.src) && l.src[l.off] == '.' && isWord(l.src[l.off+1]) {
		l.off++
		l.skipWord()
	}
	if l.off == start+1 {
		return l.token(tokIllegal, start)
	}
	t := l.token(tokVar, start)
	t.text = t.text[1:]
	return t
}

// scanString reads a quoted text of one line, without escapes.
func (l *lexer) scanString() token {
	start := l.off
	n := strings.IndexAny(l.src[start+1:], "\"\n")
	if n < 0 || l.src[start+1+n] != '"' {
		l.off++
		return l.token(tokIllegal, start)
	}
	l.off += n + 2
	t := l.token(tokString, start)
	t.text = t.text[1 : len(t.text)-1]
	return t
}

// scanNumber skips a number such as "12", "0.5" or "1e-3". A letter directly after the number makes it malformed.
func (l *lexer) scanNumber() tokKind {
	kind := tokInt
	l.skipDigits()
	if rest := l.src[l.off:]; len(rest) > 1 && rest[0] == '.' && isDigit(rest[1]) {
		kind = tokFloat
		l.off++
		l.skipDigits()
	}
	if n := exponent(l.src[l.off:]); n > 0 {
		kind = tokFloat
		l.off += n
		l.skipDigits()
	}
	if l.off < len(l.src) && isLetter(l.src[l.off]) {
		l.skipWord()
		return tokIllegal
	}
	return kind
}

func (l *lexer) skipDigits() {
	for l.off < len(l.src) && isDigit(l.src[l.off]) {
		l.off++
	}
}

// exponent returns the length of "e", sign and first digit, or 0.
func exponent(s string) int {
	if s == "" || s[0] != 'e' && s[0] != 'E' {
		return 0
	}
	n := 1
	if len(s) > n && (s[n] == '+' || s[n] == '-') {
		n++
	}
	if len(s) > n && isDigit(s[n]) {
		return n + 1
	}
	return 0
}

var single = [128]tokKind{
	'(': tokLParen, ')': tokRParen, '[': tokLBracket, ']': tokRBracket, '{': tokLBrace, '}': tokRBrace,
	',': tokComma, ':': tokColon, '=': tokAssign, '<': tokLT, '>': tokGT, '+': tokPlus, '-': tokMinus,
	'*': tokStar, '/': tokSlash, '@': tokAt,
}

// punctuation returns the token at the start of s and its length in bytes. "=>", "=<", "&&" and "||" are read as one
// token each, so that messages show them whole.
func punctuation(s string) (tokKind, int) {
	if len(s) > 1 {
		switch s[:2] {
		case "==":
			return tokEQ, 2
		case "!=":
			return tokNE, 2
		case "<=":
			return tokLE, 2
		case ">=":
			return tokGE, 2
		case "->":
			return tokArrow, 2
		case "..":
			return tokDots, 2
		case "=>", "=<", "&&", "||":
			return tokIllegal, 2
		}
	}
	if s[0] < 128 && single[s[0]] != tokEOF {
		return single[s[0]], 1
	}
	return tokIllegal, runeLen(s)
}

// runeLen returns the number of bytes in the first character of s, which must be valid UTF-8.
func runeLen(s string) int {
	for i := range s {
		if i > 0 {
			return i
		}
	}
	return len(s)
}

func isBlank(c byte) bool  { return c == ' ' || c == '\t' || c == '\r' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func isWord(c byte) bool   { return isLetter(c) || isDigit(c) }
