package ir

import (
	"io"
	"slices"
	"unicode/utf8"
)

const (
	// oneLineWidth is the maximum width of a block that is printed on one line, and headWidth is that of the head of a
	// function, in characters.
	oneLineWidth = 80
	headWidth    = 100
)

// String returns the program's canonical text, including comments. The text depends only on the syntax, not on the
// layout of the source. Parsing the canonical text gives an Equal program.
func (p *Program) String() string { return string(appendProgram(nil, p)) }

// Print writes the program's canonical text to w.
func Print(w io.Writer, p *Program) error {
	_, err := w.Write(appendProgram(nil, p))
	return err
}

// Format returns the canonical text of a source text. Format preserves comments and single empty lines. If the source
// has errors, Format returns "" and the diagnostics.
func Format(file, src string) (string, Diagnostics) {
	p, ds := Parse(file, src)
	if ds.HasErrors() {
		return "", ds
	}
	return p.String(), ds
}

// String returns the text of the statement without its blocks and comments. For a loop String returns "for %i in 0..4".
func (s *Stmt) String() string { return string(appendStmt(nil, s, nil)) }

// decls returns the declarations in the order of printing: first those in Order that are still in the program, then
// those that a pass added without adding them to Order.
func (p *Program) decls() []Decl {
	var all []Decl
	for _, d := range p.Dims {
		all = append(all, d)
	}
	for _, m := range p.Meshes {
		all = append(all, m)
	}
	for _, f := range p.Funcs {
		all = append(all, f)
	}
	if p.Order == nil {
		return all
	}
	left := make(map[Decl]bool, len(all))
	for _, d := range all {
		left[d] = true
	}
	list := make([]Decl, 0, len(all))
	for _, d := range append(slices.Clip(p.Order), all...) {
		if left[d] {
			list = append(list, d)
			delete(left, d)
		}
	}
	return list
}

// printer appends lines to its text.
type printer struct {
	b     []byte
	depth int
}

func appendProgram(b []byte, p *Program) []byte {
	pr := &printer{b: b}
	afterFunc := false
	for i, d := range p.decls() {
		f, isFunc := d.(*Func)
		pr.emptyLine(i > 0 && (isFunc || afterFunc))
		switch d := d.(type) {
		case *Dim:
			pr.above(d.Comments, i == 0 || afterFunc)
			pr.b = appendDim(pr.b, d)
			pr.endLine(d.Comments)
		case *Mesh:
			pr.above(d.Comments, i == 0 || afterFunc)
			pr.b = appendMesh(pr.b, d)
			pr.endLine(d.Comments)
		case *Func:
			pr.above(f.Comments, true)
			pr.function(f)
		}
		afterFunc = isFunc
	}
	pr.comments(p.End, len(p.End) > 0 && p.End[0].Blank && len(pr.b) > 0)
	return pr.b
}

func (pr *printer) function(f *Func) {
	start := len(pr.b)
	pr.b = appendHead(pr.b, f, false)
	if width(pr.b[start:]) > headWidth && len(f.Params) > 0 {
		pr.b = appendHead(pr.b[:start], f, true)
	}
	pr.b = append(pr.b, ' ')
	if f.Body == nil || emptyBlock(f.Body) && !f.Comments.HasTrail {
		pr.b = append(pr.b, "{}\n"...)
		return
	}
	pr.block(f.Body, f.Comments)
	pr.b = append(pr.b, '\n')
}

func emptyBlock(b *Block) bool { return len(b.Stmts) == 0 && len(b.Tail) == 0 }

// block prints "{", the statements and "}", without a line end after "}".
func (pr *printer) block(b *Block, head Comments) {
	pr.b = append(pr.b, '{')
	pr.endLine(head)
	pr.depth++
	for i := 0; i < len(b.Stmts); i++ {
		n, in := nestedRun(b.Stmts[i:])
		pr.stmt(b.Stmts[i+n], in, i == 0)
		i += n
	}
	pr.comments(b.Tail, b.TailBlank && len(b.Stmts) > 0)
	pr.depth--
	pr.indent()
	pr.b = append(pr.b, '}')
}

