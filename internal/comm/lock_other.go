//go:build !linux && !darwin

package comm

// tryLock is by a file alone on systems whose locks we do not ask for.
func tryLock(path string) (release func(), err error) { return tryMake(path) }
