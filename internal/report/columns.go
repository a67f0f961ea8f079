package report

import (
	"html/template"
	"strings"
	"time"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// column is one of the texts that the page shows next to each other: the source, or the result of a pass.
type column struct {
	Name string
	// Pass reports that the column is the result of a pass. Duration is the time that the pass took.
	Pass     bool
	Duration time.Duration
	Changed  bool
	// Folded reports that the column is hidden until the user clicks it. All columns are folded except the source
	// and the last one that differs from its predecessor.
	Folded bool
	Parts  []part
	// Lines is the number of lines of the column. Added is the number of lines that the previous column does not have,
	// and Removed the number of lines that only the previous column has.
	Lines, Added, Removed int
}

// part is a function, or the lines between two functions. Func is empty for lines between functions.
type part struct {
	Func  string
	First int // number of the part's first line in the column
	Lines []line
}

// line is one line of a text.
type line struct {
	text string
	HTML template.HTML
	// Origin is the line of the source from which lowering made this line; 0 if unknown.
	Origin int32
	// New reports that the same function in the previous column does not have this line.
	New bool
}

// columns returns the source and the results of the passes, in order. If the source is not a program of the
// language, the imported program is between them.
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
	// the source is compared in canonical form, because its formatting may differ from that of the passes
	before := canonical
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

// foldMiddle folds the results of all passes between the source and the final result.
func foldMiddle(list []*column) {
	result := len(list) - 1
	for result > 0 && list[result].Pass && !list[result].Changed {
		result--
	}
	for i, c := range list {
		c.Folded = i > 0 && i != result
	}
}

// canonical returns the source in the format in which passes print programs. If the source was built by functions
// instead of parsed, the lines of all columns have no origins.
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

// origins maps line numbers of a text to line numbers of the source.
type origins map[int32]int32

// origins returns, for the lines of p, the lines of the source from which lowering made them. places holds the position
// in the source of each statement of p. A function without positions is assigned to the source's function of the same
// name.
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

// add records the origin of a line, unless an earlier statement of the line has recorded one.
func (o origins) add(at, from ir.Pos) {
	if _, ok := o[at.Line]; !ok && at.Valid() && from.Valid() {
		o[at.Line] = from.Line
	}
}

// ownLines returns the origins of the lines of the source, each of which is its own origin.
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

// written identifies a line by its text without indentation and the function that contains it.
type written struct{ fn, text string }

// compare marks the lines of c that the previous column lacks. compare counts these lines, and the lines that only the
// previous column has. Lines with equal text count as the same line wherever they are, because passes do not move the
// lines that they keep.
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
