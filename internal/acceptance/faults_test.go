package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
)

// These tests let a process fail, stop, or behave differently from the others, in every phase of
// its life. The remaining processes must end in bounded time and name the process to blame, and
// must leave no resources behind.

// faultEnv is the environment variable with a worker's fault: "KIND PHASE MICROSECONDS".
const faultEnv = "HOCKET_TEST_FAULT"

// phases are the phases of a worker's life.
var phases = []string{"start", "joined", "load", "loaded", "run", "ran", "close", "leave"}

// worker is the life of a process: three loads, each followed by batches of runs. Like hocket's
// commands, it exits with code 3 if another process is to blame.
func worker() int {
	err := work(context.Background(), readFault())
	var peer *hocket.PeerError
	var disagree *hocket.DisagreeError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &peer), errors.As(err, &disagree):
		fmt.Println(err)
		return 3
	}
	fmt.Println("other error:", err)
	return 1
}

const workerProgram = `dim T = 48
mesh d[3]
func f(%x: f32[T/d, 4], %w: f32[4, 4]) -> f32[T, 4] {
  %y = linear %x, %w
  return %y
}
func g(%x: f32[T/d, 4], %w: f32[4, 4]) -> f32[T, 4] {
  %y = linear %x, %w
  %z = add %y, %y
  return %z
}`

func work(ctx context.Context, f *fault) error {
	f.at("start")
	w, err := hocket.Join(ctx, hocket.JoinOptions{})
	if err != nil {
		return err
	}
	f.at("joined")
	m, err := hocket.Open(ctx, hocket.MachineOptions{World: w})
	if err != nil {
		return err
	}
	p, err := hocket.Parse("worker.hkt", workerProgram)
	if err != nil {
		return err
	}
	for i, b := range f.bindings() {
		if err := f.batches(ctx, m, p, b, i); err != nil {
			return err
		}
	}
	f.at("close")
	if err := m.Close(); err != nil {
		return err
	}
	f.at("leave")
	return w.Leave()
}

// bindings are the bindings that a worker loads, in order.
func (f *fault) bindings() []hocket.Binding {
	list := []hocket.Binding{{Func: "f"}, {Func: "g"}, {Func: "f", Dims: map[string]int64{"T": 96}}}
	switch f.kind {
	case "program":
		list[1].Func = "f"
	case "dims":
		list[1].Dims = map[string]int64{"T": 51}
	case "order":
		list[0], list[1] = list[1], list[0]
	}
	return list
}

func (f *fault) batches(ctx context.Context, m *hocket.Machine, p *hocket.Program, b hocket.Binding, number int) error {
	opts := hocket.LoadOptions{}
	if f.kind == "algorithm" && number == 1 {
		opts.Algorithm = "two-shot"
	}
	model, err := m.Load(p, b, opts)
	if err != nil {
		return err
	}
	f.at("load")
	if err := model.Prepare(ctx, nil); err != nil {
		return err
	}
	f.at("loaded")
	in, err := model.RandomInputs("ints:1")
	if err != nil {
		return err
	}
	for batch := range 3 {
		runs := 10
		if f.kind == "runs" && batch == 1 {
			runs = 9
		}
		f.at("run")
		if _, err := model.RunBatch(ctx, slices.Repeat([]hocket.Args{{In: in}}, runs)); err != nil {
			return err
		}
		f.at("ran")
	}
	return nil
}

// fault describes what goes wrong, in which phase, and after how long.
type fault struct {
	kind, phase string
	after       time.Duration
}

func readFault() *fault {
	words := strings.Fields(os.Getenv(faultEnv))
	if len(words) != 3 {
		return &fault{}
	}
	us, err := strconv.Atoi(words[2])
	if err != nil {
		panic(err)
	}
	return &fault{words[0], words[1], time.Duration(us) * time.Microsecond}
}

