package world

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// maxGuests is the largest number of connections that have not identified themselves yet. If there are more such
	// connections, the oldest is closed, and its process connects again.
	maxGuests = 32
	// greeting is the time limit for a guest to identify itself.
	greeting = 5 * time.Second
)

// reception holds the connections (guests) whose processes have not identified themselves yet.
type reception struct {
	mesh  *mesh
	slots chan struct{}

	mu     sync.Mutex
	guests []net.Conn // oldest first
}

func newReception(m *mesh) *reception {
	return &reception{mesh: m, slots: make(chan struct{}, maxGuests)}
}

// receive handles new connections until the listener is closed. For each connection it calls greet, which reads the
// identity of the process at the other end. greet returns the peer, or nil if the process is not a peer.
func (r *reception) receive(listener net.Listener, greet func(*reception, net.Conn) *peer) {
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			r.dismiss(maxGuests)
			return
		case err != nil: // try again after a temporary error, for example too many open files
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case r.slots <- struct{}{}:
		default:
			r.dismiss(1)
			r.slots <- struct{}{}
		}
		r.mu.Lock()
		r.guests = append(r.guests, conn)
		r.mu.Unlock()
		r.mesh.running.Go(func() {
			conn.SetReadDeadline(time.Now().Add(greeting))
			p := greet(r, conn)
			<-r.slots
			if p != nil {
				r.mesh.listen(p)
			}
		})
	}
}

// dismiss closes the connections of the n oldest guests.
func (r *reception) dismiss(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.guests))
	for _, conn := range r.guests[:n] {
		conn.Close()
	}
	r.guests = slices.Delete(r.guests, 0, n)
}

// leaves removes a guest from the list, and reports whether it was in the list.
func (r *reception) leaves(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.guests, conn)
	if i < 0 {
		return false
	}
	r.guests = slices.Delete(r.guests, i, i+1)
	return true
}

// handshake exchanges identities over a link: a process of the world becomes a peer.
type handshake struct{ mesh *mesh }

// welcome makes a process of this run a peer, or rejects it.
func (hs handshake) welcome(conn net.Conn, l link, h hello) *peer {
	p, err := hs.answer(l, h)
	if err != nil {
		l.post(encodeCause(causeOf(hs.mesh.self, err)))
	}
	if p == nil {
		l.close()
		return nil
	}
	conn.SetReadDeadline(time.Time{})
	return p
}

// answer returns the peer for a process of this run, or an error that is sent to it.
func (hs handshake) answer(l link, h hello) (*peer, error) {
	if err := hs.fits(h); err != nil {
		hs.mesh.abort(err)
		return nil, err
	}
	if h.Rank == hs.mesh.o.Rank {
		err := hs.mesh.self.failed("process %d on %s claims the same rank of %s: %s", h.PID, h.Host, hs.mesh.o.run(),
			distinct)
		hs.mesh.abort(err)
		return nil, err
	}
	if h.Rank <= hs.mesh.o.Rank || h.Rank >= hs.mesh.o.Size {
		return nil, nil // a process with this rank never connects to this one
	}
	return hs.admit(l, h, hs.hello().encode())
}

// fits returns an error that describes why a process of this run cannot belong to this world, or nil if it can.
func (hs handshake) fits(h hello) error {
	var what, mine, theirs string
	switch {
	case h.Protocol != protocol:
		what, mine, theirs = "the protocol: the processes run different versions of hocket", strconv.Itoa(protocol),
			strconv.Itoa(h.Protocol)
	case h.Size != hs.mesh.o.Size:
		what, mine, theirs = "the size of the world", strconv.Itoa(hs.mesh.o.Size), strconv.Itoa(h.Size)
	default:
		return nil
	}
	return hs.mesh.disagree(what, mine, h.Rank, theirs)
}

// introduce sends this process's identity over a link and reads the identity of the process at the other end.
func (hs handshake) introduce(l link, rank int) (*peer, error) {
	if err := l.send(hs.hello().encode(), greeting); err != nil {
		return nil, nil
	}
	phase("introduced")
	m, fds, err := l.receive()
	closeAll(fds)
	if err != nil {
		return nil, nil // the connection was closed because of too many guests, or because its process has died
	}
	switch m := m.(type) {
	case aborted:
		return nil, m.cause.err()
	case hello:
		if m.Rank != rank {
			return nil, fmt.Errorf("the socket of rank %d belongs to rank %d", rank, m.Rank)
		}
		return hs.admit(l, m, nil)
	}
	return nil, fmt.Errorf("rank %d answered with a %T", rank, m)
}

func (hs handshake) hello() hello {
	return hello{Protocol: protocol, ID: hs.mesh.o.ID, Size: hs.mesh.o.Size, member: hs.mesh.self}
}

// admit makes the process at the other end a peer. If the process at the other end has dialed this one, admit first
// sends it answer, this process's identity.
func (hs handshake) admit(l link, h hello, answer []byte) (*peer, error) {
	uid, pid, err := l.owner()
	switch {
	case err != nil:
		return nil, err
	case int(uid) != os.Geteuid():
		return nil, fmt.Errorf("rank %d runs as user %d, but this process runs as user %d", h.Rank, uid, os.Geteuid())
	}
	if pid != 0 {
		h.PID = pid
	}
	hs.mesh.mu.Lock()
	defer hs.mesh.mu.Unlock()
	if hs.mesh.why != nil {
		return nil, hs.mesh.why
	}
	if old := hs.mesh.peers[h.Rank]; old != nil {
		return nil, old.failed("has joined already, so process %d cannot join with the same rank", h.PID)
	}
	h.Outer = hs.mesh.o.outer(h.Rank)
	p := &peer{member: h.member, link: l}
	if answer != nil {
		if err := l.send(answer, 0); err != nil {
			return nil, nil
		}
	}
	if far, ok := l.(*tcpLink); ok {
		far.trust()
	}
	hs.mesh.peers[h.Rank] = p
	hs.mesh.notify()
	return p, nil
}
