//go:build !linux

package fakedriver

// thread cannot identify threads on this system. Tests with several worlds at once may therefore report an access as
// that of another device.
func thread() int { return 0 }
