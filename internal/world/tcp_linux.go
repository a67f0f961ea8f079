package world

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// tcpQueue is the largest number of messages of a link that wait to be written.
	tcpQueue = 64
	// flushing limits the time for which close waits until sent messages have been written.
	flushing = time.Second
)

// tcpLink is a connection to a process of another node. Each message is preceded by its length. A
// separate goroutine writes messages, so that sending blocks only if the queue is full.
type tcpLink struct {
	conn       net.Conn
	in         *bufio.Reader
	packet     []byte // used only by the goroutine that receives messages
	limit      int    // size in bytes of the largest accepted message
	trusted    bool   // whether the other end is a peer, from which messages are read until it hangs up
	out        chan []byte
	closing    chan struct{}
	once       sync.Once
	written    chan struct{} // closed when the goroutine that writes has ended
	hungUp     chan struct{} // closed when the other end has hung up
	hungUpOnce sync.Once     // ensures that hungUp is closed once
}

func newTCPLink(conn net.Conn) *tcpLink {
	l := &tcpLink{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), limit: maxMessage, out: make(chan []byte, tcpQueue),
		closing: make(chan struct{}), written: make(chan struct{}), hungUp: make(chan struct{})}
	go l.write()
	return l
}

// trust allows the other end, which has been authenticated, to send data.
func (l *tcpLink) trust() { l.limit, l.trusted = dataHeader+tcpPayload, true }

func (l *tcpLink) receive() (message, []int, error) {
	m, err := l.read()
	if err != nil {
		l.hungUpOnce.Do(func() { close(l.hungUp) })
	}
	return m, nil, err
}

func (l *tcpLink) read() (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > uint32(l.limit) {
		return malformed{fmt.Errorf("a message of %d bytes", n)}, nil
	}
	if cap(l.packet) < int(n) {
		l.packet = make([]byte, n)
	}
	l.packet = l.packet[:n]
	if _, err := io.ReadFull(l.in, l.packet); err != nil {
		return nil, err
	}
	m, err := decode(l.packet)
	if err != nil {
		m = malformed{err}
	}
	return m, nil
}

func (l *tcpLink) send(packet []byte, patience time.Duration, fds ...int) error {
	if len(fds) > 0 {
		return errors.New("files can be sent only to processes of the same node")
	}
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(packet)), uint32(len(packet)))
	frame = append(frame, packet...)
	select {
	case <-l.written:
		return net.ErrClosed
	case <-l.closing:
		return net.ErrClosed
	default:
	}
	select {
	case l.out <- frame:
		return nil
	default:
	}
	if patience <= 0 {
		return errTimeout
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case l.out <- frame:
		return nil
	case <-l.written:
		return net.ErrClosed
	case <-l.closing:
		return net.ErrClosed
	case <-late.C:
		return fmt.Errorf("%w: its messages are not read", errTimeout)
	}
}

func (l *tcpLink) post(packet []byte) { _ = l.send(packet, 0) }

// write writes queued messages until the link is closed or an error occurs. The receiving goroutine finds the error,
// too.
func (l *tcpLink) write() {
	defer close(l.written)
	w := bufio.NewWriter(l.conn)
	put := func(frame []byte) bool {
		_, err := w.Write(frame)
		if err == nil && len(l.out) == 0 {
			err = w.Flush()
		}
		return err == nil
	}
	for {
		select {
		case frame := <-l.out:
			if !put(frame) {
				return
			}
			continue
		case <-l.closing:
		}
		for len(l.out) > 0 {
			if !put(<-l.out) {
				return
			}
		}
		if half, ok := l.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		return
	}
}

func (l *tcpLink) hangUp() {
	l.once.Do(func() {
		l.conn.SetWriteDeadline(time.Now().Add(flushing))
		close(l.closing)
	})
}

// close waits a short time until the other end has hung up, too. If a connection is closed while it has unread input,
// the system drops data that the other end has not read yet.
func (l *tcpLink) close() {
	l.hangUp()
	<-l.written
	if l.trusted {
		select {
		case <-l.hungUp:
		case <-time.After(flushing):
		}
	}
	l.conn.Close()
}

// owner returns the user of this process, because a process that knows the token belongs to this run. The process ID is
// unknown.
func (l *tcpLink) owner() (uid uint32, pid int, err error) { return uint32(os.Geteuid()), 0, nil }

func (l *tcpLink) payload() int { return tcpPayload }
