// Package launch starts the processes of a run on this host, and ends all of them, and all processes that they have
// started, together. Run is the entry. On Linux nothing that a process has started outlives the launch, even if the
// launching process is killed.
package launch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"hocket.example/hocket/internal/world"
)

// Options describe a launch.
type Options struct {
	Command   []string // the program of each process and its arguments
	Processes int      // number of processes
	Nodes     int      // number of nodes into which the processes are divided
	// SameErrors reports that all processes print the same errors. Each line of them is printed once.
	SameErrors bool
	// StallTimeout is the time after which stopped processes are killed if the others have exited; 0 for
	// world.StallTimeout.
	StallTimeout time.Duration
	// Stdin is the standard input of process 0. Stdout receives its standard output, and Stderr all other output.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// WholeLines passes the standard output of process 0 on by whole lines. If Stdout and Stderr are the same file, lines
	// of other processes would otherwise appear within lines that process 0 writes in parts. At a terminal, partial lines
	// such as questions must appear at once.
	WholeLines bool
}

// Kinds of errors.
const (
	Interrupted = "interrupted" // the context of Run has ended
	ofProcess   = "process"     // a process has failed
	ofMachine   = "machine"     // the operating system could not start a process
)

// Error describes why a launch failed.
type Error struct {
	Kind    string
	Code    int  // the exit code of the process that failed; 0 if none did, or if it was killed
	Printed bool // whether the error has been printed
	Err     error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// processError returns an error of a process that was killed, or that cannot be controlled.
func processError(format string, args ...any) *Error {
	return &Error{Kind: ofProcess, Err: fmt.Errorf(format, args...)}
}

// machineError returns an error of the operating system.
func machineError(err error) *Error { return &Error{Kind: ofMachine, Err: err} }

const (
	// endsAfter is the time within which the other processes must end by themselves after one process has failed.
	// During this time they detect and print the failure.
	endsAfter = 2 * time.Second
	// killedAfter is the time within which a process must end after it has received a signal.
	killedAfter = 2 * time.Second
	// mostSignals is the largest number of signals that are sent to processes that do not end, for example because of a
	// broken driver.
	mostSignals = 3
)

// EndSignals returns the signals that request the end of a command: an interrupt, a termination and, unless nohup ignores
// it, the hangup of the terminal.
func EndSignals() []os.Signal {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	return ends
}

// Run starts the processes and waits until they, and all processes that they have started, have ended. When ctx ends,
// Run terminates them. The error is an *Error. On Linux, Run executes the current program a second time, with the same
// arguments, and that process starts the others when it, too, calls Run.
func Run(ctx context.Context, o Options) error {
	end, second := leader(ctx)
	if !second {
		return supervise(ctx)
	}
	id := rand.Text()
	processes := o.commands(id)
	if err := likeTorchrun(processes, o.Nodes); err != nil {
		return machineError(err)
	}
	watcher := newWatcher(id, processes)
	defer watcher.close()
	if o.Nodes > 1 {
		meeting, err := separate(processes, o.Nodes)
		if err != nil {
			return machineError(err)
		}
		defer meeting.Close()
	}
	stop := make(chan struct{})
	defer close(stop)
	if err := start(processes, stop); err != nil {
		_ = endOffspring(processes[:0], syscall.SIGKILL)
		return machineError(err)
	}
	l := &launched{all: processes, over: make(chan exit, o.Processes), stall: cmp.Or(o.StallTimeout, world.StallTimeout),
		still: make([]standstill, o.Processes), watcher: watcher}
	err := l.wait(end)
	if why := watcher.l.Cause(); err == nil && why != nil {
		fmt.Fprintf(o.Stderr, "warning: all processes ended with exit code 0, although an error had ended their run: %v\n", why)
	}
	return err
}

// launched holds the processes of a launch.
type launched struct {
	all    []*exec.Cmd   // by rank
	over   chan exit     // receives an exit from each process
	stall  time.Duration // time for which processes may be stopped while others have exited
	still  []standstill  // by rank
	output sync.WaitGroup
	// watcher receives the processes' reports about the process that caused a failure.
	watcher *watcher
}

// exit describes how a process has ended.
type exit struct {
	rank  int
	state *os.ProcessState
	err   error // error of the wait for the process
}

// wait waits until all processes have ended, and then terminates the remaining processes that they have started.
func (l *launched) wait(end <-chan struct{}) error {
	for rank, c := range l.all {
		l.output.Go(func() {
			state, err := c.Process.Wait()
			if err == nil {
				l.watcher.exited(rank, state)
			}
			l.over <- exit{rank, state, err}
			_ = c.Wait() // waits also for the end of the output, which descendants of the process may keep open
			for _, w := range []io.Writer{c.Stdout, c.Stderr} {
				if lines, ok := w.(*lineWriter); ok {
					lines.end()
				}
			}
		})
	}
	children, stop := childEnds()
	defer stop()
	// Time is counted in ticks of a timer, so that time in which launch itself was stopped does not count against the
	// processes.
	beat := min(time.Second, max(l.stall/10, time.Millisecond))
	tick := time.NewTicker(beat)
	defer tick.Stop()
	signal.Notify(make(chan os.Signal, 1), EndSignals()...)
	first := -1 // that failed
	var why, stopped error
	exits := make([]exit, len(l.all)) // by rank
	var late <-chan time.Time
	next, sent := syscall.SIGTERM, 0
	reported := l.watcher.reported()
	running := make(map[int]int) // by rank: pids of the processes that have not ended
	for rank, c := range l.all {
		running[rank] = c.Process.Pid
	}
	for len(running) > 0 && sent <= mostSignals {
		select {
		case x := <-l.over:
			delete(running, x.rank)
			exits[x.rank] = x
			if first < 0 && why == nil && (x.err != nil || !x.state.Success()) {
				first, late = x.rank, time.After(endsAfter)
			}
		case <-end:
			end, late = nil, time.After(0)
			why = &Error{Kind: Interrupted, Err: errors.New("interrupted")}
		case <-late:
			if first < 0 && why == nil {
				why = stopped
			}
			late = time.After(killedAfter)
			signalAll(l.all, next)
			next = syscall.SIGKILL
			sent++
		case <-children:
			reap(l.all)
		case <-reported:
			reported = nil
			rank, cause := l.watcher.blamed()
			if pid, runs := running[rank]; first < 0 && why == nil && runs && isStopped(offspring(), pid) {
				stopped = processError("the failure began in process %d of %d: %s", rank, len(l.all), cause)
				late = time.After(endsAfter)
			}
		case <-tick.C:
			if first >= 0 || why != nil || len(running) == len(l.all) || !l.standStill(running, int(l.stall/beat)) {
				continue
			}
			why = processError("process %s of %d was killed, because it was stopped for %v after others had exited",
				rankList(running), len(l.all), l.stall)
			next, late = syscall.SIGKILL, time.After(0)
		}
	}
	if err := endOffspring(l.all, syscall.SIGTERM); err != nil {
		return err // the output of processes that still run may not end
	}
	l.output.Wait()
	if first >= 0 && why == nil {
		return l.watcher.failed(exits[first], exits)
	}
	return why
}

// rankList lists the ranks in increasing order.
func rankList(running map[int]int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Sorted(maps.Keys(running))), " ", ", "), "[]")
}

