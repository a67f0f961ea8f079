//go:build !unix

package main

import (
	"io"

	"hocket.example/hocket"
)

// dumpOnQuit does nothing: this system has no such signal.
func dumpOnQuit(*hocket.Machine, io.Writer) (stop func()) { return func() {} }
