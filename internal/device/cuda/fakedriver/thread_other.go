//go:build !linux

package fakedriver

// thread cannot identify threads on this system. Tests with several worlds at once may therefore report accesses of the
// wrong device.
func thread() int { return 0 }