// standStill checks the processes that have not ended, and reports whether all of them have been stopped for more than
// the given number of ticks.
func (l *launched) standStill(running map[int]int, most int) bool {
	still := true
	now := offspring()
	for rank, pid := range running {
		if l.still[rank].look(now, pid) <= most {
			still = false
		}
	}
	return still
}

// commands returns the commands that start the processes of the run id.
func (o Options) commands(id string) []*exec.Cmd {
	var lines lineLog
	all := make([]*exec.Cmd, o.Processes)
	for rank := range all {
		c := exec.Command(o.Command[0], o.Command[1:]...)
		c.Env = append(os.Environ(), fmt.Sprint("HOCKET_RANK=", rank), fmt.Sprint("HOCKET_WORLD_SIZE=", o.Processes),
			"HOCKET_RUN_ID="+id)
		c.WaitDelay = killedAfter // time limit for output pipes that a child of the process keeps open
		err := &lineWriter{to: o.Stderr, log: &lines, once: o.SameErrors}
		c.Stdout, c.Stderr = o.Stdout, err
		switch {
		case rank > 0:
			err.prefix = fmt.Sprintf("[%d] ", rank)
			c.Stdout = &lineWriter{to: o.Stderr, log: &lines, prefix: err.prefix}
		case o.WholeLines:
			c.Stdin, c.Stdout = o.Stdin, &lineWriter{to: o.Stdout, log: &lines}
		default:
			c.Stdin = o.Stdin
		}
		dieWithParent(c)
		all[rank] = c
	}
	return all
}

