//go:build !linux

// Package hostmem reports how much memory the host has.
package hostmem

// Available is known on Linux only.
func Available() int64 { return 0 }
