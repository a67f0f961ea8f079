package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hocket.example/hocket/internal/proctree"
)

// A launch consists of two processes. The first, started by the user, starts the second, which starts the ranks. Both
// adopt orphaned descendants (PR_SET_CHILD_SUBREAPER). Every process that a rank has started, in any group or session,
// therefore stays a descendant of both. If one of the two is killed, the other ends all descendants. All these
// processes stay in the terminal's foreground group, so that Ctrl-C, Ctrl-Z and the input of rank 0 work as without
// launch.

// leadVariable is the environment variable that holds the descriptor of a pipe in the second process. The pipe is
// closed when the first process ends.
const leadVariable = "HOCKET_LAUNCH_FD"

// leader returns a channel that is closed when the launch must end. In the first process it returns false.
func leader(ctx context.Context) (<-chan struct{}, bool) {
	fd, err := strconv.Atoi(os.Getenv(leadVariable))
	if err != nil {
		return nil, false
	}
	os.Unsetenv(leadVariable) // a rank that itself calls launch must not use this pipe
	unix.CloseOnExec(fd)
	first := os.NewFile(uintptr(fd), leadVariable)
	end := make(chan struct{})
	go func() {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, first)
		}()
		select {
		case <-gone:
		case <-ctx.Done():
		}
		close(end)
	}()
	adopt()
	return end, true
}

// adopt makes this process the new parent of descendants whose own parent has ended.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// supervise implements the first process. It starts the second process and waits for it. After an interrupt, it waits
// only as long as the second process may need to end.
func supervise(ctx context.Context) error {
	lead, held, err := os.Pipe()
	if err != nil {
		return machineError(err)
	}
	defer held.Close()
	adopt()
	signals := make(chan os.Signal, 1) // a second signal must not end this process before the others
	signal.Notify(signals, append(EndSignals(), syscall.SIGQUIT)...)
	defer signal.Stop(signals)
	c := exec.Command("/proc/self/exe")
	c.Args = os.Args
	c.Env = append(os.Environ(), leadVariable+"=3")
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{lead}
	if err := c.Start(); err != nil {
		return machineError(fmt.Errorf("starting launch's second process: %w", err))
	}
	lead.Close()
	over := make(chan struct{})
	go func() {
		_ = c.Wait() // the process state contains the result
		close(over)
	}()
	interrupted, late := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-over:
			err := endOffspring(nil, syscall.SIGKILL) // if the second process was killed, its descendants still run
			switch code := c.ProcessState.ExitCode(); {
			case code > 0:
				return &Error{Kind: ofProcess, Code: code, Printed: true,
					Err: fmt.Errorf("launch's second process failed with exit code %d", code)}
			case code < 0:
				return processError("launch's second process was ended: %v", c.ProcessState)
			}
			return err
		case <-interrupted:
			held.Close()
			interrupted, late = nil, time.After(10*killedAfter)
		case <-late: // the second process is stopped
			_ = c.Process.Kill()
		case s := <-signals:
			if s == syscall.SIGQUIT {
				_ = c.Process.Signal(s) // the signal makes the second process print its stack traces
			}
		}
	}
}

// dieWithParent makes the kernel kill c when the thread that starts c ends.
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// signalAll sends a signal to all launched processes and their descendants.
func signalAll(_ []*exec.Cmd, s syscall.Signal) {
	for _, p := range proctree.Read().Descendants(os.Getpid()) {
		_ = syscall.Kill(p.ID, s)
	}
}

// reap waits for adopted processes that have ended. The launched processes are waited for elsewhere.
func reap(launched []*exec.Cmd) {
	for _, p := range proctree.Read().Descendants(os.Getpid()) {
		if p.State == 'Z' && p.Parent == os.Getpid() &&
			!slices.ContainsFunc(launched, func(c *exec.Cmd) bool { return c.Process.Pid == p.ID }) {
			_, _ = syscall.Wait4(p.ID, nil, syscall.WNOHANG, nil)
		}
	}
}

// endOffspring terminates all descendants of this process that are still running. It sends them the signal and, after
// killedAfter, SIGKILL.
func endOffspring(launched []*exec.Cmd, s syscall.Signal) error {
	begun, sent := time.Now(), false
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		reap(launched)
		waited := time.Since(begun)
		left := slices.DeleteFunc(proctree.Read().Descendants(os.Getpid()), func(p proctree.Process) bool { return p.State == 'Z' })
		switch {
		case len(left) == 0:
			return nil
		case waited >= 3*killedAfter:
			return processError("process %d, which a rank has started, is still running %v after SIGKILL", left[0].ID,
				2*killedAfter)
		case waited >= killedAfter:
			s = syscall.SIGKILL
		}
		if !sent || s == syscall.SIGKILL {
			sent = true
			for _, p := range left {
				_ = syscall.Kill(p.ID, s)
			}
		}
		time.Sleep(pause)
	}
}

// standstill counts for how long a launched process has made no progress. A process makes no progress while it or one
// of its descendants is stopped and none of them does any work.
type standstill struct {
	did   uint64
	beats int
}

// family returns a launched process and its descendants.
func family(now proctree.Tree, id int) []proctree.Process {
	all := now.Descendants(id)
	if own, ok := proctree.Find(id); ok {
		all = append(all, own)
	}
	return all
}

// isStopped reports whether a process of the family is stopped.
func isStopped(now proctree.Tree, pid int) bool {
	return slices.ContainsFunc(family(now, pid), func(p proctree.Process) bool { return p.State == 'T' })
}

// look checks a launched process once per tick, and returns the number of ticks without progress.
func (s *standstill) look(now proctree.Tree, pid int) int {
	if !isStopped(now, pid) {
		*s = standstill{}
		return 0
	}
	did := uint64(0)
	for _, p := range family(now, pid) {
		did += uint64(p.ID) + p.Work()
	}
	if did != s.did {
		*s = standstill{did: did}
		return 0
	}
	s.beats++
	return s.beats
}

// offspring reads the tree of all processes.
func offspring() proctree.Tree { return proctree.Read() }

// childEnds returns a channel that receives a signal when a child of this process, or an adopted process, has ended.
func childEnds() (ends <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	return c, func() { signal.Stop(c) }
}
