// Package files opens, reads and writes files so that odd ones do no harm: pipes and
// devices are refused before they are opened, since that may wait for ever, sizes are
// bounded, and what is written is there as a whole or not at all.
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
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Write writes path as a whole or not at all: write fills a temporary file
// beside path, which replaces path once it is on disk. The file gets the
// permissions that os.Create would give. Where path is a link, what it leads to is
// written; what is no file, a pipe or a device, is written to as it is. Errors name path.
func Write(path string, write func(io.Writer) error) error {
	return replace(path, write, (*os.File).Sync)
}

// WriteUnsynced is Write that does not wait for the disk: should the machine
// go down the file may be cut short. It is for what is checked when it is read,
// and can be made again.
func WriteUnsynced(path string, b []byte) error {
	write := func(w io.Writer) error { _, err := w.Write(b); return err }
	return replace(path, write, func(*os.File) error { return nil })
}

// Check reports why Write could not begin to write a file there. It leaves
// nothing.
func Check(path string) error {
	to, err := follow(path)
	if err == nil && !to.odd {
		var f *os.File
		if f, err = to.beside(); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
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

// beside makes a file that is to take the place of another.
func (d destination) beside() (*os.File, error) {
	f, err := os.OpenFile(d.path+".tmp-"+strconv.FormatUint(rand.Uint64(), 36), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	var at *fs.PathError
	switch {
	case errors.As(err, &at): // nobody asked for a file of that name
		return nil, at.Err
	case d.mode != 0:
		_ = f.Chmod(d.mode) // not all file systems have modes
	}
	return f, nil
}

func replace(path string, write func(io.Writer) error, sync func(*os.File) error) error {
	to, err := follow(path)
	if err == nil && to.odd {
		err = to.fill(write)
	} else if err == nil {
		err = to.replace(write, sync)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// fill writes to what is no file.
func (d destination) fill(write func(io.Writer) error) error {
	f, err := os.OpenFile(d.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return writeAndClose(f, write, func(*os.File) error { return nil })
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

func (d destination) replace(write func(io.Writer) error, sync func(*os.File) error) error {
	f, err := d.beside()
	if err != nil {
		return err
	}
	unfinished.Store(f.Name(), nil)
	defer unfinished.Delete(f.Name())
	err = writeAndClose(f, write, sync)
	if err == nil {
		err = os.Rename(f.Name(), d.path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncFolder(filepath.Dir(d.path), sync)
}

// syncFolder has the folder's new entry on disk. Many file systems and systems refuse to sync
// a folder, each with an error of its own, so only an input/output error is one: the file is
// there by now.
func syncFolder(dir string, sync func(*os.File) error) error {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	if err := sync(f); errors.Is(err, syscall.EIO) {
		return err
	}
	return nil
}

func writeAndClose(f *os.File, write func(io.Writer) error, sync func(*os.File) error) error {
	w := bufio.NewWriterSize(f, 1<<16)
	err := write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = sync(f)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
