package files

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// text writes path with Write.
func text(path, s string) error {
	return Write(path, func(w io.Writer) error { _, err := io.WriteString(w, s); return err })
}

// TestWriteFollows checks that writing to a symbolic link leaves the link and writes its target completely, and that a
// file keeps its permissions.
func TestWriteFollows(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links take rights there")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.MkdirAll(at("sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("sub/file"), []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "sub/file", "far": at("link"), "new": "sub/made", "loop": "loop",
		"folder": "sub", "void": "none/x"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, file string }{{"link", "sub/file"}, {"far", "sub/file"}, {"new", "sub/made"},
		{"sub/file", "sub/file"}} {
		if err := Check(at(c.path)); err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if err := text(at(c.path), "by "+c.path); err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if got, err := os.ReadFile(at(c.file)); string(got) != "by "+c.path {
			t.Errorf("%s: the file contains %q, %v", c.path, got, err)
		}
	}
	for _, link := range []string{"link", "far", "new"} {
		if info, err := os.Lstat(at(link)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no longer a link: %v", link, err)
		}
	}
	if info, err := os.Stat(at("sub/file")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	for name, want := range map[string]string{"loop": "too many links", "folder": "it is a directory",
		"sub": "it is a directory", "void": "no such file"} {
		for what, err := range map[string]error{"write": text(at(name), "x"), "check": Check(at(name))} {
			if err == nil || !strings.Contains(err.Error(), at(name)) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 7 {
		t.Errorf("%d files are left", len(files))
	}
	if files, _ := os.ReadDir(at("sub")); len(files) != 2 {
		t.Errorf("%d files are in the folder, want 5", len(files))
	}
}

// TestWriteOdd checks that pipes, devices and sockets are written to or refused, and are never replaced.
func TestWriteOdd(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux gives pipes of the process a path")
	}
	dir := t.TempDir()
	sock := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := text(sock, "x"); err == nil {
		t.Error("a socket was written")
	}
	if info, err := os.Lstat(sock); err != nil || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("the socket was removed: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	link := filepath.Join(dir, "link")
	pipe := fmt.Sprintf("/proc/self/fd/%d", w.Fd())
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link} {
		if err := Check(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := text(path, "through"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	w.Close()
	if got, err := io.ReadAll(r); string(got) != "throughthrough" || err != nil {
		t.Errorf("read %q from the pipe, %v", got, err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("%d files are left", len(files))
	}
}

// TestRemoveUnfinished checks that unfinished temporary files are removed, and that the old file stays.
func TestRemoveUnfinished(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	if err := text(path, "old"); err != nil {
		t.Fatal(err)
	}
	err := Write(path, func(w io.Writer) error {
		if files, _ := os.ReadDir(dir); len(files) != 2 {
			t.Errorf("%d files while one is written", len(files))
		}
		RemoveUnfinished()
		if files, _ := os.ReadDir(dir); len(files) != 1 {
			t.Errorf("%d files are left", len(files))
		}
		_, err := io.WriteString(w, "new")
		return err
	})
	if got, _ := os.ReadFile(path); err == nil || string(got) != "old" {
		t.Errorf("the file contains %q: %v", got, err)
	}
	RemoveUnfinished()
	if err := text(path, "new"); err != nil {
		t.Error(err)
	}
}

// TestOneWay checks that only this package writes files that users keep. Therefore the tests of this package, with full
// and broken file systems, cover results, traces, tables, sources and caches.
func TestOneWay(t *testing.T) {
	writes := regexp.MustCompile(`\bos\.(Create|CreateTemp|WriteFile|Rename|OpenFile|RemoveAll)\(`)
	others := map[string]string{
		"internal/comm/keep.go":                         "renames what is there aside",
		"internal/comm/lock.go":                         "locks, whose contents are nothing",
		"internal/world/folder_linux.go":                "opens folders",
		"internal/golden/golden.go":                     "rewrites what tests are held to",
		"internal/device/cuda/fakedriver/nccl_linux.go": "keeps what processes of a test share",
	}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name == "tools" || name == filepath.Join("internal", "files") || base == "testdata" ||
				strings.HasPrefix(base, ".") && name != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if found := writes.Find(text); found != nil && others[filepath.ToSlash(name)] == "" {
			t.Errorf("%s calls %s…): use files.Write, which never leaves an incomplete file", name, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
