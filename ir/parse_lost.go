package ir

import (
	"strings"
	"unicode/utf8"
)

// Lost is what the parser could not read of a program.
type Lost struct {
	// all: so much that nothing can be said of the rest, such as a mesh or the end
	// of a function.
	All bool
	// funcs: there is no function, which has been told, or what was lost may be one.
	Funcs bool
	// heads names functions of which nobody can say how they are called.
	Heads map[string]bool
	// lines are where statements of a function, or its head, were not read. What
	// they define is not known, but it is named there.
	Lines map[*Func][]lineRange
	// names: something is lost that may have defined any name.
	Names map[*Func]bool
}

// lineRange is the lines from first to last.
type lineRange struct{ first, last int32 }

func (l *Lost) dropHead(name string) {
	if l.Heads == nil {
		l.Heads = map[string]bool{}
	}
	l.Heads[name] = true
	l.All = l.All || name == ""
}

// dropLines notes lines of f; named says that they still tell what they define.
func (l *Lost) dropLines(f *Func, named bool, first, last int32) {
	if l.Lines == nil {
		l.Lines, l.Names = map[*Func][]lineRange{}, map[*Func]bool{}
	}
	l.Lines[f] = append(l.Lines[f], lineRange{first, max(first, last)})
	l.Names[f] = l.Names[f] || !named
}

// Words returns all words in the lines of f that were not read.
func (l *Lost) Words(f *Func, src string) []string {
	if len(l.Lines[f]) == 0 {
		return nil
	}
	var list []string
	lines := strings.Split(src, "\n")
	for _, r := range l.Lines[f] {
		for _, line := range lines[min(int(r.first)-1, len(lines)):min(int(r.last), len(lines))] {
			for _, w := range strings.FieldsFunc(line, func(r rune) bool { return r != '.' && (r >= utf8.RuneSelf || !isWord(byte(r))) }) {
				list = append(list, strings.Trim(w, "."))
			}
		}
	}
	return list
}
