package grad_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir/checker"
)

// TestEverySourceIsDifferentiatedOrRefused differentiates every function of the repository's programs, for every value
// of Keep. The result must be a valid program, or the function must be refused with a position.
func TestEverySourceIsDifferentiatedOrRefused(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../examples/*.hkt", "../lower/testdata/*.txt", "../../ir/testdata/*"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %v, %v", pattern, list, err)
		}
		files = append(files, list...)
	}
	programs, refused := 0, 0
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			continue // a folder
		}
		in, ds := checker.Read(file, string(src))
		if ds.HasErrors() {
			continue // a test of errors, or of another form
		}
		for _, f := range in.Prog.Funcs {
			for _, keep := range keeps {
				text, err := grad.Of(in, grad.Options{Func: f.Name, Keep: keep})
				var name *grad.NameError
				if errors.As(err, &ds) || errors.As(err, &name) {
					refused++
					continue
				}
				if err != nil {
					t.Errorf("%s: %s: %v", file, f.Name, err)
					continue
				}
				if _, ds := checker.Read(file, text); ds.HasErrors() {
					t.Errorf("%s: %s: %s\n%s", file, f.Name, ds, text)
				}
				programs++
			}
		}
	}
	if t.Logf("%d programs, %d refused", programs, refused); programs < 30 || refused < 10 {
		t.Errorf("%d programs, %d refused", programs, refused)
	}
}

// waits matches the wait statements in a text.
var waits = regexp.MustCompile(`(?m)^ *wait [^\n]*\n`)

// TestWaitsAreNeeded removes the waits of lowered backward programs, one at a time. Each resulting program must be
// refuted, except for a few that are proved because other statements imply the wait.
func TestWaitsAreNeeded(t *testing.T) {
	programs := longtest.Of(50, 500)
	if testing.Short() {
		programs = 4
	}
	needed, implied := 0, 0
	for seed := longtest.Seed(t); programs > 0; seed++ {
		p, err := hocket.Parse("random.hkt", randomProgram(seed, 2, 2))
		if err != nil {
			t.Fatal(err)
		}
		q, err := p.Gradient(hocket.GradientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		strategy := []string{"exchange", "chunked(2)", "delayed"}[programs%3]
		l, err := q.Lower(hocket.LowerOptions{Strategy: strategy})
		if err != nil {
			continue // the strategy applies to no collective
		}
		text := l.Program.String()
		at := waits.FindAllStringIndex(text, -1)
		if len(at) == 0 {
			continue
		}
		programs--
		for _, w := range at {
			r, err := hocket.Parse("random.hkt", text[:w[0]]+text[w[1]:])
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			v, err := hocket.Check(r, hocket.Binding{})
			switch {
			case err == nil && v.Kind == hocket.Refuted:
				needed++
			case err == nil && v.Kind == hocket.Proved:
				implied++
			default:
				t.Errorf("seed %d: %v, %v without line %d\n%s", seed, v.Kind, err, 1+strings.Count(text[:w[0]], "\n"),
					text)
			}
		}
	}
	if t.Logf("%d waits are needed, %d are implied", needed, implied); needed == 0 || implied > needed/3 {
		t.Errorf("%d waits are needed, %d are implied", needed, implied)
	}
}
