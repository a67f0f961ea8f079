package ir

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

func appendDim(b []byte, d *Dim) []byte {
	b = append(b, "dim "...)
	b = append(b, d.Name...)
	if d.HasValue {
		b = append(b, " = "...)
		b = strconv.AppendInt(b, d.Default, 10)
	}
	return b
}

func appendMesh(b []byte, m *Mesh) []byte {
	b = append(b, "mesh"...)
	for _, a := range m.Axes {
		b = append(b, ' ')
		b = appendIndexed(b, a.Name, a.Size)
	}
	if !m.HasDevices && m.Devices == nil {
		return b
	}
	b = append(b, " = {"...)
	for i, d := range m.Devices {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return append(b, '}')
}

// appendHead appends the head of a function. If tall is set, each parameter is on its own line.
func appendHead(b []byte, f *Func, tall bool) []byte {
	b = append(b, "func "...)
	b = append(b, f.Name...)
	b = append(b, '(')
	for i, p := range f.Params {
		switch {
		case tall:
			b = append(b, "\n  "...)
		case i > 0:
			b = append(b, ", "...)
		}
		b = appendParam(b, p)
		if tall {
			b = append(b, ',')
		}
	}
	if tall {
		b = append(b, '\n')
	}
	b = append(b, ')')
	b = appendResults(b, f.Results)
	if f.Refines.Text != "" {
		b = append(b, " refines "...)
		b = append(b, f.Refines.Text...)
	}
	return b
}

func appendParam(b []byte, p *Param) []byte {
	b = append(b, '%')
	b = append(b, p.Name...)
	b = append(b, ": "...)
	if p.Inout {
		b = append(b, "inout "...)
	}
	return appendType(b, p.Type)
}

func appendResults(b []byte, list []*Type) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, " -> "...)
	if len(list) == 1 {
		return appendType(b, list[0])
	}
	b = append(b, '(')
	for i, t := range list {
		b = appendComma(b, i > 0)
		b = appendType(b, t)
	}
	return append(b, ')')
}

func appendComma(b []byte, wanted bool) []byte {
	if wanted {
		b = append(b, ", "...)
	}
	return b
}

// appendStmt appends a statement without its blocks and comments, but with the statements nested in its operands.
func appendStmt(b []byte, s *Stmt, in operations) []byte {
	switch s.Op {
	case OpLet:
		b = append(b, "let "...)
		b = appendNames(b, s.Results)
		b = append(b, " = "...)
		return appendExprAt(b, s.Exprs, 0)
	case OpFor:
		return appendFor(b, s)
	case OpIf:
		b = append(b, "if "...)
		b = appendExprAt(b, s.Exprs, 0)
		b = append(b, ' ')
		b = append(b, s.Cmp.String()...)
		b = append(b, ' ')
		return appendExprAt(b, s.Exprs, 1)
	}
	b = appendResultNames(b, s)
	b = append(b, s.Op.String()...)
	switch s.Op {
	case OpAlloc:
		return appendAlloc(b, s)
	case OpCall:
		b = append(b, ' ')
		b = append(b, s.Callee.Text...)
	case OpLaunch:
		return appendLaunch(b, s)
	case OpStream, OpEvent, OpCounter:
		b = appendCount(b, s.Count)
	}
	return appendOperands(b, s, in)
}

// appendResultNames prints "%y: type = " or "%a, %b = ".
func appendResultNames(b []byte, s *Stmt) []byte {
	if len(s.Results) == 0 {
		return b
	}
	b = appendNames(b, s.Results)
	if s.Type != nil && s.Op != OpAlloc {
		b = append(b, ": "...)
		b = appendType(b, s.Type)
	}
	return append(b, " = "...)
}

func appendNames(b []byte, names []Name) []byte {
	for i, n := range names {
		b = appendComma(b, i > 0)
		b = append(b, '%')
		b = append(b, n.Text...)
	}
	return b
}

func appendCount(b []byte, n *Expr) []byte {
	if n == nil {
		return b
	}
	return appendIndexed(b, "", n)
}

func appendFor(b []byte, s *Stmt) []byte {
	if behind := s.Results[1:]; len(behind) > 0 {
		b = append(appendNames(b, behind), " = "...)
	}
	b = append(b, "for "...)
	b = appendNames(b, s.Results[:1])
	b = append(b, " in "...)
	b = appendExprAt(b, s.Exprs, 0)
	b = append(b, ".."...)
	b = appendExprAt(b, s.Exprs, 1)
	if s.Streams != 0 {
		b = append(b, " stream("...)
		b = strconv.AppendInt(b, s.Streams, 10)
		b = append(b, ')')
	}
	for i, name := range s.Carry {
		if i == 0 {
			b = append(b, " carry "...)
		}
		b = appendComma(b, i > 0)
		b = append(appendNames(b, []Name{name}), " = "...)
		b = appendPlace(b, s.Args[i])
	}
	return b
}

func appendAlloc(b []byte, s *Stmt) []byte {
	b = appendCount(b, s.Count)
	b = append(b, ' ')
	b = appendType(b, s.Type)
	for _, f := range allocFlags {
		if s.Flags&f.flag != 0 {
			b = append(b, ' ')
			b = append(b, f.word...)
		}
	}
	return b
}

