package files_test

import (
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/files"
)

func TestWrittenTwice(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for what, c := range map[string]struct {
		outputs       map[string]string
		first, second string
	}{
		"none":         {nil, "", ""},
		"others":       {map[string]string{"a": "x", "b": "y"}, "", ""},
		"one path":     {map[string]string{"b": "x", "a": "x"}, "a", "b"},
		"another form": {map[string]string{"a": "./x", "b": filepath.Join(dir, "x"), "c": "y"}, "a", "b"},
		"a device":     {map[string]string{"a": os.DevNull, "b": os.DevNull}, "", ""},
	} {
		if a, b := files.WrittenTwice(c.outputs); a != c.first || b != c.second {
			t.Errorf("%s: %q and %q, want %q and %q", what, a, b, c.first, c.second)
		}
	}
}
