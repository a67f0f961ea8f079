package world

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type unixStat = syscall.Stat_t

// rendezvous creates the links of a process to all others.
type rendezvous struct {
	mesh     *mesh
	detector *detector
	roll     *rollCall // nil if there is only one node
	met      atomic.Bool
	claim    *claim // nil if this process is the only one on its node, or if the world is a group
}

// claim is this process's hold on its rank of a run. The claim lasts until the process leaves the world. If another
// process claims the same rank, even long after all have joined, two jobs have the same ID, and the world ends.
type claim struct {
	folder   *folder
	listener net.Listener
}

func (c *claim) release() {
	if c != nil {
		c.listener.Close() // removes the socket
		c.folder.close()
	}
}

// meet creates links to all other processes. Each process dials the processes of lower rank. A process that has links
// to all others reports this to them. A process has joined when all others have reported that they have all their
// links. Over each link, a process receives reports of failures of the process at the other end. After the time limit,
// the error lists the processes to which this process has no link.
func (v *rendezvous) meet(ctx context.Context) (err error) {
	// A process that has all its links waits a little longer than a process that lacks some, because the latter can
	// report which processes are absent.
	ctx, cancel := context.WithTimeout(ctx, v.mesh.o.JoinTimeout+min(v.mesh.o.JoinTimeout/4, 5*time.Second))
	defer cancel()
	linking, cancelLinking := context.WithTimeout(ctx, v.mesh.o.JoinTimeout)
	defer cancelLinking()
	v.mesh.running.Go(func() { // stop dialling when the world fails
		select {
		case <-v.mesh.done:
			cancel()
		case <-ctx.Done():
		}
	})
	id := v.mesh.o.ID
	if v.mesh.o.Meet != "" {
		v.roll = &rollCall{mesh: v.mesh}
		listener, err := v.roll.call(ctx, linking)
		if listener != nil {
			defer listener.Close()
		}
		if err != nil {
			return err
		}
		id += " node " + v.roll.list[v.mesh.o.Rank].Node
	}
	var d *folder
	var own *claim
	var dialling sync.WaitGroup
	defer func() {
		if err != nil {
			v.mesh.abort(err)
		}
		cancel()
		dialling.Wait() // the goroutines use the folder
		switch {
		case own != nil && err == nil && v.mesh.o.group == nil:
			v.claim = own
		case own != nil:
			own.release()
		case d != nil:
			d.close()
		}
	}()
	if v.mesh.o.LocalSize > 1 {
		if d, err = openFolder(ctx, v.mesh.o.Dir, id); err != nil {
			return err
		}
		phase("folder")
		listener, err := d.bind(handshake{v.mesh}.hello())
		if err != nil {
			return err
		}
		own = &claim{d, listener}
		phase("bound")
		v.mesh.running.Go(func() { newReception(v.mesh).receive(listener, v.greetUnix) })
	}
	for rank := range v.mesh.o.Rank {
		dialling.Go(func() {
			v.dial(ctx, rank, func() (net.Conn, link, error) {
				if !v.mesh.near(rank) {
					return v.roll.dial(ctx, v.roll.list[rank].Addr)
				}
				addr := d.socket(rank)
				conn, err := net.DialUnix(addr.Net, nil, addr)
				if err != nil {
					return nil, nil, err
				}
				l, err := newLink(conn)
				if err != nil {
					conn.Close()
				}
				return conn, l, err
			})
		})
	}
	if err := v.awaitAll(linking, "join", func(p *peer) bool { return p != nil }); err != nil {
		return err
	}
	phase("linked")
	if err := v.sayReady(); err != nil {
		return err
	}
	phase("ready")
	if err := v.awaitAll(ctx, "finish joining", func(p *peer) bool { return p.ready }); err != nil {
		return err
	}
	v.met.Store(true)
	return nil
}

// awaitAll waits until the function there returns true for all other processes.
func (v *rendezvous) awaitAll(ctx context.Context, what string, there func(*peer) bool) error {
	var absent []int
	err := v.mesh.await(ctx, func() (bool, error) {
		absent = absent[:0]
		for r, p := range v.mesh.peers {
			if r != v.mesh.o.Rank && !there(p) {
				absent = append(absent, r)
			}
		}
		return len(absent) == 0, nil
	})
	if err == nil || ctx.Err() == nil || v.mesh.err() != nil {
		return err
	}
	return v.mesh.absent(ctx, what, absent)
}

