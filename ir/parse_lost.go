package ir

import (
	"strings"
	"unicode/utf8"
)

// Lost describes the parts of a program that the parser could not read.
type Lost struct {
	// All reports that so much is missing, such as a mesh or the end of a function, that the rest cannot be checked.
	All bool
	// Funcs reports that the list of the program's functions is incomplete. Either a part that was not read may be
	// a function, or the text has no function and this error was reported.
	Funcs bool
	// Heads holds the names of functions whose parameters and results are unknown.
	Heads map[string]bool
	// Lines holds the line ranges in which the head or statements of a function were not read. The names that these
	// statements define occur in those lines.
	Lines map[*Func][]lineRange
	// Names holds the functions in which a part was not read that may define arbitrary names.
	Names map[*Func]bool
}

// lineRange is the range of lines from first to last, inclusive.
type lineRange struct{ first, last int32 }

func (l *Lost) dropHead(name string) {
	if l.Heads == nil {
		l.Heads = map[string]bool{}
	}
	l.Heads[name] = true
	l.All = l.All || name == ""
}

// dropLines records lines of f that were not read. The argument named reports that every name that the dropped
// statements define occurs in these lines.
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
