package lower

import (
	"strconv"
	"strings"
	"testing"
)

// FuzzStrategy checks that a strategy is unchanged after it is printed and parsed again, and that errors quote the
// input.
func FuzzStrategy(f *testing.F) {
	for _, s := range []string{"", "sequential", "chunked", "chunked(8)", "exchange", "exchange(1)", "exchange(2)",
		"exchange(1,4)", "exchange(2,4)", "exchange(1,)", "ahead",
		"chunked(1025)", "chunked(+4)", "chunked(04)", "chunked(4))", "sequential(2)", "(2)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStrategy(text)
		if err != nil {
			_, inner, _ := strings.Cut(text, "(")
			if quoted := err.Error(); !strings.Contains(quoted, strconv.Quote(text)) &&
				!strings.Contains(quoted, strconv.Quote(strings.TrimSuffix(inner, ")"))) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if min(s.Chunks, s.Own) < 0 || max(s.Chunks, s.Own) > maxChunks || s.Kind > Exchange {
			t.Errorf("%q is %+v", text, s)
		}
		if again, err := ParseStrategy(s.String()); err != nil || again != s {
			t.Errorf("%q: %s is read as %v, %v", text, s, again, err)
		}
	})
}
