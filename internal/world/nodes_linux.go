package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Processes of several nodes meet at process 0, which listens at an address that all of them know. Each process sends
// to process 0 the name of its node and its own listening address. When all processes have arrived, process 0 sends the
// complete list to each. Each process then creates its links: to processes of its own node through a folder, to others
// over TCP.

// dialNet connects to a process of another node. Tests replace it with connections that can be interrupted.
var dialNet = func(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: greeting}
	return d.DialContext(ctx, "tcp", addr)
}

// rollCall distributes the list of all processes, with the node and the address of each.
type rollCall struct {
	mesh   *mesh
	secret *secret
	list   []arrival // the arrival of each rank; complete before there are peers; guarded by mesh.mu

	sync.Mutex            // guards the following fields, which process 0 fills while the others arrive
	came       []*arrival // by rank
	lines      []link     // for each rank: connection on which the process waits for the list
	all        chan struct{}
	first      string // the reason why the first guest was rejected; "" if none was rejected
}

// dial connects to a process of another node, and checks that it knows the token.
func (c *rollCall) dial(ctx context.Context, addr string) (net.Conn, link, error) {
	raw, err := dialNet(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	conn, err := c.secret.dial(ctx, raw)
	if err != nil {
		raw.Close()
		if err = fmt.Errorf("%s: %w", addr, err); errors.Is(err, errToken) {
			err = &refusal{err}
		}
		return nil, nil, err
	}
	return conn, newTCPLink(conn), nil
}

// greetTCP reads the identity of a guest that has connected over TCP. A guest that does not know the token is
// rejected.
func (c *rollCall) greetTCP(r *reception, raw net.Conn) *peer {
	conn, err := c.secret.accept(raw)
	if err != nil {
		if r.leaves(raw) {
			c.sentAway(raw, nil, err)
		}
		raw.Close()
		return nil
	}
	l := newTCPLink(conn)
	m, _, err := l.receive()
	if !r.leaves(raw) || err != nil {
		c.sentAway(raw, m, err)
		l.close()
		return nil
	}
	switch m := m.(type) {
	case hello:
		c.mesh.mu.Lock()
		complete := c.list != nil
		c.mesh.mu.Unlock()
		if m.ID == c.mesh.o.ID && complete { // a process that connects too early connects again
			return handshake{c.mesh}.welcome(conn, l, m)
		}
	case arrival:
		if m.ID == c.mesh.o.ID && c.mesh.o.Rank == 0 {
			c.mesh.running.Go(func() {
				c.enroll(conn, l, m)
				l.close()
			})
			return nil
		}
	}
	l.close()
	return nil
}

// sentAway records why the first guest was rejected. Errors mention this, because the guest may be a process of this
// run.
func (c *rollCall) sentAway(conn net.Conn, m message, err error) {
	if bad, ok := m.(malformed); ok && err == nil {
		err = bad
	}
	c.Lock()
	defer c.Unlock()
	if c.first == "" && err != nil {
		c.first = fmt.Sprintf("; a connection from %v was rejected: %v", conn.RemoteAddr(), err)
	}
}

// enroll records a process that has connected to process 0, and sends the list when all processes have connected.
func (c *rollCall) enroll(conn net.Conn, l link, a arrival) {
	err := handshake{c.mesh}.fits(a.hello)
	port, perr := strconv.ParseUint(a.Addr, 10, 16)
	if err == nil && (a.Rank <= 0 || a.Rank >= c.mesh.o.Size || perr != nil || a.Node == "") {
		return // invalid: hocket never sends such an arrival
	}
	a.Outer = a.Rank
	if err == nil {
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		a.Addr = net.JoinHostPort(host, strconv.FormatUint(port, 10))
		c.Lock()
		if old := c.came[a.Rank]; old != nil && *old != a {
			err = old.member.failed("has joined already, so process %d on %s cannot join with the same rank", a.PID, a.Host)
		} else {
			if c.lines[a.Rank] != nil { // closes an earlier connection of the same process that has failed
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
		c.mesh.abort(err)
		l.post(encodeCause(causeOf(c.mesh.self, err)))
		return
	}
	select {
	case <-c.mesh.done:
		l.post(encodeCause(causeOf(c.mesh.self, c.mesh.err())))
		return
	case <-c.all:
	}
	for _, a := range c.everybody() {
		if l.send(a.encode(), greeting) != nil {
			return
		}
	}
}

// everybody returns the arrivals of all processes, or nil if some have not arrived. The address of process 0 is
// omitted, because all processes know it.
func (c *rollCall) everybody() []arrival {
	c.Lock()
	defer c.Unlock()
	all := []arrival{{hello: handshake{c.mesh}.hello(), Node: c.mesh.o.Node}}
	for _, a := range c.came[1:] {
		all = append(all, *a)
	}
	return all
}

// call returns when this process has the list of all processes. call also returns the listener, if any, to which other
// processes connect. ctx limits the wait for process 0. linking limits the wait of process 0 for the others. linking
// ends earlier than ctx, because process 0 can report which processes are absent.
func (c *rollCall) call(ctx, linking context.Context) (listener net.Listener, err error) {
	if c.secret, err = newSecret(c.mesh.o); err != nil {
		return nil, err
	}
	if c.mesh.o.Node == "" {
		c.mesh.o.Node = c.mesh.self.Host
	}
	var roll []arrival
	if c.mesh.o.Rank == 0 {
		roll, listener, err = c.awaitRoll(linking)
	} else {
		roll, listener, err = c.askRoll(ctx)
	}
	if err != nil {
		return listener, err
	}
	roll[0].Addr = c.mesh.o.Meet
	c.mesh.mu.Lock()
	defer c.mesh.mu.Unlock()
	c.list, c.mesh.nodes = roll, numberNodes(roll)
	c.mesh.o.Local, c.mesh.o.LocalSize = 0, 0
	for r := range roll {
		if !c.mesh.near(r) {
			continue
		}
		if r < c.mesh.o.Rank {
			c.mesh.o.Local++
		}
		c.mesh.o.LocalSize++
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

// awaitRoll runs in process 0. Process 0 listens, and waits until all other processes have arrived.
func (c *rollCall) awaitRoll(ctx context.Context) ([]arrival, net.Listener, error) {
	listener, err := c.listenMeet()
	if err != nil {
		return nil, nil, fmt.Errorf("listening at %s, the address of HOCKET_MEET: %w; set HOCKET_MEET to another port in all "+
			"processes", c.mesh.o.Meet, err)
	}
	c.came, c.lines, c.all = make([]*arrival, c.mesh.o.Size), make([]link, c.mesh.o.Size), make(chan struct{})
	c.mesh.running.Go(func() { newReception(c.mesh).receive(listener, c.greetTCP) })
	select {
	case <-c.all:
		return c.everybody(), listener, nil
	case <-c.mesh.done:
		return nil, listener, c.mesh.err()
	case <-ctx.Done():
	}
	if why := c.mesh.err(); why != nil {
		return nil, listener, why
	}
	var absent []int
	c.Lock()
	for r, a := range c.came {
		if r > 0 && a == nil {
			absent = append(absent, r)
		}
	}
	c.Unlock()
	if len(absent) == 0 {
		return c.everybody(), listener, nil
	}
	err = c.mesh.absent(ctx, "join", absent)
	var peer *PeerError
	if errors.As(err, &peer) {
		c.Lock()
		peer.Why += c.first
		c.Unlock()
	}
	c.mesh.abort(err)
	return nil, listener, err
}

// listenMeet listens at the address where all other processes connect.
func (c *rollCall) listenMeet() (net.Listener, error) {
	if c.mesh.o.MeetFD == 0 {
		return net.Listen("tcp", c.mesh.o.Meet)
	}
	file := os.NewFile(uintptr(c.mesh.o.MeetFD), "HOCKET_MEET_FD")
	defer file.Close()
	return net.FileListener(file)
}

// askRoll runs in the other processes. The process connects to process 0, and waits for the list.
func (c *rollCall) askRoll(ctx context.Context) (roll []arrival, listener net.Listener, err error) {
	var last, greeted error // greeted is that of the first connection that succeeded
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if roll, last = c.askOnce(ctx, &listener); last == nil {
			return roll, listener, nil
		}
		var refused *refusal
		if errors.As(last, &refused) {
			return nil, listener, refused.error
		}
		var dial *net.OpError
		if greeted == nil && ctx.Err() == nil && !(errors.As(last, &dial) && dial.Op == "dial") {
			if greeted = last; errors.Is(last, io.EOF) {
				greeted = errors.New("it closed the connection")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if why := c.mesh.err(); why != nil {
		return nil, listener, why
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, listener, fmt.Errorf("waiting for rank 0 at %s: %w", c.mesh.o.Meet, ctx.Err())
	}
	if greeted != nil {
		last = fmt.Errorf("%w; set HOCKET_MEET, HOCKET_TOKEN, HOCKET_TLS_CERT and HOCKET_TLS_KEY to the same values in all processes",
			greeted)
	}
	return nil, listener, c.mesh.member(0).failed("absent: did not join at %s within %v: %v", c.mesh.o.Meet,
		c.mesh.o.JoinTimeout, last)
}

// refusal is an error for which retrying has no purpose.
type refusal struct{ error }

// askOnce connects to process 0 once. In its first call, askOnce creates the listener, on the interface that reaches
// process 0.
func (c *rollCall) askOnce(ctx context.Context, listener *net.Listener) ([]arrival, error) {
	conn, l, err := c.dial(ctx, c.mesh.o.Meet)
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
		c.mesh.running.Go(func() { newReception(c.mesh).receive(*listener, c.greetTCP) })
	}
	_, port, _ := net.SplitHostPort((*listener).Addr().String())
	if err := l.send(arrival{handshake{c.mesh}.hello(), c.mesh.o.Node, port}.encode(), greeting); err != nil {
		return nil, err
	}
	phase("introduced")
	var roll []arrival
	for len(roll) < c.mesh.o.Size {
		m, _, err := l.receive()
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case aborted:
			return nil, &refusal{m.cause.err()}
		case arrival:
			if m.Rank != len(roll) || m.Node == "" {
				return nil, &refusal{fmt.Errorf("rank 0 sent the address of rank %d instead of rank %d", m.Rank, len(roll))}
			}
			roll = append(roll, m)
		case malformed:
			return nil, m
		default:
			return nil, fmt.Errorf("rank 0 answered with a %T", m)
		}
	}
	return roll, nil
}
