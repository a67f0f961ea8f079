//go:build linux || darwin

package comm

import (
	"errors"
	"os"
	"syscall"

	"hocket.example/hocket/internal/files"
)

// tryLock locks the file at path, which it creates if necessary. It returns heldError if another process has locked the
// file. The lock is released when the process ends for any reason. Releasing the lock removes the file. If another
// process removed the file after this process opened it, the opened file is no longer the file at path, and a lock on
// it is not valid.
func tryLock(path string) (release func(), err error) {
	f, err := files.OpenLock(path)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		f.Close()
		return nil, heldError(path)
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ENOLCK): // some network file systems
		f.Close()
		os.Remove(path) // the file system does not support file locks
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
