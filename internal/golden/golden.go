// Package golden compares results of tests with files in testdata. With the flag -update, a test rewrites these files
// instead.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite what is expected")

// Update reports whether tests must rewrite their files.
func Update() bool { return *update }

// File reports a test error unless the file at path contains got. With -update it writes the file instead.
func File(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -file +got (-update rewrites it):\n%s", path, diff)
	}
}

// Each runs a subtest for each file that matches pattern. It calls the function say with the file's name without
// extension, and with the file's text before the first mark. The file must consist of this text and the result of say,
// which begins with the mark.
func Each(t *testing.T, pattern, mark string, say func(t *testing.T, name, source string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			source, _, _ := strings.Cut(string(text), mark)
			File(t, path, source+say(t, name, source))
		})
	}
}
