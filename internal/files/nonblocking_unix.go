//go:build unix

package files

import "syscall"

// nonblocking has opening a pipe that has taken a file's place return.
const nonblocking = syscall.O_NONBLOCK
