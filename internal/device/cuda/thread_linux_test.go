package cuda

import "syscall"

// thread tells threads apart, which each have a context of the driver's.
func thread() int { return syscall.Gettid() }
