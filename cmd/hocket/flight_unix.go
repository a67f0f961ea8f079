//go:build unix

package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"hocket.example/hocket"
)

// dumpOnQuit makes SIGQUIT write the machine's flight record before Go's stack traces. The returned function restores
// the default action of SIGQUIT.
func dumpOnQuit(m *hocket.Machine, to io.Writer) (stop func()) {
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT)
	over := make(chan struct{})
	go func() {
		select {
		case <-quits:
			_ = m.Dump(to)
			signal.Reset(syscall.SIGQUIT)
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGQUIT)
		case <-over:
		}
	}()
	return func() {
		signal.Stop(quits)
		close(over)
	}
}
