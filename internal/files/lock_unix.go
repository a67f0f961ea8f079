//go:build unix

package files

import (
	"os"
	"syscall"
)

// lock locks the file for as long as it is open; false where another has it locked, or the
// file system has no locks.
func lock(f *os.File) bool { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }
