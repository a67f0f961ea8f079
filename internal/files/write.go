// Package files opens, writes and deletes files safely. It never waits to open a file: pipes and devices are refused.
// Files are read up to a size limit. A file is written as a whole or not at all. Two kinds of paths have different
// rules:
//
//   - Paths that the user names (Open, Read, Map, Write) are followed through links, as in other programs, but
//     nothing is written through another user's link.
//   - Paths that hocket chooses (ReadKept, WriteKept, OpenLock), such as those of caches, are never followed
//     through links, and their folders must belong to the user.
//
// Only files that hocket made are deleted: their names, kinds and owners must match.
package files

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Write writes a path that the user names as a whole or not at all: write fills a temporary file
// next to path, which replaces path once it is on disk. The file gets the
// permissions that os.Create would give. Where path is a link of the user's or root's, the file that it
// leads to is written; a pipe that is being read, or a device, is written to directly. Errors name path.
func Write(path string, write func(io.Writer) error) error {
	return writer{sync: true}.write(path, write)
}

// WriteKept is Write for a path that hocket chooses. It makes the folder, and fails if the folder is a
// link, belongs to another user or can be written by others, or if path is anything but a regular file.
func WriteKept(path string, write func(io.Writer) error) error {
	return writer{sync: true, kept: true}.write(path, write)
}

// WriteUnsynced is WriteKept without waiting for the disk: if the machine
// goes down, the file may be cut short. It is for files that are checked when they are read,
// and can be made again.
func WriteUnsynced(path string, b []byte) error {
	return writer{kept: true}.write(path, func(w io.Writer) error { _, err := w.Write(b); return err })
}

// writer writes files. Tests set before: it is called before each operation of the file system with
// the operation's name, and may make it fail.
type writer struct {
	sync   bool
	kept   bool // the path is hocket's choice: see WriteKept
	before func(op string) error
}

// do does an operation.
func (w writer) do(op string, f func() error) error {
	if w.before != nil {
		if err := w.before(op); err != nil {
			return err
		}
	}
	return f()
}

// Check reports why Write could not begin to write a file there. It leaves
// nothing.
func Check(path string) error { return writer{}.check(path) }

// CheckKept is Check for WriteKept.
func CheckKept(path string) error { return writer{kept: true}.check(path) }