// appendOperands appends the text after the operation's name: operands, the clauses into and at, and attributes. For
// chunk and slice, attributes and the portion precede into.
func appendOperands(b []byte, s *Stmt, in operations) []byte {
	for i := range s.Args {
		b = appendSep(b, i > 0)
		b = appendArgument(b, s, i, in)
	}
	listed := len(s.Args) > 0
	switch s.Op {
	case OpReduceSlots: // the attributes after axis= are printed after the into clause
		n := 1 + slices.IndexFunc(s.Attrs, func(a Attr) bool { return a.Name == "axis" })
		b = appendAttrs(b, s.Attrs[:n], listed)
		b = appendPortion(b, s, listed || n > 0)
		return appendAttrs(appendInto(b, s), s.Attrs[n:], true)
	case OpChunk, OpSlice:
		b = appendAttrs(b, s.Attrs, listed)
		b = appendPortion(b, s, listed || len(s.Attrs) > 0)
		return appendInto(b, s)
	case OpWait:
		if len(s.Exprs) > 0 {
			b = append(b, " >= "...)
			b = appendExprAt(b, s.Exprs, 0)
		}
	case OpGet:
		b = appendPeer(b, s)
		b = appendInto(b, s)
	default:
		b = appendInto(b, s)
		b = appendPeer(b, s)
	}
	return appendAttrs(b, s.Attrs, listed || s.Into != nil || s.Op == OpStream)
}

// appendSep appends the separator before an operand.
func appendSep(b []byte, listed bool) []byte {
	if listed {
		return append(b, ", "...)
	}
	return append(b, ' ')
}

func appendAttrs(b []byte, attrs []Attr, listed bool) []byte {
	for i := range attrs {
		b = appendSep(b, listed || i > 0)
		b = appendAttr(b, &attrs[i])
	}
	return b
}

// appendPortion appends "I of C" for chunk and "LO..HI" for other operations.
func appendPortion(b []byte, s *Stmt, listed bool) []byte {
	b = appendSep(b, listed)
	b = appendExprAt(b, s.Exprs, 0)
	if s.Op == OpChunk {
		b = append(b, " of "...)
	} else {
		b = append(b, ".."...)
	}
	return appendExprAt(b, s.Exprs, 1)
}

func appendInto(b []byte, s *Stmt) []byte {
	if s.Into == nil {
		return b
	}
	b = append(b, " into "...)
	return appendPlace(b, *s.Into)
}

func appendPeer(b []byte, s *Stmt) []byte {
	if s.Peer == nil {
		return b
	}
	word, ok := peerWords[s.Op]
	if !ok {
		word = "at"
	}
	b = append(b, ' ')
	b = append(b, word...)
	b = append(b, ' ')
	return appendIndexed(b, s.Peer.Axis, s.Peer.Index)
}

// String returns "%x", "%x[e]" or "main".
func (p Place) String() string { return string(appendPlace(nil, p)) }

func appendPlace(b []byte, p Place) []byte {
	if p.Main {
		return append(b, "main"...)
	}
	b = append(b, '%')
	b = append(b, p.Name...)
	return appendCount(b, p.Index)
}

// String returns "name=value".
func (a Attr) String() string { return string(appendAttr(nil, &a)) }

func appendAttr(b []byte, a *Attr) []byte {
	b = append(b, a.Name...)
	b = append(b, '=')
	switch {
	case a.IsNum:
		return appendNumber(b, a.Num)
	case a.Kind == AttrExprs:
		return appendExprList(b, a)
	case a.Kind == AttrWords:
		return appendWords(b, a.Words, a.Paren)
	case a.Kind == AttrWord && len(a.Words) > 0:
		return append(b, a.Words[0]...)
	}
	return appendExprAt(b, a.Exprs, 0)
}

// appendNumber appends the shortest decimal number that is read back as f. Exponents have the form 1e-5.
func appendNumber(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	mantissa, exponent, found := strings.Cut(strconv.FormatFloat(f, 'g', -1, 64), "e")
	b = append(b, mantissa...)
	if !found {
		return b
	}
	b = append(b, 'e')
	if exponent[0] == '-' {
		b = append(b, '-')
	}
	return append(b, strings.TrimLeft(exponent[1:], "0")...)
}

// appendExprList appends one expression without parentheses, unless it was written in parentheses or begins with one,
// which would open a list.
func appendExprList(b []byte, a *Attr) []byte {
	if len(a.Exprs) == 1 && !a.Paren {
		start := len(b)
		b = appendExpr(b, a.Exprs[0])
		if b[start] != '(' {
			return b
		}
		b = b[:start]
	}
	b = append(b, '(')
	for i, e := range a.Exprs {
		b = appendComma(b, i > 0)
		b = appendExpr(b, e)
	}
	return append(b, ')')
}

func appendWords(b []byte, words []string, paren bool) []byte {
	if len(words) == 1 && !paren {
		return append(b, words[0]...)
	}
	b = append(b, '(')
	for i, w := range words {
		b = appendComma(b, i > 0)
		b = append(b, w...)
	}
	return append(b, ')')
}
