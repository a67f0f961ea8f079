package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hocket.example/hocket/internal/files"
)

// folder represents the directory in which the processes of a run meet. Each process holds a lock on the folder while
// it joins. A directory that no process has locked therefore belongs to a run that has ended, and any process may
// remove it.
type folder struct {
	path string
	file *os.File // open and locked
}

// openFolder opens the folder of a run in base, and creates it if necessary.
func openFolder(ctx context.Context, base, id string) (*folder, error) {
	base, source := meetingPlace(base)
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, err
	}
	names, _ := readNames(base) // an error is ignored here, because tryFolder returns it
	for _, name := range names {
		if isFolderName(name) {
			sweep(filepath.Join(base, name))
		}
	}
	sum := sha256.Sum256([]byte(id))
	path := filepath.Join(base, folderPrefix()+hex.EncodeToString(sum[:8]))
	for {
		d, err := tryFolder(path)
		var denied *fs.PathError
		switch {
		case errors.As(err, &denied) && denied.Op == "mkdir":
			return nil, fmt.Errorf("%w: processes of this host meet in %s, which %s names: set HOCKET_RUN_DIR to a folder that exists and to "+
				"which all of them can write", err, base, source)
		case !errors.Is(err, errAgain):
			return d, err
		}
		select { // try again, because another process is just removing the folder
		case <-ctx.Done():
			return nil, fmt.Errorf("%s stays locked by another process", path)
		case <-time.After(time.Millisecond):
		}
	}
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func folderPrefix() string { return fmt.Sprintf("hocket-%d-", os.Geteuid()) }

// isFolderName reports whether a name is of the form that openFolder creates: the prefix and 16 hexadecimal digits.
func isFolderName(name string) bool {
	digits, ok := strings.CutPrefix(name, folderPrefix())
	return ok && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

// isSocket reports whether a file in the folder is a process's socket, whose name is a rank.
func isSocket(info fs.FileInfo) bool {
	rank, err := strconv.Atoi(info.Name())
	return err == nil && info.Name() == strconv.Itoa(rank) && info.Mode().Type() == fs.ModeSocket
}

var errAgain = errors.New("try again")

// tryFolder creates, opens and locks a folder.
func tryFolder(path string) (*folder, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	} else if err == nil {
		_ = os.Chmod(path, 0o700) // the umask may have removed permissions; check detects a failure of Chmod
	}
	file, err := openDirectory(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errAgain
	}
	if err != nil {
		return nil, err
	}
	d := &folder{path, file}
	if err := d.check(); err != nil {
		file.Close()
		return nil, err
	}
	switch err := d.lock(unix.LOCK_SH); {
	case errors.Is(err, unix.EWOULDBLOCK):
		file.Close()
		return nil, errAgain
	case err != nil:
		file.Close()
		return nil, fmt.Errorf("locking %s: %w (set HOCKET_RUN_DIR to a folder on a file system that supports locks)",
			path, err)
	}
	if !d.isThere() {
		file.Close()
		return nil, errAgain
	}
	return d, nil
}

func openDirectory(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// check returns an error if other users can write to the folder.
func (d *folder) check() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	uid := info.Sys().(*unixStat).Uid
	if int(uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s belongs to user %d and has mode %v, but must belong to user %d and have mode drwx------: remove it, "+
			"or set HOCKET_RUN_DIR to another folder", d.path, uid, info.Mode(), os.Geteuid())
	}
	return nil
}

func (d *folder) lock(how int) error {
	for {
		if err := unix.Flock(int(d.file.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isThere reports whether the path of the folder still refers to the directory that this process opened.
func (d *folder) isThere() bool {
	mine, err := d.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(d.path)
	return err == nil && os.SameFile(mine, there)
}

// sweep removes a folder that openFolder created and that no process has locked.
func sweep(path string) {
	file, err := openDirectory(path)
	if err != nil {
		return
	}
	d := &folder{path, file}
	defer file.Close()
	if d.check() == nil {
		d.remove()
	}
}

// remove removes the folder if no other process has locked it and it contains only sockets of processes. remove first
// releases this process's lock, so that the last process of a run can remove the folder.
func (d *folder) remove() {
	if d.lock(unix.LOCK_EX) == nil && d.isThere() {
		_ = files.RemoveFolder(d.path, isSocket) // files that remain are removed by the next run
	}
}

func (d *folder) close() {
	d.remove()
	d.file.Close()
}

// socket returns the path of a process's socket. The path goes through the open file descriptor of the folder, because
// paths of sockets must be short, and because the folder cannot be replaced by another in the meantime.
func (d *folder) socket(rank int) *net.UnixAddr {
	name := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.file.Fd())), strconv.Itoa(rank))
	return &net.UnixAddr{Name: name, Net: "unixpacket"}
}

// bind opens the socket of the process h. If another process has opened it, two jobs have the same ID, and their ranks
// may have joined each other. bind therefore reports the second claim to the process that opened the socket first,
// which ends its world.
func (d *folder) bind(h hello) (*net.UnixListener, error) {
	addr := d.socket(h.Rank)
	listener, err := net.ListenUnix(addr.Net, addr)
	if !errors.Is(err, unix.EADDRINUSE) {
		return listener, err
	}
	conn, err := net.DialUnix(addr.Net, nil, addr)
	for range 20 { // the other process may have bound the socket without listening yet
		if err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
		conn, err = net.DialUnix(addr.Net, nil, addr)
	}
	if err == nil {
		defer conn.Close()
		who := "another process"
		if l, err := newLink(conn); err == nil {
			if _, pid, err := l.owner(); err == nil {
				who = fmt.Sprintf("process %d", pid)
			}
			_ = l.send(h.encode(), greeting) // an error is ignored: the other process is ending
		}
		return nil, fmt.Errorf("%s has claimed rank %d of %s already: %s", who, h.Rank, runOf(h.ID), distinct)
	}
	if info, err := os.Lstat(addr.Name); err == nil && !isSocket(info) {
		return nil, fmt.Errorf("%s is not a socket: remove it, or set HOCKET_RUN_DIR to another folder",
			filepath.Join(d.path, info.Name()))
	}
	os.Remove(addr.Name) // the socket of a process that has died
	return net.ListenUnix(addr.Net, addr)
}
