package nvfuser

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// maxErrors is the number of errors after which the importer stops, because more errors would not help the user.
const maxErrors = 50

// IsDump reports whether src is a Host IR dump, or a log that contains one.
func IsDump(src string) bool {
	if strings.HasPrefix(strings.TrimLeft(src, " \t\r\n"), headWord) {
		return true
	}
	for i := strings.Index(src, headWord); i >= 0; {
		from := strings.LastIndexByte(src[:i], '\n') + 1
		line, _, _ := strings.Cut(src[from:], "\n")
		// A program in hocket's own language may contain a dump in a comment.
		if _, at := headAt(line); at >= 0 && !strings.HasPrefix(strings.TrimSpace(line), "//") {
			return true
		}
		next := strings.Index(src[i+1:], headWord)
		if next < 0 {
			return false
		}
		i += 1 + next
	}
	return false
}

// reader builds the tree of a dump.
type reader struct {
	prog  *ir.Program // the names and texts that diagnostics need
	ds    ir.Diagnostics
	lines []line
	next  int
	words int // words read so far
	// starts holds the offset of the beginning of each line in the source, so that a diagnostic finds its line
	// without a search.
	starts []int
	// indented reports whether some statement is indented more than the first one. If so, the dump has kept its
	// indentation.
	indented bool
}

func (r *reader) errorf(pos ir.Pos, format string, args ...any) *ir.Diagnostic {
	d := &ir.Diagnostic{Kind: "import", File: r.prog.File, Pos: pos, Message: fmt.Sprintf(format, args...),
		Line: r.sourceLine(pos)}
	if len(r.ds) < maxErrors {
		r.ds = append(r.ds, d)
	}
	return d
}

// sourceLine returns the physical line that contains pos.
func (r *reader) sourceLine(pos ir.Pos) string {
	if !pos.Valid() {
		return ""
	}
	if r.starts == nil {
		r.starts = []int{0}
		for i := range len(r.prog.Source) {
			if r.prog.Source[i] == '\n' {
				r.starts = append(r.starts, i+1)
			}
		}
	}
	if int(pos.Line) > len(r.starts) {
		return ""
	}
	text, _, _ := strings.Cut(r.prog.Source[r.starts[pos.Line-1]:], "\n")
	return strings.TrimSuffix(text, "\r")
}

func (r *reader) full() bool { return len(r.ds) >= maxErrors }

// read returns the tree of the dump. If there are errors, the tree contains only the parts that could be read.
func (r *reader) read() *dump {
	r.indented = slices.ContainsFunc(statementLines(r.lines), func(l line) bool { return l.indent > r.lines[1].indent })
	d := &dump{units: map[string]*unit{}, defs: map[string]*scalar{}}
	r.head(d)
	d.body = r.block(0, 0)
	closed := false
	for r.next < len(r.lines) && !r.full() {
		l := &r.lines[r.next]
		r.next++
		switch {
		case strings.HasPrefix(l.text, unitWord):
			r.unit(d, l)
		case l.text == endWord && !closed:
			closed, d.end = true, l.start()
		case strings.HasPrefix(l.text, "}") && !closed:
			closed, d.end = true, l.start()
			if rest := strings.TrimSpace(l.text[1:]); rest != "" && !strings.HasPrefix(rest, "//") {
				r.errorf(l.start(), "unexpected text after the dump's end: %s",
					brief(rest)).Help = "statements of the dump must be on separate lines before the \"}\""
			}
		case strings.HasPrefix(l.text, defsWord):
			r.definitions(d)
		case strings.HasPrefix(l.text, headWord):
			r.errorf(l.start(), "a second dump begins here; only one can be imported").Help =
				"every rank prints its program, and prints it again for every fusion: keep one of these dumps"
			return d
		default:
			c := r.cursor(l)
			c.expected("a HostUnit, \"}\" or \"" + defsWord + "\"")
		}
	}
	if !closed && len(r.ds) == 0 && len(r.lines) > 0 {
		d := r.errorf(r.lines[len(r.lines)-1].start(), "the dump ends without \"} // %%HostIrContainer\"")
		d.Kind, d.Help = inputKind, "copy the dump with its end"
	}
	return d
}

// head reads "%HostIrContainer { (inputs) -> (outputs) :".
func (r *reader) head(d *dump) {
	if len(r.lines) == 0 {
		r.errorf(ir.Pos{Line: 1, Col: 1}, "the dump is empty")
		return
	}
	l := &r.lines[0]
	r.next = 1
	d.pos = l.start()
	c := r.cursor(l)
	c.want("%")
	c.want("HostIrContainer")
	c.want("{")
	if c.got("HOST") {
		if c.is("FUSION") {
			c.fail("dumps before pull request 2518 give different tensors the same name").Help =
				"print the dump with a newer nvFuser"
		}
		c.want("IRS")
		c.want(":")
	}
	d.inputs = c.tensorList("(", ")")
	c.want("->")
	d.outputs = c.tensorList("(", ")")
	c.want(":")
	c.done()
}

// tensorList reads a comma-separated list of tensors between brackets.
func (c *cursor) tensorList(open, end string) []*tensor {
	var list []*tensor
	c.want(open)
	for !c.bad && !c.is(end) {
		list = append(list, c.tensor())
		if !c.got(",") {
			break
		}
	}
	c.want(end)
	return list
}

// done reports an error if the line has not ended.
func (c *words) done() {
	if !c.bad && c.tok.kind != tokEnd {
		c.expected("the line's end")
	}
}

