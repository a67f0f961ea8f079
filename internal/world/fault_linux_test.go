package world

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
)

const (
	// faultVariable is the environment variable with the fault of a process and the phase in which it occurs: "FAULT
	// PHASE".
	faultVariable = "HOCKET_TEST_WORLD_FAULT"
)

func init() {
	children["life"] = life
	fault, at, _ := strings.Cut(os.Getenv(faultVariable), " ")
	if fault == "" {
		return
	}
	var once sync.Once
	phase = func(name string) {
		if name == at {
			once.Do(func() { suffer(fault) })
		}
	}
}

// suffer applies a fault to this process.
func suffer(fault string) {
	switch fault {
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop":
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // another thread may receive the signal a little later
	case "panic":
		go panic("a bug")
		select {}
	case "terminate":
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	}
}

// rounds is the number of batches that the function life runs.
const rounds = 20

// life performs everything that a process does with a world: it joins, exchanges memory, agrees,
// and then passes numbers to its neighbours in steps.
func life(ctx context.Context, o Options) error {
	phase("start")
	w, err := Join(ctx, o)
	if err != nil {
		return err
	}
	err = live(ctx, w)
	if err != nil {
		w.Abort(err)
		err = w.Err()
	}
	w.Leave()
	return err
}

func live(ctx context.Context, w *World) error {
	phase("joined")
	size, me := w.Processes(), w.Process()
	next, last := (me+1)%size, (me+size-1)%size
	if err := w.Same(ctx, "the version", "1"); err != nil {
		return err
	}
	if err := w.Step("load"); err != nil {
		return err
	}
	mine, err := w.NewCounters("from last", 1, last)
	if err != nil {
		return err
	}
	defer mine.Close()
	phase("exported")
	theirs, err := w.MapCounters(ctx, next, "from last")
	if err != nil {
		return err
	}
	defer theirs.Close()
	phase("imported")
	if _, err := w.Agree(ctx, "loaded", []byte{1}); err != nil {
		return err
	}
	for i := range rounds {
		if err := w.Step(fmt.Sprint("batch ", i)); err != nil {
			return err
		}
		theirs.Add(0, 1)
		if i == rounds/2 {
			phase("batch")
		}
		if err := mine.Wait(ctx, 0, uint64(i+1), last); err != nil {
			return err
		}
	}
	if _, err := w.Agree(ctx, "done", nil); err != nil {
		return err
	}
	phase("done")
	return nil
}

// family holds the processes of a world that a test has started.
type family struct {
	t       *testing.T
	o       Options
	command []*exec.Cmd
	out     []bytes.Buffer
	ended   []chan struct{}
	at      []time.Time
}

// newFamily returns a family without starting its processes. Processes that still run are killed at the end of the
// test.
func newFamily(t *testing.T, o Options) *family {
	f := &family{t: t, o: o, command: make([]*exec.Cmd, o.Size), out: make([]bytes.Buffer, o.Size),
		ended: make([]chan struct{}, o.Size), at: make([]time.Time, o.Size)}
	t.Cleanup(func() {
		for r, c := range f.command {
			if c != nil {
				c.Process.Kill()
				<-f.ended[r]
			}
		}
	})
	return f
}

// start starts processes that run the child with the given name, each with the variables that env
// returns for it.
func start(t *testing.T, o Options, child string, env func(rank int) []string) *family {
	t.Helper()
	f := newFamily(t, o)
	for r := range o.Size {
		f.run(r, child, env(r)...)
	}
	return f
}

// run starts the process with the given rank.
func (f *family) run(rank int, child string, env ...string) {
	f.t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childVariable+"="+child,
		fmt.Sprint("HOCKET_WORLD_SIZE=", f.o.Size), fmt.Sprint("HOCKET_RANK=", rank),
		"HOCKET_RUN_ID="+f.o.ID, "HOCKET_RUN_DIR="+f.o.Dir,
		fmt.Sprint("HOCKET_JOIN_TIMEOUT=", f.o.JoinTimeout), fmt.Sprint("HOCKET_STALL_TIMEOUT=", f.o.StallTimeout))
	c.Env = append(c.Env, env...)
	c.Stdout, c.Stderr = &f.out[rank], &f.out[rank]
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.command[rank], f.ended[rank] = c, make(chan struct{})
	go func() {
		c.Wait()
		f.at[rank] = time.Now()
		close(f.ended[rank])
	}()
}

// wait waits for a process to end and returns its exit code, or -1 if a signal ended it.
func (f *family) wait(rank int, limit time.Duration) int {
	f.t.Helper()
	select {
	case <-f.ended[rank]:
	case <-time.After(limit):
		f.command[rank].Process.Signal(syscall.SIGQUIT) // SIGQUIT makes the process print its stack traces
		select {
		case <-f.ended[rank]:
		case <-time.After(5 * time.Second):
			f.command[rank].Process.Kill()
			<-f.ended[rank]
		}
		f.t.Fatalf("rank %d does not end:\n%s", rank, f.out[rank].String())
	}
	return f.command[rank].ProcessState.ExitCode()
}

