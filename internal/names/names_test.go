package names

import (
	"strconv"
	"testing"
	"unicode"
)

// FuzzQuoted: what is shown has printable characters alone, and quoting it again changes nothing.
func FuzzQuoted(f *testing.F) {
	for _, s := range []string{"", "gemm", "a b", "\x1b[31m", "\u009b\u202e\x7f\n\t\xff", "µ → %x.g[2]", "\xe2\x82",
		"a\\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Quoted(s)
		for _, r := range got {
			if !strconv.IsPrint(r) || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Fatalf("%q has %q", got, r)
			}
		}
		if Quoted(got) != got {
			t.Fatalf("%q: quoted twice %q", got, Quoted(got))
		}
	})
}
