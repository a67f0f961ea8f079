// Package names prints names from untrusted files.
package names

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quoted returns a name from a file in a form that is safe to print. Unprintable characters, such
// as control characters that affect a terminal or end a line, are escaped as in a Go string,
// without the quotes. Readers of profiles, records and snapshots pass every name through it.
func Quoted(name string) string {
	plain := func(s string) int { // number of bytes before the first unprintable character
		for i, r := range s {
			if _, n := utf8.DecodeRuneInString(s[i:]); !strconv.IsPrint(r) || r == utf8.RuneError && n == 1 {
				return i
			}
		}
		return len(s)
	}
	n := plain(name)
	if n == len(name) {
		return name
	}
	var b strings.Builder
	for {
		b.WriteString(name[:n])
		if name = name[n:]; name == "" {
			return b.String()
		}
		_, size := utf8.DecodeRuneInString(name)
		quoted := strconv.Quote(name[:size])
		b.WriteString(quoted[1 : len(quoted)-1])
		name = name[size:]
		n = plain(name)
	}
}
