//go:build linux || darwin

package comm

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/files"
)

// TestLockLeft checks that a lock file of a killed process does not prevent others from acquiring the lock.
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

// TestLockGone checks that a lock on a removed lock file neither counts as the lock nor prevents others from acquiring
// the lock, whether or not a new file has the same name.
func TestLockGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !files.IsAt(f, path) {
		t.Error("IsAt reports false for a file that was just created")
	}
	if err := os.Remove(path); err != nil || files.IsAt(f, path) {
		t.Errorf("IsAt reports true for a removed file (%v)", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil || files.IsAt(f, path) {
		t.Errorf("IsAt reports true although another file has the name (%v)", err)
	}
}
