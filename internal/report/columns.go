package report

import (
	"html/template"
	"strings"
	"time"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// column is one text of the page: the source, or the result of a pass.
type column struct {
	Name string
	// Pass says that the column is the result of a pass. Duration is the time of the pass.
	Pass     bool
	Duration time.Duration
	Changed  bool
	// Folded columns open when they are clicked. All columns are folded except the source and the last one that
	// changed.
	Folded bool
	Parts  []part
	// Lines is the number of its lines. Added is the number of lines that the previous column does not have, and Removed
	// the number of lines that only the previous column has.
	Lines, Added, Removed int
}

// part is a function, or the lines between functions. Func is empty for the latter.
type part struct {
	Func  string
	First int // number of its first line in the column
	Lines []line
}

// line is one line of a text.
type line struct {
	text string
	HTML template.HTML
	// Origin is the line of the source from which lowering made this line; 0 if unknown.
	Origin int32
	// New says that the previous column does not have this line in this function.
	New bool
}

// columns returns the source and the stages, in order. If the source is not a program of the language, the imported
// program comes between them.
func columns(l *Lowering) []*column {
	canonical := l.canonical()
	list := []*column{canonical}
	if text := l.Source.Source; text != "" {
		list[0] = newColumn("source", text, l.Source, ownLines(l.Source))
		if _, ds := ir.Parse(l.Source.File, text); ds.HasErrors() {
			canonical.Name = "import"
			list = append(list, canonical)
		}
	}
	before := canonical // compared in canonical form, because the source may be formatted differently
	for i := range l.Stages {
		c := l.stage(&l.Stages[i])
		if c.Changed {
			c.compare(before)
		}
		before = c
		list = append(list, c)
	}
	foldMiddle(list)
	return list
}

// foldMiddle leaves the source and the result open. The results of the passes between them open on a click.
func foldMiddle(list []*column) {
	result := len(list) - 1
	for result > 0 && list[result].Pass && !list[result].Changed {
		result--
	}
	for i, c := range list {
		c.Folded = i > 0 && i != result
	}
}

// canonical is the source in the format of the passes. If the source was built and has no positions, it has no origins.
func (l *Lowering) canonical() *column {
	text := l.Source.String()
	p, _ := ir.Parse(l.Source.File, text)
	var places []ir.Pos
	for _, f := range l.Source.Funcs {
		f.Body.Walk(func(s *ir.Stmt) { places = append(places, s.Pos) })
	}
	from := l.origins(places, p)
	if l.Source.Source == "" {
		from = ownLines(p)
	}
	return newColumn("source", text, p, from)
}

func (l *Lowering) stage(s *lower.Stage) *column {
	p, _ := ir.Parse(s.Pass, s.Text)
	c := newColumn(s.Pass, s.Text, p, l.origins(s.Origins, p))
	c.Pass, c.Duration, c.Changed = true, s.Duration, s.Changed
	return c
}

// origins maps lines of a text to lines of the source.
type origins map[int32]int32

// origins maps the statements of p to their positions in the source. A function is assigned to the source's function
// of the same name.
func (l *Lowering) origins(places []ir.Pos, p *ir.Program) origins {
	out := origins{}
	var stmts []*ir.Stmt
	for _, f := range p.Funcs {
		if was := l.Source.Func(f.Name); was != nil {
			out.add(f.Pos, was.Pos)
		}
		f.Body.Walk(func(s *ir.Stmt) { stmts = append(stmts, s) })
	}
	if len(stmts) != len(places) {
		return out
	}
	for i, s := range stmts {
		out.add(s.Pos, places[i])
	}
	return out
}

// add keeps the first statement of a line.
func (o origins) add(at, from ir.Pos) {
	if _, ok := o[at.Line]; !ok && at.Valid() && from.Valid() {
		o[at.Line] = from.Line
	}
}

// ownLines returns the origins of the source itself.
func ownLines(p *ir.Program) origins {
	out := origins{}
	for _, f := range p.Funcs {
		out.add(f.Pos, f.Pos)
		f.Body.Walk(func(s *ir.Stmt) { out.add(s.Pos, s.Pos) })
	}
	return out
}

// newColumn divides a text into parts at its functions.
func newColumn(name, text string, p *ir.Program, from origins) *column {
	text = strings.TrimSuffix(strings.ToValidUTF8(text, "\ufffd"), "\n")
	texts := strings.Split(text, "\n")
	starts := map[int]string{}
	ends := map[int]bool{}
	for _, f := range p.Funcs {
		starts[int(f.Pos.Line)] = f.Name
		if f.Body != nil {
			ends[int(f.Body.End.Line)] = true
		}
	}
	c := &column{Name: name, Lines: len(texts)}
	for i, t := range texts {
		n := i + 1
		if f, ok := starts[n]; ok || i == 0 || ends[i] {
			c.Parts = append(c.Parts, part{Func: f, First: n})
		}
		last := &c.Parts[len(c.Parts)-1]
		last.Lines = append(last.Lines, line{text: t, HTML: highlight(t), Origin: from[int32(n)]})
	}
	return c
}

// written is the text of a line without indentation, and the function that it is in.
type written struct{ fn, text string }

// compare marks the lines of c that before does not have, and counts the differences in both directions. Equal lines
// count as the same line at any position, since passes do not move the lines that they keep.
func (c *column) compare(before *column) {
	count := map[written]int{}
	for k := range before.each() {
		count[k]++
	}
	for k, l := range c.each() {
		if count[k] > 0 {
			count[k]--
			continue
		}
		l.New = true
		c.Added++
	}
	for _, n := range count {
		c.Removed += n
	}
}

// each yields all lines that are not empty.
func (c *column) each() func(yield func(written, *line) bool) {
	return func(yield func(written, *line) bool) {
		for i := range c.Parts {
			p := &c.Parts[i]
			for j := range p.Lines {
				text := strings.TrimSpace(p.Lines[j].text)
				if text != "" && text != "}" && !yield(written{p.Func, text}, &p.Lines[j]) {
					return
				}
			}
		}
	}
}
