package world

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"hocket.example/hocket/internal/files"
)

// Processes of several nodes meet at process 0, which listens at a place that all of them know. Each tells it
// of which node it is and where it listens itself, and is told the same of all others when all have come. Then
// each has what it needs to make links: to processes of its own node by a folder, to others over TCP.

// dialNet connects to a process of another node. Tests cut such connections.
var dialNet = func(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: greeting}
	return d.DialContext(ctx, "tcp", addr)
}

// secret is how a process shows processes of other nodes that it is of the run.
type secret struct {
	token string
	tls   *tls.Config // nil for connections in the clear
}

// newSecret reads the certificate, where there is one.
func newSecret(o Options) (*secret, error) {
	s := &secret{token: o.Token}
	if o.Cert == "" {
		return s, nil
	}
	const mostPEM = 1 << 20
	shown, err := files.Read(o.Cert, mostPEM)
	if err != nil {
		return nil, fmt.Errorf("the certificate of HOCKET_TLS_CERT: %w", err)
	}
	key, err := files.Read(o.Key, mostPEM)
	if err != nil {
		return nil, fmt.Errorf("the key of HOCKET_TLS_KEY: %w", err)
	}
	cert, err := tls.X509KeyPair(shown, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate of HOCKET_TLS_CERT, %s, and its key: %w", o.Cert, err)
	}
	pinned := cert.Certificate[0]
	s.tls = &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{cert},
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // both ends show one certificate, which is compared whole
		VerifyPeerCertificate: func(shown [][]byte, _ [][]*x509.Certificate) error {
			if len(shown) == 0 || subtle.ConstantTimeCompare(shown[0], pinned) != 1 {
				return errors.New("the other end shows another certificate: set HOCKET_TLS_CERT alike in all processes")
			}
			return nil
		},
	}
	return s, nil
}

