package nvfuser

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// A dump that was pasted into a page without a code block has lost its indentation. The indentation determines which
// statements each loop contains. The importer therefore tries all ways to indent the dump. Most ways are refused,
// because the program would use a loop's variable after the loop, would read memory that no statement has written, or
// would leave the current stream undetermined. If all remaining ways give the same program, that program is the result.
// Otherwise the user selects one of the programs by its number.

// statementLines returns the lines that contain the statements of the container.
func statementLines(lines []line) []line {
	if len(lines) == 0 {
		return nil
	}
	list := lines[1:]
	if i := slices.IndexFunc(list, func(l line) bool { return isSection(l.text) }); i >= 0 {
		list = list[:i]
	}
	return list
}

// unindented reports whether the dump has loops or conditionals, but no statement is indented.
func unindented(lines []line) bool {
	blocks := false
	for _, l := range statementLines(lines) {
		if l.indent > lines[0].indent {
			return false
		}
		blocks = blocks || opens(l.text)
	}
	return blocks
}

func opens(text string) bool {
	return strings.HasPrefix(text, "FOR ") || strings.HasPrefix(text, "IF ") || strings.HasPrefix(text, "ELSE")
}

// maxReadings limits the number of ways to indent a dump that are tried, and maxReadLines the lines read in total.
const (
	maxReadings  = 200
	maxReadLines = 20_000
)

// indentDefine is the name in --define that selects one of the ways to indent a dump.
const indentDefine = "indentation"

// reading is one way to indent a dump, and the resulting program.
type reading struct {
	depths []int
	prog   *ir.Program
	rest   map[string]string
	ds     ir.Diagnostics
}

// importUnindented imports a dump whose statements have lost their indentation.
func importUnindented(
	file, src string, lines []line, defines map[string]string,
) (*ir.Program, map[string]string, ir.Diagnostics) {
	given, chosen := defines[indentDefine]
	defines = without(defines, indentDefine)
	var refused ir.Diagnostics
	var list []reading // readings that give different programs
	seen := map[string]bool{}
	in := &indenter{list: statementLines(lines)}
	in.findUses()
	in.limit = min(maxReadings, maxReadLines/len(in.list))
	in.each(func(depths []int) bool {
		indented := slices.Clone(lines)
		for i, d := range depths {
			indented[1+i].indent += 2 * (d + 1)
		}
		prog, rest, ds := importLines(file, src, indented, defines)
		if prog != nil {
			if _, wrong := checker.Check(prog); wrong.HasErrors() {
				prog, ds = nil, wrong
			}
		}
		switch {
		case prog == nil && refused == nil:
			refused = ds
		case prog != nil && !seen[prog.String()]:
			seen[prog.String()] = true
			list = append(list, reading{slices.Clone(depths), prog, rest, ds})
		}
		return true
	})
	r := &reader{prog: &ir.Program{File: file, Source: src}}
	first := in.list[slices.IndexFunc(in.list, func(l line) bool { return opens(l.text) })].start()
	n, err := strconv.Atoi(given)
	switch {
	case chosen && (err != nil || n < 1 || n > len(list)):
		r.errorf(first, "--define %s=%s: the number must be from 1 to the number of ways to indent the dump, "+
			"which is %d", indentDefine, given, len(list)).Help =
			"omit this --define to list the ways"
		return nil, defines, r.ds
	case len(list) > 0 && chosen, len(list) == 1 && !in.more:
		way := list[max(n, 1)-1]
		d := r.errorf(first, "the dump has lost its indentation; only one way to indent it gives a program, with "+
			"these loops and conditionals")
		d.Severity, d.Notes = ir.Warning, in.bodies(way.depths)
		d.Help = "if the original was indented differently, indent the dump by hand"
		if chosen {
			d.Message = fmt.Sprintf("the dump has lost its indentation; --define %s=%d selects these loops and "+
				"conditionals", indentDefine, n)
		}
		ds := append(r.ds, way.ds...)
		ds.Sort()
		return way.prog, way.rest, ds
	}
	d := r.errorf(first, "the dump has lost its indentation, which determines the statements in this loop or "+
		"conditional")
	d.Help = "copy the dump as it was printed, or indent its loops and conditionals by hand"
	switch {
	case len(list) > 0:
		d.Message += fmt.Sprintf("; the ways to indent it give %d different programs", len(list))
		if in.more {
			d.Message += " or more"
		}
		d.Help = fmt.Sprintf("copy the dump as it was printed, or select one of these programs, for example with "+
			"--define %s=1", indentDefine)
		for i, way := range list[:min(len(list), maxShown)] {
			d.Notes = append(d.Notes, in.differs(i+1, list, way)...)
		}
		if more := len(list) - maxShown; more > 0 {
			d.Notes = append(d.Notes, ir.Note{Message: fmt.Sprintf("%d more programs are not listed", more)})
		}
	case refused.HasErrors():
		d.Notes = append(d.Notes, ir.Note{Pos: refused[0].Pos,
			Message: "every way to indent the dump gives an error; for example, " + refused[0].Message})
	default:
		d.Notes = append(d.Notes, ir.Note{Message: "there are too many ways to indent it to try them all"})
	}
	return nil, defines, r.ds
}

