package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
		return &failure{code: exitMachine, kind: "machine", err: err}
	}
	defer held.Close()
	adopt()
	signals := make(chan os.Signal, 1) // a second signal must not end this process before the others
	signal.Notify(signals, append(endings(), syscall.SIGQUIT)...)
	defer signal.Stop(signals)
	c := exec.Command("/proc/self/exe")
	c.Args = os.Args
	c.Env = append(os.Environ(), leadVariable+"=3")
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{lead}
	if err := c.Start(); err != nil {
		return &failure{code: exitMachine, kind: "machine", err: fmt.Errorf("starting launch's second process: %w", err)}
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
				return &failure{code: code, said: true}
			case code < 0:
				return &failure{code: exitMachine, kind: "process",
					err: fmt.Errorf("launch's second process was ended: %v", c.ProcessState)}
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

// process describes a process as /proc shows it.
type process struct {
	pid, parent int
	state       byte // T for a stopped process, Z for a process that has ended
}

// children maps the ID of each process to the process's children.
type children map[int][]process

// offspring reads the tree of all processes.
func offspring() children {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	all := children{}
	for _, name := range names {
		if p, ok := readProcess(name); ok {
			all[p.parent] = append(all[p.parent], p)
		}
	}
	return all
}

// of returns the descendants of a process, parents before children.
func (c children) of(pid int) []process {
	list := slices.Clone(c[pid])
	for i := 0; i < len(list); i++ {
		list = append(list, c[list[i].pid]...)
	}
	return list
}

// readProcess reads a file /proc/PID/stat.
func readProcess(name string) (p process, ok bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return p, false // the process has ended
	}
	pid, _, _ := bytes.Cut(text, []byte(" "))
	rest := text[bytes.LastIndexByte(text, ')')+1:] // the name may contain any characters, including parentheses
	words := bytes.Fields(rest)
	if len(words) < 2 {
		return p, false
	}
	p.state = words[0][0]
	p.pid, err = strconv.Atoi(string(pid))
	if err != nil {
		return p, false
	}
	p.parent, err = strconv.Atoi(string(words[1]))
	return p, err == nil
}

// work measures the progress of a process by the sum of its processor time and its context switches. The sum does not
// change while a process is stopped or only waits.
func (p process) work() (n uint64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if words := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(words) > 12 {
		for _, w := range words[11:13] { // user and system time
			ticks, _ := strconv.ParseUint(string(w), 10, 64)
			n += ticks
		}
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for line := range strings.Lines(string(text)) {
			if _, count, found := strings.Cut(line, "voluntary_ctxt_switches:"); found { // and nonvoluntary
				switches, _ := strconv.ParseUint(strings.TrimSpace(count), 10, 64)
				n += switches
			}
		}
	}
	return n + uint64(len(tasks))
}

// signalAll sends a signal to all launched processes and their descendants.
func signalAll(_ []*exec.Cmd, s syscall.Signal) {
	for _, p := range offspring().of(os.Getpid()) {
		_ = syscall.Kill(p.pid, s)
	}
}

// reap waits for adopted processes that have ended. The launched processes are waited for elsewhere.
func reap(launched []*exec.Cmd) {
	for _, p := range offspring().of(os.Getpid()) {
		if p.state == 'Z' && p.parent == os.Getpid() &&
			!slices.ContainsFunc(launched, func(c *exec.Cmd) bool { return c.Process.Pid == p.pid }) {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
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
		left := slices.DeleteFunc(offspring().of(os.Getpid()), func(p process) bool { return p.state == 'Z' })
		switch {
		case len(left) == 0:
			return nil
		case waited >= 3*killedAfter:
			return &failure{code: exitMachine, kind: "process", err: fmt.Errorf(
				"process %d, which a rank has started, is still running %v after SIGKILL", left[0].pid, 2*killedAfter)}
		case waited >= killedAfter:
			s = syscall.SIGKILL
		}
		if !sent || s == syscall.SIGKILL {
			sent = true
			for _, p := range left {
				_ = syscall.Kill(p.pid, s)
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
func (c children) family(pid int) []process {
	all := c.of(pid)
	if own, ok := readProcess(fmt.Sprintf("/proc/%d/stat", pid)); ok {
		all = append(all, own)
	}
	return all
}

// isStopped reports whether a process of the family is stopped.
func isStopped(now children, pid int) bool {
	return slices.ContainsFunc(now.family(pid), func(p process) bool { return p.state == 'T' })
}

// look checks a launched process once per tick, and returns the number of ticks without progress.
func (s *standstill) look(now children, pid int) int {
	if !isStopped(now, pid) {
		*s = standstill{}
		return 0
	}
	did := uint64(0)
	for _, p := range now.family(pid) {
		did += uint64(p.pid) + p.work()
	}
	if did != s.did {
		*s = standstill{did: did}
		return 0
	}
	s.beats++
	return s.beats
}

// childEnds returns a channel that receives a signal when a child of this process, or an adopted process, has ended.
func childEnds() (ends <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	return c, func() { signal.Stop(c) }
}
