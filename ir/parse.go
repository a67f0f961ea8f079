package ir

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxNesting limits the nesting of blocks, expressions and parentheses (LANGUAGE S21), so that functions that walk a
	// program may use recursion.
	MaxNesting = 1000
	// maxStatements and maxWords limit the length of a program's text (LANGUAGE S21), and thereby the memory and time of
	// all passes: about 5 KB a statement. Comments count as words.
	maxStatements = 1 << 16
	maxWords      = 1 << 20
	// MaxDiagnostics limits the number of diagnostics that are reported for one program.
	MaxDiagnostics = 50
)

// Parse reads a program. The argument file is the program's name in diagnostics. The returned program is never nil: if
// the text has errors, it holds all parts that could be read. It includes all comments. Diagnostics are of kind "parse"
// and sorted by position, with at most one for each statement.
func Parse(file, src string) (*Program, Diagnostics) {
	p, _, ds := ParseLost(file, src)
	return p, ds
}

// ParseLost is like Parse, and also returns the parts of the program that could not be read.
func ParseLost(file, src string) (*Program, *Lost, Diagnostics) {
	p := newParser(file, src)
	p.read()
	return p.prog, &p.lost, p.diags
}

func newParser(file, src string) *parser {
	p := &parser{}
	p.prog = &Program{File: file, Source: src}
	return p
}

// A text is read by the following types. Each embeds the type above it:
//
//	lexer splits the text into tokens
//	lookahead looks one token ahead, consumes expected tokens, and reports unexpected ones
//	expressions  reads index expressions, types and attributes
//	statements   reads a function's body
//	parser       reads declarations

// parser reads declarations.
type parser struct {
	statements
	ended Pos // closing brace of the previous function
}

// read reads the whole text.
func (p *parser) read() {
	if p.checkText(p.prog.Source) {
		p.lexer = newLexer(p.prog.Source)
		p.advance()
		p.file()
	} else {
		p.lost.All = true
	}
	p.lost.All = p.lost.All || p.stopped
	p.diags.Sort()
}

// lookahead provides one token of lookahead. A function that finds an error reports it, skips to the end of the line or
// to the next brace, and returns a value that is not nil. The callers of such a function then find no token that
// continues their construct, so they return without an error check. Only endStmt and decl test whether there was an
// error.
type lookahead struct {
	lexer
	tok     token
	before  int32 // line of the previous token
	prog    *Program
	diags   Diagnostics
	bad     bool  // whether the current statement or declaration has an error; further errors in it are not reported
	stopped bool  // whether reading has ended because there were too many errors or a limit was exceeded
	lastErr int32 // line of the last error
}

// checkText reports an error if src is not a text that can be read.
func (p *lookahead) checkText(src string) bool {
	switch {
	case len(src) >= math.MaxInt32:
		p.errorAt(Pos{Line: 1, Col: 1}, "", "the file is larger than 2 GiB")
	case !utf8.ValidString(src):
		p.errorAt(posOf(src, invalidUTF8(src)), "", "the text is not UTF-8")
	case strings.IndexByte(src, 0) >= 0:
		p.errorAt(posOf(src, strings.IndexByte(src, 0)), "", "the text contains a NUL byte")
	default:
		return true
	}
	return false
}

func invalidUTF8(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return len(s)
}

func posOf(src string, off int) Pos {
	before := src[:off]
	return Pos{
		Line: int32(strings.Count(before, "\n") + 1),
		Col:  int32(off - strings.LastIndexByte(before, '\n')),
	}
}

// advance reads the next token.
func (p *lookahead) advance() {
	if p.before = p.tok.pos.Line; !p.stopped {
		p.tok = p.lexer.next()
	}
	if p.seen > maxWords && p.prog != nil { // prog is nil while the lexer is used to look ahead
		p.tooMany(maxWords, "words and signs")
	}
}

func (p *lookahead) is(kind tokKind) bool { return p.tok.kind == kind }

// isWord reports whether the current token is the word w.
func (p *lookahead) isWord(w string) bool { return p.tok.kind == tokIdent && p.tok.text == w }

