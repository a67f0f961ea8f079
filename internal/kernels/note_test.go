package kernels

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNotes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c := CacheIn(dir, nil)
	if _, ok := c.LoadNote("a"); ok {
		t.Error("a note that was never stored was found")
	}
	c.StoreNote("a", []byte("one"))
	c.StoreNote("b", []byte("two"))
	c.StoreNote("a", []byte("three"))
	other := CacheIn(dir, nil) // as another process
	for key, want := range map[string]string{"a": "three", "b": "two"} {
		if b, ok := other.LoadNote(key); !ok || string(b) != want {
			t.Errorf("%s: %q, %v", key, b, ok)
		}
	}
	if _, ok := c.load(keyOf("a", nil, "note"), codeEnding); ok {
		t.Error("a note was loaded as a kernel")
	}
	var none *Cache
	none.StoreNote("a", []byte("one"))
	if _, ok := none.LoadNote("a"); ok {
		t.Error("a nil cache returned a note")
	}
	// The file of one note is replaced by that of another key.
	from, err := os.ReadFile(c.path(keyOf("b", nil, "note"), noteEnding))
	if err == nil {
		err = os.WriteFile(c.path(keyOf("a", nil, "note"), noteEnding), from, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := c.LoadNote("a"); ok {
		t.Errorf("the note of another key was returned: %q", b)
	}
}

// TestNotesUnusable checks that a failure to write notes is reported once, and has no other effect.
func TestNotesUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	c := CacheIn(filepath.Join(file, "cache"), slog.New(slog.NewTextHandler(&said, nil)))
	c.StoreNote("a", []byte("one"))
	c.StoreNote("b", []byte("one"))
	if _, ok := c.LoadNote("a"); ok {
		t.Error("a note was found although none can be written")
	}
	if strings.Count(said.String(), "\n") != 1 {
		t.Errorf("said %q", said.String())
	}
}
