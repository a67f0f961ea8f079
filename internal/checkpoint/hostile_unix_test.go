//go:build unix

package checkpoint

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// hostile puts a pipe and a link to a device beside a checkpoint.
func hostile(tb testing.TB, dir string) {
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero")); err != nil {
		tb.Fatal(err)
	}
}
