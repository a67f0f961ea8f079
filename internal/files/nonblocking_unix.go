//go:build unix

package files

import "syscall"

const (
	// nonblocking is the flag that makes opening a pipe return without waiting.
	nonblocking = syscall.O_NONBLOCK
	// nofollow is the flag that makes opening a symbolic link fail.
	nofollow = syscall.O_NOFOLLOW
)