// dialTCP connects to a process of another node, and shows the token.
func (w *World) dialTCP(ctx context.Context, addr string) (net.Conn, link, error) {
	conn, err := dialNet(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	if w.secret.tls != nil {
		c := tls.Client(conn, w.secret.tls)
		bounded, cancel := context.WithTimeout(ctx, greeting)
		defer cancel()
		if err := c.HandshakeContext(bounded); err != nil {
			conn.Close()
			return nil, nil, fmt.Errorf("%s: %w", addr, err)
		}
		conn = c
	}
	l := newTCPLink(conn)
	l.post(token{w.secret.token}.encode())
	return conn, l, nil
}

// greetTCP hears who a guest is that came over TCP. Who does not show the token is sent away.
func (w *World) greetTCP(r *reception, conn net.Conn) *peer {
	raw := conn
	if w.secret.tls != nil {
		conn = tls.Server(conn, w.secret.tls)
	}
	l := newTCPLink(conn)
	m, _, err := l.receive()
	t, ok := m.(token)
	known := err == nil && ok && subtle.ConstantTimeCompare([]byte(t.text), []byte(w.secret.token)) == 1
	if known {
		m, _, err = l.receive()
	}
	if !r.leaves(raw) || err != nil || !known {
		if err == nil && ok {
			l.post(encodeCause(causeOf(w.self, errors.New(
				"it is of a run with another token: set HOCKET_TOKEN alike in all processes of a run"))))
		}
		l.close()
		return nil
	}
	switch m := m.(type) {
	case hello:
		w.mu.Lock()
		complete := w.roll != nil
		w.mu.Unlock()
		if m.ID == w.o.ID && complete { // a process that comes too early dials again
			return w.welcome(conn, l, m)
		}
	case arrival:
		if m.ID == w.o.ID && w.o.Rank == 0 {
			w.running.Go(func() {
				w.enroll(conn, l, m)
				l.close()
			})
			return nil
		}
	}
	l.close()
	return nil
}

// rollCall is what process 0 has of the others while they come.
type rollCall struct {
	sync.Mutex
	came  []*arrival // by rank
	lines []link     // by rank: where they wait for the answer
	all   chan struct{}
}

// enroll notes a process that has come to process 0, and answers when all have.
func (w *World) enroll(conn net.Conn, l link, a arrival) {
	err := w.fits(a.hello)
	port, perr := strconv.ParseUint(a.Addr, 10, 16)
	if err == nil && (a.Rank <= 0 || a.Rank >= w.o.Size || perr != nil || a.Node == "") {
		return // none that hocket sends
	}
	c := w.called
	if err == nil {
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		a.Addr = net.JoinHostPort(host, strconv.FormatUint(port, 10))
		c.Lock()
		if old := c.came[a.Rank]; old != nil && *old != a {
			err = old.member.failed("has joined already, so process %d on %s cannot join with the same rank", a.PID,
				a.Host)
		} else {
			if c.lines[a.Rank] != nil { // of a connection that broke
				c.lines[a.Rank].post(encodeBye())
			}
			c.came[a.Rank], c.lines[a.Rank] = &a, l
			if old == nil && !slices.Contains(c.came[1:], nil) {
				close(c.all)
			}
		}
		c.Unlock()
	}
	if err != nil {
		w.Abort(err)
		l.post(encodeCause(causeOf(w.self, err)))
		return
	}
	select {
	case <-w.done:
		l.post(encodeCause(causeOf(w.self, w.Err())))
		return
	case <-c.all:
	}
	for _, a := range w.everybody() {
		if l.send(a.encode(), greeting) != nil {
			return
		}
	}
}

// everybody returns who has come, when all have: process 0 and the others. Its own address nobody needs, for all
// know it.
func (w *World) everybody() []arrival {
	c := w.called
	c.Lock()
	defer c.Unlock()
	all := []arrival{{hello: w.hello(), Node: w.o.Node}}
	for _, a := range c.came[1:] {
		all = append(all, *a)
	}
	return all
}

// callRoll learns who is on which node, and where to find whom. The listener, where there is one, takes
// connections of others. ctx bounds the wait for process 0, linking that of process 0 for the others: it knows
// who is absent.
func (w *World) callRoll(ctx, linking context.Context) (listener net.Listener, err error) {
	if w.secret, err = newSecret(w.o); err != nil {
		return nil, err
	}
	if w.o.Node == "" {
		w.o.Node = w.self.Host
	}
	var roll []arrival
	if w.o.Rank == 0 {
		roll, listener, err = w.awaitRoll(linking)
	} else {
		roll, listener, err = w.askRoll(ctx)
	}
	if err != nil {
		return listener, err
	}
	roll[0].Addr = w.o.Meet
	w.mu.Lock()
	defer w.mu.Unlock()
	w.roll, w.nodes = roll, numberNodes(roll)
	w.o.Local, w.o.LocalSize = 0, 0
	for r := range roll {
		if !w.near(r) {
			continue
		}
		if r < w.o.Rank {
			w.o.Local++
		}
		w.o.LocalSize++
	}
	return listener, nil
}

// numberNodes numbers nodes in the order of their first processes.
func numberNodes(roll []arrival) []int {
	var names []string
	nodes := make([]int, len(roll))
	for r := range roll {
		if nodes[r] = slices.Index(names, roll[r].Node); nodes[r] < 0 {
			nodes[r], names = len(names), append(names, roll[r].Node)
		}
	}
	return nodes
}

// awaitRoll is process 0's part: it listens, and waits until all have come.
func (w *World) awaitRoll(ctx context.Context) ([]arrival, net.Listener, error) {
	listener, err := w.listenMeet()
	if err != nil {
		return nil, nil, fmt.Errorf("listening at %s, where the nodes meet: %w; set HOCKET_MEET to another port, in all "+
			"processes", w.o.Meet, err)
	}
	w.called = &rollCall{came: make([]*arrival, w.o.Size), lines: make([]link, w.o.Size), all: make(chan struct{})}
	w.running.Go(func() { w.receive(listener, w.greetTCP) })
	select {
	case <-w.called.all:
		return w.everybody(), listener, nil
	case <-w.done:
		return nil, listener, w.Err()
	case <-ctx.Done():
	}
	if why := w.Err(); why != nil {
		return nil, listener, why
	}
	var absent []int
	w.called.Lock()
	for r, a := range w.called.came {
		if r > 0 && a == nil {
			absent = append(absent, r)
		}
	}
	w.called.Unlock()
	if len(absent) == 0 {
		return w.everybody(), listener, nil
	}
	err = w.absent(ctx, "join", absent)
	w.Abort(err)
	return nil, listener, err
}

// listenMeet listens where all others come to.
func (w *World) listenMeet() (net.Listener, error) {
	if w.o.MeetFD == 0 {
		return net.Listen("tcp", w.o.Meet)
	}
	file := os.NewFile(uintptr(w.o.MeetFD), "HOCKET_MEET_FD")
	defer file.Close()
	return net.FileListener(file)
}

// askRoll is what the others do: they come to process 0, and wait for its answer.
func (w *World) askRoll(ctx context.Context) (roll []arrival, listener net.Listener, err error) {
	var last error
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if roll, last = w.askOnce(ctx, &listener); last == nil {
			return roll, listener, nil
		}
		var refused *refusal
		if errors.As(last, &refused) {
			return nil, listener, refused.error
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if why := w.Err(); why != nil {
		return nil, listener, why
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, listener, fmt.Errorf("waiting for rank 0 at %s: %w", w.o.Meet, ctx.Err())
	}
	return nil, listener, w.member(0).failed("absent: did not join at %s within %v: %v", w.o.Meet, w.o.JoinTimeout,
		last)
}

// refusal is an error that another attempt does not mend.
type refusal struct{ error }

// askOnce asks process 0 once. The first time it makes the listener, on the interface by which process 0 is
// reached.
func (w *World) askOnce(ctx context.Context, listener *net.Listener) ([]arrival, error) {
	conn, l, err := w.dialTCP(ctx, w.o.Meet)
	if err != nil {
		return nil, err
	}
	defer l.close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	if *listener == nil {
		host, _, _ := net.SplitHostPort(conn.LocalAddr().String())
		if *listener, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
			return nil, &refusal{err}
		}
		w.running.Go(func() { w.receive(*listener, w.greetTCP) })
	}
	_, port, _ := net.SplitHostPort((*listener).Addr().String())
	if err := l.send(arrival{w.hello(), w.o.Node, port}.encode(), greeting); err != nil {
		return nil, err
	}
	phase("introduced")
	var roll []arrival
	for len(roll) < w.o.Size {
		m, _, err := l.receive()
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case aborted:
			return nil, &refusal{m.cause.err()}
		case arrival:
			if m.Rank != len(roll) || m.Node == "" {
				return nil, &refusal{fmt.Errorf("rank 0 tells of rank %d in place of rank %d", m.Rank, len(roll))}
			}
			roll = append(roll, m)
		default:
			return nil, fmt.Errorf("rank 0 answered with a %T", m)
		}
	}
	return roll, nil
}
