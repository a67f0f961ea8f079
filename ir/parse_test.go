package ir

import (
	"os"
	"path/filepath"
	"testing"
)

// programs returns the sources under a folder; the test is skipped without it.
func programs(t testing.TB, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.hkt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("no programs in %s", dir)
	}
	sources := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sources[f] = string(text)
	}
	return sources
}

func mustParse(t testing.TB, file, src string) *Program {
	t.Helper()
	p, ds := Parse(file, src)
	if len(ds) > 0 {
		t.Fatalf("%s\nof\n%s", ds, src)
	}
	return p
}

func TestProgramsRoundTrip(t *testing.T) {
	for _, dir := range []string{"../../shared/language", "../examples"} {
		t.Run(dir, func(t *testing.T) {
			for file, src := range programs(t, dir) {
				checkRoundTrip(t, file, src)
			}
		})
	}
}

// checkRoundTrip demands that the printed text parses to the same program and
// prints the same again, comments included.
func checkRoundTrip(t testing.TB, file, src string) {
	t.Helper()
	p := mustParse(t, file, src)
	text := p.String()
	again := mustParse(t, file+" printed", text)
	if !Equal(p, again) {
		t.Fatalf("%s: printed and parsed is another program:\n%s", file, text)
	}
	if twice := again.String(); twice != text {
		t.Fatalf("%s: fmt of\n%s\ngives\n%s", file, text, twice)
	}
}
