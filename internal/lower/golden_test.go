package lower

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

const section = "\n---- "

// TestGolden runs the passes on the first section of each file in testdata, and compares the program after each pass
// and the log with the other sections.
func TestGolden(t *testing.T) {
	golden.Each(t, "testdata/*.txt", section, func(t *testing.T, _, source string) string {
		return "\n" + stages(lowerText(t, source))
	})
}

func stages(res *Result) string {
	var b strings.Builder
	for _, s := range res.Stages {
		if (s.Pass == "clean" || s.Pass == "overlap") && !s.Changed {
			continue
		}
		b.WriteString(section[1:] + s.Pass + "\n" + strings.TrimRight(s.Text, "\n") + "\n")
	}
	b.WriteString(section[1:] + "log\n")
	for _, e := range res.Log {
		b.WriteString(e.String() + "\n")
	}
	return b.String()
}

// lowerText lowers a program and checks the properties that every lowered program must have.
func lowerText(t testing.TB, source string) *Result {
	t.Helper()
	p := parse(t, source)
	before := p.String()
	res, err := Run(p, Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, source)
	}
	if after := p.String(); after != before {
		t.Errorf("the program given was changed:\n%s", cmp.Diff(before, after))
	}
	for _, s := range res.Stages {
		checkStage(t, s)
	}
	return res
}

// checkStage checks the program after a pass. The program's text must be parsed as the same program, must not need the
// passes that have run, and must not change if they run again.
func checkStage(t testing.TB, s Stage) {
	t.Helper()
	p := parse(t, s.Text)
	info, ds := checker.Check(p)
	if ds.HasErrors() {
		t.Fatalf("after %s:\n%s\n%s", s.Pass, ds, s.Text)
	}
	if !info.Explicit() {
		t.Errorf("after %s something still needs a reshard:\n%s", s.Pass, s.Text)
	}
	for _, f := range p.Funcs {
		f.Body.Walk(func(st *ir.Stmt) {
			if s.Pass != "shard" && s.Pass != "clean" && st.Op == ir.OpReshard {
				t.Errorf("a reshard is left:\n%s", s.Text)
			}
			for _, r := range info.Results[st] {
				if r.Kind == ir.SymValue && st.Type == nil && len(st.Results) == 1 {
					t.Errorf("after %s %%%s has no type:\n%s", s.Pass, r.Name, s.Text)
				}
			}
		})
	}
	again, err := Run(p, Options{StopAfter: s.Pass})
	if err != nil {
		t.Fatalf("again: %v\n%s", err, s.Text)
	}
	for _, a := range again.Stages {
		if a.Changed || a.Text != s.Text {
			t.Errorf("%s is not idempotent:\n%s", a.Pass, cmp.Diff(s.Text, a.Text))
		}
	}
}

func parse(t testing.TB, source string) *ir.Program {
	t.Helper()
	p, ds := ir.Parse("test.hkt", source)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, source)
	}
	return p
}

// TestSharedLayers lowers the layers of the shared test corpus, if it exists.
func TestSharedLayers(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/language/*.hkt")
	if len(files) == 0 {
		t.Skip("the language's programs are not here")
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lowerText(t, string(data))
	}
}
