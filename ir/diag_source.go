package ir

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxShownLine bounds the bytes of a source line, or of a name in a message,
// that are shown.
const maxShownLine = 400

// clip shortens a name.
func clip(name string) string {
	if len(name) <= maxShownLine {
		return name
	}
	return name[:runeStart(name, maxShownLine)] + "…"
}

// excerpt returns what is shown of a source line whose byte col, from 1, is to
// be pointed at, and the white space before the caret. Tabs stay tabs, so that
// the caret stands right in any tab width.
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

// runeStart returns where the character at byte i of s begins, for any i.
func runeStart(s string, i int) int {
	i = max(0, min(i, len(s)))
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// printable replaces what a terminal would obey rather than show: control
// characters and those that turn the direction of text.
func printable(s string) string { return Printable(s) }

// Printable is s with signs in the place of characters that would steer a terminal.
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

// Brief shortens a text for a message.
func Brief(s fmt.Stringer) string {
	text := s.String()
	if len(text) <= maxBrief {
		return text
	}
	return strings.ToValidUTF8(text[:maxBrief], "") + "…"
}

const maxBrief = 160