// stmt prints a statement with its blocks.
func (pr *printer) stmt(s *Stmt, in operations, first bool) {
	pr.above(s.Comments, first)
	pr.indent()
	if pr.onOneLine(s) {
		pr.endLine(s.Comments)
		return
	}
	pr.b = appendStmt(pr.b, s, in)
	if s.Body == nil {
		pr.endLine(s.Comments)
		return
	}
	pr.blocks(s)
	pr.b = append(pr.b, '\n')
}

// blocks prints the blocks of s after its head.
func (pr *printer) blocks(s *Stmt) {
	pr.b = append(pr.b, ' ')
	pr.block(s.Body, s.Comments)
	if s.Else == nil {
		return
	}
	pr.b = append(pr.b, " else "...)
	n := elseIf(s)
	if n == nil {
		pr.block(s.Else, Comments{})
		return
	}
	pr.b = appendStmt(pr.b, n, nil)
	pr.blocks(n)
}

// onOneLine prints an on or for block on one line, if it has at most one simple statement, is short, and has no comment
// inside.
func (pr *printer) onOneLine(s *Stmt) bool {
	if s.Op != OpOn && s.Op != OpFor && s.Op != OpGroup || s.Body == nil || len(s.Body.Tail) > 0 {
		return false
	}
	n, in := nestedRun(s.Body.Stmts)
	if len(s.Body.Stmts) > n+1 {
		return false
	}
	start := len(pr.b)
	b := appendStmt(pr.b, s, nil)
	if len(s.Body.Stmts) == 0 {
		if s.Comments.HasTrail {
			return false
		}
		pr.b = append(b, " {}"...)
		return true
	}
	inner := s.Body.Stmts[n]
	if inner.Body != nil || len(inner.Comments.Lead) > 0 || inner.Comments.HasTrail {
		return false
	}
	b = append(b, " { "...)
	b = appendStmt(b, inner, in)
	b = append(b, " }"...)
	if 2*pr.depth+width(b[start:]) > oneLineWidth {
		return false
	}
	pr.b = b
	return true
}

// width returns the number of characters in b.
func width(b []byte) int { return utf8.RuneCount(b) }

const spaces = "                                                                "

func (pr *printer) indent() {
	n := 2 * pr.depth
	for ; n > len(spaces); n -= len(spaces) {
		pr.b = append(pr.b, spaces...)
	}
	pr.b = append(pr.b, spaces[:n]...)
}

func (pr *printer) emptyLine(wanted bool) {
	if wanted {
		pr.b = append(pr.b, '\n')
	}
}

// above prints the comments above a declaration or statement, and an empty line before it where the source had one. It
// prints no empty line before the first statement of a block, or after another empty line.
func (pr *printer) above(c Comments, first bool) {
	pr.comments(c.Lead, c.Blank && !first)
	if len(c.Lead) == 0 {
		pr.emptyLine(c.Blank && !first)
	} else {
		pr.emptyLine(c.Gap)
	}
}

// comments prints comments on lines of their own, below an empty line if blank.
func (pr *printer) comments(list []Comment, blank bool) {
	for i, c := range list {
		pr.emptyLine(i == 0 && blank || i > 0 && c.Blank)
		pr.indent()
		pr.b = append(pr.b, "//"...)
		pr.b = append(pr.b, c.Text...)
		pr.b = append(pr.b, '\n')
	}
}

// endLine ends a line with its comment.
func (pr *printer) endLine(c Comments) {
	if c.HasTrail {
		pr.b = append(pr.b, "  //"...)
		pr.b = append(pr.b, c.Trail...)
	}
	pr.b = append(pr.b, '\n')
}
