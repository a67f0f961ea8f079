package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
)

// These tests run examples and acceptance cases in several processes: they run again the tests of this package that
// compare with frozen results, in processes that share the ranks of every program.

// casesInProcesses matches these tests.
const casesInProcesses = "^(TestAcceptance|TestFrozenExamples$|TestSlots)"

// TestInProcesses checks that every example and acceptance case has its frozen results if two and
// four processes share its ranks.
func TestInProcesses(t *testing.T) {
	if ofWorld(t) != nil {
		t.Skip("this process is one of the test's workers")
	}
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for rank, p := range startProcesses(t, n, "-test.run="+casesInProcesses, "-test.v") {
				if err := p.wait(t); err != nil {
					t.Errorf("process %d: %v\n%s", rank, err, failures(p.out.String()))
				} else if cases := strings.Count(p.out.String(), "--- PASS: "); cases < 100 {
					t.Errorf("process %d: only %d tests passed", rank, cases)
				}
			}
		})
	}
}

// TestInNodes checks that examples and acceptance cases have their frozen results in four processes on two nodes.
// Programs that access the memory of another node must be refused, with a position in the program.
func TestInNodes(t *testing.T) {
	if ofWorld(t) != nil {
		t.Skip("this process is one of the test's workers")
	}
	refused := regexp.MustCompile(`refused: .*\(\S+:\d+:\d+.*\): rank \d on node \d .* rank \d on node \d, and nodes share no memory`)
	for rank, p := range launch(t, 4, t.TempDir(), t.Name(), onNodes(t, 2, 4), "-test.run="+casesInProcesses,
		"-test.v") {
		out := ""
		if err := p.wait(t); err != nil {
			t.Errorf("process %d: %v\n%s", rank, err, failures(p.out.String()))
		} else {
			out = p.out.String()
		}
		cases, no := strings.Count(out, "--- PASS: "), strings.Count(out, "refused: ")
		t.Logf("process %d: %d tests passed, %d programs refused", rank, cases, no)
		if out != "" && (cases < 100 || no == 0 || no > cases/2 || no != len(refused.FindAllString(out, -1))) {
			t.Errorf("process %d: %d tests, of which %d are refused:\n%s", rank, cases, no, failures(out))
		}
		for _, example := range []string{"ag_linear_2d", "dp_tp_mlp", "linear_rs_2d", "mlp", "moe", "row_parallel",
			"decode"} {
			if out != "" && !strings.Contains(out, "ran examples/"+example+".hkt") {
				t.Errorf("process %d did not run %s", rank, example)
			}
		}
	}
}

// process is a process that executes this test binary.
type process struct {
	*exec.Cmd
	out bytes.Buffer
}

// workerEnv is the variable that makes the test binary a worker instead of running tests.
const workerEnv = "HOCKET_TEST_WORKER"

// startProcesses starts the n processes of a world, which run tests.
func startProcesses(t *testing.T, n int, args ...string) []*process {
	t.Helper()
	return launch(t, n, t.TempDir(), t.Name(), nil, args...)
}

// onNodes divides processes among nodes, in order.
func onNodes(t *testing.T, nodes, processes int) func(rank int, p *process) {
	t.Helper()
	on := modeltest.OnNodes(t, nodes, processes)
	return func(rank int, p *process) { on(rank, p.Cmd) }
}

// startWorkers starts n workers, each with additional variables.
func startWorkers(t *testing.T, n int, dir, id string, env func(rank int) []string) []*process {
	t.Helper()
	return launch(t, n, dir, id, func(rank int,
		p *process) {
		p.Env = append(append(p.Env, env(rank)...), workerEnv+"=1")
	})
}

// launch starts n processes. change may modify each before it starts.
func launch(t *testing.T, n int, dir, id string, change func(rank int, p *process), args ...string) []*process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*process, n)
	for rank := range all {
		p := &process{Cmd: exec.CommandContext(t.Context(), self, args...)}
		p.Env = append(os.Environ(), fmt.Sprint("HOCKET_RANK=", rank), fmt.Sprint("HOCKET_WORLD_SIZE=", n),
			"HOCKET_RUN_ID="+id, "HOCKET_RUN_DIR="+dir)
		if change != nil {
			change(rank, p)
		}
		p.Stdout, p.Stderr = &p.out, &p.out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		all[rank] = p
	}
	return all
}

// wait waits until a process ends. wait kills the process after ten times the time that it should take.
func (p *process) wait(t *testing.T) error {
	late := time.AfterFunc(5*time.Minute, func() {
		t.Errorf("process %d did not end", p.Process.Pid)
		_ = p.Process.Kill()
	})
	defer late.Stop()
	return p.Wait()
}

// failures returns the lines of a test's output, without those about passed tests.
func failures(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "=== RUN") && !strings.Contains(line, "--- PASS") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// joined returns the world that this process belongs to; nil if none.
var joined = sync.OnceValues(func() (*hocket.World, error) {
	n, err := hocket.Launched()
	if err != nil || n == 1 {
		return nil, err
	}
	return hocket.Join(context.Background(), hocket.JoinOptions{})
})

func ofWorld(t *testing.T) *hocket.World {
	t.Helper()
	w, err := joined()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// runInProcess runs the ranks of a program that belong to this process, and returns the reports with whole results.
// runInProcess returns nil if the program has fewer ranks than there are processes.
func runInProcess(t *testing.T, w *hocket.World, p *hocket.Program, b hocket.Binding,
	batch func(m *hocket.Model) []hocket.Args) []*hocket.Report {
	t.Helper()
	sig, err := p.Bind(b)
	if err != nil {
		t.Fatal(err)
	}
	if sig.Ranks < w.Size() {
		return nil
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{World: w})
	if err != nil {
		t.Fatal(err)
	}
	model, err := m.Load(p, b, hocket.LoadOptions{Gather: true})
	if err != nil {
		t.Fatal(err)
	}
	reports, err := model.RunBatch(context.Background(), batch(model))
	cerr := m.Close()
	if w.Nodes() > 1 && errors.Is(err, hocket.ErrUnsupported) &&
		strings.Contains(err.Error(), "nodes share no memory") {
		t.Logf("refused: %v", err)
		reports, err = nil, nil
	}
	if err = errors.Join(err, cerr); err != nil {
		t.Fatal(err)
	}
	return reports
}
