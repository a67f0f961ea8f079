package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

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

func (a *app) launchCommand() *cobra.Command {
	var n, nodes int
	c := &cobra.Command{
		Use:        "launch -n N -- COMMAND [ARGS]",
		SuggestFor: []string{"mpirun", "torchrun"},
		Short:      "Start several processes that run one program together",
		Long: `Starts N processes of this host, each of which drives some of a program's ranks, and
waits for them. With --nodes they are in as many groups, which share no memory and talk over
TCP, as processes of several hosts would. COMMAND is one of hocket's, as run, or a program, by its
path or by its name on PATH. Each process learns who it is from HOCKET_RANK and HOCKET_WORLD_SIZE,
and from the variables that torchrun sets, RANK, LOCAL_RANK and MASTER_ADDR among them.

Standard output is that of process 0. What the others print, on either output, goes to
standard error with the process's number in front. The exit code is that of the process that
failed first, and 3 where it was killed; the others are ended then. A process that is stopped
(SIGSTOP) ends the launch once others have reported it, or have exited and HOCKET_STALL_TIMEOUT
(30s) is over. Whatever the processes have started, and left running, ends with them.

torchrun --no-python, mpirun and srun start such processes, too.`,
		Example: `  hocket launch -n 2 -- run examples/mlp.hkt --compare
  hocket launch --nodes 2 -n 4 -- run examples/dp_tp_mlp.hkt --compare
  hocket launch -n 2 -- run -m cuda --graph examples/mlp.hkt
  hocket launch -n 4 -- printenv LOCAL_RANK`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("a COMMAND is required after --").helping("see %s --help", c.CommandPath())
			}
			return nil
		},
	}
	c.Flags().IntVarP(&n, "processes", "n", 2, "start `N` processes")
	c.Flags().IntVar(&nodes, "nodes", 1, "divide the processes into `M` nodes, which share no memory")
	c.RunE = func(c *cobra.Command, args []string) error {
		if n < 1 || n > 256 {
			return usagef("-n is %d, but must be from 1 to 256", n)
		}
		if nodes < 1 || nodes > n {
			return usagef("--nodes is %d, but must be from 1 to %d, the number of processes (-n)", nodes, n)
		}
		if err := alone(); err != nil {
			return err
		}
		words, err := commandOf(c.Root(), args)
		if err != nil {
			return err
		}
		a.bounded.Store(true)
		end, second := leader(c.Context())
		if !second {
			return supervise(c.Context())
		}
		return a.launch(end, n, nodes, words)
	}
	return c
}

// commandOf returns the command line for the words after --, which are either a hocket command or a program with its
// arguments.
func commandOf(root *cobra.Command, words []string) ([]string, error) {
	own := strings.HasPrefix(words[0], "-") || slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool {
		return c.Name() == words[0] || c.HasAlias(words[0])
	})
	if !own {
		_, err := exec.LookPath(words[0])
		switch {
		case err == nil:
			return words, nil
		case strings.ContainsRune(words[0], filepath.Separator):
			return nil, usagef("%w", err)
		}
		var names []string
		for _, c := range root.Commands() {
			names = append(names, c.Name())
		}
		wrong := usagef("%q is neither a command of hocket nor a program on PATH", words[0])
		if _, err := os.Stat(words[0]); err == nil && filepath.Ext(words[0]) == ".py" {
			return nil, wrong.helping("a program of Python is run by python3 %s", words[0])
		}
		if _, err := strconv.Atoi(words[0]); err == nil {
			return nil, wrong.helping("the number of processes is a flag: -n %s", words[0])
		}
		if near := nearest(words[0], names); near != "" {
			return nil, wrong.helping("did you mean %s?", near)
		}
		return nil, wrong
	}
	if self() == "" {
		return nil, &failure{code: exitMachine, kind: "machine",
			err: errors.New("the path of hocket's own program is unknown")}
	}
	return append([]string{self()}, words...), nil
}

// self returns the path of this executable, or "" if it is unknown.
func self() string {
	if path, err := exec.LookPath(os.Args[0]); err == nil {
		return path
	}
	path, _ := os.Executable()
	return path
}

