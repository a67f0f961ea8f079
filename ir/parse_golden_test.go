package ir

import (
	"testing"

	"hocket.example/hocket/internal/golden"
)

// TestParseDiagnostics compares Parse's diagnostics for the programs of testdata/parse with those that follow each
// program.
func TestParseDiagnostics(t *testing.T) {
	golden.Each(t, "testdata/parse/*.txt", goldenMark, func(t *testing.T, name, src string) string {
		_, ds := Parse(name+".hkt", src)
		for _, d := range ds {
			if d.Kind != "parse" || !d.Pos.Valid() || d.Message == "" {
				t.Errorf("incomplete: %#v", d)
			}
		}
		return goldenMark + ds.String()
	})
}
