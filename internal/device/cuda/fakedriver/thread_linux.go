package fakedriver

import "syscall"

// thread identifies the calling thread. The driver keeps a context for each thread.
func thread() int { return syscall.Gettid() }
