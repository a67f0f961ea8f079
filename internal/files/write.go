// Package files opens, writes and deletes files safely. It never waits when it opens a file, because pipes and devices
// are refused. Files are read up to a size limit. A file is written completely or not at all. Two kinds of paths have
// different rules:
//
//   - Paths that the user names (Open, Read, Map, Write) may be links, as in other programs, but nothing is written
//     through a link of another user.
//   - Paths that hocket chooses (ReadKept, WriteKept, OpenLock), such as those of caches, may not be links, and their
//     folders must belong to the user.
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

// Write writes the file at a path that the user names, completely or not at all. The function write fills a temporary
// file next to path, which replaces path once it is on disk. The file gets the permissions that os.Create would set. If
// path is a symbolic link that belongs to the user or root, the link's target is written. If path is a device, or a
// pipe that a process reads, Write writes to it directly. Errors contain path.
func Write(path string, write func(io.Writer) error) error {
	return writer{sync: true}.write(path, write)
}

// WriteKept is like Write, for a path that hocket has chosen, such as a path in its cache. It creates the folder. It
// fails if the folder is a symbolic link, belongs to another user or can be written by other users, or if path is not a
// regular file.
func WriteKept(path string, write func(io.Writer) error) error {
	return writer{sync: true, kept: true}.write(path, write)
}

// WriteUnsynced is like WriteKept, but does not wait until the file is on disk. If the machine crashes, the file may be
// incomplete. Use WriteUnsynced for files that are checked when they are read and can be written again.
func WriteUnsynced(path string, b []byte) error {
	return writer{kept: true}.write(path, func(w io.Writer) error { _, err := w.Write(b); return err })
}

// writer writes files. Tests set the field before. This function is called before each file system operation, with the
// operation's name, and can make the operation fail.
type writer struct {
	sync   bool
	kept   bool // whether hocket chose the path: see WriteKept
	before func(op string) error
}

// do runs an operation.
func (w writer) do(op string, f func() error) error {
	if w.before != nil {
		if err := w.before(op); err != nil {
			return err
		}
	}
	return f()
}

// Check reports why Write could not start to write a file at path. It leaves no file.
func Check(path string) error { return writer{}.check(path) }

// CheckKept is Check for WriteKept.
func CheckKept(path string) error { return writer{kept: true}.check(path) }

func (w writer) check(path string) error {
	to, err := w.destination(path)
	if err == nil && !to.odd {
		var f *os.File
		if f, err = w.beside(to); err == nil {
			err = f.Close()
			// ignore errors: after the file is closed, another process may remove it
			if e := os.Remove(f.Name()); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// destination is the target of a write.
type destination struct {
	path string
	mode fs.FileMode // mode of the existing file; 0 if the file does not exist
	odd  bool        // whether path is not a regular file, so that a regular file must not replace it
}

// destination finds the file to write for path, which may be a symbolic link.
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

// mostLinks is the largest number of symbolic links that are followed one after another. The number is the same as in
// Linux.
const mostLinks = 40

// follow resolves path if it is a symbolic link, and links to which the link leads. The resulting file need not exist.
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
			return destination{path: path, odd: true}, nil // links in /proc may lead to open files
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

// temporaryName returns the name of a file that will replace path: path, ".hocket-", 16 hexadecimal digits, ".tmp".
func temporaryName(path string) string {
	return fmt.Sprintf("%s.hocket-%016x.tmp", path, rand.Uint64())
}

// isTemporary reports whether temporaryName can return this name for path.
func isTemporary(path, name string) bool {
	digits, ok := strings.CutPrefix(name, path+".hocket-")
	digits, ended := strings.CutSuffix(digits, ".tmp")
	return ok && ended && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

var errTaken = errors.New("another process took the temporary file for an abandoned one")

// beside creates a temporary file that will replace another file, in that file's folder. It also removes temporary
// files of processes that have ended. The new file stays locked while it is open, so that other processes do not remove
// it.
func (w writer) beside(d destination) (f *os.File, err error) {
	w.removeLeft(d.path)
	for range 3 {
		err = w.do("create", func() (err error) {
			f, err = os.OpenFile(temporaryName(d.path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
			return err
		})
		var at *fs.PathError
		if errors.As(err, &at) { // the error must not contain the temporary name, which the caller does not know
			return nil, at.Err
		}
		if err != nil {
			return nil, err
		}
		// Until the file is locked, another process may consider it abandoned.
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
		_ = f.Chmod(d.mode) // an error is ignored, because some file systems have no modes
	}
	return f, nil
}

// removeLeft removes the temporary files for path of processes that ended before they finished. It does not remove
// files that hocket cannot have made: see isTemporary and ours.
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
	names, _ := f.Readdirnames(-1) // list contains the entries that could be read
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

// fill writes to a pipe or a device. A pipe that no process reads gives an error, because opening the pipe would wait
// for a reader.
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

// unfinished holds the names of temporary files that are being written.
var unfinished sync.Map

// RemoveUnfinished removes the temporary files that Write and the other functions are writing. These functions then
// fail. It is meant for a process that exits without waiting for these functions.
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
	if err = w.fillFile(f, write); err == nil { // the file is still locked, so that other processes do not remove it
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

// syncFolder writes the new entry of the folder to disk. Many systems and file systems refuse to sync a folder, each
// with a different error. Only an input/output error is returned, because the file itself has already been written.
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

// fillFile writes to a file and waits until it is on disk.
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

// stepped is a file that calls the writer's function before for each write.
type stepped struct {
	w writer
	f *os.File
}

func (s stepped) Write(p []byte) (n int, err error) {
	err = s.w.do("write", func() (err error) { n, err = s.f.Write(p); return err })
	return n, err
}
