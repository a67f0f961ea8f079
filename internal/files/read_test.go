package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadOdd checks that only regular files are accepted and that files that are too large are refused without reading
// them, even if their size says otherwise.
func TestReadOdd(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("small"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := Read(at("small"), 5); err != nil || string(b) != "12345" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := Read(at("small"), 4); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), at("small")) {
		t.Errorf("a file that is one byte too long: %v", err)
	}
	sparse, err := os.Create(at("sparse"))
	if err == nil {
		err = errors.Join(sparse.Truncate(1<<40), sparse.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(at("sparse"), 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a sparse file of a terabyte: %v", err)
	}
	if _, err := Read(dir, 1<<20); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Read(at("none"), 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, device := range []string{"/dev/zero", "/dev/tty"} {
		if _, err := os.Stat(device); err != nil {
			continue
		}
		if _, err := Read(device, 1<<20); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", device, err)
		}
	}
	if _, err := os.Stat("/proc/self/status"); err == nil { // the system reports its size as 0
		if b, err := Read("/proc/self/status", 1<<20); err != nil || len(b) == 0 {
			t.Errorf("%d bytes of a file without a size: %v", len(b), err)
		}
		if _, err := Read("/proc/self/status", 10); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a file without a size that is too large: %v", err)
		}
	}
}
