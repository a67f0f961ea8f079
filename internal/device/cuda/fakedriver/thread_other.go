//go:build !linux

package fakedriver

// thread cannot identify threads on this system: tests with several worlds at once may report memory of the wrong
// device.
func thread() int { return 0 }
