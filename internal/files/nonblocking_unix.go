//go:build unix

package files

import "syscall"

const (
	// nonblocking makes opening a pipe return at once.
	nonblocking = syscall.O_NONBLOCK
	// nofollow makes opening a link fail.
	nofollow = syscall.O_NOFOLLOW
)
