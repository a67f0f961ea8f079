//go:build !linux

package main

import (
	"context"
	"os"
	"os/exec"
	"syscall"
)

// leader returns a channel that is closed when the launch is to end. Where systems adopt no descendants, launch is one
// process, and what a launched process has started itself is not known.
func leader(ctx context.Context) (<-chan struct{}, bool) { return ctx.Done(), true }

func supervise(context.Context) error { panic("launch is one process") }

// dieWithParent does nothing where systems have no such thing.
func dieWithParent(*exec.Cmd) {}

// signalAll sends a signal to all processes that were launched.
func signalAll(launched []*exec.Cmd, s syscall.Signal) {
	for _, c := range launched {
		_ = c.Process.Signal(s) // one that has ended needs none
	}
}

func reap([]*exec.Cmd) {}

func endOffspring([]*exec.Cmd, syscall.Signal) error { return nil }

// standstill is not noticed.
type standstill struct{}

func (*standstill) look(children, int) int { return 0 }

func isStopped(children, int) bool { return false }

type children struct{}

func offspring() children { return children{} }

func childEnds() (ends <-chan os.Signal, stop func()) { return nil, func() {} }
