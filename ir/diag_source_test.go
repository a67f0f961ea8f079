package ir_test

import (
	"hocket.example/hocket/ir"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestExcerpt checks that the excerpt of a line contains no characters that a terminal interprets, that it contains the
// position of the error, and that the caret is below this position.
func TestExcerpt(t *testing.T) {
	long := strings.Repeat("é", 1000)
	for _, c := range []struct {
		line   string
		col    int
		under  string // the text above the caret; "" for the end of the line
		prefix string
	}{
		{"%y = foo %x", 6, "foo", "%y = foo"},
		{"\t%y = foo", 7, "foo", "\t%y = foo"},
		{"a\x1b[31mb", 7, "b", "a␛[31mb"},
		{"\u202ea", 4, "a", "\ufffda"},
		{"\x7f\u0085x", 4, "x", "␡\ufffdx"},
		{"ab", 3, "", "ab"},
		{"ab", 99, "", "ab"},
		{"", 1, "", ""},
		{"ab", 0, "ab", "ab"},
		{"x" + long, 1, "x", "xé"},
		{long + "!" + long, len(long) + 1, "!é", "…é"},
		{long + "!", len(long) + 1, "!", "…é"},
		{"a\xffb", 3, "b", "a\ufffdb"},
	} {
		shown, indent := ir.Excerpt(c.line, c.col)
		if !strings.HasPrefix(shown, c.prefix) || len(shown) > 2*ir.MaxShownLine ||
			strings.ContainsAny(shown, "\x1b\x7f") {
			t.Errorf("%.20q %d: %q", c.line, c.col, shown)
		}
		rest := []rune(shown)[min(utf8.RuneCountInString(indent), len([]rune(shown))):]
		if !strings.HasPrefix(string(rest), c.under) || c.under == "" && len(rest) > 0 {
			t.Errorf("%.20q %d: the caret stands below %.10q", c.line, c.col, string(rest))
		}
	}
}

// TestDiagnosticIsHarmless checks that a program cannot send control characters to the terminal of a user who checks
// it.
func TestDiagnosticIsHarmless(t *testing.T) {
	d := &ir.Diagnostic{Pos: ir.Pos{1, 1}, Message: "\x1bm", Line: "\x1bl", Notes: []ir.Note{{Message: "\x1bn"}},
		Help: "\x1bh\nmore"}
	if s := d.String(); strings.Contains(s, "\x1b") || !strings.Contains(s, "␛h\nmore") {
		t.Errorf("%q", s)
	}
}
