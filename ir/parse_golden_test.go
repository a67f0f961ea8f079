package ir_test

import (
	"testing"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
)

// TestParseDiagnostics compares Parse's diagnostics for the programs in testdata/parse with the expected diagnostics at
// the end of each file.
func TestParseDiagnostics(t *testing.T) {
	golden.Each(t, "testdata/parse/*.txt", irtest.GoldenMark, func(t *testing.T, name, src string) string {
		_, ds := ir.Parse(name+".hkt", src)
		for _, d := range ds {
			if d.Kind != "parse" || !d.Pos.Valid() || d.Message == "" {
				t.Errorf("incomplete: %#v", d)
			}
		}
		return irtest.GoldenMark + ds.String()
	})
}
