package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hocket.example/hocket/internal/files"
)

// Keep writes a tuned table to the file that worlds of its machine look for, while nobody
// else does. Before, merge gets what is there by then, nil for nothing, and may change the
// table: what others have measured meanwhile is not to be lost. A file that cannot be used
// is no more lost: it is moved aside, and moved says why and where to.
func (t *Table) Keep(ctx context.Context, path string, merge func(there *Table)) (moved string, err error) {
	if err := makeFolder(path); err != nil {
		return "", err
	}
	release, err := lock(ctx, path, lockWait)
	if err != nil {
		return "", fmt.Errorf("the table cannot be kept: %w", err)
	}
	defer release()
	there, err := readKept(path, t.Identity, t.Ranks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		to, failed := moveAside(path)
		if failed != nil {
			return "", fmt.Errorf("the table cannot be kept: %w; and that cannot be moved aside: %w", err, failed)
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

// readKept reads the table of a machine for worlds of ranks from its file;
// fs.ErrNotExist where there is none.
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
		return nil, fmt.Errorf("%s: it was made on %s with %d ranks, and this is %s with %d", path, t.Identity, t.Ranks, identity, ranks)
	}
	return t, nil
}

// moveAside renames a file to path.old.N, by the first number that is free, and returns
// that name. Who calls it has the path's lock.
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
