package fakedriver

import "syscall"

// thread identifies the calling thread. The driver has one current context per thread.
func thread() int { return syscall.Gettid() }
