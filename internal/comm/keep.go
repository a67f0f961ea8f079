package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hocket.example/hocket/internal/files"
)

// Keep writes a tuned table to the file in which worlds of its machine look for one. While Keep reads and writes the
// file, it holds the file's lock. Before it writes, it calls merge with the table in the file, or with nil if there is
// none, so that merge can add measurements that others have written in the meantime. A file that cannot be used is
// renamed instead of overwritten; the result moved reports the reason and the new name.
func (t *Table) Keep(ctx context.Context, path string, merge func(there *Table)) (moved string, err error) {
	if err := makeFolder(path); err != nil {
		return "", err
	}
	release, err := lock(ctx, path, lockWait)
	if err != nil {
		return "", fmt.Errorf("cannot write the tuned table: %w", err)
	}
	defer release()
	there, err := readKept(path, t.Identity, t.Ranks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		to, failed := moveAside(path)
		if failed != nil {
			return "", fmt.Errorf("cannot replace the existing tuned table, which is unusable: %w; renaming it failed: %w", err,
				failed)
		}
		moved = fmt.Sprintf("%v; that file is now %s", err, to)
	}
	merge(there)
	if err := t.write(path, files.WriteKept); err != nil && moved != "" {
		return "", fmt.Errorf("%w; before, %s", err, moved)
	} else if err != nil {
		return "", err
	}
	return moved, nil
}

// readKept reads the tuned table of a machine for worlds of the given number of ranks. It returns fs.ErrNotExist if
// there is no file.
func readKept(path, identity string, ranks int) (*Table, error) {
	data, err := files.ReadKept(path, tableMost)
	if err != nil {
		return nil, err
	}
	t, err := ReadTable(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case t.Identity != identity || t.Ranks != ranks:
		return nil, fmt.Errorf("%s: the table was measured on %s with %d ranks, but this machine is %s with %d", path,
			t.Identity, t.Ranks, identity, ranks)
	}
	return t, nil
}

// moveAside renames a file to path.old.N with the first free number N, and returns that name. The caller must hold the
// path's lock.
func moveAside(path string) (string, error) {
	for n := 1; ; n++ {
		to := fmt.Sprintf("%s.old.%d", path, n)
		_, err := os.Lstat(to)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return to, os.Rename(path, to)
		case err != nil:
			return "", err
		}
	}
}
