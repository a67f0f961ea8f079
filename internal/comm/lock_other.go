//go:build !linux && !darwin

package comm

// tryLock uses only a lock file, on systems for which no file lock is implemented.
func tryLock(path string) (release func(), err error) { return tryMake(path) }