func (w writer) check(path string) error {
	to, err := w.destination(path)
	if err == nil && !to.odd {
		var f *os.File
		if f, err = w.beside(to); err == nil {
			err = f.Close()
			if e := os.Remove(f.Name()); !errors.Is(e, fs.ErrNotExist) { // others may remove it once it is closed
				err = errors.Join(err, e)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// destination is what a file is to be written to.
type destination struct {
	path string
	mode fs.FileMode // of the file that is there; 0 for none
	odd  bool        // no file, and not to be replaced by one
}

// destination finds which file is to be written for path.
func (w writer) destination(path string) (destination, error) {
	if !w.kept {
		return follow(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return destination{}, err
	}
	if err := checkKept(path); err != nil {
		return destination{}, err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return destination{path: path}, nil
	case err != nil:
		return destination{}, err
	}
	return destination{path: path, mode: info.Mode().Perm()}, ours(path, info)
}

// mostLinks is how many links in a row are followed, as many as Linux does.
const mostLinks = 40

// follow finds what path leads to, which need not be there.
func follow(path string) (destination, error) {
	for range mostLinks {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return destination{path: path}, nil
		case err != nil:
			return destination{}, err
		case info.IsDir():
			return destination{}, errors.New("it is a directory")
		case info.Mode()&fs.ModeSymlink == 0:
			return destination{path, info.Mode().Perm(), !info.Mode().IsRegular()}, nil
		}
		if !isOwn(info) {
			return destination{}, errors.New("it is a link of another user, which is not followed: name the file itself")
		}
		known, err := os.Stat(path)
		switch {
		case err == nil && known.IsDir():
			return destination{}, errors.New("it is a directory")
		case err == nil && (!known.Mode().IsRegular() || strings.HasPrefix(path, "/proc/")):
			return destination{path: path, odd: true}, nil // what /proc says need be no path, or be somebody's open file
		}
		to, err := os.Readlink(path)
		if err != nil {
			return destination{}, err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return destination{}, errors.New("too many links")
}

// temporaryName is the name of a file that is to replace path: path, ".hocket-", 16 hexadecimal digits, ".tmp".
func temporaryName(path string) string {
	return fmt.Sprintf("%s.hocket-%016x.tmp", path, rand.Uint64())
}

// isTemporary reports whether temporaryName makes such names for path.
func isTemporary(path, name string) bool {
	digits, ok := strings.CutPrefix(name, path+".hocket-")
	digits, ended := strings.CutSuffix(digits, ".tmp")
	return ok && ended && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

var errTaken = errors.New("another process took the temporary file for an abandoned one")

// beside makes a file that is to take the place of another, and removes those of processes
// that have ended. The file is locked for as long as it is open, so that others leave it alone.
func (w writer) beside(d destination) (f *os.File, err error) {
	w.removeLeft(d.path)
	for range 3 {
		err = w.do("create", func() (err error) {
			f, err = os.OpenFile(temporaryName(d.path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
			return err
		})
		var at *fs.PathError
		if errors.As(err, &at) { // nobody asked for a file of that name
			return nil, at.Err
		}
		if err != nil {
			return nil, err
		}
		// Another process may take it for one that was left, before it is locked.
		if _, others := lock(f); others {
			err = errTaken
		} else if _, err = os.Lstat(f.Name()); err == nil {
			break
		}
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	if d.mode != 0 {
		_ = f.Chmod(d.mode) // not all file systems have modes
	}
	return f, nil
}

// removeLeft removes the temporary files for path that processes have left which ended before they were done.
// It leaves every file that hocket cannot have made: see isTemporary and ours.
func (w writer) removeLeft(path string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return
	}
	dir, base := filepath.Split(path)
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1) // of those that can be read
	for _, name := range names {
		if !isTemporary(base, name) {
			continue
		}
		name = filepath.Join(dir, name)
		if _, busy := unfinished.Load(name); busy {
			continue
		}
		left, err := openOwn(name, os.O_RDONLY)
		if err != nil {
			continue
		}
		info, err := left.Stat()
		if held, _ := lock(left); held && err == nil && isMine(info) && IsAt(left, name) {
			os.Remove(name)
		}
		left.Close()
	}
}

// write writes path; see Write.
func (w writer) write(path string, write func(io.Writer) error) error {
	to, err := w.destination(path)
	if err == nil && to.odd {
		err = w.fill(to, write)
	} else if err == nil {
		err = w.replace(to, write)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// fill writes to a pipe or a device. A pipe that no process reads is an error: opening it would wait for a reader.
func (w writer) fill(d destination, write func(io.Writer) error) error {
	f, err := os.OpenFile(d.path, os.O_WRONLY|nonblocking, 0)
	if errors.Is(err, syscall.ENXIO) {
		return errors.New("no process reads from it: start the reader first")
	}
	if err != nil {
		return err
	}
	w.sync = false
	err = w.fillFile(f, write)
	if e := w.do("close", f.Close); err == nil {
		err = e
	}
	return err
}

// unfinished are the names of files that are to take the place of others.
var unfinished sync.Map

// RemoveUnfinished removes what Write and others have written so far of files that they
// are at work on, which fail then: for a process that does not wait for them to end.
func RemoveUnfinished() {
	unfinished.Range(func(name, _ any) bool {
		os.Remove(name.(string))
		return true
	})
}

func (w writer) replace(d destination, write func(io.Writer) error) error {
	f, err := w.beside(d)
	if err != nil {
		return err
	}
	name, err := filepath.Abs(f.Name())
	if err != nil {
		name = f.Name()
	}
	unfinished.Store(name, nil)
	defer unfinished.Delete(name)
	if err = w.fillFile(f, write); err == nil { // still locked: others remove what nobody is at work on
		err = w.do("rename", func() error { return os.Rename(f.Name(), d.path) })
	}
	if err != nil {
		os.Remove(f.Name())
	}
	if e := w.do("close", f.Close); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return w.syncFolder(filepath.Dir(d.path))
}

// syncFolder has the folder's new entry on disk. Many file systems and systems refuse to sync
// a folder, each with an error of its own, so only an input/output error is one: the file is
// there by now.
func (w writer) syncFolder(dir string) error {
	if !w.sync {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	if err := w.do("sync the folder", f.Sync); errors.Is(err, syscall.EIO) {
		return err
	}
	return nil
}

// fillFile writes to a file, and has that on disk.
func (w writer) fillFile(f *os.File, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(stepped{w, f}, 1<<16)
	err := write(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil && w.sync {
		err = w.do("sync", f.Sync)
	}
	return err
}

// stepped is a file whose writes are told of.
type stepped struct {
	w writer
	f *os.File
}

func (s stepped) Write(p []byte) (n int, err error) {
	err = s.w.do("write", func() (err error) { n, err = s.f.Write(p); return err })
	return n, err
}
