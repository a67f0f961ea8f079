//go:build unix

package files

import (
	"os"
	"syscall"
)

// lock locks the file until it is closed. others reports that another process has locked it. On file systems without
// locks, lock does nothing.
func lock(f *os.File) (held, others bool) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return err == nil, err == syscall.EWOULDBLOCK
}
