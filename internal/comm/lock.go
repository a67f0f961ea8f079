package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// lockWait is how long a lock is waited for. Who has one reads a table and writes it,
// which takes milliseconds: longer is only a process that was stopped in the middle.
const lockWait = 10 * time.Second

// heldError reports a lock that another process holds. It is the lock's file.
type heldError string

func (e heldError) Error() string { return string(e) + " is held by another process" }

// lock keeps others that lock the same path out until it is released: processes, and
// goroutines of this one. The file path+".lock" is there meanwhile.
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
			return nil, fmt.Errorf("%w, for %v by now: end that hocket, or remove the file if there is none", held, within)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// tryMake is a lock where the system has no better one: a file that only one can make.
// It stays behind where a process is killed that has it.
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
