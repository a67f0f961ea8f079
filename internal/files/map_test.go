package files

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMap checks that a mapping has the bytes of the file and that only regular files are accepted.
func TestMap(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{"", "some bytes"} {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Map(path)
		if err != nil || string(m.Bytes) != want {
			t.Fatalf("%q: %v, %v", want, m, err)
		}
		if err := m.Close(); err != nil || m.Bytes != nil {
			t.Errorf("close: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
	}
	if _, err := Map(dir); err == nil {
		t.Error("a folder was mapped")
	}
}
