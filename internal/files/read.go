package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrTooLarge is wrapped by errors about files that are larger than the limit.
var ErrTooLarge = errors.New("the file is too large")

// Open opens a regular file and returns its size. Open refuses other kinds of files without opening them, because
// opening a pipe waits for a writer, and reading a device may never end.
func Open(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if err := regular(path, info); err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblocking, 0)
	if err != nil {
		return nil, 0, err
	}
	if info, err = f.Stat(); err == nil { // the file may have been replaced between the two calls
		err = regular(path, info)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// Begin returns at most the first n bytes of a regular file. It returns fewer bytes if the file is shorter or cannot be
// read.
func Begin(path string, n int) []byte {
	f, _, err := Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	begin := make([]byte, n)
	n, _ = io.ReadFull(f, begin)
	return begin[:n]
}

func regular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	if info.IsDir() {
		return &fs.PathError{Op: "open", Path: path, Err: errors.New("it is a directory, not a regular file")}
	}
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("not a regular file (%s)", info.Mode().Type())}
}

// Read returns the content of a regular file that is not larger than most bytes. For a larger file it reads nothing,
// and the error wraps ErrTooLarge.
func Read(path string, most int64) ([]byte, error) {
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, path, most)
}

// ReadBelow is Read for a file below a folder. No link may lead out of the folder.
func ReadBelow(dir, name string, most int64) ([]byte, error) {
	root, err := os.OpenRoot(cmp.Or(dir, "."))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	path := filepath.Join(dir, name)
	info, err := root.Stat(name)
	if err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|nonblocking, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil { // the file may have been replaced between the two calls
		err = regular(path, info)
	}
	if err != nil {
		return nil, err
	}
	return readAll(f, path, most)
}

// readAll reads all of r, but returns an error if there are more than most bytes. path is for errors.
func readAll(f *os.File, path string, most int64) ([]byte, error) {
	if info, err := f.Stat(); err == nil && info.Size() > most {
		return nil, tooLarge(path, most)
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most { // the file has grown, or reports no size, like files in /proc
		err = tooLarge(path, most)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func tooLarge(path string, most int64) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: at most %d bytes are read", ErrTooLarge, most)}
}