// got consumes the current token if it is of the given kind, and reports whether it was.
func (p *lookahead) got(kind tokKind) bool {
	if p.tok.kind != kind {
		return false
	}
	p.advance()
	return true
}

func (p *lookahead) gotWord(w string) bool {
	if !p.isWord(w) {
		return false
	}
	p.advance()
	return true
}

// expect consumes a token of the given kind. It reports an error if the current token is of another kind.
func (p *lookahead) expect(kind tokKind) token {
	t := p.tok
	if !p.got(kind) {
		p.expected(spelling[kind])
	}
	return t
}

func (p *lookahead) expectWord(w string) {
	if !p.gotWord(w) {
		p.expected(strconv.Quote(w))
	}
}

// ident reads a name without "%". The argument what describes the name in messages.
func (p *lookahead) ident(what string) Name {
	t := p.tok
	if !p.got(tokIdent) {
		p.expected(what)
		return Name{Pos: t.pos}
	}
	return Name{Pos: t.pos, Text: t.text}
}

// variable reads a %name.
func (p *lookahead) variable() Name {
	t := p.tok
	if !p.got(tokVar) {
		if p.is(tokIdent) {
			p.failAt(t.pos, missingPercent(t), "expected %s, found %s", spelling[tokVar], describe(t))
		}
		p.expected(spelling[tokVar])
		return Name{Pos: t.pos}
	}
	return Name{Pos: t.pos, Text: t.text}
}

// file reads all declarations.
func (p *parser) file() {
	for !p.is(tokEOF) {
		p.decl()
	}
	p.prog.End = p.takeComments()
	p.lost.Funcs = len(p.prog.Funcs) == 0
	if p.lost.Funcs && len(p.diags) == 0 {
		p.errorAt(p.tok.pos, "declare at least one func", "expected a function, found end of file")
	}
}

// decl reads one declaration and the end of its line.
func (p *parser) decl() {
	c := p.lead()
	c.Blank = c.Blank && len(p.prog.Order) > 0
	pos := p.tok.pos
	known := false // an error in the declaration leaves the declared name known, so the program can still be checked
	switch {
	case p.gotWord("dim"):
		d := p.dim(pos)
		d.Comments = c
		known = d.Name != ""
		if p.endLine(&d.Comments, nil, nil) || known {
			p.prog.Dims = append(p.prog.Dims, d)
			p.prog.Order = append(p.prog.Order, d)
		}
	case p.gotWord("mesh"):
		m := p.mesh(pos)
		if m.Comments = c; p.endLine(&m.Comments, nil, nil) {
			p.prog.Meshes = append(p.prog.Meshes, m)
			p.prog.Order = append(p.prog.Order, m)
		}
	case p.gotWord("func"):
		f := &Func{Pos: pos, Comments: c}
		known = true
		p.function(f)
		p.prog.Funcs = append(p.prog.Funcs, f)
		p.prog.Order = append(p.prog.Order, f)
	case p.ended.Valid() && helpFor(p.tok) == "":
		p.failAt(pos, fmt.Sprintf("the previous function ended at line %d", p.ended.Line), "expected %s, found %s", declWords, describe(p.tok))
	default:
		p.expected(declWords)
	}
	if p.bad {
		p.lost.All = p.lost.All || !known
		p.skipToDecl()
	}
}

const declWords = `"dim", "mesh" or "func"`

// atDecl reports whether a declaration starts at the current token.
func (p *lookahead) atDecl() bool {
	return p.tok.first && (p.isWord("func") || p.isWord("dim") || p.isWord("mesh"))
}

// atFunc reports whether a function starts at the current token. If a block is still open where a function starts, its
// closing brace is missing.
func (p *lookahead) atFunc() bool { return p.tok.first && p.isWord("func") }

// skipToDecl skips the rest of a declaration that has an error.
func (p *parser) skipToDecl() {
	p.bad, p.depth = false, 0
	for !p.is(tokEOF) && !p.atDecl() {
		p.advance()
	}
	p.pending = nil
}