// likeTorchrun sets the environment variables with which torchrun numbers processes, and hocket's variable for the
// number of a process within its node. The processes of torch.distributed meet at MASTER_PORT. This is a port that is
// free now, unless the caller's environment sets it.
func likeTorchrun(processes []*exec.Cmd, nodes int) error {
	n := len(processes)
	all := []string{fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("GROUP_WORLD_SIZE=", nodes)}
	if os.Getenv("MASTER_PORT") == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		all = append(all, "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", l.Addr().(*net.TCPAddr).Port))
		if err := l.Close(); err != nil {
			return err
		}
	}
	for node := range nodes {
		first, end := node*n/nodes, (node+1)*n/nodes
		for rank := first; rank < end; rank++ {
			c := processes[rank]
			c.Env = append(c.Env, all...)
			c.Env = append(c.Env, fmt.Sprint("RANK=", rank), fmt.Sprint("GROUP_RANK=", node))
			for _, prefix := range []string{"", "HOCKET_"} {
				c.Env = append(c.Env, fmt.Sprint(prefix, "LOCAL_RANK=", rank-first),
					fmt.Sprint(prefix, "LOCAL_WORLD_SIZE=", end-first))
			}
		}
	}
	return nil
}

// separate assigns processes to several nodes, in order and as evenly as possible. Process 0 inherits the socket at
// which the processes meet, so that no other program can bind the port.
func separate(processes []*exec.Cmd, nodes int) (io.Closer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	meeting, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	token, host := rand.Text(), rand.Text()
	for node := range nodes {
		first, end := node*len(processes)/nodes, (node+1)*len(processes)/nodes
		for rank := first; rank < end; rank++ {
			c := processes[rank]
			c.Env = append(c.Env, "HOCKET_MEET="+l.Addr().String(), "HOCKET_TOKEN="+token,
				fmt.Sprint("HOCKET_NODE=", node),
				fmt.Sprintf("NCCL_HOSTID=%s-%d", host, node)) // NCCL, too, keeps to memory of a node
		}
	}
	processes[0].ExtraFiles = []*os.File{meeting}
	processes[0].Env = append(processes[0].Env, "HOCKET_MEET_FD=3")
	return meeting, nil
}

// start starts processes from a single thread, which runs until stop is closed. The processes are killed when that
// thread ends, so none outlives the launch. If start returns an error, no process is running.
func start(processes []*exec.Cmd, stop <-chan struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		for rank, c := range processes {
			if err := c.Start(); err != nil {
				for _, c := range processes[:rank] {
					_ = c.Process.Kill()
					_ = c.Wait()
				}
				started <- fmt.Errorf("process %d of %d: %w", rank, len(processes), err)
				return
			}
		}
		started <- nil
		<-stop
	}()
	return <-started
}

// failure returns the error of a launch in which this process was the first to fail. Unless it was killed, the process
// has already printed the reason.
func (x exit) failure(n int) error {
	if x.err != nil {
		return processError("waiting for process %d of %d: %w", x.rank, n, x.err)
	}
	if code := x.state.ExitCode(); code > 0 {
		return &Error{Kind: ofProcess, Code: code,
			Err: fmt.Errorf("process %d of %d failed first, with exit code %d", x.rank, n, code)}
	}
	return processError("process %d of %d was ended: %v", x.rank, n, x.state)
}

// lineLog collects the output of processes.
type lineLog struct {
	mu   sync.Mutex
	said map[string]*lineWriter // by line: the writer that was first to write it
}

// lineWriter writes whole lines with a prefix. If once is set, it drops a line that another writer has already written,
// since all processes print the same errors.
type lineWriter struct {
	to     io.Writer
	log    *lineLog
	prefix string
	once   bool
	rest   []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 && len(w.rest) < longestLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		if err := w.line(string(w.rest[:i+1])); err != nil {
			return 0, err
		}
		w.rest = w.rest[i+1:]
	}
}

// end writes the last line if it does not end with a newline.
func (w *lineWriter) end() {
	if len(w.rest) > 0 {
		_ = w.line(string(w.rest) + "\n")
		w.rest = nil
	}
}

// longestLine is the length in bytes to which longer lines are cut.
const longestLine = 64 << 10

func (w *lineWriter) line(text string) error {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	if w.once {
		if by := w.log.said[text]; by != nil && by != w {
			return nil
		}
		if w.log.said == nil {
			w.log.said = map[string]*lineWriter{}
		}
		w.log.said[text] = w
	}
	_, err := io.WriteString(w.to, w.prefix+text)
	return err
}
