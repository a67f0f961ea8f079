//go:build !linux

package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// rendezvous returns an error for worlds of several processes, which are supported only on Linux.
type rendezvous struct {
	mesh     *mesh
	detector *detector
	claim    *claim
}

func (v *rendezvous) meet(context.Context) error {
	return fmt.Errorf("several processes (%d here) need Linux: on %s, run all ranks in one process", v.mesh.o.Size,
		runtime.GOOS)
}

func (*rendezvous) isReady(*peer, []int) error { return errors.ErrUnsupported }

func isGone(error) bool { return false }

func closeAll([]int) {}

func withFD(*os.File, func(fd int)) error { return errors.ErrUnsupported }

// Launcher is not supported on this system: worlds of several processes need Linux.
type Launcher struct{}

// NewLauncher returns an error.
func NewLauncher(string) (*Launcher, error) { return nil, errors.ErrUnsupported }

func (*Launcher) Address() string           { return "" }
func (*Launcher) Close()                    {}
func (*Launcher) Exited(int, int, string)   {}
func (*Launcher) Cause() error              { return nil }
func (*Launcher) Reported() <-chan struct{} { return nil }

type launched struct{}

func dialLauncher(*mesh) *launched { return nil }

func (*launched) joined()     {}
func (*launched) ended(cause) {}
func (*launched) close()      {}

type claim struct{}

func (*claim) release() {}

// futexWait sleeps for a short time, because this system has no futexes: callers poll.
func futexWait(word *atomic.Uint32, was uint32, d time.Duration) (timeout bool) {
	for start := time.Now(); word.Load() == was; time.Sleep(50 * time.Microsecond) {
		if time.Since(start) > d {
			return true
		}
	}
	return false
}

func futexWake(*atomic.Uint32) {}
