package ir

import (
	"fmt"
	"strings"
)

// launch reads "FILE":KERNEL(…), attributes.
func (p *statements) launch(s *Stmt) {
	l := &Launch{Pos: p.tok.pos}
	s.Launch = l
	if !p.is(tokString) {
		p.failAt(p.tok.pos, LaunchForm, "expected the quoted name of a file, found %s", describe(p.tok))
		return
	}
	l.File = p.tok.text
	p.advance()
	p.expect(tokColon)
	l.Kernel = p.ident("the kernel's name")
	open := p.expect(tokLParen)
	for !p.bad && !p.is(tokRParen) {
		p.launchParam(s)
		if !p.got(tokComma) {
			break
		}
	}
	p.closing(open, true)
	p.moreAttrs(s)
	if !p.bad && !p.is(tokNewline) && !p.is(tokRBrace) {
		p.expectedMore(s)
	}
}

const LaunchForm = `launch "scale.cu":scale(%x, into %y, N, f32 0.5), grid=ceildiv(N, 256), block=256`

// launchParam reads "%x", "into %x", "inout %x", or a number, which may be followed by its type.
func (p *statements) launchParam(s *Stmt) {
	par := LaunchParam{Pos: p.tok.pos, At: -1, DType: I32, Kind: LaunchNumber}
	word := p.tok.text
	switch {
	case p.is(tokVar), p.isWord("into"), p.isWord("inout"):
		par.Kind, par.DType, par.At = LaunchReads, InvalidDType, len(s.Args)
		if p.gotWord("into") {
			par.Kind = LaunchWrites
		} else if p.gotWord("inout") {
			par.Kind = LaunchUpdates
		}
		s.Args = append(s.Args, p.place())
		if !p.bad && !p.is(tokComma) && !p.is(tokRParen) {
			p.failAt(p.tok.pos, "if a number begins with a name, write its type before it: i32 "+s.Args[par.At].String()+" …",
				`expected "," or ")", found %s`, describe(p.tok))
		}
		s.Launch.Params = append(s.Launch.Params, par)
		return
	case p.is(tokIdent):
		if dt, ok := ParseDType(word); ok {
			p.advance()
			par.DType = dt
		}
	case p.is(tokFloat):
		par.DType = F32
	}
	p.launchNumber(s, &par)
	s.Launch.Params = append(s.Launch.Params, par)
}

func (p *statements) launchNumber(s *Stmt, par *LaunchParam) {
	switch par.DType {
	case F32, F64:
		var a Attr
		if p.number(&a); a.IsNum || len(a.Exprs) == 0 {
			par.Num = a.Num
			return
		}
		par.At, s.Exprs = len(s.Exprs), append(s.Exprs, a.Exprs[0])
	case I32, I64:
		par.At, s.Exprs = len(s.Exprs), append(s.Exprs, p.expr())
	default:
		p.failAt(par.Pos, "i32, i64, f32 or f64", "a kernel's number cannot have the type %s", par.DType)
	}
}

func appendLaunch(b []byte, s *Stmt) []byte {
	l := s.Launch
	if l == nil || !WholeLaunch(s) {
		return append(b, " ?"...)
	}
	b = fmt.Appendf(b, " \"%s\":%s(", l.File, l.Kernel.Text)
	for i, par := range l.Params {
		b = appendComma(b, i > 0)
		switch par.Kind {
		case LaunchWrites:
			b = append(b, "into "...)
		case LaunchUpdates:
			b = append(b, "inout "...)
		case LaunchNumber:
			b = appendLaunchNumber(b, s, par)
			continue
		}
		b = appendPlace(b, s.Args[par.At])
	}
	return appendAttrs(append(b, ')'), s.Attrs, true)
}

// appendLaunchNumber prints a number of a launch. appendLaunchNumber omits the type i32 if the expression does not
// begin with a word that has another meaning there.
func appendLaunchNumber(b []byte, s *Stmt, par LaunchParam) []byte {
	start := len(b)
	b = append(append(b, par.DType.String()...), ' ')
	if par.At < 0 {
		return appendNumber(b, par.Num)
	}
	at := len(b)
	b = appendExpr(b, s.Exprs[par.At])
	word := string(b[at:])
	word = word[:len(word)-len(strings.TrimLeftFunc(word, func(r rune) bool { return r < 0x80 && isWord(byte(r)) }))]
	if _, isType := ParseDType(word); par.DType == I32 && b[at] != '%' && !isType && word != "into" && word != "inout" {
		b = append(b[:start], b[at:]...)
	}
	return b
}

// WholeLaunch reports whether each argument of a launch refers to its own operand or expression, and no operand or
// expression is unused.
func WholeLaunch(s *Stmt) bool {
	args, exprs := 0, 0
	for _, par := range s.Launch.Params {
		switch {
		case par.Kind > LaunchNumber || par.Kind == LaunchNumber && !par.DType.Valid():
			return false
		case par.Kind != LaunchNumber:
			if par.At != args {
				return false
			}
			args++
		case par.At >= 0:
			if par.At != exprs {
				return false
			}
			exprs++
		}
	}
	return args == len(s.Args) && exprs == len(s.Exprs)
}

// KernelEndings lists the endings of the names of files that contain kernels.
var KernelEndings = []string{".cu", ".ptx", ".cubin"}