// launch starts n processes on the given number of nodes. It waits until they, and all processes that they have
// started, have ended. When end is closed, launch terminates them.
func (a *app) launch(end <-chan struct{}, n, nodes int, words []string) error {
	stall, err := stallTimeout()
	if err != nil {
		return err
	}
	id := rand.Text()
	processes := a.processes(n, id, words)
	if err := likeTorchrun(processes, nodes); err != nil {
		return &failure{code: exitMachine, kind: "machine", err: err}
	}
	watcher := newWatcher(id, processes)
	defer watcher.close()
	if nodes > 1 {
		meeting, err := separate(processes, nodes)
		if err != nil {
			return &failure{code: exitMachine, kind: "machine", err: err}
		}
		defer meeting.Close()
	}
	stop := make(chan struct{})
	defer close(stop)
	if err := start(processes, stop); err != nil {
		_ = endOffspring(processes[:0], syscall.SIGKILL)
		return &failure{code: exitMachine, kind: "machine", err: err}
	}
	l := &launched{all: processes, over: make(chan exit, n), stall: stall, still: make([]standstill, n),
		watcher: watcher}
	err = l.wait(end)
	if why := watcher.l.Cause(); err == nil && why != nil {
		fmt.Fprintf(a.stderr, "warning: all processes ended with exit code 0, although an error had ended their run: %v\n", why)
	}
	return err
}

// stallTimeout returns the time for which a process may be stopped. It is the same as the StallTimeout of hocket.Join.
func stallTimeout() (time.Duration, error) {
	const name = "HOCKET_STALL_TIMEOUT"
	text := os.Getenv(name)
	if text == "" {
		return 30 * time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, usagef("%s is %q: want a duration such as 30s", name, text)
	}
	return d, nil
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
	signal.Notify(make(chan os.Signal, 1),
		endings()...) // a second signal must not end launch before the processes have ended
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
			why = &failure{code: exitInterrupted, kind: "interrupted", err: errors.New("interrupted")}
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
				stopped = &failure{code: exitMachine, kind: "process",
					err: fmt.Errorf("the failure began in process %d of %d: %s", rank, len(l.all), cause)}
				late = time.After(endsAfter)
			}
		case <-tick.C:
			if first >= 0 || why != nil || len(running) == len(l.all) || !l.standStill(running, int(l.stall/beat)) {
				continue
			}
			why = &failure{code: exitMachine, kind: "process",
				err: fmt.Errorf("process %s of %d was killed, because it was "+
					"stopped for %v after others had exited", rankList(running), len(l.all), l.stall)}
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

// processes returns the commands that start the n processes of the run id.
func (a *app) processes(n int, id string, words []string) []*exec.Cmd {
	own := words[0] == self()
	var lines lineLog
	all := make([]*exec.Cmd, n)
	for rank := range all {
		c := exec.Command(words[0], words[1:]...)
		c.Env = append(os.Environ(), fmt.Sprint("HOCKET_RANK=", rank), fmt.Sprint("HOCKET_WORLD_SIZE=", n),
			"HOCKET_RUN_ID="+id)
		c.WaitDelay = killedAfter // time limit for output pipes that a child of the process keeps open
		err := &lineWriter{to: a.stderr, log: &lines, once: own}
		c.Stdout, c.Stderr = a.stdout, err
		if rank > 0 {
			err.prefix = fmt.Sprintf("[%d] ", rank)
			c.Stdout = &lineWriter{to: a.stderr, log: &lines, prefix: err.prefix}
		} else {
			c.Stdin = a.stdin
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
		return &failure{code: exitMachine, kind: "process",
			err: fmt.Errorf("waiting for process %d of %d: %w", x.rank, n, x.err)}
	}
	if code := x.state.ExitCode(); code > 0 {
		return &failure{code: code, kind: "process",
			err: fmt.Errorf("process %d of %d failed first, with exit code %d", x.rank, n, code)}
	}
	return &failure{code: exitMachine, kind: "process",
		err: fmt.Errorf("process %d of %d was ended: %v", x.rank, n, x.state)}
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
