package tensor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
)

// WriteFile writes path as a whole or not at all: write fills a temporary file
// beside path, which replaces path once it is on disk. The file gets the
// permissions that os.Create would give. Errors name path.
func WriteFile(path string, write func(io.Writer) error) error {
	return replace(path, write, (*os.File).Sync)
}

// WriteUnsynced is WriteFile that does not wait for the disk: should the machine
// go down the file may be cut short. It is for what is checked when it is read,
// and can be made again.
func WriteUnsynced(path string, b []byte) error {
	write := func(w io.Writer) error { _, err := w.Write(b); return err }
	return replace(path, write, func(*os.File) error { return nil })
}

// CheckWrite reports why WriteFile could not begin to write a file there. It leaves
// nothing.
func CheckWrite(path string) error {
	f, tmp, err := beside(path)
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(tmp))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// beside makes a file that is to take the place of another.
func beside(path string) (f *os.File, tmp string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, "", errors.New("it is a directory")
	}
	tmp = path + ".tmp-" + strconv.FormatUint(rand.Uint64(), 36)
	f, err = os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	return f, tmp, err
}

func replace(path string, write func(io.Writer) error, sync func(*os.File) error) error {
	f, tmp, err := beside(path)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = writeAndClose(f, write, sync)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
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

// openRegular opens a regular file and returns its size. Anything else is
// refused before it is opened, since opening a pipe waits for its writer.
func openRegular(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("not a regular file (%s)", info.Mode().Type())}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// readAt fills p from r at off.
func readAt(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d of %d bytes at offset %d: %w", n, len(p), off, err)
}

// quote quotes a text from a file for a message, and cuts a long one.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