// waitStopped waits until a process is stopped.
func (f *family) waitStopped(rank int, limit time.Duration) {
	f.t.Helper()
	for begin := time.Now(); time.Since(begin) < limit; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.command[rank].Process.Pid))
		if err != nil {
			break
		}
		if _, state, _ := bytes.Cut(text, []byte(") ")); len(state) > 0 && state[0] == 'T' {
			return
		}
	}
	f.t.Fatalf("rank %d does not stop: %s", rank, f.out[rank].String())
}

// empty checks that no files are left in the folder of the run.
func (f *family) empty() {
	f.t.Helper()
	if left, err := os.ReadDir(f.o.Dir); err != nil || len(left) > 0 {
		f.t.Errorf("left in the folder: %v, %v", left, err)
	}
}

const limit = 60 * time.Second

func TestLife(t *testing.T) {
	for _, size := range []int{2, 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := start(t, options(t, size), "life", func(int) []string { return nil })
			for r := range size {
				if code := f.wait(r, limit); code != 0 {
					t.Errorf("rank %d exits %d: %s", r, code, f.out[r].String())
				}
			}
			f.empty()
		})
	}
}

// phases are the points of the function life at which a process can fail, in order. Before the point linked, some of
// the other processes may have no link with the process.
var phases = []string{"start", "folder", "bound", "introduced", "linked", "within ready", "ready", "joined",
	"within agreement", "exported", "imported", "batch", "done", "within goodbye"}

// cell is one case of TestFaults.
type cell struct {
	fault, phase string
	last         bool // whether the last process fails instead of the first
}

func (c cell) String() string {
	who := "first"
	if c.last {
		who = "last"
	}
	return strings.ReplaceAll(fmt.Sprintf("%s_%s_%s", c.fault, c.phase, who), " ", "_")
}

// TestFaults lets a process die or stop at every point of the function life. All other processes must soon end with an
// error that names the failed process. A short run tests a sample of the cases; a long run tests all of them 20 times.
func TestFaults(t *testing.T) {
	var cells []cell
	for _, phase := range phases {
		for _, fault := range []string{"kill", "stop", "panic", "terminate"} {
			for _, last := range []bool{false, true} {
				if phase == "introduced" && !last {
					continue // the first process dials no other process, so it has no such phase
				}
				cells = append(cells, cell{fault, phase, last})
			}
		}
	}
	times := 1
	if longtest.On() {
		times = 20
	} else {
		rand.New(rand.NewPCG(longtest.Drawn(t), 0)).Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
		cells = cells[:10]
		if testing.Short() {
			cells = cells[:6]
		}
	}
	for i := range len(cells) * times {
		c := cells[i/times]
		t.Run(fmt.Sprint(c, "_", i%times), func(t *testing.T) {
			t.Parallel()
			try(t, c)
		})
	}
}

// absent matches an error about absent processes that names two of three processes, including the first or the last.
var absent = regexp.MustCompile(`ranks (0, 2|1-2) are absent`)

const (
	shortJoin  = 5 * time.Second
	shortStall = 2 * time.Second
)

// try runs three processes, in one of which the fault occurs.
func try(t *testing.T, c cell) {
	o := Options{Size: 3, ID: t.Name(), Dir: t.TempDir(), JoinTimeout: shortJoin, StallTimeout: shortStall}
	victim := 0
	if c.last {
		victim = o.Size - 1
	}
	last := "linked" // the phase from which no process is absent
	if c.fault == "stop" {
		last = "joined"
	}
	if slices.Index(phases, c.phase) >= slices.Index(phases, last) {
		o.JoinTimeout = limit
	}
	f := start(t, o, "life", func(rank int) []string {
		if rank == victim {
			return []string{faultVariable + "=" + c.fault + " " + c.phase}
		}
		return nil
	})
	if c.fault == "stop" {
		f.waitStopped(victim, limit)
	} else {
		f.wait(victim, limit)
	}
	begin := time.Now()
	leaving := c.phase == "within goodbye" || c.phase == "done"
	for r := range o.Size {
		if r == victim {
			continue
		}
		code := f.wait(r, limit)
		took := f.at[r].Sub(begin).Round(time.Millisecond)
		t.Logf("rank %d exits %d after %v: %s", r, code, took, strings.TrimSpace(f.out[r].String()))
		if leaving && code == 0 {
			continue // this process no longer needed the failed process
		}
		if c.phase == "introduced" && code == exitFailed && absent.MatchString(f.out[r].String()) {
			continue // this process had no link yet when the two others ended
		}
		if want := fmt.Sprintf("peer %d: ", victim); code != exitFailed || !strings.HasPrefix(f.out[r].String(), want) {
			t.Errorf("rank %d exits %d, want %d and blame for rank %d: %s", r, code, exitFailed, victim, f.out[r].String())
		}
		if took > 10*(shortJoin+shortStall) {
			t.Errorf("rank %d took %v", r, took)
		}
	}
	if c.fault == "stop" { // the stopped process must find that the world has ended when it continues
		f.command[victim].Process.Signal(syscall.SIGCONT)
		if code := f.wait(victim, limit); code != exitFailed && !(leaving && code == 0) {
			t.Errorf("the stopped process exits %d: %s", code, f.out[victim].String())
		}
	}
	// Files of a dead process are removed when the last other process ends, or at the start of the next run.
	if d, err := openFolder(context.Background(), o.Dir, "next"); err != nil {
		t.Error(err)
	} else {
		d.close()
	}
	f.empty()
}
