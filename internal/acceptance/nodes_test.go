package acceptance_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestNodeKilled kills all processes of a node, in each phase. The processes of the other node must end soon with exit
// code 3, and name one of the killed processes.
func TestNodeKilled(t *testing.T) {
	dir := t.TempDir()
	for _, phase := range []string{"joined", "load", "loaded", "run"} {
		t.Run(phase, func(t *testing.T) {
			change := onNodes(t, 2, 3) // ranks 0 and 1 are on one node, rank 2 on the other
			workers := launch(t, 3, dir, t.Name(), func(rank int, p *process) {
				change(rank, p)
				p.Env = append(p.Env, workerEnv+"=1", fmt.Sprint("HOCKET_STALL_TIMEOUT=", stallTimeout))
				if rank < 2 {
					p.Env = append(p.Env, fmt.Sprintf("%s=kill %s 0", faultEnv, phase))
				}
			})
			for rank, p := range workers[:2] {
				_ = p.wait(t)
				if p.ProcessState.ExitCode() == 0 {
					t.Errorf("process %d was not killed", rank)
				}
			}
			began := time.Now()
			_ = workers[2].wait(t)
			out := workers[2].out.String()
			named := regexp.MustCompile(`rank [01] \(pid \d+ on .*\): `).MatchString(out)
			if code := workers[2].ProcessState.ExitCode(); code != 3 || !named {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			if took := time.Since(began); took > 10*5*time.Second {
				t.Errorf("it takes %v", took)
			} else {
				t.Logf("%v later", took.Round(time.Millisecond))
			}
		})
	}
}

// TestNodeLaunchers checks that four processes, with the environment that launchers set on two
// nodes, have the same results as one process.
func TestNodeLaunchers(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "hocket")
	if out, err := exec.Command("go", "build", "-o", program, root+"/cmd/hocket").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := []string{"run", filepath.Join(root, "examples", "mlp.hkt"), "--compare", "--json",
		"--dim=T=64", "--dim=H=32", "--dim=F=64"}
	hash := regexp.MustCompile(`"outputs_sha256": "\w{64}"`)
	want := hash.FindString(output(t, dir, append([]string{program}, run...)))
	check := func(t *testing.T, first, other string) {
		t.Helper()
		if got := hash.FindAllString(first, -1); len(got) != 1 || got[0] != want || hash.MatchString(other) {
			t.Errorf("got %q, want %q once", got, want)
		}
	}
	for name, env := range map[string]func(rank, port int) string{
		"torchrun's variables": func(rank, port int) string {
			return fmt.Sprintf("WORLD_SIZE=4 RANK=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 GROUP_RANK=%d MASTER_ADDR=127.0.0.1 "+
				"MASTER_PORT=%d TORCHELASTIC_RUN_ID=x", rank, rank%2, rank/2, port-1)
		},
		"mpirun's variables": func(rank, port int) string {
			return fmt.Sprintf("OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_LOCAL_RANK=%d "+
				"OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=n HOCKET_NODE=%d HOCKET_MEET=127.0.0.1:%d", rank, rank%2, rank/2, port)
		},
		"srun's variables": func(rank, port int) string {
			return fmt.Sprintf("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=%d SLURM_LOCALID=%d SLURM_STEP_TASKS_PER_NODE=2(x2) "+
				"SLURM_NODEID=%d SLURM_JOB_ID=7 SLURM_STEP_ID=0 HOCKET_MEET=127.0.0.1:%d", rank, rank%2, rank/2, port)
		},
	} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			outs := allOutputs(t, 4, func(rank int) *exec.Cmd {
				c := exec.CommandContext(t.Context(), program, run...)
				c.Env = append(clean(), "HOCKET_RUN_DIR="+dir, "HOCKET_TOKEN=a token of tests")
				c.Env = append(c.Env, strings.Fields(env(rank, port))...)
				return c
			})
			check(t, outs[0], outs[3])
		})
	}
	t.Run("mpirun", func(t *testing.T) {
		if _, err := exec.LookPath("mpirun"); err != nil {
			t.Skip(err)
		}
		words := []string{"--allow-run-as-root", "--oversubscribe", "-n", "2", "-x", "HOCKET_NODE=a", program}
		words = append(append(words, run...), ":", "-n", "2", "-x", "HOCKET_NODE=b", program)
		c := exec.CommandContext(t.Context(), "mpirun", append(words, run...)...)
		c.Env = append(clean(), "HOCKET_RUN_DIR="+dir, "HOCKET_TOKEN=a token of tests",
			fmt.Sprint("HOCKET_MEET=127.0.0.1:", freePort(t)))
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		check(t, string(out), "")
	})
	t.Run("torchrun", func(t *testing.T) {
		if out, err := exec.Command("torchrun", "--no_python", "--nproc_per_node", "1", "true").CombinedOutput(); err != nil {
			t.Skipf("torchrun cannot start true: %v\n%s", err, out)
		}
		port := freePort(t)
		outs := allOutputs(t, 2, func(node int) *exec.Cmd {
			words := []string{"--no_python", "--nnodes", "2", "--node_rank", fmt.Sprint(node), "--nproc_per_node", "2",
				"--master_addr", "127.0.0.1", "--master_port", fmt.Sprint(port - 1), program}
			c := exec.CommandContext(t.Context(), "torchrun", append(words, run...)...)
			c.Env = append(clean(), "HOCKET_RUN_DIR="+dir, "HOCKET_TOKEN=a token of tests")
			return c
		})
		check(t, outs[0], outs[1])
	})
}

// allOutputs runs n commands concurrently, and returns their outputs.
func allOutputs(t *testing.T, n int, command func(i int) *exec.Cmd) []string {
	t.Helper()
	outs := make([]string, n)
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() {
			out, err := command(i).CombinedOutput()
			if err != nil {
				t.Errorf("command %d: %v\n%s", i, err, out)
			}
			outs[i] = string(out)
		})
	}
	all.Wait()
	return outs
}

// freePort returns a port such that no process listens on it or on the port before it. The port is below the range of
// ephemeral ports, so the system does not assign it meanwhile.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10001 + rand.IntN(20000)
		if !slices.ContainsFunc([]int{port - 1, port}, taken) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func taken(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	if err == nil {
		l.Close()
	}
	return err != nil
}

// clean returns the environment without variables that a launcher of this test may have set.
func clean() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HOCKET_") })
}
