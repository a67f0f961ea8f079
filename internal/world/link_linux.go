package world

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unixLink is a socket to another process of the node. The socket preserves packet boundaries, so a message and its
// files are received as a whole.
type unixLink struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	packet []byte // used only by the goroutine that receives messages
	rights []byte
}

// maxRights is the largest number of files that accompany a message.
const maxRights = 2

func newLink(conn *net.UnixConn) (*unixLink, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	// The buffer is one byte larger than the largest message, so a packet that fills it is too long.
	return &unixLink{conn, raw, make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4*maxRights))}, nil
}

// receive waits for a message. The caller closes the descriptors of files that are received with
// it.
func (l *unixLink) receive() (message, []int, error) {
	n, rights, flags, _, err := l.conn.ReadMsgUnix(l.packet, l.rights)
	if errors.Is(err, unix.ECONNRESET) {
		// The other end closed the socket without having read everything. Messages that the other end sent earlier can
		// still be read.
		n, rights, flags, _, err = l.conn.ReadMsgUnix(l.packet, l.rights)
	}
	if err != nil {
		return nil, nil, err
	}
	fds, err := parseRights(l.rights[:rights])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a message that is too long")
	}
	var m message
	if err == nil {
		m, err = decode(l.packet[:n])
	}
	if err != nil {
		closeAll(fds)
		return malformed{err}, nil, nil
	}
	return m, fds, nil
}

// parseRights returns the descriptors in a control message.
func parseRights(b []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// closeAll closes the descriptors that no caller has taken (see take).
func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// withFD calls f with the descriptor of a file, which is valid until f returns. withFD does not use File.Fd, which
// would make the file blocking.
func withFD(file *os.File, f func(fd int)) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// send sends a message, together with copies of files. send waits at most patience for the other end to read earlier
// messages.
func (l *unixLink) send(packet []byte, patience time.Duration, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	deadline := time.Now().Add(patience)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		var sent error
		if err := l.raw.Control(func(fd uintptr) {
			_, sent = unix.SendmsgN(int(fd), packet, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}); err != nil {
			return err
		}
		switch {
		case sent == nil:
			return nil
		case errors.Is(sent, unix.EINTR):
			continue
		case !errors.Is(sent, unix.EAGAIN) && !errors.Is(sent, unix.ENOBUFS) && !errors.Is(sent, unix.ETOOMANYREFS):
			return sent
		case time.Now().After(deadline):
			return fmt.Errorf("%w: %w", errTimeout, sent)
		}
		time.Sleep(pause)
	}
}

// post sends a message if that is possible without waiting, and drops it otherwise.
func (l *unixLink) post(packet []byte) { _ = l.send(packet, 0) }

func (l *unixLink) close() { l.conn.Close() }

func (l *unixLink) hangUp() {}

func (l *unixLink) payload() int { return MaxValue }

// isGone reports whether an error of sending means that the other end is closed.
func isGone(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrClosedPipe)
}

// owner returns the user and process ID at the other end. The process ID is 0 if the process is in
// another namespace.
func (l *unixLink) owner() (uid uint32, pid int, err error) {
	err2 := l.raw.Control(func(fd uintptr) {
		var c *unix.Ucred
		if c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid, pid = c.Uid, int(c.Pid)
		}
	})
	return uid, pid, errors.Join(err, err2)
}
