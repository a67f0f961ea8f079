//go:build linux || darwin

package comm

import (
	"errors"
	"os"
	"syscall"

	"hocket.example/hocket/internal/files"
)

// tryLock locks the file at path, which it makes; heldError where another has it. The lock
// ends with the process, however that does. The file goes when it is released, so one that
// was opened meanwhile may be no longer that at path: its lock is worth nothing.
func tryLock(path string) (release func(), err error) {
	f, err := files.OpenLock(path)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		f.Close()
		return nil, heldError(path)
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ENOLCK): // some file systems over a network
		f.Close()
		os.Remove(path) // nobody there can lock it
		return tryMake(path + ".held")
	case err != nil:
		f.Close()
		return nil, err
	}
	if !files.IsAt(f, path) {
		f.Close()
		return nil, heldError(path)
	}
	return func() { os.Remove(path); f.Close() }, nil
}
