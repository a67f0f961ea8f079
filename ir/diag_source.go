package ir

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxShownLine limits the number of bytes that messages show of a source line or of a name.
const maxShownLine = 400

// clip shortens a name to the length that messages show.
func clip(name string) string {
	if len(name) <= maxShownLine {
		return name
	}
	return name[:runeStart(name, maxShownLine)] + "…"
}

// excerpt returns the part of a source line that is shown for byte col, counted from 1, and the white space before the
// caret. Tabs are preserved, so that the caret is aligned for any tab width.
func excerpt(line string, col int) (shown, indent string) {
	at := runeStart(line, col-1)
	cut := ""
	if from := runeStart(line, at-maxShownLine/2); len(line) > maxShownLine && from > 0 {
		cut, line, at = "…", line[from:], at-from
	}
	shown, before := printable(cut+clip(line)), printable(cut+line[:at])
	indent = strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, before)
	return shown, indent
}

// runeStart returns the index of the first byte of the character that contains byte i of s. The index i may be out of
// range.
func runeStart(s string, i int) int {
	i = max(0, min(i, len(s)))
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// printable replaces the characters that a terminal would interpret: control characters and characters that change the
// direction of text.
func printable(s string) string { return Printable(s) }

// Printable returns s with visible substitutes for the characters that a terminal would interpret.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return r
		case r < ' ':
			return '␀' + r
		case r == 0x7f:
			return '␡'
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Brief returns the text of s, shortened for a message.
func Brief(s fmt.Stringer) string {
	text := s.String()
	if len(text) <= maxBrief {
		return text
	}
	return strings.ToValidUTF8(text[:maxBrief], "") + "…"
}

const maxBrief = 160
