package ir

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse: no text makes the parser panic, nor checking what could be read of
// one; what parses is printed as the
// same program with all its comments, and fmt changes nothing the second time.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/parse/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for seed := range uint64(20) {
		f.Add(randomProgram(seed).String())
	}
	f.Add(exchangeText)
	f.Fuzz(func(t *testing.T, src string) {
		p, ds := Parse("fuzz", src)
		if p == nil || len(ds) > maxDiagnostics {
			t.Fatalf("%d errors", len(ds))
		}
		_ = p.String()
		for _, d := range ds {
			_ = d.String()
		}
		if len(ds) > 0 {
			if _, all := Read("fuzz", src); len(all) < len(ds) || len(all) > maxDiagnostics {
				t.Fatalf("%d errors in the text, %d in all", len(ds), len(all))
			}
			return
		}
		checkRoundTrip(t, "fuzz", src)
		if before, after := countComments(src), countComments(p.String()); before != after {
			t.Fatalf("%d comments became %d", before, after)
		}
	})
}

func countComments(src string) int {
	l := newLexer(src)
	for l.next().kind != tokEOF {
	}
	return len(l.pending)
}
