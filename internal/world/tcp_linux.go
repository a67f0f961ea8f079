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
	// tcpQueue bounds the messages of a link that are not written yet.
	tcpQueue = 64
	// flushing is how long close waits for what was sent to be written.
	flushing = time.Second
)

// tcpLink is a connection to a process of another node. Messages have their length in front. A goroutine
// writes, so that nobody waits for a network but where the queue is full.
type tcpLink struct {
	conn    net.Conn
	in      *bufio.Reader
	packet  []byte // of the one goroutine that receives
	limit   int    // the longest message that it takes
	trusted bool   // the other end is a peer, which is heard until it hangs up
	out     chan []byte
	closing chan struct{}
	once    sync.Once
	written chan struct{} // the goroutine that writes has ended
	heard   chan struct{} // the other end has ended
	deaf    sync.Once     // closes heard
}

func newTCPLink(conn net.Conn) *tcpLink {
	l := &tcpLink{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), limit: maxMessage, out: make(chan []byte, tcpQueue),
		closing: make(chan struct{}), written: make(chan struct{}), heard: make(chan struct{})}
	go l.write()
	return l
}

// trust lets the other end, which is known now, send data.
func (l *tcpLink) trust() { l.limit, l.trusted = dataHeader+tcpPayload, true }

func (l *tcpLink) receive() (message, []int, error) {
	m, err := l.read()
	if err != nil {
		l.deaf.Do(func() { close(l.heard) })
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
		return errors.New("files are for processes of one node")
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

// write writes what is sent, until close, or an error, which the goroutine that receives finds, too.
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

// close waits, though not for long, for the other end to hang up, too: where something has come that was not
// read, systems drop what the other end has not read yet.
func (l *tcpLink) close() {
	l.hangUp()
	<-l.written
	if l.trusted {
		select {
		case <-l.heard:
		case <-time.After(flushing):
		}
	}
	l.conn.Close()
}

// owner says nothing new: who shows the token is of this run.
func (l *tcpLink) owner() (uid uint32, pid int, err error) { return uint32(os.Geteuid()), 0, nil }

func (l *tcpLink) payload() int { return tcpPayload }
