package acceptance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLaunchers checks that processes started by mpirun, torchrun and hocket itself compute the same results as one
// process.
func TestLaunchers(t *testing.T) {
	dir := t.TempDir()
	hocket := filepath.Join(dir, "hocket")
	if out, err := exec.Command("go", "build", "-o", hocket, root+"/cmd/hocket").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := []string{hocket, "run", filepath.Join(root, "examples", "mlp.hkt"), "--compare", "--json",
		"--dim=T=64", "--dim=H=32", "--dim=F=64"}
	hash := regexp.MustCompile(`"outputs_sha256": "\w{64}"`)
	want := hash.FindString(output(t, dir, run))
	if want == "" {
		t.Fatal("a single process prints no hash")
	}
	for name, words := range map[string][]string{
		"mpirun":   {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"},
		"torchrun": {"torchrun", "--no_python", "--nproc_per_node", "2"},
		"hocket":   {hocket, "launch", "-n", "2", "--"},
		"nodes":    {hocket, "launch", "-n", "4", "--nodes=2", "--"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(words[0]); err != nil {
				t.Skip(err)
			}
			if name == "torchrun" { // some packages of torch 1.13 for Python 3.11 cannot start any process
				if out, err := exec.Command(words[0], "--no_python", "--nproc_per_node", "1",
					"true").CombinedOutput(); err != nil {
					t.Skipf("torchrun cannot start true: %v\n%s", err, out)
				}
			}
			words = append(words, run...)
			if words[0] == hocket { // hocket starts only its own commands
				words = slices.DeleteFunc(words, func(w string) bool { return w == hocket })
				words = append([]string{hocket}, words...)
			}
			if got := hash.FindAllString(output(t, dir, words), -1); len(got) != 1 || got[0] != want {
				t.Errorf("got %s, want %s once", got, want)
			}
		})
	}
}

// output runs a command and returns what it prints.
func output(t *testing.T, dir string, words []string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), words[0], words[1:]...)
	c.Env = append(os.Environ(), "HOCKET_RUN_DIR="+dir)
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", words, err, out, &errs)
	}
	return string(out)
}
