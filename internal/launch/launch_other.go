//go:build !linux

package launch

import (
	"context"
	"os"
	"os/exec"
	"syscall"
)

// leader returns a channel that is closed when the launch must end. On systems where processes cannot adopt orphaned
// descendants, launch consists of one process, and does not know the processes that a launched process has started.
func leader(ctx context.Context) (<-chan struct{}, bool) { return ctx.Done(), true }

func supervise(context.Context) error { panic("not called: leader returns true") }

// dieWithParent does nothing, since these systems cannot kill a process when its parent ends.
func dieWithParent(*exec.Cmd) {}

// signalAll sends a signal to all launched processes.
func signalAll(launched []*exec.Cmd, s syscall.Signal) {
	for _, c := range launched {
		_ = c.Process.Signal(s) // fails only for a process that has ended
	}
}

func reap([]*exec.Cmd) {}

func endOffspring([]*exec.Cmd, syscall.Signal) error { return nil }

// standstill does nothing, since stopped processes are not detected on these systems.
type standstill struct{}

func (*standstill) look(children, int) int { return 0 }

func isStopped(children, int) bool { return false }

type children struct{}

func offspring() children { return children{} }

func childEnds() (ends <-chan os.Signal, stop func()) { return nil, func() {} }
