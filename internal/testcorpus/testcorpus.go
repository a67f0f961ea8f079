// Package testcorpus unpacks files that tests read but that are not in the repository: schedules and exported models.
package testcorpus

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// unpacked is the folder of the corpus; "" if there is no corpus next to the repository or next to the folder of its
// work trees.
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

// Folder returns a folder of the corpus, such as "models", which is unpacked once; "" if there is no corpus.
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

// Need is like Folder, but skips the test if there is no corpus.
func Need(t testing.TB, name string) string {
	t.Helper()
	dir := Folder(t, name)
	if dir == "" {
		t.SkipNow()
	}
	return dir
}
