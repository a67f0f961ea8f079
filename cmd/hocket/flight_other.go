//go:build !unix

package main

import (
	"io"

	"hocket.example/hocket"
)

// dumpOnQuit does nothing, since this system has no SIGQUIT.
func dumpOnQuit(*hocket.Machine, io.Writer) (stop func()) { return func() {} }