// greetUnix reads the identity of a guest on this node. A process of the world becomes a peer; any other guest is
// rejected.
func (v *rendezvous) greetUnix(r *reception, conn net.Conn) *peer {
	l, err := newLink(conn.(*net.UnixConn))
	if err != nil {
		r.leaves(conn)
		conn.Close()
		return nil
	}
	m, fds, err := l.receive()
	closeAll(fds)
	h, ok := m.(hello)
	if !r.leaves(conn) || err != nil || !ok || h.ID != v.mesh.o.ID {
		conn.Close()
		return nil
	}
	if v.met.Load() && h.Rank != v.mesh.o.Rank { // the guest is of the next run with this ID, and connects again later
		conn.Close()
		return nil
	}
	return handshake{v.mesh}.welcome(conn, l, h)
}

// dial creates the link to a process of lower rank, using open to connect. It retries until ctx
// ends.
func (v *rendezvous) dial(ctx context.Context, rank int, open func() (net.Conn, link, error)) {
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		p, err := v.call(ctx, rank, open)
		switch {
		case err != nil:
			v.mesh.abort(err)
			return
		case p != nil:
			v.mesh.running.Go(func() { v.mesh.listen(p) })
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// call dials a process once. call returns nil if the process is not listening yet.
func (v *rendezvous) call(ctx context.Context, rank int, open func() (net.Conn, link, error)) (*peer, error) {
	conn, l, err := open()
	if err != nil {
		return nil, nil
	}
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	p, err := handshake{v.mesh}.introduce(l, rank)
	if p == nil {
		if ctx.Err() != nil {
			<-v.mesh.done // wait for the world's end, whose cause meet returns
		}
		if why := v.mesh.err(); why != nil { // the process at the other end may already consider this process a peer
			l.post(encodeCause(causeOf(v.mesh.self, why)))
		}
		l.close()
	}
	return p, err
}

// leader returns the process that creates the page of this node.
func (v *rendezvous) leader() int {
	for r := range v.mesh.o.Rank {
		if v.mesh.near(r) {
			return r
		}
	}
	return v.mesh.o.Rank
}

// sayReady reports to all others that this process has all its links. The first process of a node also sends the page
// to the other processes of its node.
func (v *rendezvous) sayReady() error {
	var fds []int
	if v.mesh.o.Rank == v.leader() {
		page, err := newPage(v.mesh.o.Size)
		if err != nil {
			return err
		}
		v.mesh.mu.Lock()
		v.setPage(page)
		v.mesh.mu.Unlock()
		defer page.seal()
		if err := withFD(page.file, func(fd int) { fds = []int{fd} }); err != nil {
			return err
		}
	}
	for r := range v.mesh.o.Size {
		var err error
		switch {
		case r == v.mesh.o.Rank:
			continue
		case v.mesh.near(r):
			err = v.mesh.sendTo(r, encodeReady(), fds...)
		default:
			err = v.mesh.sendTo(r, encodeReady())
		}
		if err != nil {
			return err
		}
		phase("within ready")
	}
	return nil
}

// isReady handles a peer's report that it has all its links.
func (v *rendezvous) isReady(p *peer, fds []int) error {
	v.mesh.mu.Lock()
	defer v.mesh.mu.Unlock()
	if p.ready || (len(fds) == 1) != (p.Rank == v.leader()) {
		return fmt.Errorf("%d files of a process that has joined", len(fds))
	}
	if p.Rank == v.leader() {
		page, err := openPage(take(&fds[0]), v.mesh.o.Size)
		if err != nil {
			return err
		}
		v.setPage(page)
	}
	p.ready = true
	v.mesh.notify()
	return nil
}

// setPage sets the page once the process that created it has all its links. The caller holds mu.
func (v *rendezvous) setPage(p *page) {
	for r := range v.mesh.o.Size {
		if !v.mesh.near(r) {
			p.separate(r)
		}
	}
	v.mesh.page = p
	v.mesh.running.Go(v.detector.watch)
}

// openPage maps the page that the first process of the node created.
func openPage(fd, size int) (*page, error) {
	file := os.NewFile(uintptr(fd), "page")
	s, err := mapSegment(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	if len(s.Bytes()) != pageBytes(size) {
		err := fmt.Errorf("a page of %d bytes, want %d", len(s.Bytes()), pageBytes(size))
		s.Close()
		return nil, err
	}
	p := &page{Segment: s, size: size}
	p.seal()
	return p, nil
}

// seal closes the file of the page. After that no further process can join. The page remains mapped.
func (p *page) seal() {
	p.file.Close()
	p.file = nil
}
