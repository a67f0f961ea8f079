package bench

import (
	"strings"
	"testing"
)

// FuzzShape checks that a shape that can be read is within limits, and the same after it is printed
// and read again.
func FuzzShape(f *testing.F) {
	for _, s := range []string{"8192x28672x8192", "1x1x1", "0x1x1", "16777216x16777217x1", "1x2", "+1x2x3", "1x2x3x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseShape(text)
		if err != nil {
			if !strings.Contains(err.Error(), "MxNxK") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if min(s.M, s.N, s.K) < 1 || max(s.M, s.N, s.K) > mostExtent {
			t.Errorf("%q is %v", text, s)
		}
		if again, err := ParseShape(s.String()); err != nil || again != s {
			t.Errorf("%q: %v is read as %v, %v", text, s, again, err)
		}
	})
}
