package terminal

import (
	"bytes"
	"testing"
)

// TestHarmless checks that control characters are replaced by visible symbols, however the text is divided among calls
// of Write.
func TestHarmless(t *testing.T) {
	const text = "// \x1b]0;title\a\x1b[2J ünïcode → ✓\ttab\nend \u009b31m\r"
	const want = "// ␛]0;title␇␛[2J ünïcode → ✓\ttab\nend \ufffd31m␍"
	for size := 1; size < 9; size++ {
		var b bytes.Buffer
		w := &harmless{w: &b}
		for i := 0; i < len(text); i += size {
			p := []byte(text[i:min(i+size, len(text))])
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if b.String() != want {
			t.Errorf("in pieces of %d: %q", size, b.String())
		}
	}
}