// A worker calls the method at when a phase begins.
func (f *fault) at(phase string) {
	if phase != f.phase {
		return
	}
	happens := func() {
		switch f.kind {
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "exit":
			os.Exit(9)
		case "panic":
			panic("a fault")
		case "stop":
			fmt.Println("stopped")
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
	}
	f.phase = "" // only once
	if f.after > 0 {
		time.AfterFunc(f.after, happens)
		return
	}
	happens()
}

// stallTimeout is the stall timeout of the worlds of these tests. A process with a loaded machine
// sends heartbeats more often.
const stallTimeout = 5 * time.Second

// faultCase is a fault in one of three processes.
type faultCase struct {
	kind, phase string
	rank        int
	after       int // microseconds
}

func (c faultCase) String() string {
	return fmt.Sprintf("%s at %s of %d after %d µs", c.kind, c.phase, c.rank, c.after)
}

// TestFaults tests a random part of all faults, by a seed that it prints. In long tests it tests all faults.
func TestFaults(t *testing.T) {
	var all []faultCase
	rng := rand.New(rand.NewPCG(longtest.Drawn(t), 0))
	for _, rank := range []int{0, 2} {
		for _, phase := range phases {
			for _, kind := range []string{"kill", "exit", "panic", "stop"} {
				for n := range 20 {
					all = append(all, faultCase{kind, phase, rank, n % 2 * rng.IntN(4000)})
				}
			}
		}
		for _, kind := range []string{"program", "dims", "order", "algorithm", "runs"} {
			all = append(all, faultCase{kind: kind, phase: "none", rank: rank})
		}
	}
	if !longtest.On() {
		sample := all[:0:0]
		for _, i := range rng.Perm(len(all)) {
			if c := all[i]; len(sample) < 16 || c.phase == "none" && c.rank == 2 {
				sample = append(sample, c)
			}
		}
		all = sample
	}
	dir := t.TempDir()
	var running sync.WaitGroup
	free := make(chan struct{}, 4) // limits the number of concurrent cases, whose workers mostly wait
	for i, c := range all {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			if err := c.check(t, dir, fmt.Sprintf("%s %d", t.Name(), i)); err != nil {
				t.Errorf("%v: %v", c, err)
			}
		})
	}
	running.Wait()
	// Workers of the next world check that earlier worlds left no resources.
	if err := (faultCase{kind: "nothing"}).check(t, dir, t.Name()+" good"); err != nil {
		t.Errorf("the next world: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files left by the workers: %v, %v", left, err)
	}
}

// check runs three workers, in one of which the fault occurs.
func (c faultCase) check(t *testing.T, dir, id string) error {
	join := time.Minute
	if c.phase == "start" && c.kind != "nothing" { // the other workers wait for the faulty one until the timeout
		join = stallTimeout
	}
	workers := startWorkers(t, 3, dir, id, func(rank int) []string {
		env := []string{fmt.Sprint("HOCKET_STALL_TIMEOUT=", stallTimeout), fmt.Sprint("HOCKET_JOIN_TIMEOUT=", join)}
		if rank == c.rank {
			env = append(env, fmt.Sprintf("%s=%s %s %d", faultEnv, c.kind, c.phase, c.after))
		}
		return env
	})
	began := time.Now()
	stopped := c.kind == "stop"
	defer func() {
		_ = workers[c.rank].Process.Kill()
		if stopped {
			_ = workers[c.rank].Wait()
		}
	}()
	for rank, p := range workers {
		if rank == c.rank && stopped {
			continue
		}
		_ = p.wait(t) // judge reads the process's exit state
		if err := c.judge(rank, p); err != nil {
			return fmt.Errorf("process %d: %w\n%s", rank, err, p.out.String())
		}
	}
	if took, most := time.Since(began), 10*(join+5*time.Second); took > most {
		return fmt.Errorf("it took %v", took)
	}
	return nil
}

// judge returns an error if a process did not end as it should.
func (c faultCase) judge(rank int, p *process) error {
	code, out := p.ProcessState.ExitCode(), p.out.String()
	differs := c.phase == "none"
	switch {
	case c.kind == "nothing":
		if code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
	case differs:
		odd := regexp.MustCompile(fmt.Sprintf(`disagree on .*: rank %d \(pid \d+ on .*\) (has|called) .*, the others \(ranks .*\) `,
			c.rank))
		if code != 3 || !odd.MatchString(out) || !strings.Contains(out, "faults_test.go:") {
			return fmt.Errorf("exit code %d, and not both values and the line of the call", code)
		}
	case rank == c.rank:
		if code == 3 {
			return errors.New("it blames others")
		}
	case code == 0: // after all runs, the other workers may succeed without the faulty one
		if late := slices.Index(phases, c.phase) >= slices.Index(phases, "ran") || c.after > 0; !late {
			return errors.New("it took no notice")
		}
	case code != 3 || !strings.Contains(out, fmt.Sprintf("rank %d", c.rank)) &&
		!strings.Contains(out, "ranks 1-2 are absent"):
		return fmt.Errorf("exit code %d, and the culprit is not named", code)
	case slices.Contains([]string{"loaded", "run", "ran"}, c.phase) && c.after == 0 &&
		!regexp.MustCompile(`(in|after) [fg] at worker\.hkt:\d+, \S*faults_test\.go:\d+\b`).MatchString(out):
		return errors.New("the culprit's call and its line are not named")
	}
	return nil
}