// block reads statements that have the same indentation as the first one, up to the next section of the dump. The
// first statement must be indented more than outer.
func (r *reader) block(outer, nest int) []*stmt {
	var list []*stmt
	indent := -1
	for r.next < len(r.lines) && !r.full() {
		l := &r.lines[r.next]
		if isSection(l.text) && !strings.HasPrefix(l.text, kernel) || nest > 0 && l.indent <= outer ||
			strings.HasPrefix(l.text, "ELSE") {
			break
		}
		if indent < 0 {
			indent = l.indent
		} else if l.indent != indent {
			r.errorf(l.start(), "this line is indented by %d blanks, but the statements before it by %d", l.indent,
				indent).Help = "the indentation determines which statements a loop contains: copy the dump as it " +
				"was printed"
			r.next++
			continue
		}
		r.next++
		list = append(list, r.statements(l, nest)...)
	}
	return list
}

// statements reads the statements of a line. A line may contain several statements, because nvFuser does not print
// a newline after each.
func (r *reader) statements(l *line, nest int) []*stmt {
	var list []*stmt
	c := r.cursor(l)
	for !c.bad && c.tok.kind != tokEnd {
		s := c.statement()
		if c.bad {
			break
		}
		list = append(list, s)
		if s.kind == stFor || s.kind == stIf {
			c.done()
			r.bodies(s, l, nest+1)
		}
	}
	return list
}

// bodies reads the block of a loop, or the blocks of a conditional.
func (r *reader) bodies(s *stmt, l *line, nest int) {
	if nest > maxNest {
		r.errorf(s.pos, "blocks are nested deeper than %d, which is the limit", maxNest)
		r.next = len(r.lines)
		return
	}
	what := map[stmtKind]string{stFor: "loop", stIf: "conditional"}[s.kind]
	s.body = r.block(l.indent, nest)
	if len(s.body) == 0 && len(r.ds) == 0 && !r.indented {
		r.errorf(s.pos, "the body of this %s is missing: the next line is not indented more than this one", what).Help =
			"the indentation may have been lost: copy the dump as it was printed, or indent the body by hand"
	}
	if s.kind != stIf || r.next >= len(r.lines) {
		return
	}
	if e := &r.lines[r.next]; strings.HasPrefix(e.text, "ELSE") && e.indent == l.indent {
		r.next++
		c := r.cursor(e)
		c.want("ELSE")
		c.want(":")
		c.done()
		s.alt = r.block(l.indent, nest)
	}
}

// definitions reads index definitions such as "i84 = i82 % 8;" up to the end of the dump.
func (r *reader) definitions(d *dump) {
	for r.next < len(r.lines) && !isSection(r.lines[r.next].text) {
		c := r.cursor(&r.lines[r.next])
		r.next++
		name := c.name("an index")
		c.want("=")
		s := c.scalar()
		c.got(";")
		c.done()
		if _, twice := d.defs[name]; twice && !c.bad {
			r.errorf(s.pos, "the index %s is defined twice", brief(name))
		}
		d.defs[name] = s
	}
}

// unit reads "HostUnit0: Inputs={…} -> Outputs={…}" and the kernel below it.
func (r *reader) unit(d *dump, l *line) {
	c := r.cursor(l)
	u := &unit{pos: c.pos()}
	name := c.word("a HostUnit")
	c.want(":")
	if c.got("[") {
		u.elided = true
		c.tok = token{off: len(l.text)}
		d.units[name] = u
		return
	}
	c.want("Inputs")
	c.want("=")
	u.inputs = c.tensorList("{", "}")
	c.want("->")
	c.want("Outputs")
	c.want("=")
	u.outputs = c.tensorList("{", "}")
	if c.got("Inputs") { // the inputs and outputs of the unit are on the same line
		c.want(":")
	}
	c.done()
	if _, twice := d.units[name]; twice {
		r.errorf(u.pos, "%s is printed twice", brief(name))
	}
	d.units[name] = u
	r.kernel(u)
}

// kernel reads "%kernel {", statements, "}".
func (r *reader) kernel(u *unit) {
	for r.next < len(r.lines) && isPreamble(r.lines[r.next].text) {
		r.next++ // the inputs and outputs of the kernel repeat those of the unit's first line
	}
	if r.next >= len(r.lines) || !strings.HasPrefix(r.lines[r.next].text, kernel) {
		r.errorf(u.pos, "the dump does not contain the %%kernel of this HostUnit").Help =
			"copy the dump with its HostUnits, which follow the statements"
		return
	}
	r.next++
	for r.next < len(r.lines) && !isSection(r.lines[r.next].text) {
		l := &r.lines[r.next]
		r.next++
		list := r.statements(l, 1)
		for _, s := range list {
			if s.kind != stCompute && s.kind != stSlice && s.kind != stAlias {
				r.errorf(s.pos, "this statement is not a computation; a kernel contains only computations")
			}
		}
		u.body = append(u.body, list...)
	}
	if r.next < len(r.lines) && strings.HasPrefix(r.lines[r.next].text, "}") {
		r.next++
		return
	}
	r.errorf(u.pos, "the %%kernel of this HostUnit has no closing \"}\"").Help = "copy the whole dump"
}

func isPreamble(s string) bool {
	return s == "Inputs:" || s == "Outputs:" || len(s) > 1 && s[0] == 'T' && isDigit(s[1]) && !strings.Contains(s, "=")
}