// dim reads "NAME [= INT]".
func (p *parser) dim(pos Pos) *Dim {
	d := &Dim{Pos: pos}
	name := p.ident("the dim's name")
	if exprWord(name.Text) {
		p.failAt(name.Pos, "choose another name", "%q cannot be the name of a dim: expressions use this word", name.Text)
	}
	d.Name = name.Text
	if p.got(tokAssign) {
		d.Default, d.HasValue = p.integer(), true
	}
	return d
}

// mesh reads "AXIS[expr]… [= { INT… }]".
func (p *parser) mesh(pos Pos) *Mesh {
	m := &Mesh{Pos: pos}
	for {
		axis := p.ident("a mesh axis such as tp[4]")
		p.expect(tokLBracket)
		size := p.expr()
		p.expect(tokRBracket)
		m.Axes = append(m.Axes, MeshAxis{Pos: axis.Pos, Name: axis.Text, Size: size})
		if !p.is(tokIdent) {
			break
		}
	}
	if p.got(tokAssign) {
		m.HasDevices, m.Devices = true, p.devices()
	}
	return m
}

// devices reads "{ INT… }", separated by blanks, newlines or commas.
func (p *parser) devices() []int64 {
	ranks := []int64{}
	p.expect(tokLBrace)
	for !p.bad {
		for p.got(tokComma) || p.got(tokNewline) {
		}
		if p.got(tokRBrace) {
			break
		}
		if !p.is(tokInt) {
			p.expected(`a rank's number or "}"`)
			break
		}
		ranks = append(ranks, p.integer())
	}
	return ranks
}

// integer reads an integer literal.
func (p *lookahead) integer() int64 {
	t := p.tok
	if !p.is(tokInt) {
		p.expected(spelling[tokInt])
		return 0
	}
	v, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil {
		p.failAt(t.pos, tooLarge, "the integer %s is too large", clipWord(t.text))
		return 0
	}
	p.advance()
	return v
}

const tooLarge = "integers have 64 bits: at most 9223372036854775807"

// function reads the text after "func": the head, the body, and the end of the line. After an error in the head it
// still reads the body, to report the errors in it.
func (p *parser) function(f *Func) {
	f.Name = p.ident("the function's name").Text
	f.Params = p.params()
	if p.got(tokArrow) {
		f.Results = p.results()
	}
	if p.gotWord("refines") {
		f.Refines = p.ident("the name of the function that is refined")
	}
	if p.bad {
		for !p.is(tokLBrace) && !p.is(tokEOF) && !p.atDecl() {
			p.advance()
		}
		p.lost.dropHead(f.Name)
		p.lost.dropLines(f, true, f.Pos.Line, p.tok.pos.Line)
	}
	p.fn, p.arrays = f, map[string]bool{}
	f.Body = p.block(&f.Comments)
	p.lost.All = p.lost.All || !f.Body.End.Valid()
	if f.Body.End.Valid() {
		p.bad, p.ended = false, f.Body.End
		p.endLine(&f.Comments, f.Body, f.Body)
	}
}

// params reads "(%x: [inout] type, …)".
func (p *parser) params() []*Param {
	var list []*Param
	open := p.expect(tokLParen)
	for !p.bad && !p.is(tokRParen) {
		name := p.variable()
		p.expect(tokColon)
		list = append(list, &Param{Pos: name.Pos, Name: name.Text, Inout: p.gotWord("inout"), Type: p.typ()})
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	return list
}

// results reads "type" or "(type, …)".
func (p *parser) results() []*Type {
	open := p.tok
	if !p.got(tokLParen) {
		return []*Type{p.typ()}
	}
	var list []*Type
	for !p.bad && !p.is(tokRParen) {
		list = append(list, p.typ())
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	return list
}

// closing reads the parenthesis or bracket that closes open. If the parenthesis ends a list, the message of an error
// also mentions a comma.
func (p *lookahead) closing(open token, list bool) {
	kind, help := open.kind+1, helpFor(p.tok)
	if p.bad || p.got(kind) {
		return
	}
	what := spelling[kind]
	if list {
		what = `"," or ` + what
	}
	if open.pos.Line != p.tok.pos.Line {
		help = fmt.Sprintf("the %s at line %d is not closed", spelling[open.kind], open.pos.Line)
	}
	p.failAt(p.tok.pos, help, "expected %s, found %s", what, describe(p.tok))
}
