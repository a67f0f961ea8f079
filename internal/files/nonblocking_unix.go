//go:build unix

package files

import "syscall"

const (
	// nonblocking lets the open call of a pipe return at once.
	nonblocking = syscall.O_NONBLOCK
	// nofollow lets the open call of a link fail.
	nofollow = syscall.O_NOFOLLOW
)
