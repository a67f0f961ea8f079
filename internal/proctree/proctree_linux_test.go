package proctree

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestTree checks the state and the ancestors of processes whose program's name contains parentheses and blanks.
func TestTree(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	name := t.TempDir() + "/a ) S 1 (b"
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c", `"$1" 600; exit 0`, "sh", name)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait()
	}()
	until := func(what string, ok func() bool) {
		t.Helper()
		for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("not seen: ", what)
			}
		}
	}
	until("the grandchild", func() bool {
		tree := Read()
		below := tree.Descendants(os.Getpid())
		grandchildren := tree[c.Process.Pid]
		return len(below) >= 2 && len(grandchildren) == 1 && grandchildren[0].Parent == c.Process.Pid
	})
	grandchild := Read()[c.Process.Pid][0]
	if err := syscall.Kill(grandchild.ID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until("the stopped state", func() bool { p, ok := Find(grandchild.ID); return ok && p.State == 'T' })
	stopped, _ := Find(grandchild.ID)
	if first, second := stopped.Work(), stopped.Work(); first == 0 || first != second {
		t.Errorf("the work of a stopped process is %d and then %d, want one positive number", first, second)
	}
	if err := syscall.Kill(-c.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until("the end", func() bool { p, _ := Find(c.Process.Pid); return p.State == 'Z' })
}
