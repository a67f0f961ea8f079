// Package testcorpus unpacks the files that tests read and the repository does not have: schedules and exported models.
package testcorpus

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// unpacked is the folder of the corpus; "" where there is none next to the repository, or to the folder of its work
// trees.
var unpacked = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), "hocket-corpus")
	for above := ".."; len(above) < len("../../../../../.."); above = filepath.Join("..", above) {
		script := filepath.Join(above, "shared", "corpus", "unpack")
		if _, err := os.Stat(script); err != nil {
			continue
		}
		if out, err := exec.Command("python3", script, dir).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpacking the corpus: %w: %s", err, out)
		}
		return dir, nil
	}
	return "", nil
})

// Folder returns a folder of the corpus, such as "models", unpacked once; "" where there is no corpus.
func Folder(t testing.TB, name string) string {
	t.Helper()
	dir, err := unpacked()
	if err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		t.Log("there is no corpus next to the repository")
		return ""
	}
	return filepath.Join(dir, name)
}

// Need is Folder for tests that are skipped without a corpus.
func Need(t testing.TB, name string) string {
	t.Helper()
	dir := Folder(t, name)
	if dir == "" {
		t.SkipNow()
	}
	return dir
}
