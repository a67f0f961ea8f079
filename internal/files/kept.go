package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CacheVariable is the environment variable that names the folder of hocket's caches.
const CacheVariable = "HOCKET_CACHE"

// CacheFolder returns the folder of hocket's caches: the folder that HOCKET_CACHE names, or else "hocket" in the user's
// cache folder. Symbolic links in the path of the folder are resolved, because the user has set them. Symbolic links
// below the folder are not followed.
func CacheFolder() (dir string, named bool, err error) {
	if dir = os.Getenv(CacheVariable); dir != "" {
		return resolve(dir), true, nil
	}
	dir, err = UserFolder()
	return dir, false, err
}

// UserFolder returns "hocket" in the user's cache folder. It ignores HOCKET_CACHE.
func UserFolder() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; name a folder in %s", err, CacheVariable)
	}
	return filepath.Join(resolve(dir), "hocket"), nil
}

// resolve resolves the symbolic links in the existing part of a path.
func resolve(dir string) string {
	if to, err := filepath.EvalSymlinks(dir); err == nil {
		return to
	}
	if parent := filepath.Dir(dir); parent != dir {
		return filepath.Join(resolve(parent), filepath.Base(dir))
	}
	return dir
}

// ReadKept is like Read, for a path that hocket has chosen, such as a path in its cache. See WriteKept.
func ReadKept(path string, most int64) ([]byte, error) {
	if err := checkKept(path); err != nil {
		return nil, err
	}
	f, err := openOwn(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, path, most)
}

// checkKept returns an error if the folder of path may contain files of other users, or if a symbolic link in its path
// may lead elsewhere.
func checkKept(path string) error {
	dir := filepath.Dir(path)
	for _, d := range []string{filepath.Dir(dir), dir} {
		if info, err := os.Lstat(d); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			why := errors.New("it is a link, and links in caches are not followed; set the folder in " + CacheVariable)
			return &fs.PathError{Op: "trust", Path: d, Err: why}
		}
	}
	return CheckOwn(dir)
}

// openOwn opens a regular file that belongs to the user or root. It does not follow a symbolic link, and does not wait.
func openOwn(path string, flags int) (*os.File, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil:
		if err := ours(path, info); err != nil {
			return nil, err
		}
	case flags&os.O_CREATE == 0 || !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	f, err := os.OpenFile(path, flags|nonblocking|nofollow, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil { // the file may have been replaced between the two calls
		err = ours(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ours returns an error if the file cannot have been created by hocket for this user.
func ours(path string, info fs.FileInfo) error {
	why := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		why = "it is a link, which is not followed here"
	case !info.Mode().IsRegular():
		return regular(path, info)
	case !isOwn(info):
		why = "it belongs to another user"
	default:
		return nil
	}
	return &fs.PathError{Op: "open", Path: path, Err: errors.New(why)}
}

// IsAt reports whether f is the file at path. It returns false if path is a link to f.
func IsAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// OpenLock opens the file of a lock and creates it if it does not exist. Locks are empty. A file that is not empty is
// not a lock and is not changed.
func OpenLock(path string) (*os.File, error) {
	if err := checkKept(path); err != nil {
		return nil, err
	}
	f, err := openOwn(path, os.O_RDONLY|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: errors.New("it is not empty, so it is not a lock: move it")}
	}
	return f, nil
}

// RemoveFolder removes a folder and the files in it if all files belong to the user of the process and the function
// made reports for each file that hocket made it. It leaves a folder that contains anything else unchanged.
func RemoveFolder(dir string, made func(fs.FileInfo) bool) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if !made(info) || !isMine(info) {
			return &fs.PathError{Op: "remove", Path: filepath.Join(dir, e.Name()), Err: errors.New("hocket did not make it")}
		}
	}
	for _, e := range list {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
