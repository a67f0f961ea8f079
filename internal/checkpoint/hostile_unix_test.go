//go:build unix

package checkpoint

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// hostile adds a named pipe and a link to a device to the directory of a checkpoint.
func hostile(tb testing.TB, dir string) {
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero")); err != nil {
		tb.Fatal(err)
	}
}
