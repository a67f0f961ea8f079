package ir

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected diagnostics in testdata")

const goldenMark = "==== diagnostics\n"

// TestParseDiagnostics compares what Parse says about the programs of
// testdata/parse with what stands behind them.
func TestParseDiagnostics(t *testing.T) {
	files, err := filepath.Glob("testdata/parse/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test programs: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			src, want, _ := strings.Cut(string(text), goldenMark)
			_, ds := Parse(name+".hkt", src)
			got := ds.String()
			if *update {
				if err := os.WriteFile(file, []byte(src+goldenMark+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, d := range ds {
				if d.Kind != "parse" || !d.Pos.Valid() || d.Message == "" {
					t.Errorf("incomplete: %#v", d)
				}
			}
		})
	}
}
