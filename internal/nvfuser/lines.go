package nvfuser

import (
	"sort"
	"strings"

	"hocket.example/hocket/ir"
)

// line is a logical line of the dump, which consists of one or more physical lines.
type line struct {
	text   string
	indent int
	// parts records from which positions in the file the text was read, in the order of offsets in the text.
	parts []part
}

// part is a piece of a logical line. The text that begins at the offset off is at pos in the file.
type part struct {
	off int
	pos ir.Pos
}

// at returns the position of the byte at offset off.
func (l *line) at(off int) ir.Pos {
	i := sort.Search(len(l.parts), func(i int) bool { return l.parts[i].off > off }) - 1
	p := l.parts[max(i, 0)]
	return ir.Pos{Line: p.pos.Line, Col: p.pos.Col + int32(off-p.off)}
}

// start returns the position of the first byte of the line.
func (l *line) start() ir.Pos { return l.parts[0].pos }

// joiner combines physical lines to logical lines. It joins a line to the previous line if the previous line has
// unclosed brackets, or if the line can only be a continuation. A continuation begins with "=" or an operator, or
// it is in a container and is indented less than the container's statements.
type joiner struct {
	lines []line
	text  strings.Builder // the text of the current line; valid while parts is not empty
	parts []part
	indnt int
	depth int
	// first is the indentation of the first statement of the container, or -1 before that statement. Lines that are
	// indented less are continuations of the previous line.
	first int
	// base is the indentation of the container's first line, which is the first column of the dump.
	base int
	// blank reports whether the last physical line ended with a blank.
	blank bool
}

const (
	headWord = "%HostIrContainer"
	kernel   = "%kernel"
	unitWord = "HostUnit"
	defsWord = "Index definitions:"
	endWord  = "END." // the last line of a dump in the form of pull request 2518
)

// maxLines and maxWords limit the size of a dump. These limits also bound the memory and time of every step that reads
// the whole dump.
const (
	maxLines = 1 << 16
	maxWords = 1 << 20 // words and punctuation marks
)

// splitLines returns the logical lines of a dump.
func splitLines(raws []rawLine) []line {
	j := &joiner{first: -1}
	inside := false // whether the current line is inside a container, whose indentation has a meaning
	for _, l := range raws {
		if len(j.lines) > maxLines {
			break // Import reports the error that there are too many lines
		}
		raw, ended := l.text, l.text
		raw = strings.TrimRight(raw, " \t")
		trimmed := strings.TrimLeft(raw, " \t")
		if trimmed == "" {
			continue
		}
		indent := len(raw) - len(trimmed)
		pos := ir.Pos{Line: l.pos.Line, Col: l.pos.Col + int32(indent)}
		switch {
		case isSection(trimmed) && j.mayEnd():
			if inside = strings.HasPrefix(trimmed, headWord); inside {
				j.base = indent
			}
			j.begin(trimmed, indent, pos)
		case j.continues(trimmed, indent, inside):
			j.extend(trimmed, indent, pos)
		default:
			if inside && j.first < 0 {
				j.first = indent
			}
			j.begin(trimmed, indent, pos)
		}
		j.blank = len(ended) > len(raw)
	}
	j.end()
	return j.lines
}

// isSection reports whether a line begins or ends a section of the dump.
func isSection(s string) bool {
	return strings.HasPrefix(s, headWord) || strings.HasPrefix(s, kernel) || strings.HasPrefix(s, "}") ||
		strings.HasPrefix(s, unitWord) || strings.HasPrefix(s, defsWord) || s == endWord
}

// mayEnd reports whether the current line can be complete.
func (j *joiner) mayEnd() bool { return j.depth <= 0 || len(j.parts) == 0 || j.listEnds() }

// listEnds handles ShareMemHandles, which nvFuser prints without the closing parenthesis of its list. The list ends
// after the comma that follows a communication.
func (j *joiner) listEnds() bool {
	s := j.text.String()
	return j.depth == 1 && strings.HasPrefix(s, "ShareMemHandles(") && strings.HasSuffix(s, "),")
}

func (j *joiner) continues(s string, indent int, inside bool) bool {
	switch {
	case len(j.parts) == 0:
		return false
	case !j.mayEnd():
		return true
	case strings.ContainsRune("=+*/", rune(s[0])) || s[0] == '-' && !strings.HasPrefix(s, "--"):
		return true
	case strings.HasPrefix(j.text.String(), headWord):
		return !strings.HasSuffix(j.text.String(), ":")
	}
	return inside && indent < j.first
}

func (j *joiner) begin(s string, indent int, pos ir.Pos) {
	j.end()
	j.indnt, j.depth = indent, 0
	j.parts = append(j.parts, part{0, pos})
	j.text.WriteString(s)
	j.depth = depthOf(withoutOpening(s))
}

// extend appends s, the text of a physical line, to the current line. A physical line that begins in the first column
// of the dump is the rest of a broken line, and may begin within a word. An indented physical line was printed as a
// separate line, so it is appended after a blank.
func (j *joiner) extend(s string, indent int, pos ir.Pos) {
	if indent > j.base || j.blank {
		j.text.WriteByte(' ')
	}
	j.parts = append(j.parts, part{j.text.Len(), pos})
	j.text.WriteString(s)
	j.depth += depthOf(s)
}

func (j *joiner) end() {
	if len(j.parts) > 0 {
		j.lines = append(j.lines, line{text: j.text.String(), indent: j.indnt, parts: j.parts})
	}
	j.text.Reset()
	j.parts, j.depth = nil, 0
}

// withoutOpening removes the text that opens a section, such as "%kernel {". The brace of a section is closed on
// another line, so it must not count as an unclosed bracket.
func withoutOpening(s string) string {
	for _, w := range []string{headWord, kernel} {
		if rest, ok := strings.CutPrefix(s, w); ok {
			return strings.TrimPrefix(strings.TrimLeft(rest, " "), "{")
		}
	}
	if strings.HasPrefix(s, "}") {
		return ""
	}
	return s
}

// depthOf returns the number of brackets that are opened but not closed.
func depthOf(s string) int {
	d := 0
	for i := range len(s) {
		switch s[i] {
		case '(', '[', '{':
			d++
		case ')', ']', '}':
			d--
		}
	}
	return d
}
