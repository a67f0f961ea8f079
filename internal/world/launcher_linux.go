package world

import (
	"encoding/json"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A launcher and the processes that it has started communicate over a local socket. A process
// reports that it begins to join, that it has joined, and why its world has ended. The launcher
// reports exited processes to processes that still wait for these to join.

// toLaunch is a message of a process to its launcher.
type toLaunch struct {
	ID     string // of the run
	Rank   int
	Joined bool   `json:",omitempty"`
	Ended  *cause `json:",omitempty"`
}

// Launcher is the launcher's end of the connections to the processes that it has started. A Launcher records which
// processes have joined, and why their world ended. A nil Launcher records nothing.
type Launcher struct {
	id       string
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}
	open    map[*net.UnixConn]joiner
	joined  map[int]int  // for each rank: number of worlds that the process has joined
	exited  []*PeerError // errors of exited processes, in the order of their exits
	ended   *cause       // the first cause that a process has reported

	reported chan struct{} // closed when ended is set
}

// joiner is a connected process.
type joiner struct {
	rank, world int  // world is the number of the world that the process joins, counted from 1
	in          bool // whether it has joined
}

const maxToLaunch = maxCause + 1<<10

// NewLauncher listens for the processes of the run id.
func NewLauncher(id string) (*Launcher, error) {
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@hocket-launch-" + id, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l := &Launcher{id: id, listener: listener, changed: make(chan struct{}), open: map[*net.UnixConn]joiner{},
		joined: map[int]int{}, reported: make(chan struct{})}
	l.serving.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			l.serving.Go(func() { l.serve(conn) })
		}
	})
	return l, nil
}

// Address is the value of HOCKET_LAUNCHER for the processes.
func (l *Launcher) Address() string { return l.listener.Addr().String() }

// Close closes the connections.
func (l *Launcher) Close() {
	if l == nil {
		return
	}
	l.listener.Close()
	l.mu.Lock()
	for conn := range l.open {
		conn.Close()
	}
	l.mu.Unlock()
	l.serving.Wait()
}

// serve handles the messages of a process until it closes the connection.
func (l *Launcher) serve(conn *net.UnixConn) {
	defer conn.Close()
	if !sameUser(conn) {
		return
	}
	packet := make([]byte, maxToLaunch)
	for {
		n, err := conn.Read(packet)
		if err != nil || n == 0 {
			break
		}
		var m toLaunch
		if json.Unmarshal(packet[:n], &m) != nil || m.ID != l.id {
			break
		}
		l.handle(conn, m)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, conn)
	l.notify()
}

func (l *Launcher) handle(conn *net.UnixConn, m toLaunch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j, known := l.open[conn]
	if !known {
		j = joiner{rank: m.Rank, world: l.joined[m.Rank] + 1}
	}
	if m.Joined && !j.in {
		j.in = true
		l.joined[j.rank]++
	}
	l.open[conn] = j
	if m.Ended != nil && l.ended == nil {
		l.ended = m.Ended
		close(l.reported)
	}
	for _, gone := range l.exited { // the first process that exited caused the other exits
		l.sendExit(conn, j, gone)
	}
}

// sendExit sends the error of an exited process to a process that still waits for it to join the same world. The caller
// has locked mu.
func (l *Launcher) sendExit(conn *net.UnixConn, j joiner, gone *PeerError) {
	if j.in || j.rank == gone.Rank || l.joined[gone.Rank] >= j.world {
		return
	}
	text, err := json.Marshal(gone)
	if err == nil {
		conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write(text)
	}
}

// Exited records that a process has exited. The argument how describes the exit.
func (l *Launcher) Exited(rank, pid int, how string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	late := time.After(time.Second)
	for l.connected(rank) { // wait, because the launcher may not have read the process's last messages yet
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
			continue
		case <-late: // do not wait longer: a child process may hold the connection open
		}
		l.mu.Lock()
		return
	}
	gone := &PeerError{Rank: rank, PID: pid, Host: hostName(), Why: how + " before it joined the others"}
	l.exited = append(l.exited, gone)
	for conn, j := range l.open {
		l.sendExit(conn, j, gone)
	}
}

// connected reports whether a process has a connection. The caller holds mu.
func (l *Launcher) connected(rank int) bool {
	for _, j := range l.open {
		if j.rank == rank {
			return true
		}
	}
	return false
}

// notify wakes Exited. The caller holds mu.
func (l *Launcher) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Reported returns a channel that is closed when Cause has an error to return.
func (l *Launcher) Reported() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.reported
}

// Cause returns the reason why the world of the processes has ended, as reported by the first of them; nil if no
// process has reported one.
func (l *Launcher) Cause() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		return nil
	}
	return l.ended.err()
}

func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return host
}

// sameUser reports whether the process at the other end belongs to the user of this process.
func sameUser(conn *net.UnixConn) bool {
	l, err := newLink(conn)
	if err != nil {
		return false
	}
	uid, _, err := l.owner()
	return err == nil && int(uid) == syscall.Geteuid()
}

// launched is the end of a launcher's connection in a process that it has started. The methods of a nil *launched do
// nothing.
type launched struct {
	conn *net.UnixConn
	mesh *mesh
}

// dialLauncher reports to the launcher, if there is one, that this process begins to join. dialLauncher then receives
// reports about processes that have exited and therefore will not join.
func dialLauncher(m *mesh) *launched {
	if m.o.Launcher == "" || m.o.Size == 1 {
		return nil
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: m.o.Launcher, Net: "unixpacket"})
	if err != nil {
		return nil // the launcher may be unreachable, for example in another network namespace; timeouts then apply
	}
	if !sameUser(conn) {
		conn.Close()
		return nil
	}
	l := &launched{conn, m}
	l.say(toLaunch{})
	m.running.Go(func() {
		packet := make([]byte, maxToLaunch)
		for {
			n, err := conn.Read(packet)
			if err != nil || n == 0 {
				return
			}
			var gone PeerError
			if json.Unmarshal(packet[:n], &gone) == nil {
				m.abort(&gone)
			}
		}
	})
	return l
}

func (l *launched) say(m toLaunch) {
	if l == nil {
		return
	}
	m.ID, m.Rank = l.mesh.o.ID, l.mesh.o.Rank
	text, err := json.Marshal(m)
	if err == nil && len(text) <= maxToLaunch {
		l.conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = l.conn.Write(text)
	}
}

// joined reports that this process has joined.
func (l *launched) joined() { l.say(toLaunch{Joined: true}) }

// ended reports why the world has ended.
func (l *launched) ended(c cause) {
	var short cause
	if json.Unmarshal(c.encode(), &short) == nil {
		l.say(toLaunch{Ended: &short})
	}
}

func (l *launched) close() {
	if l != nil {
		l.conn.Close()
	}
}
