//go:build unix

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// big is a content that is written in several pieces.
var big = bytes.Repeat([]byte("new content\n"), 20_000)

// writeBig writes big in pieces.
func writeBig(w io.Writer) error {
	for b := big; len(b) > 0; {
		n := min(len(b), 50_000)
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// steps lists the file system operations by which a file is written.
func steps(t *testing.T, sync bool) (ops []string) {
	w := writer{sync: sync, before: func(op string) error { ops = append(ops, op); return nil }}
	if err := w.write(filepath.Join(t.TempDir(), "file"), writeBig); err != nil {
		t.Fatal(err)
	}
	return ops
}

// oldOrNew checks that the file has its old or its new content, and that the folder contains nothing else.
func oldOrNew(t *testing.T, what, dir string, old []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, "file"))
	if !bytes.Equal(got, big) && (!bytes.Equal(got, old) || old == nil != os.IsNotExist(err)) {
		t.Errorf("%s: the file has %d bytes, %v", what, len(got), err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) > 1 || len(list) == 1 && list[0].Name() != "file" {
		t.Errorf("%s: in the folder are %v, %v", what, list, err)
	}
}

// TestWriteFails makes each operation of the file system fail, with the errors of full, broken and protected file
// systems. The file must have its old or its new content, and no other file may be left.
func TestWriteFails(t *testing.T) {
	for _, sync := range []bool{true, false} {
		writeFails(t, sync)
	}
}

func writeFails(t *testing.T, sync bool) {
	ops := steps(t, sync)
	if len(ops) < 6 || sync && len(ops) < 8 {
		t.Fatalf("only %q", ops)
	}
	for _, old := range [][]byte{nil, []byte("old")} {
		for n, op := range ops {
			for _, code := range []error{syscall.ENOSPC, syscall.EIO, syscall.EACCES} {
				dir := t.TempDir()
				path := filepath.Join(dir, "file")
				if old != nil {
					if err := os.WriteFile(path, old, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				made := 0
				w := writer{sync: sync, before: func(string) error {
					if made++; made == n+1 {
						return code
					}
					return nil
				}}
				what := fmt.Sprintf("%s (operation %d of %d) fails: %v", op, n+1, len(ops), code)
				err := w.write(path, writeBig)
				if told := op != "sync the folder" || code == syscall.EIO; told != errors.Is(err, code) {
					t.Errorf("%s: got %v", what, err)
				}
				oldOrNew(t, what, dir, old)
			}
		}
	}
}

// TestWriteKilled kills a process that writes a file at each of its file system operations. The file must have its old
// or its new content, and the next process that writes it must leave no other file.
func TestWriteKilled(t *testing.T) {
	if at, err := strconv.Atoi(os.Getenv("HOCKET_TEST_KILLED_AT")); err == nil {
		made := 0
		w := writer{sync: true, before: func(string) error {
			if made++; made == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}}
		_ = w.write(os.Getenv("HOCKET_TEST_FILE"), writeBig)
		return
	}
	left := 0
	for n := range steps(t, true) {
		dir := t.TempDir()
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(os.Args[0], "-test.run", "^TestWriteKilled$")
		c.Env = append(os.Environ(), fmt.Sprintf("HOCKET_TEST_KILLED_AT=%d", n+1), "HOCKET_TEST_FILE="+path)
		if err := c.Run(); err == nil {
			t.Fatalf("operation %d: the process ended well", n+1)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "old" && !bytes.Equal(got, big) {
			t.Errorf("operation %d: the file has %d bytes, %v", n+1, len(got), err)
		}
		if list, _ := os.ReadDir(dir); len(list) > 1 {
			left++
		}
		if err := Write(path, writeBig); err != nil {
			t.Error(err)
		}
		oldOrNew(t, fmt.Sprintf("after operation %d", n+1), dir, nil)
	}
	if left == 0 {
		t.Error("no killed process left a file, so the test shows nothing")
	}
}

// TestWriteWatched checks that another process that writes the same file never takes a file that is being written for
// an abandoned file, at whatever time it looks.
func TestWriteWatched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	looks := 0
	w := writer{sync: true, before: func(op string) error {
		list, err := filepath.Glob(path + ".hocket-*.tmp")
		if err != nil || op == "create" {
			return err
		}
		for _, name := range list { // otherwise this process would not remove the file
			unfinished.Delete(name)
			defer unfinished.Store(name, nil)
		}
		looks += len(list)
		writer{}.removeLeft(path)
		return nil
	}}
	if err := w.write(path, writeBig); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, big) {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
	if looks < 3 {
		t.Errorf("another process saw an unfinished file at only %d operations", looks)
	}
}

// TestWriteBeside checks that files that this or another process is writing are not removed.
func TestWriteBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	err := Write(path, func(w io.Writer) error {
		if err := text(path, "inner"); err != nil {
			return err
		}
		_, err := io.WriteString(w, "outer")
		return err
	})
	if got, _ := os.ReadFile(path); err != nil || string(got) != "outer" {
		t.Errorf("the file contains %q, %v", got, err)
	}
}
