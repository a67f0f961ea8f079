package names

import (
	"strconv"
	"testing"
	"unicode"
)

// FuzzQuoted checks that the result contains only printable characters, and that quoting it again
// does not change it.
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
