package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// note is a testing.TB that records the errors that are reported to it.
type note struct {
	testing.TB
	said []string
}

func (n *note) Helper()                   {}
func (n *note) Errorf(f string, _ ...any) { n.said = append(n.said, f) }

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "file.txt")
	*update = true
	File(t, path, "a\n")
	*update = false
	File(t, path, "a\n")
	n := &note{TB: t}
	if File(n, path, "b\n"); len(n.said) != 1 {
		t.Errorf("another text: %d errors", len(n.said))
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "a\n" {
		t.Errorf("without -update the file became %q, %v", text, err)
	}
}

func TestEach(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, name+".txt"), []byte(name+"\n---- says\nold\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	says := func(_ *testing.T, name, source string) string {
		return "---- says\n" + strings.ToUpper(name) + " of " + source
	}
	*update = true
	Each(t, filepath.Join(dir, "*.txt"), "---- ", says)
	*update = false
	Each(t, filepath.Join(dir, "*.txt"), "---- ", says)
	if text, err := os.ReadFile(filepath.Join(dir, "two.txt")); err != nil || string(text) != "two\n---- says\nTWO of two\n" {
		t.Errorf("the file became %q, %v", text, err)
	}
}
