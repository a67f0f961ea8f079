//go:build unix

package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// kept writes path with WriteKept.
func kept(path, s string) error {
	return WriteKept(path, func(w io.Writer) error { _, err := io.WriteString(w, s); return err })
}

// TestKeptRefuses puts files, links and folders that hocket did not make at the paths of a cache. Each operation must
// return an error without waiting, and must change nothing.
func TestKeptRefuses(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(at("cache/sub"), 0o700), os.MkdirAll(at("other/sub"), 0o700),
		os.WriteFile(at("victim"), []byte("mine"), 0o600),
		os.WriteFile(at("cache/sub/full"), []byte("contents"), 0o600),
		os.Symlink(at("victim"), at("cache/sub/link")), os.Symlink(at("absent"), at("cache/sub/void")),
		os.Symlink(at("other/sub"), at("cache/far")), os.Symlink(at("other"), at("hop")),
		syscall.Mkfifo(at("cache/sub/pipe"), 0o600), os.Mkdir(at("cache/sub/folder"), 0o700))
	if os.Geteuid() == 0 {
		must(os.WriteFile(at("cache/sub/foreign"), []byte("theirs"), 0o600),
			os.Chown(at("cache/sub/foreign"), 12345, 12345))
	}
	before := tree(t, dir)
	for name, why := range map[string]string{
		"cache/sub/link": "it is a link", "cache/sub/void": "it is a link", "cache/sub/pipe": "not a regular file",
		"cache/sub/folder": "not a regular file", "cache/far/new": "it is a link", "hop/sub/new": "it is a link",
		"cache/sub/foreign": "another user",
	} {
		if name == "cache/sub/foreign" && os.Geteuid() != 0 {
			continue
		}
		_, read := ReadKept(at(name), 100)
		_, locked := OpenLock(at(name))
		for what, err := range map[string]error{"write": kept(at(name), "x"), "check": CheckKept(at(name)),
			"write unsynced": WriteUnsynced(at(name), nil), "read": read, "lock": locked} {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s %s: got %v, want an error with %q", what, name, err, why)
			}
		}
	}
	if _, err := OpenLock(at("cache/sub/full")); err == nil {
		t.Error("a file with contents was locked")
	}
	if after := tree(t, dir); after != before {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
	must(kept(at("cache/new/file"), "a"), kept(at("cache/new/file"), "b"), os.Chmod(at("cache/new"), 0o777))
	if err := kept(at("cache/new/file"), "c"); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("a folder of everybody: %v", err)
	}
	if got, err := os.ReadFile(at("cache/new/file")); err != nil || string(got) != "b" {
		t.Errorf("the file contains %q, %v", got, err)
	}
}

// tree returns the names, kinds and contents of everything below a folder.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		b.WriteString(path + " " + d.Type().String() + " ")
		switch d.Type() {
		case 0:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(to)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestWriteLeavesOthers checks that writing a file deletes only temporary files whose names and kinds show that hocket
// made them.
func TestWriteLeavesOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.json")
	const digits = ".hocket-0123456789abcdef"
	for _, name := range []string{".tmp-backup", ".tmp-3w5e11264sgsf", ".tmp", ".hocket-backup.tmp", digits,
		digits + ".tmp2", digits + "0.tmp"} {
		if err := os.WriteFile(path+name, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := path + ".hocket-0000000000000001.tmp"
	err := errors.Join(os.Symlink(path+".tmp", link), syscall.Mkfifo(path+".hocket-0000000000000002.tmp", 0o600),
		os.Mkdir(path+".hocket-0000000000000003.tmp", 0o700))
	if err != nil {
		t.Fatal(err)
	}
	left := path + ".hocket-0000000000000004.tmp"
	before := tree(t, dir)
	if err := errors.Join(os.WriteFile(left, []byte("half"), 0o600), text(path, "x"), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
}

// TestWritePipe checks that writing to a pipe that no process reads is an error and does not wait.
func TestWritePipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := text(path, "x"); err == nil || !strings.Contains(err.Error(), "no process reads") {
		t.Errorf("got %v", err)
	}
}

// TestWriteForeignLink checks that a link that another user put in the user's folder is not followed.
func TestWriteForeignLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change the owner of files")
	}
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	err := errors.Join(os.WriteFile(target, []byte("mine"), 0o600), os.Symlink(target, link),
		os.Lchown(link, 12345, 12345))
	if err != nil {
		t.Fatal(err)
	}
	if err := text(link, "x"); err == nil || !strings.Contains(err.Error(), "link of another user") {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "mine" {
		t.Errorf("the file contains %q, %v", got, err)
	}
}

// TestReadBelow checks that symbolic links may lead anywhere below the folder but not out of the folder, and that pipes
// are refused.
func TestReadBelow(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.MkdirAll(at("in/deep"), 0o700), os.WriteFile(at("in/deep/a"), []byte("a"), 0o600),
		os.WriteFile(at("out"), nil, 0o600), os.Symlink("deep/a", at("in/near")), os.Symlink("../out", at("in/far")),
		os.Symlink(at("out"), at("in/deep/far")), os.Symlink("..", at("in/up")), syscall.Mkfifo(at("in/pipe"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"deep/a", "near"} {
		if b, err := ReadBelow(at("in"), name, 1); err != nil || string(b) != "a" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for name, why := range map[string]string{"far": "escapes", "deep/far": "escapes", "up/out": "escapes",
		"../out": "escapes", "pipe": "not a regular file", "none": "no such file"} {
		if _, err := ReadBelow(at("in"), name, 1); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want an error with %q", name, err, why)
		}
	}
	if _, err := ReadBelow(at("in"), "near", 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestRemoveFolder checks that a folder with anything that hocket did not make stays complete.
func TestRemoveFolder(t *testing.T) {
	made := func(info fs.FileInfo) bool { return info.Name() == "0" && info.Mode().IsRegular() }
	for _, name := range []string{"0", "data", ""} {
		dir := filepath.Join(t.TempDir(), "folder")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "0"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if name != "" {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := tree(t, dir)
		err := RemoveFolder(dir, made)
		if name == "data" {
			if err == nil || tree(t, dir) != before {
				t.Errorf("%s: %v, the folder contains\n%s", name, err, tree(t, dir))
			}
		} else if _, there := os.Lstat(dir); err != nil || there == nil {
			t.Errorf("%q: %v, %v", name, err, there)
		}
	}
}

// TestCacheFolder checks that links that lead to the folder that the user names are followed, even if the folder does
// not exist yet.
func TestCacheFolder(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "real"), 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"link": "real", "link/a/b": "real/a/b", "real/a": "real/a"} {
		t.Setenv(CacheVariable, filepath.Join(dir, name))
		if got, named, err := CacheFolder(); err != nil || !named || got != filepath.Join(dir, want) {
			t.Errorf("%s: %s, %v, %v", name, got, named, err)
		}
	}
	t.Setenv(CacheVariable, "")
	t.Setenv("XDG_CACHE_HOME", link)
	t.Setenv("HOME", link)
	got, named, err := CacheFolder()
	if err != nil || named || filepath.Base(got) != "hocket" || !strings.HasPrefix(got, filepath.Join(dir, "real")) {
		t.Errorf("%s, %v, %v", got, named, err)
	}
	if err := kept(filepath.Join(got, "kernels", "file"), "x"); err != nil {
		t.Error(err)
	}
}
