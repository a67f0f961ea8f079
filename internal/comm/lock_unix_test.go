//go:build linux || darwin

package comm

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/files"
)

// TestLockLeft: a file that a killed process has left locks nobody out.
func TestLockLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path+".lock", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	release, err := lock(context.Background(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// TestLockGone: the lock of a file that was removed since, whether or not there is another
// by its name, keeps nobody out, and is not taken for one.
func TestLockGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !files.IsAt(f, path) {
		t.Error("it is not where it was made")
	}
	if err := os.Remove(path); err != nil || files.IsAt(f, path) {
		t.Errorf("removed, it is there (%v)", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil || files.IsAt(f, path) {
		t.Errorf("another is taken for it (%v)", err)
	}
}
