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
	cert, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, fmt.Errorf("the certificate of HOCKET_TLS_CERT: %w", err)
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
func (v *rendezvous) dialTCP(ctx context.Context, addr string) (net.Conn, link, error) {
	conn, err := dialNet(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	if v.secret.tls != nil {
		c := tls.Client(conn, v.secret.tls)
		bounded, cancel := context.WithTimeout(ctx, greeting)
		defer cancel()
		if err := c.HandshakeContext(bounded); err != nil {
			conn.Close()
			return nil, nil, fmt.Errorf("%s: %w", addr, err)
		}
		conn = c
	}
	l := newTCPLink(conn)
	l.post(token{v.secret.token}.encode())
	return conn, l, nil
}

// greetTCP hears who a guest is that came over TCP. Who does not show the token is sent away.
func (v *rendezvous) greetTCP(r *reception, conn net.Conn) *peer {
	raw := conn
	if v.secret.tls != nil {
		conn = tls.Server(conn, v.secret.tls)
	}
	l := newTCPLink(conn)
	m, _, err := l.receive()
	t, ok := m.(token)
	known := err == nil && ok && subtle.ConstantTimeCompare([]byte(t.text), []byte(v.secret.token)) == 1
	if known {
		m, _, err = l.receive()
	}
	if !r.leaves(raw) || err != nil || !known {
		if err == nil && ok {
			l.post(encodeCause(causeOf(v.mesh.self, errors.New(
				"it is of a run with another token: set HOCKET_TOKEN alike in all processes of a run"))))
		}
		l.close()
		return nil
	}
	switch m := m.(type) {
	case hello:
		v.mesh.mu.Lock()
		complete := v.roll != nil
		v.mesh.mu.Unlock()
		if m.ID == v.mesh.o.ID && complete { // a process that comes too early dials again
			return v.welcome(conn, l, m)
		}
	case arrival:
		if m.ID == v.mesh.o.ID && v.mesh.o.Rank == 0 {
			v.mesh.running.Go(func() {
				v.enroll(conn, l, m)
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
func (v *rendezvous) enroll(conn net.Conn, l link, a arrival) {
	err := v.fits(a.hello)
	port, perr := strconv.ParseUint(a.Addr, 10, 16)
	if err == nil && (a.Rank <= 0 || a.Rank >= v.mesh.o.Size || perr != nil || a.Node == "") {
		return // none that hocket sends
	}
	c := v.called
	if err == nil {
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		a.Addr = net.JoinHostPort(host, strconv.FormatUint(port, 10))
		c.Lock()
		if old := c.came[a.Rank]; old != nil && *old != a {
			err = old.member.failed("has joined already, so process %d on %s cannot join with the same rank", a.PID, a.Host)
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
		v.mesh.abort(err)
		l.post(encodeCause(causeOf(v.mesh.self, err)))
		return
	}
	select {
	case <-v.mesh.done:
		l.post(encodeCause(causeOf(v.mesh.self, v.mesh.err())))
		return
	case <-c.all:
	}
	for _, a := range v.everybody() {
		if l.send(a.encode(), greeting) != nil {
			return
		}
	}
}

// everybody returns who has come, when all have: process 0 and the others. Its own address nobody needs, for all
// know it.
func (v *rendezvous) everybody() []arrival {
	c := v.called
	c.Lock()
	defer c.Unlock()
	all := []arrival{{hello: v.hello(), Node: v.mesh.o.Node}}
	for _, a := range c.came[1:] {
		all = append(all, *a)
	}
	return all
}

// callRoll learns who is on which node, and where to find whom. The listener, where there is one, takes
// connections of others. ctx bounds the wait for process 0, linking that of process 0 for the others: it knows
// who is absent.
func (v *rendezvous) callRoll(ctx, linking context.Context) (listener net.Listener, err error) {
	if v.secret, err = newSecret(v.mesh.o); err != nil {
		return nil, err
	}
	if v.mesh.o.Node == "" {
		v.mesh.o.Node = v.mesh.self.Host
	}
	var roll []arrival
	if v.mesh.o.Rank == 0 {
		roll, listener, err = v.awaitRoll(linking)
	} else {
		roll, listener, err = v.askRoll(ctx)
	}
	if err != nil {
		return listener, err
	}
	roll[0].Addr = v.mesh.o.Meet
	v.mesh.mu.Lock()
	defer v.mesh.mu.Unlock()
	v.roll, v.mesh.nodes = roll, numberNodes(roll)
	v.mesh.o.Local, v.mesh.o.LocalSize = 0, 0
	for r := range roll {
		if !v.mesh.near(r) {
			continue
		}
		if r < v.mesh.o.Rank {
			v.mesh.o.Local++
		}
		v.mesh.o.LocalSize++
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
func (v *rendezvous) awaitRoll(ctx context.Context) ([]arrival, net.Listener, error) {
	listener, err := v.listenMeet()
	if err != nil {
		return nil, nil, fmt.Errorf("listening at %s, where the nodes meet: %w; set HOCKET_MEET to another port, in all "+
			"processes", v.mesh.o.Meet, err)
	}
	v.called = &rollCall{came: make([]*arrival, v.mesh.o.Size), lines: make([]link, v.mesh.o.Size), all: make(chan struct{})}
	v.mesh.running.Go(func() { v.receive(listener, v.greetTCP) })
	select {
	case <-v.called.all:
		return v.everybody(), listener, nil
	case <-v.mesh.done:
		return nil, listener, v.mesh.err()
	case <-ctx.Done():
	}
	if why := v.mesh.err(); why != nil {
		return nil, listener, why
	}
	var absent []int
	v.called.Lock()
	for r, a := range v.called.came {
		if r > 0 && a == nil {
			absent = append(absent, r)
		}
	}
	v.called.Unlock()
	if len(absent) == 0 {
		return v.everybody(), listener, nil
	}
	err = v.absent(ctx, "join", absent)
	v.mesh.abort(err)
	return nil, listener, err
}

// listenMeet listens where all others come to.
func (v *rendezvous) listenMeet() (net.Listener, error) {
	if v.mesh.o.MeetFD == 0 {
		return net.Listen("tcp", v.mesh.o.Meet)
	}
	file := os.NewFile(uintptr(v.mesh.o.MeetFD), "HOCKET_MEET_FD")
	defer file.Close()
	return net.FileListener(file)
}

// askRoll is what the others do: they come to process 0, and wait for its answer.
func (v *rendezvous) askRoll(ctx context.Context) (roll []arrival, listener net.Listener, err error) {
	var last error
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if roll, last = v.askOnce(ctx, &listener); last == nil {
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
	if why := v.mesh.err(); why != nil {
		return nil, listener, why
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, listener, fmt.Errorf("waiting for rank 0 at %s: %w", v.mesh.o.Meet, ctx.Err())
	}
	return nil, listener, v.mesh.member(0).failed("absent: did not join at %s within %v: %v", v.mesh.o.Meet, v.mesh.o.JoinTimeout, last)
}

// refusal is an error that another attempt does not mend.
type refusal struct{ error }

// askOnce asks process 0 once. The first time it makes the listener, on the interface by which process 0 is
// reached.
func (v *rendezvous) askOnce(ctx context.Context, listener *net.Listener) ([]arrival, error) {
	conn, l, err := v.dialTCP(ctx, v.mesh.o.Meet)
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
		v.mesh.running.Go(func() { v.receive(*listener, v.greetTCP) })
	}
	_, port, _ := net.SplitHostPort((*listener).Addr().String())
	if err := l.send(arrival{v.hello(), v.mesh.o.Node, port}.encode(), greeting); err != nil {
		return nil, err
	}
	phase("introduced")
	var roll []arrival
	for len(roll) < v.mesh.o.Size {
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
