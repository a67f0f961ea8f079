package ir_test

import (
	"hocket.example/hocket/ir/irtest"
	"os"
	"path/filepath"
	"testing"
)

// programs returns the source texts in a directory. It skips the test if the directory does not exist.
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

func TestProgramsRoundTrip(t *testing.T) {
	for _, dir := range []string{"../../shared/language", "../examples"} {
		t.Run(dir, func(t *testing.T) {
			for file, src := range programs(t, dir) {
				irtest.RoundTrip(t, file, src)
			}
		})
	}
}
