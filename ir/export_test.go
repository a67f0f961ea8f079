package ir

// This file exports the parts of the package that external tests use.

const MaxShownLine = maxShownLine

var Excerpt = excerpt

// CountComments returns the number of comments in a text.
func CountComments(src string) int {
	l := newLexer(src)
	for l.next().kind != tokEOF {
	}
	return len(l.pending)
}
