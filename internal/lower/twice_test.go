package lower

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"hocket.example/hocket/ir/checker"
)

// TestPassesTwice lowers every example with every strategy. The result of each pass must be parsed as the same program,
// and must not change if this pass and all earlier passes run again.
func TestPassesTwice(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.hkt")
	if err != nil || len(files) < 18 {
		t.Fatalf("examples %v, %v", files, err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range []Strategy{{}, {Kind: Chunked, Chunks: 1}, {Kind: Chunked, Chunks: 3}, {Kind: Exchange},
			{Kind: Exchange, Chunks: 2}} {
			choose := func(*Pair) Strategy { return st }
			res, err := Run(parse(t, string(source)), Options{Choose: choose})
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, stage := range res.Stages {
				key := filepath.Base(file) + " " + st.String() + " " + stage.Pass
				if diff := twice(t, key, stage, choose); diff != "" {
					t.Errorf("%s: run twice it gives another text:\n%s", key, diff)
				}
			}
		}
	}
}

// twice returns the difference in the text of a stage if its pass runs again.
func twice(t *testing.T, key string, stage Stage, choose func(*Pair) Strategy) string {
	t.Helper()
	back := parse(t, stage.Text)
	if text := back.String(); text != stage.Text {
		t.Errorf("%s does not print as it was read:\n%s", key, cmp.Diff(stage.Text, text))
	}
	if _, ds := checker.Check(back); ds.HasErrors() {
		t.Errorf("%s: %s", key, ds)
	}
	again, err := Run(back, Options{Choose: choose, StopAfter: stage.Pass})
	if err != nil {
		t.Fatalf("%s, again: %v", key, err)
	}
	return cmp.Diff(stage.Text, again.Program.String())
}
