//go:build unix

package files

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// CheckOwn reports why a folder may contain files of other users: it belongs neither to the user of the process nor to
// root, or others may write to it. It returns nil if the folder does not exist.
func CheckOwn(dir string) error {
	info, err := os.Stat(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	why := ""
	switch {
	case !info.IsDir():
		why = "it is not a folder"
	case ok && int(s.Uid) != os.Geteuid() && s.Uid != 0:
		why = fmt.Sprintf("it belongs to user %d", s.Uid)
	case info.Mode().Perm()&0o022 != 0:
		why = fmt.Sprintf("others may write to it (mode %04o; chmod go-w takes that away)", info.Mode().Perm())
	default:
		return nil
	}
	return &fs.PathError{Op: "trust", Path: dir, Err: fmt.Errorf("%s", why)}
}

// isOwn reports whether a file belongs to the process's user or to root.
func isOwn(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return !ok || s.Uid == 0 || int(s.Uid) == os.Geteuid()
}

// isMine reports whether a file belongs to the process's user.
func isMine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
