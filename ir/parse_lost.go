package ir

import (
	"strings"
	"unicode/utf8"
)

// lost is what the parser could not read of a program.
type lost struct {
	// all: so much that nothing can be said of the rest, such as a mesh or the end
	// of a function.
	all bool
	// funcs: there is no function, which has been told, or what was lost may be one.
	funcs bool
	// heads names functions of which nobody can say how they are called.
	heads map[string]bool
	// lines are where statements of a function, or its head, were not read. What
	// they define is not known, but it is named there.
	lines map[*Func][]lineRange
	// names: something is lost that may have defined any name.
	names map[*Func]bool
}

// lineRange is the lines from first to last.
type lineRange struct{ first, last int32 }

func (l *lost) dropHead(name string) {
	if l.heads == nil {
		l.heads = map[string]bool{}
	}
	l.heads[name] = true
	l.all = l.all || name == ""
}

// dropLines notes lines of f; named says that they still tell what they define.
func (l *lost) dropLines(f *Func, named bool, first, last int32) {
	if l.lines == nil {
		l.lines, l.names = map[*Func][]lineRange{}, map[*Func]bool{}
	}
	l.lines[f] = append(l.lines[f], lineRange{first, max(first, last)})
	l.names[f] = l.names[f] || !named
}

// words returns all words in the lines of f that were not read.
func (l *lost) words(f *Func, src string) []string {
	if len(l.lines[f]) == 0 {
		return nil
	}
	var list []string
	lines := strings.Split(src, "\n")
	for _, r := range l.lines[f] {
		for _, line := range lines[min(int(r.first)-1, len(lines)):min(int(r.last), len(lines))] {
			for _, w := range strings.FieldsFunc(line, func(r rune) bool { return r != '.' && (r >= utf8.RuneSelf || !isWord(byte(r))) }) {
				list = append(list, strings.Trim(w, "."))
			}
		}
	}
	return list
}