// maxShown is the largest number of ways to indent a dump that an error lists.
const maxShown = 12

// differs describes the n-th way to indent the dump. It lists which statements are in those loops and conditionals
// in which the ways differ.
func (in *indenter) differs(n int, list []reading, way reading) []ir.Note {
	var out []ir.Note
	for i, note := range in.bodies(way.depths) {
		same := true
		for _, other := range list {
			same = same && in.bodies(other.depths)[i].Message == note.Message
		}
		if !same {
			note.Message = fmt.Sprintf("%s=%d: %s", indentDefine, n, note.Message)
			out = append(out, note)
		}
	}
	return out
}

// without returns a copy of m without the key.
func without(m map[string]string, key string) map[string]string {
	if _, there := m[key]; !there {
		return m
	}
	m = maps.Clone(m)
	delete(m, key)
	return m
}

// indenter enumerates the ways to indent statements.
type indenter struct {
	list []line
	// lastUse maps the line of a loop to the last line that uses the loop's variable.
	lastUse map[int]int
	limit   int
	more    bool // set if there are more ways to indent the statements than limit
	stack   []int
	depths  []int
}

// variable returns the variable of the loop that a line opens.
func variable(text string) string {
	if rest, ok := strings.CutPrefix(text, "FOR "); ok {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return ""
}

// findUses finds, for each loop, the last line that uses the loop's variable. The search stops at the next loop whose
// variable has the same name.
func (in *indenter) findUses() {
	in.lastUse = map[int]int{}
	open := map[string]int{}
	for i := range in.list {
		l := &in.list[i]
		if v := variable(l.text); v != "" {
			open[v] = i
		}
		for t := l.next(0); t.kind != tokEnd; t = l.next(t.off + len(t.text)) {
			if at, ok := open[t.text]; ok && t.kind == tokWord {
				in.lastUse[at] = i
			}
		}
	}
}

// each is an iterator over the ways to indent the statements: it passes the depths of all statements to the function
// see, until see returns false. Ways with short blocks come first.
func (in *indenter) each(see func(depths []int) bool) bool {
	i := len(in.depths)
	if i == len(in.list) {
		if in.limit--; in.limit < 0 {
			in.more = true
			return false
		}
		return see(in.depths)
	}
	text, stack, depths := in.list[i].text, in.stack, in.depths
	defer func() { in.stack, in.depths = stack, depths }()
	for depth := range len(stack) + 1 {
		if !in.fits(i, depth) {
			continue
		}
		in.stack = slices.Clone(stack[:depth])
		in.depths = append(depths[:i:i], depth)
		if opens(text) {
			in.stack = append(in.stack, i)
		}
		if !in.each(see) {
			return false
		}
		in.stack, in.depths = stack, depths
	}
	return true
}

// fits reports whether statement i may have the given depth. With this depth, the statement closes all deeper
// blocks.
func (in *indenter) fits(i, depth int) bool {
	closed, text := in.stack[depth:], in.list[i].text
	for _, b := range closed {
		if b == i-1 || in.lastUse[b] >= i && variable(in.list[b].text) != "" {
			return false
		}
	}
	if v := variable(text); v != "" {
		for _, b := range in.stack[:depth] {
			if variable(in.list[b].text) == v {
				return false
			}
		}
	}
	if strings.HasPrefix(text, "ELSE") {
		return len(closed) > 0 && strings.HasPrefix(in.list[closed[0]].text, "IF ")
	}
	return true
}

// bodies describes which lines are in each loop and conditional, if the statements have the given depths.
func (in *indenter) bodies(depths []int) []ir.Note {
	var notes []ir.Note
	for i, l := range in.list {
		if !opens(l.text) {
			continue
		}
		last := i + 1
		for last+1 < len(depths) && depths[last+1] > depths[i] {
			last++
		}
		last = min(last, len(in.list)-1)
		from, to := in.list[min(i+1, last)].start().Line, in.list[last].parts[len(in.list[last].parts)-1].pos.Line
		lines := fmt.Sprintf("lines %d to %d", from, to)
		if from == to {
			lines = fmt.Sprintf("line %d", from)
		}
		notes = append(notes, ir.Note{Pos: l.start(), Message: "this has " + lines})
	}
	return notes
}
