package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// lockWait is the longest time to wait for a lock. A holder reads and writes one table, which takes milliseconds, so a
// longer wait means that the holder was stopped while it held the lock.
const lockWait = 10 * time.Second

// heldError reports that another process holds a lock. Its value is the name of the lock file.
type heldError string

func (e heldError) Error() string { return string(e) + " is held by another process" }

// lock acquires the lock of a path, which excludes other processes and other goroutines of this process until it is
// released. The lock file is path+".lock".
func lock(ctx context.Context, path string, within time.Duration) (release func(), err error) {
	path += ".lock"
	begun := time.Now()
	for {
		release, err := tryLock(path)
		var held heldError
		switch {
		case err == nil:
			return release, nil
		case !errors.As(err, &held):
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case time.Since(begun) >= within:
			return nil, fmt.Errorf("%w and was not released for %v: end that hocket process, or remove the file if no such "+
				"process is running", held, within)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// tryMake acquires a lock by creating a file that must not exist. It is used on systems without better locks, because
// the file remains if the process is killed while it holds the lock.
func tryMake(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, heldError(path)
	case err != nil:
		return nil, err
	}
	f.Close()
	return func() { os.Remove(path) }, nil
}
